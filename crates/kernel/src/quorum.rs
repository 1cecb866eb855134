//! The tally of a quorum: the count of several stores' votes.

/// One store's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// The store admitted the ticket.
    Yes,
    /// The store did not admit the ticket.
    No,
    /// The store did not answer in time, or answered with an error: it may or may not have admitted
    /// the ticket.
    Unknown,
}

/// The result of the votes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A majority said yes.
    Met,
    /// A majority can no longer be reached.
    Failed,
    /// The result depends on outstanding votes.
    Open,
}

/// The count of the votes of several stores.
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

    /// The size of a majority: any two sets of this many stores share one.
    pub const fn majority(&self) -> u32 {
        self.stores / 2 + 1
    }

    /// Counts one vote, and returns the result so far.
    pub fn count(&mut self, vote: Vote) -> Verdict {
        match vote {
            Vote::Yes => self.yes += 1,
            Vote::No | Vote::Unknown => self.no += 1,
        }
        self.verdict()
    }

    /// The result of the votes so far.
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
