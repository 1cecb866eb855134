//! The terminal that `holdline top` draws on: taken, given back, and taken again.

use crate::exit::{Exit, Failure};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::{Position, Rect};
use ratatui::{DefaultTerminal, Frame};
use rustix::process::{Signal, kill_current_process_group};
use std::io::{self, stdout};

/// The terminal in raw mode, with an empty screen of its own; dropping it gives the terminal back.
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        ratatui::try_init().map(Screen)
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw).map(drop)
    }

    /// Empties the screen, so that all of it is drawn again. Ratatui's `clear` does not serve: it
    /// asks the terminal where the cursor is, and the thread that reads keys takes the answer.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        let size = self.0.size()?;
        self.0.resize(Rect::from((Position::ORIGIN, size)))
    }

    /// Gives the terminal back to the shell and stops, as Ctrl-Z would if it were not a key here.
    /// SIGCONT is what says that this goes on, or nothing at all where there is no such shell.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        self.0.show_cursor()?;
        ratatui::try_restore()?;
        kill_current_process_group(Signal::TSTP)?;
        self.resume()
    }

    /// Takes the terminal again after a stop, also after one that did not come from here.
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

/// The error of a terminal that does not do as it is told.
pub(super) fn unusable(error: &io::Error) -> Failure {
    let message = format!("the terminal cannot be used: {error}");
    Failure::new(Exit::OUTPUT, "output", message)
}
