//! `holdline completions`: shell completions.

use crate::cli;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use clap::Args;
use clap_complete::Shell;

/// Print completions for a shell
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> Result<Exit, Failure> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut cli::command(), "holdline", &mut text);
        Printer::answer_bytes(&text)?;
        Ok(Exit::DONE)
    }
}
