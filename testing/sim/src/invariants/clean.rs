//! Cleanness: every place in a line is its client's current one, or one that the client has given
//! up; and every line is empty when all leases have expired.

use super::{Fact, Invariant};
use holdline_kernel::TicketId;
use std::collections::{BTreeMap, BTreeSet};

/// The current ticket of each client, and the tickets that are given up.
#[derive(Debug, Default)]
pub(crate) struct Clean {
    present: BTreeMap<usize, TicketId>,
    disowned: BTreeSet<TicketId>,
}

impl Invariant for Clean {
    fn name(&self) -> &'static str {
        "clean"
    }

    fn see(&mut self, _now: u64, fact: &Fact<'_>) -> Result<(), String> {
        match *fact {
            Fact::Uses { client, id } => {
                self.present.insert(client, id);
            }
            Fact::Disowned { id } => {
                self.disowned.insert(id);
            }
            Fact::Line { places, .. } => {
                for place in places {
                    let present = self.present.get(&place.client) == Some(&place.id);
                    if !present && !self.disowned.contains(&place.id) {
                        return Err(format!("client {} has forgotten {place:?}", place.client));
                    }
                }
            }
            Fact::Over { line, left } if left > 0 => {
                return Err(format!("{left} places are left in line {line:?}"));
            }
            _ => {}
        }
        Ok(())
    }
}
