//! Processes that belong to a run, and end with it.

use crate::error::{Error, Result};
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::{self, Stdio};

/// Makes the command that runs this command line, such that it ends with this process if the system
/// can do that.
pub(crate) type Command = fn(&[OsString]) -> process::Command;

/// A process, which is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Child(process::Child);

impl Child {
    /// Starts a command; what it prints goes to a file.
    pub(crate) fn start(wrap: Command, command: &[String], log: &Path) -> Result<Self> {
        let words: Vec<OsString> = command.iter().map(OsString::from).collect();
        let out = File::options().create(true).append(true).open(log)?;
        let err = out.try_clone()?;
        let mut command = wrap(&words);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = command.spawn().map_err(|error| {
            Error::failed(format!("{} cannot be started: {error}", words[0].to_string_lossy()))
        })?;
        Ok(Child(child))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Ends it at once, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
