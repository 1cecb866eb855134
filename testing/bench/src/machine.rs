//! The machine of the measurements, and facts from the system about processes.

use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use std::time::Duration;

/// The machine, the versions and the command line.
pub(crate) fn about() -> Value {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let system = rustix::system::uname();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown");
    json!({
        "cpu": field("model name").unwrap_or_else(|| "unknown".to_owned()),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "kernel": format!(
            "{} {} {}",
            system.sysname().to_string_lossy(),
            system.release().to_string_lossy(),
            system.machine().to_string_lossy()
        ),
        "load_before": load,
        "holdline": env!("CARGO_PKG_VERSION"),
        "sqlite": rusqlite::version(),
        "rustc": output("rustc", &["--version"]).unwrap_or_else(|| "unknown".to_owned()),
        "commit": output("git", &["describe", "--always", "--dirty"]),
        "command": command(),
    })
}

/// The command line, in a form that can be run again.
fn command() -> String {
    let args: Vec<String> = std::env::args().skip(1).collect();
    format!("cargo xtask bench {}", args.join(" "))
}

/// Prints it above the figures.
pub(crate) fn print(about: &Value) {
    for (name, value) in about.as_object().into_iter().flatten() {
        match value {
            Value::String(text) => println!("{name:<12} {text}"),
            Value::Null => {}
            other => println!("{name:<12} {other}"),
        }
    }
    println!();
    let cores = about["cores"].as_f64().unwrap_or(1.0);
    let load = about["load_before"].as_str().and_then(|load| load.parse::<f64>().ok());
    if load.is_some_and(|load| load > cores / 4.0) {
        println!("The machine is busy with other things: do not publish these figures.\n");
    }
}

/// The first line that a program prints.
pub(crate) fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|o| o.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

/// The CPU time that this process has used.
pub(crate) fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The CPU time of a process: from the scheduler's nanosecond counters of its live threads, or else
/// in clock ticks. `None` if there is no such process.
pub(crate) fn cpu_of(pid: u32) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut total = Duration::ZERO;
    for thread in threads.flatten() {
        match on_cpu(&thread.path()) {
            Some(time) => total += time,
            None => return ticks_of(pid),
        }
    }
    Some(total)
}

fn on_cpu(thread: &std::path::Path) -> Option<Duration> {
    let text = fs::read_to_string(thread.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// The CPU time of a process and all its descendants. Clock ticks include ended threads and
/// children, but lose up to two ticks of 10 ms; the scheduler counts nanoseconds of live threads
/// only. Neither counts too much, so this is the larger.
pub(crate) fn tree_cpu(pid: u32) -> Duration {
    let descendants: Duration = children(pid).map(tree_cpu).sum();
    ticks(pid, 4).max(cpu_of(pid)).unwrap_or_default() + descendants
}

/// The child processes of a process.
fn children(pid: u32) -> impl Iterator<Item = u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
    lists.flat_map(|text| {
        text.split_whitespace().filter_map(|it| it.parse().ok()).collect::<Vec<u32>>()
    })
}

fn ticks_of(pid: u32) -> Option<Duration> {
    ticks(pid, 2)
}

/// The sum of the first of these fields of `/proc/PID/stat`: its own user and system time (14, 15),
/// and those of its ended children. They are counted after the name, which may have spaces.
fn ticks(pid: u32, fields: usize) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let all = text.rsplit_once(')')?.1.split_whitespace().skip(11).take(fields);
    let ticks = all.map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// The CPU time of this process's thread of that name.
pub(crate) fn cpu_of_thread(name: &str) -> Option<Duration> {
    let threads = fs::read_dir("/proc/self/task").ok()?;
    let mut found = threads
        .flatten()
        .map(|thread| thread.path())
        .filter(|path| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name));
    on_cpu(&found.next()?)
}

/// The resident memory of this process, in bytes.
pub(crate) fn resident() -> Option<usize> {
    resident_of("self")
}

/// The memory of a process and all its descendants, in bytes: pages that several of them share, as
/// a database's processes do, count once. 0 if there is none.
pub(crate) fn tree_memory(pid: u32) -> f64 {
    let own = shared_out(pid).or_else(|| resident_of(&pid.to_string()));
    own.unwrap_or_default() as f64 + children(pid).map(tree_memory).sum::<f64>()
}

/// The resident memory of a process, of which shared pages count in parts.
fn shared_out(pid: u32) -> Option<usize> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn resident_of(process: &str) -> Option<usize> {
    let text = fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let pages: usize = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size())
}
