//! The owner of a lock that is held in the background.
//!
//! The owner is a process, identified by a descriptor that is the stdin of the lock's holder:
//! unlike a process id, it can never refer to another process. Only Linux has such descriptors;
//! elsewhere a lock in the background has no owner.

use crate::background;
use crate::caller;
use crate::exit::Failure;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Pid;
use std::future::pending;
use std::io::stdin;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Stdio;
use tokio::sync::oneshot;

/// The process whose end releases the lock.
#[derive(Debug)]
pub(crate) enum Owner {
    /// None: the lock is released by `release`, or when its time is over.
    None,
    Process(OwnedFd),
}

impl Owner {
    /// The process with this id, or our caller.
    pub(crate) fn find(pid: Option<i32>) -> Result<Owner, Failure> {
        if background::is_holder() {
            let fd = stdin().as_fd().try_clone_to_owned();
            return fd
                .map(Owner::Process)
                .map_err(|error| background::internal("the owner", &error));
        }
        let found = match pid {
            Some(pid) => Pid::from_raw(pid.max(0)),
            None => caller::find(),
        };
        let Some(found) = found else {
            return Err(Failure::usage(
                "there is no process that owns the lock; name one with --owner, or let the lock \
                 outlive its caller with --detach",
            ));
        };
        match open(found) {
            Ok(fd) => Ok(Owner::Process(fd)),
            Err(Errno::NOSYS) => Err(Failure::usage(
                "this system cannot watch for the end of a process; let the lock outlive its \
                 caller with --detach",
            )),
            Err(error) => {
                let number = found.as_raw_nonzero();
                Err(Failure::usage(format!("process {number} cannot own a lock: {error}")))
            }
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Owner::None)
    }

    /// The owner's process id; `None` if it has ended.
    pub(crate) fn id(&self) -> Option<Pid> {
        let Owner::Process(fd) = self else { return None };
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
        let id =
            about.ok()?.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
        Pid::from_raw(id.filter(|id| *id > 0)?) // it is -1 otherwise
    }

    /// The stdin of the owner's holder.
    pub(crate) fn to_stdin(&self) -> Result<Stdio, Failure> {
        let Owner::Process(fd) = self else { return Ok(Stdio::null()) };
        let fd = fd.try_clone().map_err(|error| background::internal("the owner", &error))?;
        Ok(Stdio::from(fd))
    }

    /// Asks the owner to end.
    pub(crate) fn terminate(&self) {
        if let Owner::Process(fd) = self {
            terminate(fd);
        }
    }

    /// Watches for the owner's end.
    pub(crate) fn watch(&self) -> Result<OwnerEnd, Failure> {
        let Owner::Process(fd) = self else { return Ok(OwnerEnd(None)) };
        let (send, ended) = oneshot::channel();
        let fd = fd.try_clone().map_err(|error| background::internal("the owner", &error))?;
        let watch = move || {
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            while !poll(&mut fds, None).is_ok_and(|ready| ready > 0) {}
            let _ = send.send(());
        };
        let thread = std::thread::Builder::new().name("owner".to_owned());
        thread.spawn(watch).map_err(|error| background::internal("the owner", &error))?;
        Ok(OwnerEnd(Some(ended)))
    }
}

/// The end of the owner, if there is one.
pub(crate) struct OwnerEnd(Option<oneshot::Receiver<()>>);

impl OwnerEnd {
    /// Resolves, once, when the owner has ended.
    pub(crate) async fn comes(&mut self) {
        match &mut self.0 {
            Some(end) => drop(end.await),
            None => pending().await,
        }
    }
}

/// Opens a descriptor of a process, which becomes readable when the process ends.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn open(process: Pid) -> rustix::io::Result<OwnedFd> {
    rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn terminate(process: &OwnedFd) {
    let _ = rustix::process::pidfd_send_signal(process, rustix::process::Signal::TERM);
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn open(_process: Pid) -> rustix::io::Result<OwnedFd> {
    Err(Errno::NOSYS)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn terminate(_process: &OwnedFd) {}

#[cfg(test)]
mod tests {
    use super::{Owner, open};
    use rustix::process::Pid;
    use std::process::Command;

    #[test]
    fn an_owner_that_has_ended_has_no_id() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let owner = Owner::Process(open(pid).unwrap());
        assert_eq!(owner.id(), Some(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(owner.id(), None);
    }
}
