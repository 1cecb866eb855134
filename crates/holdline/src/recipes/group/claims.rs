//! The claims of one member of a group: pure decisions, which `member.rs` carries out.
//!
//! **One owner at a time.** A member relies on a look (a snapshot of the members) for a bounded
//! time, counted from before its request was sent. A joining member waits for that time before it
//! claims any key: by then every look that another member relies on shows it. A leaving member has
//! stopped before others cease to see it (**G4**). Of two members that see each other, one has the
//! higher score.
//!
//! **Epochs rise.** A member's epoch is a token of the group's line that was granted between two
//! looks such that no member of the first, or of a later one, is missing in the next. So the token
//! of an earlier owner of a key was granted before: either that owner had left when this epoch
//! began, or this member joined after that owner's last look. A member that comes and goes between
//! two looks has claimed nothing, because it had to wait for longer than the time between them. The
//! exception is a member that was alone when it joined, and so did not wait: its first epoch was
//! granted before a look that shows no other member, so it is lower than those of all that join
//! later; and it waits before it claims in another epoch, which may be higher than theirs.

use super::members::Members;
use crate::store::TicketId;
use holdline_kernel::{Lease, Time};
use std::time::Duration;

/// A look: a snapshot of the members.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// When its request was sent.
    pub(super) sent: Time,
    pub(super) members: Members,
}

/// The state of one member: what it knows, and so may claim.
#[derive(Debug)]
pub(super) struct Claims {
    /// The id of its place.
    me: TicketId,
    /// How long a look is valid.
    stale_after: Duration,
    /// When it may begin to claim keys.
    from: Time,
    /// When all looks that do not show it are stale.
    seen_by_all: Time,
    /// The current look.
    look: Look,
    epoch: u64,
    /// When to look again.
    next: Time,
}

/// The owner of a key, as far as is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// This member, in this epoch.
    Me(u64),
    /// The member at this address.
    Other(String),
    /// Unknown: the look is stale, or shows no member.
    Unknown,
}

/// The next step of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Take a new token from the line.
    TakeToken,
    /// Look at the line.
    Look,
}

/// A look in progress, and the token that must come before it.
#[derive(Debug)]
pub(super) struct Looking {
    stale_after: Duration,
    /// The previous look, of which no member may be missing; `None` if it is stale.
    base: Option<Look>,
    epoch: u64,
    needs_token: bool,
}

impl Claims {
    /// The state of a member whose place has this token, and which looked before it asked for the
    /// place. It claims nothing before [`Claims::joined`].
    pub(super) fn new(me: TicketId, stale_after: Duration, before: Look, token: u64) -> Self {
        let (from, next) = (Time::NEVER, before.sent);
        Claims { me, stale_after, from, seen_by_all: from, look: before, epoch: token, next }
    }

    /// Decides, after the first look, when it may begin to claim keys: at once if it is alone,
    /// because then no member relies on a look that does not show it. It had its place at
    /// `granted`.
    pub(super) fn joined(&mut self, granted: Time, now: Time) -> Time {
        self.seen_by_all = granted.after(Lease::by_any_clock(self.stale_after));
        let is_alone = !self.look.members.has_others_than(self.me);
        self.from = if is_alone { now } else { self.seen_by_all };
        self.from
    }

    /// When the next look is due.
    pub(super) fn next_look(&self) -> Time {
        self.next
    }

    /// Until when the current look is valid.
    pub(super) fn until(&self) -> Time {
        self.look.sent.after(self.stale_after)
    }

    /// The members in the current look.
    pub(super) fn members(&self) -> &Members {
        &self.look.members
    }

    /// Its epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The owner of a key with this hash. If it is this member, the answer holds only while its
    /// place does.
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

    /// Begins a look.
    pub(super) fn start_looking(&mut self, now: Time) -> Looking {
        // Four looks in the time that one is valid, as with renewals and leases.
        self.next = now.after(self.stale_after / 4);
        Looking {
            stale_after: self.stale_after,
            base: Some(self.look.clone()),
            epoch: self.epoch,
            needs_token: false,
        }
    }

    /// Relies on a new look from now on. Returns whether the previous one had become stale, in
    /// which case all keys claimed by it have been lost in between.
    pub(super) fn rely_on(&mut self, look: Look, epoch: u64, now: Time) -> bool {
        let was_stale = now >= self.until();
        if epoch != self.epoch {
            self.from = self.from.max(self.seen_by_all);
        }
        (self.look, self.epoch) = (look, epoch);
        was_stale
    }
}

impl Looking {
    /// The next step.
    pub(super) fn step(&mut self, now: Time) -> Step {
        // No look is compared with a stale one: a token that comes between them would be in vain.
        self.base.take_if(|look| now >= look.sent.after(self.stale_after));
        if self.base.is_some() && self.needs_token { Step::TakeToken } else { Step::Look }
    }

