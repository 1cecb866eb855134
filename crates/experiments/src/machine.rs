//! Facts from the system: the machine, CPU time and memory of processes, listeners on ports.

use crate::{delay, timer};
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The machine and the versions on it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory: Option<u64>,
    pub(crate) system: String,
    pub(crate) load_before: Option<f64>,
    pub(crate) load_after: Option<f64>,
    pub(crate) holdline: String,
    pub(crate) optimized: bool,
}

/// This machine.
pub(crate) fn about() -> Machine {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = info.lines().find(|line| line.starts_with("model name"));
    let cpu = cpu.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned());
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory =
        memory.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    let system = rustix::system::uname();
    Machine {
        cpu: cpu.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory: memory.map(|kib: u64| kib * 1024),
        system: format!(
            "{} {}",
            system.sysname().to_string_lossy(),
            system.release().to_string_lossy()
        ),
        load_before: load(),
        load_after: None,
        holdline: env!("CARGO_PKG_VERSION").to_owned(),
        optimized: !cfg!(debug_assertions),
    }
}

/// The load average of the last minute.
pub(crate) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// The CPU time of a process in nanoseconds: from the scheduler's counters of its live threads, or
/// else in clock ticks. `None` if there is no such process or no `/proc`.
pub(crate) fn cpu(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut total = 0;
    for thread in threads.flatten() {
        match on_cpu(&thread.path()) {
            Some(time) => total += time,
            None => return ticks(pid),
        }
    }
    Some(total)
}

/// A process and all its descendants: a server may have a process for each connection.
pub(crate) fn family(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, field(pid, 1)?))).collect();
    let mut family = vec![pid];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    family
}

/// The most looks at processes of which one ends meanwhile.
const MOST_TRIES: u32 = 20;

/// The CPU time of a process and its descendants, with those that have ended.
pub(crate) fn family_cpu(pid: u32) -> Option<u64> {
    let ended = || Some(field::<u64>(pid, 13)? + field::<u64>(pid, 14)?);
    let (mut before, mut tries) = (ended()?, 0);
    loop {
        let living = cpu(pid)? + family(pid).into_iter().skip(1).filter_map(cpu).sum::<u64>();
        let after = ended()?;
        tries += 1;
        // A process that has ended meanwhile would count twice, or not at all.
        if before == after || tries == MOST_TRIES {
            return Some(living + after * tick());
        }
        before = after;
    }
}

/// The length of a clock tick in nanoseconds.
fn tick() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// A field of `/proc/PID/stat`, counted from 0 after the name, which may have spaces.
fn field<T: std::str::FromStr>(pid: u32, number: usize) -> Option<T> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(number)?.parse().ok()
}

/// The CPU time of this process without the threads of the measurement: the delay proxy's and the
/// timer's.
pub(crate) fn client_cpu() -> u64 {
    let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own = own.tv_sec.unsigned_abs() * 1_000_000_000 + own.tv_nsec.unsigned_abs();
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let ours = threads.map(|thread| thread.path()).filter(|path| {
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        [delay::THREAD, timer::THREAD].contains(&name.trim())
    });
    own.saturating_sub(ours.filter_map(|path| on_cpu(&path)).sum())
}

fn on_cpu(thread: &Path) -> Option<u64> {
    fs::read_to_string(thread.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

fn ticks(pid: u32) -> Option<u64> {
    Some((field::<u64>(pid, 11)? + field::<u64>(pid, 12)?) * tick())
}

/// The resident memory of a process, in bytes.
pub(crate) fn resident(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// The number of open sockets of a process.
pub(crate) fn sockets(pid: u32) -> u64 {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.filter(|to| to.to_string_lossy().starts_with("socket:")).count() as u64
}

/// The process of this machine that listens on a TCP port, if it can be seen.
pub(crate) fn listener(port: u16) -> Option<u32> {
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().find_map(|table| {
        let text = fs::read_to_string(table).ok()?;
        text.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let at = u16::from_str_radix(fields.get(1)?.rsplit_once(':')?.1, 16).ok()?;
            (at == port && *fields.get(3)? == "0A")
                .then(|| fields.get(9).map(|i| (*i).to_owned()))?
        })
    })?;
    let wanted = format!("socket:[{inode}]");
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let mut files = fs::read_dir(process.path().join("fd")).ok()?.flatten();
        files
            .any(|file| fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == &*wanted))
            .then_some(pid)
    })
}

/// The first line that a program prints.
pub(crate) fn output(program: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|o| o.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

/// Raises the limit of open files to the maximum for this process and its children: a thousand
/// clients need a few thousand.
pub(crate) fn many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_listening_process_is_found() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(listener(socket.local_addr().unwrap().port()), Some(std::process::id()));
        assert!(cpu(std::process::id()).unwrap() > 0);
        assert!(resident(std::process::id()).unwrap() > 1024);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_processes_have_used_that_were_started_counts() {
        let own = std::process::id();
        let shell = "sleep 60 & i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo; wait";
        let mut command = Command::new("sh");
        command.args(["-c", shell]).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let family = family(own);
        assert!(family.contains(&child.id()) && family.len() >= 3, "{family:?}");
        let sleeps = family.iter().find(|pid| field::<u32>(**pid, 1) == Some(child.id())).unwrap();
        let sleeps = rustix::process::Pid::from_raw(sleeps.cast_signed()).unwrap();
        assert!(family_cpu(own).unwrap() >= cpu(child.id()).unwrap());
        rustix::process::kill_process(sleeps, rustix::process::Signal::KILL).unwrap();
        child.wait().unwrap();
    }

    /// As a server's processes do when their clients have gone, and it is looked at.
    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_process_has_used_counts_also_while_it_ends() {
        let burn = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done";
        let shell = format!("while :; do ({burn}); done");
        let mut child = Command::new("sh").args(["-c", &shell]).spawn().unwrap();
        let used = || family_cpu(child.id()).unwrap();
        // Times are rounded down when a process ends: user's and system's, to a tick each.
        let (rounding, mut last, mut forgotten) = (3 * tick(), 0_u64, 0_u64);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(3);
        while std::time::Instant::now() < end {
            let now = used();
            forgotten = forgotten.max(last.saturating_sub(now));
            last = now;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(forgotten <= rounding, "{forgotten} ns");
    }
}
