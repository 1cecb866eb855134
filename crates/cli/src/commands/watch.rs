//! `holdline watch`: a line for every change of a lock.

use crate::duration;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use crate::session::{Session, check_name};
use crate::{party, stamp};
use clap::Args;
use holdline::store::TicketId;
use holdline::{Info, Party};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::sleep;

/// So many looks in a row may fail before the store is called unavailable.
const FAILURES: u32 = 5;

/// Follow who holds and who waits, one line for each change
///
/// It looks at the store every half second; what comes and goes between two looks is not seen.
#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// The lock's name
    name: String,

    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration::parse)]
    every: Duration,
}

/// What somebody does at a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waits,
    Holds,
}

type Seen = BTreeMap<TicketId, (State, Party)>;

impl Watch {
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        check_name(&self.name)?;
        let client = session.open(None).await?;
        let every = self.every.max(Duration::from_millis(10));
        let (mut before, mut failures) = (Seen::new(), 0);
        loop {
            match client.inspect(&self.name).await {
                Ok(info) => {
                    failures = 0;
                    let now = seen(info);
                    if !tell(session.printer, &self.name, &before, &now) {
                        return Ok(Exit::DONE);
                    }
                    before = now;
                }
                Err(error) if error.retryable() && failures < FAILURES => failures += 1,
                Err(error) => return Err(error.into()),
            }
            sleep(every).await;
        }
    }
}

fn seen(info: Info) -> Seen {
    let holders = info.holders.into_iter().map(|party| (party.id, (State::Holds, party)));
    let waiters = info.waiters.into_iter().map(|party| (party.id, (State::Waits, party)));
    holders.chain(waiters).collect()
}

/// Tells the differences: departures first, then arrivals by token. False if nobody reads on.
fn tell(printer: Printer, name: &str, before: &Seen, now: &Seen) -> bool {
    let mut changes = Vec::new();
    for (id, (state, party)) in before {
        if !now.contains_key(id) {
            changes.push((if *state == State::Holds { "released" } else { "left" }, party));
        }
    }
    let mut arrivals: Vec<_> = now
        .iter()
        .filter(|(id, (state, _))| before.get(id).is_none_or(|was| was.0 != *state))
        .collect();
    arrivals.sort_by_key(|(_, (_, party))| party.token);
    for (_, (state, party)) in arrivals {
        changes.push((if *state == State::Holds { "acquired" } else { "waiting" }, party));
    }
    changes.into_iter().all(|(event, party)| {
        let time = stamp::show(stamp::now());
        Printer::answer(&if printer.json {
            json!({ "time": time, "event": event, "name": name, "party": party::json(party) })
                .to_string()
        } else {
            let id = party::short_id(party.id);
            format!("{time}  {event:<8}  token {}  id {id}  {}", party.token, party::who(party))
        })
    })
}
