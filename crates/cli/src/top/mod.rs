//! `holdline top`: who holds and who waits, live.
//!
//! - `seen` queries the store, `stats` counts between looks, `model` is the state and its reaction
//!   to keys; `view` draws it.
//! - `keys` reads keys, `screen` is the terminal. This file is the main loop: looks, keys, signals,
//!   and breaking a lock.

mod keys;
mod model;
mod screen;
mod seen;
mod stats;
#[cfg(test)]
mod tests;
mod view;

use crate::context::{OpenedStore, Session, while_read};
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::pace::Pace;
use crate::participant;
use crate::printer::Printer;
use crate::signals::Signals;
use crate::{terminal, timestamp};
use clap::Args;
use holdline::Client;
use holdline::store::{Lines, TicketId};
use model::{Action, Model};
use rustix::process::Signal;
use screen::{Screen, unusable};
use std::io::{IsTerminal, stdin};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::Instant;
use view::Title;

/// Show live who holds and who waits, how long, and how often; break a lock
///
/// Keys: q quits, j and k or the arrows move, Tab goes to the line of a lock, s sorts, / filters, p
/// pauses, b breaks a lock (after confirmation), ? helps. It polls the store, and also refreshes
/// when the store reports a change, as the file, memory, etcd and ZooKeeper do. A change that is
/// undone between two polls is not counted: on other stores that is true for many locks held for
/// less than --every. Where the cursor cannot be moved, as in a pipe or on a dumb terminal, it
/// prints the state repeatedly.
#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Only locks whose names begin with this prefix
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,

    /// Poll interval, in addition to changes that the store reports
    #[arg(long, value_name = "TIME", default_value = "500ms",
          value_parser = duration::parse_interval)]
    every: Duration,

    /// Exit after this many refreshes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    looks: Option<u64>,
}

/// The running program.
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
        let OpenedStore { client, .. } = session.open_for_try().await?;
        // The first look must succeed: a mistake in the URL is an error, and not an empty screen.
        let first = seen::look(&client, &self.prefix).await?;
        let client = session.with_response_timeout(client);
        let (model, began) = (Model::new(), Instant::now());
        let mut running = Running { top: &self, client, model, began, looks: 0 };
        running.take(Ok(first));
        if !terminal::can_move() || !stdin().is_terminal() {
            // Signals end this at once, even if nothing reads what it prints.
            return while_read(running.print()).await;
        }
        let mut signals = Signals::new()?;
        signals.add(Signal::CONT)?;
        let mut screen = Screen::open().map_err(|error| unusable(&error))?;
        running.show(&mut screen, &mut signals).await
    }
}

impl Running<'_> {
    /// Applies a look, or its failure.
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

    /// Prints the state repeatedly.
    async fn print(&mut self) -> Result<Exit, Failure> {
        let mut pace = self.top.pace(&self.client);
        loop {
            let time = timestamp::show(timestamp::now());
            let store = self.client.address();
            let title = Title { store: &store, time: &time, prefix: &self.top.prefix };
            if !Printer::answer(&view::plain(&self.model, &title))? || self.is_over() {
                return Ok(Exit::DONE);
            }
            pace.next().await;
            let looked = seen::look(&self.client, &self.top.prefix).await;
            self.take(looked);
        }
    }

    /// Shows the state on the screen until the user quits.
    async fn show(&mut self, screen: &mut Screen, signals: &mut Signals) -> Result<Exit, Failure> {
        let mut keys = keys::read()?;
        let mut looks = looks(self.client.clone(), self.top);
        let store = self.client.address();
        loop {
            let time = timestamp::show(timestamp::now());
            let title = Title { store: &store, time: &time[11..19], prefix: &self.top.prefix };
            let model = &self.model;
            screen
                .draw(|frame| view::draw(frame, model, &title))
                .map_err(|error| unusable(&error))?;
            if self.is_over() {
                return Ok(Exit::DONE);
            }
            tokio::select! {
                signal = signals.next() => match signal {
                    Signal::CONT => screen.resume().map_err(|error| unusable(&error))?,
                    signal => return Ok(Exit::signal(signal.as_raw())),
                },
                key = keys.recv() => match key {
                    Some(Some(key)) => match self.model.key(key) {
                        Action::Nothing => {}
                        Action::Quit => return Ok(Exit::DONE),
                        Action::Redraw => screen.clear().map_err(|error| unusable(&error))?,
                        Action::Stop => screen.stop().map_err(|error| unusable(&error))?,
                        Action::Break { name, id, reason } => {
                            self.break_lock(&name, id, &reason).await;
                        }
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

    async fn break_lock(&mut self, name: &str, id: TicketId, reason: &str) {
        let broken = self.client.force_unlock(name, id, reason).await;
        let notice = match broken {
            Ok(Some(token)) => {
                format!("broken{}", participant::with_token(", with the new fencing", token))
            }
            Ok(None) => "no holder or waiter has that id any more".to_owned(),
            Err(error) => error.to_string(),
        };
        let looked = seen::look(&self.client, &self.top.prefix).await;
        self.take(looked);
        self.model.say(notice);
    }
}

/// Looks at the locks at intervals, in a task of its own: a silent store does not delay keys, and
/// keys do not delay a look.
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
