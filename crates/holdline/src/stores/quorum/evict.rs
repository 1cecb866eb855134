//! Removing somebody by force, with a number that fences him and nobody after him.
//!
//! The nodes' own numbers do not do: the highest of them may be above what a later majority gives
//! out, and would fence the next holder as well; and if a node's first answer is lost, its second
//! is that there is nobody, and what the others say may be below the victim's token. So a stand-in
//! queues behind the victim on every node, is let in where the victim is removed, and takes the
//! lock as anybody does. Its token is above the victim's and below all later ones, by the same
//! proof; and nobody comes in between.

use super::Quorum;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{Enter, Seq, Standing, Ticket, TicketId};
use std::sync::Arc;
use std::time::Duration;

/// How long a stand-in is left behind if all goes wrong.
const LEASE: Duration = Duration::from_secs(1);

impl Quorum {
    pub(super) async fn remove(
        &self,
        line: &Name,
        id: TicketId,
        reason: &str,
    ) -> Result<Option<Seq>> {
        let views = self.survey(line, |node| node.look(line)).await?;
        if !views.iter().flat_map(|view| &view.places).any(|place| place.id == id) {
            return Ok(None);
        }
        let stand_in = Ticket {
            id: TicketId(fastrand::u128(..)),
            weight: 1,
            capacity: 1,
            lease: LEASE,
            patience: LEASE,
            span: 1,
            floor: self.lead(),
        };
        let token = self.replace(line, id, reason, &stand_in).await;
        self.leave_all(line, stand_in.id, Self::patience(LEASE)).await.ok();
        token
    }

    async fn replace(
        &self,
        line: &Name,
        id: TicketId,
        reason: &str,
        stand_in: &Ticket,
    ) -> Result<Option<Seq>> {
        let note = &Arc::from("");
        self.survey(line, |node| node.enter(line, stand_in, note, Enter::Queue)).await?;
        let numbers = self.survey(line, |node| node.evict(line, id, reason)).await?;
        if numbers.iter().all(Option::is_none) {
            return Ok(None);
        }
        // Where the stand-in is behind the victim, the number that came up there is the stand-in's.
        // A higher one is that of a node where the victim has come back behind it.
        let highest = numbers.into_iter().flatten().max();
        match self.try_all(line, stand_in, note).await {
            Ok(Standing::Admitted(token)) if Some(token) >= highest => Ok(Some(token)),
            // That; or the victim was not on a majority any more, and another was first; or answers
            // are missing. No number is better than one that may fence the wrong one, or nobody.
            Ok(_) => Err(unfenced(line, None)),
            Err(error) => Err(unfenced(line, Some(error))),
        }
    }
}

fn unfenced(line: &Name, cause: Option<Error>) -> Error {
    let message = format!(
        "lock \"{line}\" was taken from its holder by force, but there is no number to fence him \
         with; the next holder's token will do"
    );
    match cause {
        Some(cause) => Error::because(ErrorKind::Unavailable, message, cause),
        None => Error::new(ErrorKind::Unavailable, message),
    }
}
