//! `holdline break`: takes a lock away from one holder.

use crate::context::{Session, check_name};
use crate::exit::{Exit, Failure};
use crate::participant;
use crate::printer::{Printer, clean};
use clap::Args;
use holdline::{LockInfo, Participant};
use serde_json::json;
use std::io::{BufRead, IsTerminal, Write, stderr, stdin};

/// The minimum number of digits of an id's prefix, which must be unique.
const DIGITS: usize = 6;

/// Take a lock away from one holder or waiter, and fence it
///
/// The next in line is admitted at once, so make sure that the holder has stopped, or that the
/// target of its writes rejects old tokens. Prints the new fencing token: pass it to the guarded
/// resource, and the old holder can do no harm there even before the next one comes. A waiter that
/// loses its place, and still waits, takes a new one at the end of the line.
#[derive(Args, Debug)]
pub(crate) struct Break {
    /// The lock's name
    name: String,

    /// The id that `holdline status` shows, or at least its first 6 digits
    #[arg(value_parser = check_id)]
    id: String,

    /// The reason; the holder gets it, as far as the store can keep it
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

fn check_id(text: &str) -> Result<String, String> {
    let id = text.to_ascii_lowercase();
    if !(DIGITS..=32).contains(&id.len()) || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(format!("give {DIGITS} to 32 hexadecimal digits, as `holdline status` shows"));
    }
    Ok(id)
}

impl Break {
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        check_name(&self.name)?;
        let client = session.ask().await?;
        let info = client.inspect(&self.name).await?;
        let participant = self.find(&info)?;
        if !self.yes && stdin().is_terminal() && !self.confirm(participant) {
            return Err(Failure::new(Exit::NOTHING, "unbroken", "nothing was broken"));
        }
        let client = session.with_response_timeout(client);
        let token = client.force_unlock(&self.name, participant.id, &self.reason).await?;
        let Some(token) = token else { return Err(self.gone()) };
        let line = if session.printer.json {
            let token = participant::known(token);
            let participant = participant::json(participant);
            let event = "broken";
            json!({ "event": event, "name": self.name, "token": token, "participant": participant })
                .to_string()
        } else {
            format!("{token}")
        };
        Printer::answer_if_read(&line).map_err(|failure| {
            let with = participant::with_token(", with", token);
            let message = format!("the lock was broken{with}, but {}", failure.message);
            Failure { message, ..failure }
        })?;
        Ok(Exit::DONE)
    }

    fn find<'a>(&self, info: &'a LockInfo) -> Result<&'a Participant, Failure> {
        let parties = info.holders.iter().chain(&info.waiters);
        let mut found =
            parties.filter(|participant| participant.id.to_string().starts_with(&self.id));
        let participant = found.next().ok_or_else(|| self.gone())?;
        if found.next().is_some() {
            return Err(Failure::usage(format!(
                "several ids at lock \"{}\" begin with {}; give more digits",
                self.name, self.id
            )));
        }
        Ok(participant)
    }

    fn confirm(&self, participant: &Participant) -> bool {
        let _ = write!(
            stderr(),
            "Take lock \"{}\" away from {}? What it runs may go on for a while. [y/N] ",
            clean(&self.name),
            participant::who(participant)
        );
        let _ = stderr().flush();
        let mut answer = String::new();
        let read = stdin().lock().read_line(&mut answer).is_ok();
        read && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
    }

    fn gone(&self) -> Failure {
        let message = format!(
            "lock \"{}\" has no holder and no waiter with the id {}; see `holdline status`",
            self.name, self.id
        );
        Failure::new(Exit::NOTHING, "unbroken", message)
    }
}
