//! The tally of a quorum: what many stores' answers amount to.

/// One store's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// It admitted the ticket.
    Yes,
    /// It did not.
    No,
    /// It did not answer in time, or with an error: it may have admitted the ticket or not.
    Unknown,
}

/// What the votes so far amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A majority said yes.
    Met,
    /// A majority can no longer say yes.
    Failed,
    /// It still depends on those who have not answered.
    Open,
}

/// Counts the votes of `n` stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    stores: u32,
    yes: u32,
    no: u32,
}

impl Tally {
    /// A tally of this many stores.
    pub const fn new(stores: u32) -> Self {
        Tally { stores, yes: 0, no: 0 }
    }

    /// The smallest number of stores any two sets of which share one.
    pub const fn majority(&self) -> u32 {
        self.stores / 2 + 1
    }

    /// Counts one vote.
    pub fn count(&mut self, vote: Vote) -> Verdict {
        match vote {
            Vote::Yes => self.yes += 1,
            Vote::No | Vote::Unknown => self.no += 1,
        }
        self.verdict()
    }

    /// What the votes amount to.
    pub const fn verdict(&self) -> Verdict {
        if self.stores == 0 {
            Verdict::Failed
        } else if self.yes >= self.majority() {
            Verdict::Met
        } else if self.no > self.stores - self.majority() {
            Verdict::Failed
        } else {
            Verdict::Open
        }
    }
}
