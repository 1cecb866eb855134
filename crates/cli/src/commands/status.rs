//! `holdline status`: who holds what, and who waits for it.

use crate::context::{Session, check_name};
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::participant;
use crate::printer::{Level, Printer, clean};
use clap::Args;
use holdline::{LockInfo, Participant};
use serde_json::{Value, json};
use std::io::{IsTerminal, stdout};

/// Show who holds and who waits
///
/// SINCE is by the clock of whoever holds or waits. UNTIL is when they lapse unless heard of; a
/// holder that lives renews in time. The ID is what `holdline break` asks for.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// The lock's name; without it, all locks
    name: Option<String>,
}

impl Status {
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        let name = self.name.as_deref();
        let client = session.ask().await?;
        let mut infos = Vec::new();
        if let Some(name) = name {
            infos.push(client.inspect(name).await?);
        } else {
            let names = client.list("").await?;
            // The store has answered: from here each answer has its own time limit, as there may be
            // many locks.
            let client = session.with_response_timeout(client.clone());
            for name in names {
                infos.push(client.inspect(name.as_str()).await?);
            }
        }
        let in_store = format!(" in {}", session.describe(&client));
        if session.printer.verbose || stdout().is_terminal() {
            let message = format!("the locks{in_store}");
            let fields = json!({ "store": client.address() });
            session.printer.say(Level::Usually, "store", &message, fields);
        }
        let text = match name {
            Some(_) if session.printer.json => participant::info_json(&infos[0]).to_string(),
            None if session.printer.json => {
                Value::Array(infos.iter().map(participant::info_json).collect()).to_string()
            }
            _ => table(&infos).unwrap_or_else(|| match name {
                Some(name) => format!("nobody holds \"{}\" or waits for it{in_store}", clean(name)),
                None => format!("nobody holds or waits for anything{in_store}"),
            }),
        };
        Printer::answer(&text)?;
        Ok(Exit::DONE)
    }
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
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEAD.len()).map(|column| width(column).unwrap_or(0)).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    Some(lines.collect::<Vec<_>>().join("\n"))
}

fn row(info: &LockInfo, state: &str, participant: &Participant) -> [String; 8] {
    let state = match participant.weight {
        weight if weight == info.capacity || weight == 1 => state.to_owned(),
        weight => format!("{state} {weight}/{}", info.capacity),
    };
    let age =
        participant::age(participant).map_or_else(|| "?".to_owned(), |age| format!("{age} ago"));
    [
        clean(info.name.as_str()),
        state,
        participant::short_id(participant.id),
        participant.token.to_string(),
        age,
        format!("in {}", duration::show(participant.expires_in)),
        participant::place(participant),
        participant::description(participant).unwrap_or_default(),
    ]
}