    /// Records a new token.
    pub(super) fn token_taken(&mut self, token: u64) {
        (self.epoch, self.needs_token) = (token, false);
    }

    /// Evaluates what a look has shown. Returns the look and its epoch if they can be relied on;
    /// `None` if more steps are needed.
    pub(super) fn looked(
        &mut self,
        sent: Time,
        members: Members,
        now: Time,
    ) -> Option<(Look, u64)> {
        let look = Look { sent, members };
        // Since a stale look, a member may have come, claimed a key and left, unseen.
        let follows = self.base.as_ref().is_some_and(|base| {
            let in_time = now < base.sent.after(self.stale_after);
            in_time && !look.members.lacks_some_of(&base.members)
        });
        if follows {
            return Some((look, self.epoch));
        }
        (self.base, self.needs_token) = (Some(look), true);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const STALE_AFTER: Duration = Duration::from_millis(400);
    const QUICK: u64 = 1;
    const BRIEF: u64 = 2;
    const SLOW: u64 = 3;

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    /// Members whose place numbers are their tokens.
    fn members(numbers: &[u64]) -> Members {
        let place = |id: &u64| (TicketId((*id).into()), *id, Arc::from(format!("server-{id}")));
        Members::from_places(numbers.iter().map(place))
    }

    fn look(ms: u64, numbers: &[u64]) -> Look {
        Look { sent: at(ms), members: members(numbers) }
    }

    /// Performs a look that shows these members, and relies on it if possible. `token` is taken
    /// first if one is required.
    fn look_at(claims: &mut Claims, ms: u64, numbers: &[u64], token: u64) {
        let mut looking = claims.start_looking(at(ms));
        for _ in 0..3 {
            if looking.step(at(ms)) == Step::TakeToken {
                looking.token_taken(token);
            } else if let Some((look, epoch)) = looking.looked(at(ms), members(numbers), at(ms)) {
                claims.rely_on(look, epoch, at(ms));
                return;
            }
        }
        panic!("no look can be relied on");
    }

    /// The epoch in which a member claims all of its keys among these members.
    fn epoch_of(claims: &Claims, ms: u64) -> Option<u64> {
        let mut owners = (0..100).map(|key: u64| claims.owner(key << 57, at(ms)));
        owners.find_map(|owner| if let Owner::Me(epoch) = owner { Some(epoch) } else { None })
    }

    /// A member that is slow to join looks at an empty line. Another one joins alone, sees a third
    /// come and go, and leaves before the slow one looks again. The slow one is alone then, misses
    /// no member, and claims in the epoch of its place. The quick one's second epoch is higher.
    #[test]
    fn a_member_that_was_alone_waits_before_its_second_epoch() {
        let mut slow = Claims::new(TicketId(SLOW.into()), STALE_AFTER, look(0, &[]), SLOW);

        let mut quick = Claims::new(TicketId(QUICK.into()), STALE_AFTER, look(1, &[]), QUICK);
        look_at(&mut quick, 10, &[QUICK], 0);
        quick.joined(at(5), at(10));
        assert_eq!(epoch_of(&quick, 10), Some(QUICK), "a member that is alone need not wait");
        look_at(&mut quick, 50, &[QUICK, BRIEF], 0);
        look_at(&mut quick, 100, &[QUICK, SLOW], 4);
        look_at(&mut quick, 300, &[QUICK, SLOW], 0);
        assert_eq!(quick.epoch(), 4);
        let claims = (100..700).find(|ms| epoch_of(&quick, *ms).is_some());
        // It has had its place since 5; a look is valid for 400; 6 and a bit are for clocks.
        assert_eq!(claims, Some(412));

        // It may have left just before, or just after it claimed.
        for (ms, epoch) in [(399, SLOW), (412, 5)] {
            look_at(&mut slow, ms, &[SLOW], 5);
            slow.joined(at(90), at(ms));
            assert_eq!(epoch_of(&slow, ms), Some(epoch));
            slow = Claims::new(TicketId(SLOW.into()), STALE_AFTER, look(0, &[]), SLOW);
        }
    }

    /// The answer shows no member that has come, claimed a key and left since the last look.
    #[test]
    fn a_look_that_is_answered_when_the_last_one_is_stale_needs_a_new_epoch() {
        for (answered, next) in [(399, None), (400, Some(Step::TakeToken))] {
            let mut claims = Claims::new(TicketId(SLOW.into()), STALE_AFTER, look(0, &[]), SLOW);
            let mut looking = claims.start_looking(at(390));
            assert_eq!(looking.step(at(390)), Step::Look, "the last one is not stale yet");
            let relied_on = looking.looked(at(390), members(&[SLOW]), at(answered));
            assert_eq!(relied_on.map(|(_, epoch)| epoch), next.is_none().then_some(SLOW));
            let step = looking.step(at(answered));
            assert!(next.is_none_or(|next| next == step), "{answered}: {step:?}");
        }
    }
}
