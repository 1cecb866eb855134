//! `holdline man`: manual pages.

use crate::cli;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use clap::Args;
use clap_mangen::Man as Page;

/// Print a manual page, for `man -l -`
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Of which verb; without it, of the program
    verb: Option<String>,
}

impl Man {
    pub(crate) fn run(&self) -> Result<Exit, Failure> {
        let mut command = cli::command();
        command.build();
        if let Some(verb) = &self.verb {
            let found = command.find_subcommand(verb).cloned();
            let found = found.ok_or_else(|| {
                Failure::usage(format!("holdline has no verb \"{verb}\"; see holdline --help"))
            })?;
            command = found;
        }
        let mut text = Vec::new();
        // Writing to memory does not fail.
        let _ = Page::new(command).render(&mut text);
        Printer::answer_bytes(&text)?;
        Ok(Exit::DONE)
    }
}
