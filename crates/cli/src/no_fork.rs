//! `run -F`: the command replaces this process, and holds the lock by itself.
//!
//! That is only possible where a lock ends with its process without any help: in the file store,
//! whose liveness lock the command inherits. The lease is not renewed, so it is as long as the
//! store allows, and the command is not stopped if the lock is broken.

use crate::child::{lookup, set_env};
use crate::exit::Failure;
use crate::held::HeldLock;
use holdline::Client;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// The longest lease that the file store accepts.
pub(crate) const LEASE: Duration = Duration::from_secs(24 * 3600);

/// An open file store.
#[derive(Debug)]
pub(crate) struct ExecStore {
    #[cfg(feature = "sqlite")]
    file: holdline::sqlite::File,
    #[cfg(not(feature = "sqlite"))]
    file: std::convert::Infallible,
}

impl ExecStore {
    /// Opens the store, if it can hold a lock for the command.
    #[cfg(feature = "sqlite")]
    pub(crate) fn open(url: &str) -> Result<Self, Failure> {
        use holdline::sqlite::File;
        let file = match url {
            "" => File::open_default()?,
            url if url.starts_with("sqlite:") => File::open_url(url)?,
            _ => return Err(refused()),
        };
        Ok(ExecStore { file })
    }

    #[cfg(not(feature = "sqlite"))]
    pub(crate) fn open(_url: &str) -> Result<Self, Failure> {
        Err(refused())
    }

    /// A client of it.
    #[cfg(feature = "sqlite")]
    pub(crate) fn client(&self) -> Client {
        Client::new(std::sync::Arc::new(self.file.clone()))
    }

    #[cfg(not(feature = "sqlite"))]
    pub(crate) fn client(&self) -> Client {
        match self.file {}
    }

    /// Lets programs that this process executes inherit the liveness lock.
    #[cfg(feature = "sqlite")]
    fn pass_on(&self) -> Result<(), Failure> {
        Ok(self.file.inherit_by_exec()?)
    }

    #[cfg(not(feature = "sqlite"))]
    fn pass_on(&self) -> Result<(), Failure> {
        match self.file {}
    }

    /// Executes the command in place of this process. Returns only if that fails.
    pub(crate) fn exec(
        &self,
        hold: &HeldLock,
        program: &Path,
        argv: &[OsString],
        env: &[(&str, Option<String>)],
    ) -> Failure {
        if !hold.is_inherited()
            && let Err(failure) = self.pass_on()
        {
            return failure;
        }
        let error = lookup::exec(program, argv, |command| set_env(command, env));
        lookup::refuse(&argv[0], Some(program), &error)
    }
}

fn refused() -> Failure {
    Failure::usage(
        "-F works with the file store alone (sqlite:), where the lock ends with the command; with \
         this store somebody must renew the lock, so leave -F away",
    )
}
