//! A process that an earlier run of this program started, identified by a later run.
//!
//! A process id alone is not enough: after a reboot, or a long time, it may belong to another
//! program. So the start time of the process is recorded with it.

use rustix::process::{Pid, Signal, kill_process_group};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long the system may take to remove a killed process.
pub(crate) const GONE_WITHIN: Duration = Duration::from_secs(10);

/// A process and its start time, in the system's own format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id, which is also that of its process group.
    pub pid: i32,
    started: String,
}

impl Process {
    /// The running process with this id.
    pub fn find(pid: i32) -> Option<Self> {
        Some(Self { pid, started: start_time(pid)? })
    }

    /// Its id, as a system type.
    pub(crate) fn id(&self) -> Pid {
        Pid::from_raw(self.pid).expect("a process has no id of 0")
    }

    /// Parses the text that `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (pid, started) = text.split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, started: started.to_owned() })
    }

    /// Whether it still runs. A process that has ended and was not waited for does not.
    pub fn runs(&self) -> bool {
        start_time(self.pid).is_some_and(|started| started == self.started)
    }

    /// Kills its whole process group, and waits until it is gone. Immediately and not gently,
    /// because its data is discarded, and because a test may have stopped it.
    pub fn kill(&self) -> bool {
        if let (true, Some(pid)) = (self.runs(), Pid::from_raw(self.pid)) {
            // It may have just ended by itself; all that counts is that it is gone.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let asked = Instant::now();
        while self.runs() {
            if asked.elapsed() > GONE_WITHIN {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}

/// The start time of the process, or `None` if it does not exist or has ended.
fn start_time(pid: i32) -> Option<String> {
    if cfg!(target_os = "linux") {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the program's name in brackets, and may hold anything.
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        let ended = matches!(fields.next()?, "Z" | "X");
        return if ended { None } else { fields.nth(18).map(str::to_owned) };
    }
    let id = pid.to_string();
    let output = Command::new("ps").args(["-o", "stat=,lstart=", "-p", &id]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (state, started) = text.trim().split_once(' ')?;
    (!state.starts_with('Z')).then(|| started.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn a_process_is_known_until_it_is_killed() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let process = Process::find(child.id().cast_signed()).unwrap();
        assert!(process.runs());
        assert_eq!(Process::parse(&process.to_string()).unwrap(), process);
        // Not waited for yet: it still counts as gone.
        assert!(process.kill());
        assert!(!process.runs());
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn another_process_with_the_same_id_is_left_alone() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let pid = child.id().cast_signed();
        let earlier = Process { pid, started: "long ago".to_owned() };
        assert!(!earlier.runs());
        assert!(earlier.kill());
        let process = Process::find(pid).unwrap();
        assert!(process.runs(), "it was killed in place of an earlier one");
        assert!(process.kill());
        child.wait().unwrap();
    }
}
