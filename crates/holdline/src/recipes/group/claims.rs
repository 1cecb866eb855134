//! What one member of a group may claim: pure decisions, which `member.rs` carries out.
//!
//! A member relies on a look at the members for a bounded time, counted from before the look was
//! asked for. Whoever joins waits for that long before it claims anything, so by then all looks
//! that others rely on have seen it; and whoever leaves has stopped before others stop seeing it
//! (**G4**). Of two members that see each other, one has the higher score. So no key has two owners
//! at a time.
//!
//! A member's epoch is a token of the group's line that was granted *after* everybody who had left
//! by then had left, and *before* the look that it relies on. An earlier owner of a key either had
//! left when the epoch was granted, and its own is lower; or the present owner joined after the
//! earlier one's look, so its place, and its epoch, is higher.

use super::members::Members;
use crate::store::TicketId;
use holdline_kernel::{Lease, Time};
use std::time::Duration;

/// One look at the members.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// When it was asked for.
    pub(super) sent: Time,
    pub(super) members: Members,
}

/// What one member knows, and may claim.
#[derive(Debug)]
pub(super) struct Claims {
    /// Its place.
    me: TicketId,
    /// How long a look is relied on.
    stale_after: Duration,
    /// From when on it may claim anything: all looks that do not show it are stale by then.
    from: Time,
    /// The look that it relies on.
    look: Look,
    epoch: u64,
    /// When to look again.
    next: Time,
}

/// Who has a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// This member, in this epoch.
    Me(u64),
    /// The member at this address.
    Other(String),
    /// Nobody that is known of: the look is stale, or shows no member.
    Unknown,
}

/// The next step of looking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Take a new token from the line.
    TakeToken,
    /// Look at the line.
    Look,
}

/// A look under way, with the token that must come before it.
#[derive(Debug)]
pub(super) struct Looking {
    stale_after: Duration,
    /// What the outcome is compared with.
    base: Look,
    epoch: u64,
    somebody_left: bool,
}

impl Claims {
    /// Of a member that asked for its place at `sent`, and has it by this token. It claims nothing
    /// before [`Claims::joined`].
    pub(super) fn new(me: TicketId, stale_after: Duration, sent: Time, token: u64) -> Self {
        let look = Look { sent, members: Members::default() };
        Claims { me, stale_after, from: Time::NEVER, look, epoch: token, next: sent }
    }

    /// Decides, after the first look, from when on it may claim keys: at once if it is alone, as
    /// nobody then relies on a look that does not show it. It had its place at `granted`.
    pub(super) fn joined(&mut self, granted: Time, now: Time) -> Time {
        let wait = self.stale_after + Lease::drift_of(self.stale_after);
        let is_alone = !self.look.members.has_others_than(self.me);
        self.from = if is_alone { now } else { granted.after(wait) };
        self.from
    }

    /// When to look again.
    pub(super) fn next_look(&self) -> Time {
        self.next
    }

    /// Until when the look is relied on.
    pub(super) fn until(&self) -> Time {
        self.look.sent.after(self.stale_after)
    }

    /// The members that it relies on.
    pub(super) fn members(&self) -> &Members {
        &self.look.members
    }

    /// Its epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The owner of a key with this hash. That it is this member holds only while its place does.
    pub(super) fn owner(&self, key: u64, now: Time) -> Owner {
        if now >= self.until() {
            return Owner::Unknown;
        }
        match self.look.members.owner_of(key) {
            Some(owner) if owner.id != self.me => Owner::Other(owner.address.to_string()),
            Some(_) if now >= self.from => Owner::Me(self.epoch),
            _ => Owner::Unknown,
        }
    }

    /// Begins to look.
    pub(super) fn start_looking(&mut self, now: Time) -> Looking {
        // Four looks for each time that one is relied on, as with renewals and leases.
        self.next = now.after(self.stale_after / 4);
        Looking {
            stale_after: self.stale_after,
            base: self.look.clone(),
            epoch: self.epoch,
            somebody_left: false,
        }
    }

    /// Relies on a new look from now on, and says whether the one before had become stale: then
    /// whatever was claimed by it has been lost in between.
    pub(super) fn rely_on(&mut self, look: Look, epoch: u64, now: Time) -> bool {
        let was_stale = now >= self.until();
        (self.look, self.epoch) = (look, epoch);
        was_stale
    }
}

impl Looking {
    /// What to do next.
    pub(super) fn step(&mut self, now: Time) -> Step {
        if now >= self.base.sent.after(self.stale_after) {
            // Somebody may have come, claimed and left meanwhile, unseen.
            self.base = Look { sent: now, members: Members::default() };
            self.somebody_left = true;
        }
        if self.somebody_left { Step::TakeToken } else { Step::Look }
    }

    /// Takes in a new token.
    pub(super) fn token_taken(&mut self, token: u64) {
        (self.epoch, self.somebody_left) = (token, false);
    }

    /// Takes in what a look showed. Returns the look and its epoch if they can be relied on; if
    /// not, somebody has left since the epoch began, and there are more steps.
    pub(super) fn looked(&mut self, sent: Time, members: Members, now: Time) -> Option<(Look, u64)> {
        let look = Look { sent, members };
        let in_time = now < self.base.sent.after(self.stale_after);
        if in_time && !look.members.lacks_some_of(&self.base.members) {
            return Some((look, self.epoch));
        }
        self.somebody_left = true;
        if in_time {
            self.base = look;
        }
        None
    }
}
