//! `holdline status`: shows the holders and waiters of locks.

use crate::context::{Session, lines, while_read};
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::pace::Pace;
use crate::participant;
use crate::printer::{Level, Printer, clean};
use crate::{terminal, timestamp};
use clap::Args;
use holdline::store::{Lines, TicketId};
use holdline::{Client, LockInfo, Participant};
use serde_json::{Value, json};
use std::io::{IsTerminal, stdout};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use unicode_width::UnicodeWidthStr;

/// Show who holds and who waits
///
/// SINCE is by the clock of the holder or waiter. UNTIL is when its lease ends unless it is
/// renewed; a live holder renews in time. The ID is for `holdline break`.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// The lock's name; without it, all locks
    name: Option<String>,

    /// Only locks whose names begin with this prefix
    #[arg(long, default_value = "", hide_default_value = true, conflicts_with = "name")]
    prefix: String,

    /// Refresh continuously, until a signal comes
    ///
    /// At a terminal the table is redrawn in place. `holdline top` shows more.
    #[arg(long)]
    watch: bool,

    /// Poll interval, in addition to changes that the store reports
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "watch",
          value_parser = duration::parse_interval)]
    every: Duration,
}

impl Status {
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        let lines = lines(self.name.as_deref(), &self.prefix)?;
        let client = session.ask().await?;
        if self.watch {
            let client = session.with_response_timeout(client);
            return while_read(self.watch(session, client, lines)).await;
        }
        if session.printer.verbose || stdout().is_terminal() {
            let message = format!("the locks in {}", session.describe(&client));
            let fields = json!({ "store": client.address() });
            session.printer.say(Level::Usually, "opened", &message, fields);
        }
        let infos = self.look(session, &client).await?;
        Printer::answer(&self.text(session, &client, &infos))?;
        Ok(Exit::DONE)
    }

    /// Shows the table continuously, and any outage of the store.
    async fn watch(
        &self,
        session: &Session,
        client: Client,
        lines: Lines,
    ) -> Result<Exit, Failure> {
        let mut pace = Pace::new(&client, lines, self.every).with_ages();
        let json = session.printer.json;
        let in_place = !json && terminal::can_move();
        let mut shown = None;
        loop {
            let looked = self.look(session, &client).await;
            let answered = looked.is_ok();
            // Renewals are changes, too, but do not need a new table each.
            let who = looked.as_deref().ok().map(who);
            let is_same = shown.as_ref().is_some_and(|(before, when): &(_, Instant)| {
                who.is_some() && *before == who && when.elapsed() < self.every / 2
            });
            if is_same {
                pace.next().await;
                continue;
            }
            shown = Some((who, Instant::now()));
            let text = match looked {
                Ok(infos) => self.text(session, &client, &infos),
                // A store that never answers may not exist.
                Err(error) if !error.retryable() || !client.has_answered() => {
                    return Err(error.into());
                }
                Err(error) if json => json!({ "error": error.to_string() }).to_string(),
                Err(error) => error.to_string(),
            };
            let time = timestamp::show(timestamp::now());
            let written = if json {
                Printer::answer(&text)?
            } else if in_place {
                Printer::screen(&format!("{time}  {}\n\n{text}", client.address()))?
            } else {
                Printer::answer(&format!("{time}\n{text}\n"))?
            };
            if !written {
                return Ok(Exit::DONE);
            }
            if answered {
                pace.next().await;
            } else {
                sleep(self.every).await;
            }
        }
    }

    async fn look(&self, session: &Session, client: &Client) -> holdline::Result<Vec<LockInfo>> {
        if let Some(name) = &self.name {
            return Ok(vec![client.inspect(name).await?]);
        }
        let names = client.list(&self.prefix).await?;
        // The store has answered: from now on each answer has its own time limit, as there may be
        // many locks.
        let client = session.with_response_timeout(client.clone());
        let mut infos = Vec::new();
        for name in names {
            infos.push(client.inspect(name.as_str()).await?);
        }
        Ok(infos)
    }

    fn text(&self, session: &Session, client: &Client, infos: &[LockInfo]) -> String {
        match &self.name {
            Some(_) if session.printer.json => participant::info_json(&infos[0]).to_string(),
            None if session.printer.json => {
                Value::Array(infos.iter().map(participant::info_json).collect()).to_string()
            }
            name => table(infos).unwrap_or_else(|| {
                let what = match name {
                    Some(name) => format!("\"{}\" is neither held nor waited for", clean(name)),
                    None => "no lock is held or waited for".to_owned(),
                };
                format!("{what} in {}", session.describe(client))
            }),
        }
    }
}

/// The holders and the waiters, in order, without the parts that change constantly.
fn who(infos: &[LockInfo]) -> Vec<(String, Vec<TicketId>, Vec<TicketId>)> {
    let ids = |all: &[Participant]| all.iter().map(|participant| participant.id).collect();
    let of =
        |info: &LockInfo| (info.name.as_str().to_owned(), ids(&info.holders), ids(&info.waiters));
    infos.iter().map(of).collect()
}

const HEAD: [&str; 8] = ["NAME", "STATE", "ID", "TOKEN", "SINCE", "UNTIL", "WHERE", "LABEL"];

/// The table; `None` if no lock has holders or waiters.
fn table(infos: &[LockInfo]) -> Option<String> {
    let mut rows = vec![HEAD.map(str::to_owned)];
    for info in infos {
        rows.extend(info.holders.iter().map(|participant| row(info, "holds", participant)));
        rows.extend(info.waiters.iter().map(|participant| row(info, "waits", participant)));
    }
    if rows.len() == 1 {
        return None;
    }
    let width = |column: usize| rows.iter().map(|row| row[column].width()).max();
    let widths: Vec<usize> = (0..HEAD.len()).map(|column| width(column).unwrap_or(0)).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            let gap = width.saturating_sub(cell.width());
            format!("{cell}{:gap$}", "")
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    Some(lines.collect::<Vec<_>>().join("\n"))
}

fn row(info: &LockInfo, state: &str, participant: &Participant) -> [String; 8] {
    let state = match participant.weight {
        weight if weight == info.capacity || weight == 1 => state.to_owned(),
        weight => format!("{state} {weight}/{}", info.capacity),
    };
    let unknown = || "?".to_owned();
    let age = participant::age(participant);
    let until = participant::left(participant);
    [
        clean(info.name.as_str()),
        state,
        participant::short_id(participant.id),
        participant::token(participant).map_or_else(unknown, |token| token.to_string()),
        age.map_or_else(unknown, |age| format!("{} ago", duration::show(age))),
        until.map_or_else(unknown, |left| format!("in {}", duration::show(left))),
        participant::place(participant),
        participant::description(participant).unwrap_or_default(),
    ]
}
