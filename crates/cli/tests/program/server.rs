//! A Redis server of a test's own, which the test may stop.

use super::common::{LONG, until};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts one. `None` where there is no `redis-server`, which CI must have.
    pub(crate) fn start() -> Option<Server> {
        super::common::usual_signals();
        let folder = tempfile::tempdir().unwrap();
        let begun = std::time::Instant::now();
        while begun.elapsed() < LONG {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut command = Command::new("redis-server");
            command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
            command.args(["--maxmemory-policy", "noeviction", "--dir"]).arg(folder.path());
            let Ok(mut child) = command.stdout(Stdio::null()).spawn() else {
                holdline_testkit::missing("there is no redis-server in the path");
                return None;
            };
            // Somebody else may have taken the port since: then this one ends, and we try another.
            loop {
                if child.try_wait().unwrap().is_some() {
                    break;
                }
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Some(Server { child, port, _folder: folder });
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        panic!("no server could be started");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
        let stat = format!("/proc/{}/stat", self.child.id());
        let is_stopped = || std::fs::read_to_string(&stat).is_ok_and(|text| text.contains(") T "));
        until("the server is stopped", is_stopped);
    }

    pub(crate) fn thaw(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
