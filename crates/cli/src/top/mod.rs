//! `holdline top`: who holds and who waits, live.
//!
//! - `seen` asks the store, `stats` counts from look to look, `model` is the state, and what keys
//!   do to it; `view` draws it.
//! - This file does the input and output: the terminal, keys, signals, and breaking a lock.

mod model;
mod seen;
mod stats;
#[cfg(test)]
mod tests;
mod view;

use crate::context::{OpenedStore, Session};
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::pace::Pace;
use crate::printer::Printer;
use crate::signals::Signals;
use crate::{terminal, timestamp};
use clap::Args;
use holdline::Client;
use holdline::store::{Lines, TicketId};
use model::{Action, Key, Model};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io::{IsTerminal, stdin};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::Instant;
use view::Title;

/// The reason that the holder of a broken lock is told.
const REASON: &str = "by hand, in holdline top";
/// The keys that may wait to be handled.
const MOST_KEYS: usize = 64;

/// Show live who holds and who waits, how long, and how often; break a lock
///
/// Keys: q quits, j and k or the arrows move, Tab goes to the line of a lock, s sorts, / filters,
/// p pauses, b breaks a lock (it asks), ? helps. It looks at the store at intervals, and when the
/// store tells of a change: what comes and goes between two looks is not counted. Where the cursor
/// cannot be moved, as in a pipe or on a dumb terminal, it prints what it sees again and again.
#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Only the locks whose names begin so
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,

    /// How often to look, besides after changes that the store tells of
    #[arg(long, value_name = "TIME", default_value = "500ms",
          value_parser = duration::parse_interval)]
    every: Duration,

    /// End after so many looks
    #[arg(long, value_name = "N")]
    looks: Option<u64>,
}

/// The program that runs.
struct Running<'a> {
    top: &'a Top,
    client: Client,
    model: Model,
    began: Instant,
    looks: u64,
}

impl Top {
    fn pace(&self, client: &Client) -> Pace {
        Pace::new(client, Lines::Prefix(self.prefix.clone()), self.every).with_ages()
    }

    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        if session.printer.json {
            return Err(Failure::usage(
                "top is for people; for JSON use `holdline status --watch --json`",
            ));
        }
        let mut signals = Signals::new()?;
        let OpenedStore { client, .. } = session.open_for_try().await?;
        // The first look must succeed: a mistake in the URL is an error, and no empty screen.
        let first = seen::look(&client, &self.prefix).await?;
        let client = session.with_response_timeout(client);
        let (model, began) = (Model::new(), Instant::now());
        let mut running = Running { top: &self, client, model, began, looks: 0 };
        running.take(Ok(first));
        if !terminal::can_move() || !stdin().is_terminal() {
            return running.print(&mut signals).await;
        }
        let mut screen = ratatui::try_init().map_err(|error| unusable(&error))?;
        let done = running.show(&mut screen, &mut signals).await;
        ratatui::restore();
        done
    }
}

impl Running<'_> {
    /// Takes a look into account, or why there was none.
    fn take(&mut self, looked: holdline::Result<seen::Look>) {
        self.looks += 1;
        match looked {
            Ok((locks, unseen)) => self.model.update(self.began.elapsed(), locks, unseen),
            Err(error) => self.model.fail(self.began.elapsed(), error.to_string()),
        }
    }

    fn is_over(&self) -> bool {
        self.top.looks.is_some_and(|most| self.looks >= most)
    }

    /// Prints what is seen, again and again.
    async fn print(&mut self, signals: &mut Signals) -> Result<Exit, Failure> {
        let mut pace = self.top.pace(&self.client);
        loop {
            let time = timestamp::show(timestamp::now());
            let title = Title { store: &self.client.address(), time: &time };
            if !Printer::answer(&view::plain(&self.model, &title))? || self.is_over() {
                return Ok(Exit::DONE);
            }
            tokio::select! {
                signal = signals.next() => return Ok(Exit::signal(signal.as_raw())),
                () = pace.next() => {}
            }
            let looked = seen::look(&self.client, &self.top.prefix).await;
            self.take(looked);
        }
    }

    /// Shows it on the screen, until it is ended.
    async fn show(
        &mut self,
        screen: &mut DefaultTerminal,
        signals: &mut Signals,
    ) -> Result<Exit, Failure> {
        let mut keys = keys()?;
        let mut looks = looks(self.client.clone(), self.top);
        let store = self.client.address();
        loop {
            let time = timestamp::show(timestamp::now());
            let title = Title { store: &store, time: &time[11..19] };
            let model = &self.model;
            screen
                .draw(|frame| view::draw(frame, model, &title))
                .map_err(|error| unusable(&error))?;
            if self.is_over() {
                return Ok(Exit::DONE);
            }
            tokio::select! {
                signal = signals.next() => return Ok(Exit::signal(signal.as_raw())),
                key = keys.recv() => match key {
                    Some(Some(key)) => match self.model.key(key) {
                        Action::Quit => return Ok(Exit::DONE),
                        Action::Break { name, id } => self.break_lock(&name, id).await,
                        Action::Nothing => {}
                    },
                    // The size has changed.
                    Some(None) => {}
                    None => return Ok(Exit::DONE),
                },
                Some(looked) = looks.recv() => {
                    if !self.model.paused {
                        self.take(looked);
                    }
                }
            }
        }
    }

    async fn break_lock(&mut self, name: &str, id: TicketId) {
        let broken = self.client.force_unlock(name, id, REASON).await;
        let notice = match broken {
            Ok(Some(token)) => format!("broken; the new fencing token is {token}"),
            Ok(None) => "nobody stands there by that id any more".to_owned(),
            Err(error) => error.to_string(),
        };
        let looked = seen::look(&self.client, &self.top.prefix).await;
        self.take(looked);
        self.model.say(notice);
    }
}

/// What is seen of the locks, at intervals, from a task of its own: a store that is silent does not
/// keep keys from being handled, nor keys a look from its end.
fn looks(client: Client, top: &Top) -> Receiver<holdline::Result<seen::Look>> {
    let (send, looks) = channel(1);
    let (prefix, mut pace) = (top.prefix.clone(), top.pace(&client));
    tokio::spawn(async move {
        loop {
            pace.next().await;
            if send.send(seen::look(&client, &prefix).await).await.is_err() {
                break;
            }
        }
    });
    looks
}

fn unusable(error: &std::io::Error) -> Failure {
    let message = format!("the terminal cannot be used: {error}");
    Failure::new(Exit::OUTPUT, "output", message)
}

/// The keys that are pressed, from a thread that reads them; none for a change of the size.
fn keys() -> Result<Receiver<Option<Key>>, Failure> {
    let (send, keys) = channel(MOST_KEYS);
    let read = move || {
        while let Ok(event) = event::read() {
            let key = match event {
                Event::Key(event) => match key(event) {
                    Some(key) => Some(key),
                    None => continue,
                },
                Event::Resize(..) => None,
                _ => continue,
            };
            if send.blocking_send(key).is_err() {
                break;
            }
        }
    };
    let thread = std::thread::Builder::new().name("keys".to_owned()).spawn(read);
    thread.map_err(|error| unusable(&error))?;
    Ok(keys)
}

fn key(event: KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    Some(match event.code {
        KeyCode::Char('c' | 'd') if event.modifiers.contains(KeyModifiers::CONTROL) => {
            Key::Interrupt
        }
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Tab | KeyCode::BackTab => Key::Tab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}
