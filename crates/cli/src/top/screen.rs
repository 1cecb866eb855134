//! The terminal that `holdline top` draws on: taken over, restored, and taken over again.

use crate::exit::{Exit, Failure};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::{Position, Rect};
use ratatui::{DefaultTerminal, Frame};
use rustix::process::{Signal, kill_current_process_group};
use std::io::{self, stdout};

/// The terminal in raw mode, with a screen of its own; dropping it restores the terminal.
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        ratatui::try_init().map(Screen)
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw).map(drop)
    }

    /// Clears the screen, so that all of it is drawn again. Ratatui's `clear` is unsuitable: it
    /// asks the terminal for the cursor position, and the thread that reads keys gets the answer.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        let size = self.0.size()?;
        self.0.resize(Rect::from((Position::ORIGIN, size)))
    }

    /// Restores the terminal for the shell and stops, as Ctrl-Z would if it were not a key here.
    /// SIGCONT resumes, or this returns at once if no shell stops us.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.0.show_cursor()?;
        ratatui::try_restore()?;
        kill_current_process_group(Signal::TSTP)?;
        self.resume()
    }

    /// Takes over the terminal again after a stop, even one that did not come from here.
    pub(super) fn resume(&mut self) -> io::Result<()> {
        disable_raw_mode()?;
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// The error for a terminal that fails.
pub(super) fn unusable(error: &io::Error) -> Failure {
    let message = format!("the terminal cannot be used: {error}");
    Failure::new(Exit::OUTPUT, "output", message)
}
