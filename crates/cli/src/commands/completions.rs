//! `holdline completions`: for shells.

use crate::cli;
use crate::exit::Exit;
use clap::Args;
use clap_complete::Shell;

/// Print completions for a shell
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// Which shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> Exit {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut cli::command(), "holdline", &mut text);
        super::man::print(&text)
    }
}
