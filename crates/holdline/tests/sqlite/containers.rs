//! Processes that share the file and the kernel, and not the clock, the boot id or the mounts.

use crate::children::{ChildProcess, name, numbers, together};
use holdline::store::Store;
use holdline::stores::sqlite::File;
use std::path::Path;
use std::process::{Command, Stdio};

/// A command that runs what follows it with namespaces of its own. `None`, with a sentence, if this
/// user may not make them.
fn unshare(namespaces: &[&str]) -> Option<Vec<String>> {
    let mut command = vec!["unshare"];
    if !rustix::process::geteuid().is_root() {
        command.extend(["--user", "--map-root-user"]);
    }
    command.extend(namespaces);
    let permitted = Command::new(command[0])
        .args(&command[1..])
        .arg("true")
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if permitted {
        return Some(command.into_iter().map(str::to_owned).collect());
    }
    // For others than root it depends on the system.
    crate::outages::unprivileged(&format!("unshare {namespaces:?} is not permitted"));
    None
}

/// Runs what follows with a boot-time clock that is so many seconds ahead.
fn ahead(seconds: i64) -> Option<Vec<String>> {
    unshare(&["--time", "--boottime", &seconds.to_string(), "--fork", "--kill-child"])
}

/// Runs what follows after these lines of shell, which mount things for it alone.
fn mounted(script: &str) -> Option<Vec<String>> {
    let mut command = unshare(&["--mount"])?;
    let script = format!("set -e\n{script}\nexec \"$@\"");
    command.extend(["sh".into(), "-c".into(), script, "sh".into()]);
    Some(command)
}

/// Runs what follows with another boot id than the kernel's.
fn another_boot(folder: &Path) -> Option<Vec<String>> {
    let id = folder.join("boot-id");
    std::fs::write(&id, "c0ffee00-0000-4000-8000-000000000000\n").unwrap();
    mounted(&format!("mount --bind '{}' /proc/sys/kernel/random/boot_id", id.display()))
}

/// A lock is one lock for both, whichever of them comes first; its lease ends by one clock, and
/// notices pass.
fn share(
    file: &Path,
    mut one: impl FnMut() -> ChildProcess,
    mut two: impl FnMut() -> ChildProcess,
) {
    let mut holder = one();
    holder.expect("open");
    let seq = holder.ask("enter job 1 60000 queue", "admitted");
    let mut rival = two();
    rival.expect("open");
    rival.ask("enter job 2 60000 try", "waiting");
    holder.ask(&format!("keep job 1 {seq}"), "admitted");
    rival.tell("lock job 3");
    let store = File::open(file).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let seen = |line: &str| runtime.block_on(store.snapshot(&name(line))).unwrap().places;
    while seen("job").len() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    holder.ask("leave job 1", "left");
    let token = numbers(&rival.expect("held"))[0];
    assert!(token > seq.parse().unwrap());
    // A lease of 300 ms is over soon for all, although the process lives.
    holder.ask("enter brief 4 300 queue", "admitted");
    rival.ask("lock brief 5", "held");
    holder.ask("enter brief 6 60000 try", "waiting");
    assert_eq!(seen("brief").len(), 1);
    assert!(seen("brief")[0].expires_in <= std::time::Duration::from_secs(60));
}

/// Processes inside and outside share a lock, whichever of them comes first.
fn share_both_ways(folder: &Path, wrapper: &[String]) {
    for swapped in [false, true] {
        let file = folder.join(format!("{swapped}.db"));
        let host = || ChildProcess::start(&file, |_| {});
        let guest = || ChildProcess::inside(wrapper, &file);
        if swapped { share(&file, guest, host) } else { share(&file, host, guest) }
    }
}

#[test]
fn another_boot_id_ends_no_place_of_the_living() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let Some(wrapper) = another_boot(folder.path()) else { return };
    share_both_ways(folder.path(), &wrapper);
}

#[test]
fn another_boot_id_ends_the_places_of_the_dead() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let Some(wrapper) = another_boot(folder.path()) else { return };
    let file = folder.path().join("locks.db");
    let mut holder = ChildProcess::new(&file);
    holder.ask("enter job 1 60000 queue", "admitted");
    holder.kill();
    let mut next = ChildProcess::inside(&wrapper, &file);
    next.expect("open");
    let conn = rusqlite::Connection::open(&file).unwrap();
    let places: u32 = conn.query_row("SELECT count(*) FROM place", [], |row| row.get(0)).unwrap();
    assert_eq!(places, 0);
}

#[test]
fn another_clock_ends_no_place_early_or_late() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let Some(wrapper) = ahead(100_000) else { return };
    share_both_ways(folder.path(), &wrapper);
}

#[test]
fn a_file_that_is_mounted_alone_is_refused() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let (host, guest) = (folder.path().join("host"), folder.path().join("guest"));
    for folder in [&host, &guest] {
        std::fs::create_dir(folder).unwrap();
        std::fs::write(folder.join("locks.db"), "").unwrap();
    }
    let (real, seen) = (host.join("locks.db"), guest.join("locks.db"));
    let mount = format!("mount --bind '{}' '{}'", real.display(), seen.display());
    let Some(wrapper) = mounted(&mount) else { return };
    let mut holder = ChildProcess::new(&real);
    holder.ask("enter job 1 60000 queue", "admitted");
    let error = ChildProcess::inside(&wrapper, &seen).expect("error");
    assert!(error.starts_with("Unsupported "), "{error}");
    assert!(error.contains("is mounted by itself"), "{error}");
    assert!(error.contains(&*seen.to_string_lossy()), "{error}");
}
