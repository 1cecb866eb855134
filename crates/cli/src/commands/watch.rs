//! `holdline watch`: prints a line for every change of one lock, or of all.

use crate::context::{SILENCE, Session, TRIES, lines};
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::pace::Pace;
use crate::printer::{Printer, clean};
use crate::{participant, timestamp};
use clap::Args;
use holdline::store::TicketId;
use holdline::{Client, LockInfo, Participant};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The minimum poll interval during an outage of the store.
const PAUSE: Duration = Duration::from_millis(500);

/// Follow who holds and who waits, one line per change
///
/// Listens if the store reports changes (etcd, ZooKeeper, a file), and polls every half second
/// otherwise; a change that is undone between two polls is not seen.
#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// The lock's name; without it, all locks
    name: Option<String>,

    /// Only locks whose names begin with this prefix
    #[arg(long, default_value = "", hide_default_value = true, conflicts_with = "name")]
    prefix: String,

    /// Poll interval, if the store does not report changes
    #[arg(long, value_name = "TIME", default_value = "500ms",
          value_parser = duration::parse_interval)]
    every: Duration,

    /// How long an outage of the store is waited out, once it has answered; or "forever"
    #[arg(long, value_name = "TIME", default_value = "forever",
          value_parser = duration::parse_bound)]
    outage: Duration,
}

/// The state of a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waits,
    Holds,
}

/// The participants of one lock.
type Participants = BTreeMap<TicketId, (State, Participant)>;

impl Watch {
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        let lines = lines(self.name.as_deref(), &self.prefix)?;
        let opened = session.open_to_wait(None).await?;
        let (until, client) = (opened.until, session.with_response_timeout(opened.client));
        let (every, mut refused) = (self.every, 0);
        let (mut before, mut pace) = (BTreeMap::new(), Pace::new(&client, lines, every));
        loop {
            let began = Instant::now();
            match self.look(&client, &before).await {
                Ok(now) => {
                    if !print_changes(session.printer, &before, &now)? {
                        return Ok(Exit::DONE);
                    }
                    before = now;
                    pace.next().await;
                }
                Err(error) if error.retryable() => {
                    let outlasts = client.unavailable_for().is_none_or(|away| away < self.outage);
                    if began.elapsed() < SILENCE && session.connect_timeout.is_none() {
                        refused += 1;
                    }
                    let (goes_on, pause) = if client.has_answered() {
                        (outlasts, every.max(PAUSE))
                    } else {
                        (refused < TRIES && Instant::now() + PAUSE < until, PAUSE)
                    };
                    if !goes_on {
                        return Err(error.into());
                    }
                    sleep(pause).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The participants of the watched locks. Locks that were in use before and are not now have
    /// none.
    async fn look(
        &self,
        client: &Client,
        before: &BTreeMap<String, Participants>,
    ) -> holdline::Result<BTreeMap<String, Participants>> {
        let mut found = BTreeMap::new();
        if let Some(name) = &self.name {
            found.insert(name.clone(), participants(client.inspect(name).await?));
            return Ok(found);
        }
        for name in client.list(&self.prefix).await? {
            let info = client.inspect(name.as_str()).await?;
            found.insert(name.as_str().to_owned(), participants(info));
        }
        let emptied = before.iter().filter(|(_, was)| !was.is_empty());
        for (name, _) in emptied {
            found.entry(name.clone()).or_default();
        }
        Ok(found)
    }
}

/// Prints the changes of all locks. Returns false if stdout was closed.
fn print_changes(
    printer: Printer,
    before: &BTreeMap<String, Participants>,
    now: &BTreeMap<String, Participants>,
) -> Result<bool, Failure> {
    let nobody = Participants::new();
    for (name, participants) in now {
        if !print_changes_of(printer, name, before.get(name).unwrap_or(&nobody), participants)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn participants(info: LockInfo) -> Participants {
    let holders =
        info.holders.into_iter().map(|participant| (participant.id, (State::Holds, participant)));
    let waiters =
        info.waiters.into_iter().map(|participant| (participant.id, (State::Waits, participant)));
    holders.chain(waiters).collect()
}

/// Prints the differences: departures first, then arrivals by token. Returns false if stdout was
/// closed.
fn print_changes_of(
    printer: Printer,
    name: &str,
    before: &Participants,
    now: &Participants,
) -> Result<bool, Failure> {
    let mut changes = Vec::new();
    for (id, (state, participant)) in before {
        if !now.contains_key(id) {
            changes.push((if *state == State::Holds { "released" } else { "left" }, participant));
        }
    }
    let mut arrivals: Vec<_> = now
        .iter()
        .filter(|(id, (state, _))| before.get(id).is_none_or(|was| was.0 != *state))
        .collect();
    arrivals.sort_by_key(|(_, (_, participant))| participant.token);
    for (_, (state, participant)) in arrivals {
        changes.push((if *state == State::Holds { "acquired" } else { "waiting" }, participant));
    }
    for (event, participant) in changes {
        let time = timestamp::show(timestamp::now());
        let line = if printer.json {
            let participant = participant::json(participant);
            json!({ "time": time, "event": event, "name": name, "participant": participant })
                .to_string()
        } else {
            let id = participant::short_id(participant.id);
            format!(
                "{time}  {event:<8}  {}  {}  id {id}  {}",
                clean(name),
                participant::token_words(participant.token),
                participant::who(participant)
            )
        };
        if !Printer::answer(&line)? {
            return Ok(false);
        }
    }
    Ok(true)
}
