//! `holdline man`: manual pages.

use crate::cli;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use clap::{Args, Command};
use clap_mangen::Man as Page;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Print a manual page, for `man -l -`, or write all of them into a folder
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// The verb; without it, the program's page
    verb: Option<String>,

    /// Write the pages of the program and of all verbs as files into this folder
    ///
    /// For example /usr/local/share/man/man1. The folder must exist.
    #[arg(long, value_name = "FOLDER", conflicts_with = "verb")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(&self) -> Result<Exit, Failure> {
        let mut command = cli::command();
        command.build();
        if let Some(folder) = &self.dir {
            for command in std::iter::once(&command).chain(command.get_subcommands()) {
                write(folder, command)?;
            }
            return Ok(Exit::DONE);
        }
        if let Some(verb) = &self.verb {
            let found = command.find_subcommand(verb).cloned();
            let found = found.ok_or_else(|| {
                Failure::usage(format!("holdline has no verb \"{verb}\"; see holdline --help"))
            })?;
            command = found;
        }
        Printer::answer_bytes(page(&command).as_bytes())?;
        Ok(Exit::DONE)
    }
}

fn write(folder: &Path, command: &Command) -> Result<(), Failure> {
    let path = folder.join(format!("{}.1", title(command)));
    std::fs::write(&path, page(command)).map_err(|error| {
        let message = format!("{} could not be written: {error}", path.display());
        Failure::new(Exit::OUTPUT, "output", message)
    })
}

fn title(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// The page of the program or of a verb. The synopsis is the usage that `--help` shows. The text
/// below the flags is shown as is, so that tables keep their lines; its headings become sections.
fn page(command: &Command) -> String {
    let below = command.get_after_long_help().or(command.get_after_help());
    let below = below.map(ToString::to_string).unwrap_or_default();
    let bare = command.clone().after_help(None::<&str>).after_long_help(None::<&str>);
    let usage = bare.clone().render_usage().to_string();
    let page = Page::new(bare)
        .title(title(command))
        .source(concat!("holdline ", env!("CARGO_PKG_VERSION")))
        .manual("Manual of holdline");
    let mut bytes = Vec::new();
    // Writing to memory does not fail.
    let _ = page.render(&mut bytes);
    let mut text = with_synopsis(&String::from_utf8_lossy(&bytes), &usage);
    let mut verbatim = false;
    for line in below.lines() {
        let heading = line.strip_suffix(':').filter(|line| !line.starts_with(' '));
        let ends = heading.is_some() || !line.starts_with(' ') && !line.is_empty();
        if verbatim && ends {
            text.push_str(".fi\n");
            verbatim = false;
        }
        if let Some(heading) = heading {
            let _ = write!(text, ".SH {}\n.nf\n", heading.to_uppercase());
            verbatim = true;
        } else if verbatim || !line.is_empty() {
            text.push_str(&escaped(line));
            text.push('\n');
        } else {
            text.push_str(".PP\n");
        }
    }
    if verbatim {
        text.push_str(".fi\n");
    }
    if title(command) != "holdline" {
        text.push_str(".SH SEE ALSO\n\\fBholdline\\fR(1)\n");
    }
    text
}

/// A page whose synopsis, which is one line, is this usage.
fn with_synopsis(page: &str, usage: &str) -> String {
    let heading = ".SH SYNOPSIS\n";
    let Some((before, after)) = page.split_once(heading) else { return page.to_owned() };
    let after = after.split_once('\n').map_or("", |(_, after)| after);
    let usage = usage.trim_start_matches("Usage:").trim();
    format!("{before}{heading}{}\n{after}", escaped(usage))
}

/// A line of text, escaped for groff.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}
