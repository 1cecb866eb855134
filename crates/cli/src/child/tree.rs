//! All processes below a command, also those that left its process group (a nested `holdline run`
//! gives its own command a group). Only where there is a `/proc`; elsewhere the group must do.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;

/// A process as it was seen: the time of its start tells it from a later one with its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    pid: i32,
    parent: i32,
    start: u64,
}

/// The processes below one, as they were when it was looked.
#[derive(Debug, Default)]
pub(crate) struct Tree(Vec<Seen>);

impl Tree {
    /// Looks for all processes below this one, and that one itself.
    pub(crate) fn below(root: Pid) -> Self {
        let root = root.as_raw_nonzero().get();
        let mut children: HashMap<i32, Vec<Seen>> = HashMap::new();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(seen) = pid.and_then(see) {
                if seen.pid == root {
                    found.push(seen);
                }
                children.entry(seen.parent).or_default().push(seen);
            }
        }
        let mut next = 0;
        while let Some(parent) = found.get(next) {
            found.extend(children.remove(&parent.pid).unwrap_or_default());
            next += 1;
        }
        Tree(found)
    }

    /// Adds what was found at another time.
    pub(crate) fn join(&mut self, other: Tree) {
        for seen in other.0 {
            if !self.0.contains(&seen) {
                self.0.push(seen);
            }
        }
    }

    /// Sends a signal to those that are still there.
    pub(crate) fn signal(&self, signal: Signal) {
        for seen in &self.0 {
            let there = see(seen.pid).is_some_and(|now| now.start == seen.start);
            if let (true, Some(pid)) = (there, Pid::from_raw(seen.pid)) {
                let _ = kill_process(pid, signal);
            }
        }
    }
}

fn see(pid: i32) -> Option<Seen> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses, and may have some of its own.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some(Seen { pid, parent, start })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::Tree;
    use rustix::process::getpid;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn finds_children_of_children() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; read x"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh runs");
        let mut line = String::new();
        let out = child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("it says the pid");
        let grandchild: i32 = line.trim().parse().expect("a pid");
        let tree = Tree::below(getpid());
        let parent = i32::try_from(child.id()).expect("pids are small");
        assert!(tree.0.iter().any(|seen| seen.pid == grandchild && seen.parent == parent));
        let pid = rustix::process::Pid::from_child(&child);
        Tree::below(pid).signal(rustix::process::Signal::KILL);
        assert!(!child.wait().expect("it ends").success());
    }
}
