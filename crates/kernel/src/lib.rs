//! The pure core of `holdline`: every decision about who holds a lock, without I/O.
//!
//! A lock is a [line] of tickets. One rule decides everything:
//!
//! > A ticket is admitted when the weight ahead of it, plus its own, fits the capacity.
//!
//! A mutex has capacity 1; a semaphore of *n* has capacity *n*; in a read-write lock a reader
//! weighs 1 and a writer as much as the whole line can hold. Admission is *derived* from the order,
//! so there is nothing to repair after a crash; admitted tickets are a prefix of the line, so a
//! departure can admit others but never evict anybody; and the place in the order is the fencing
//! token.
//!
//! ```text
//!              acquisition.rs: one ticket's life            line.rs: the rule
//!   events --> step(now, Event) -> Action             enter, leave, expire
//!                   |  uses lease.rs, backoff.rs          |  over places.rs, or a database's rows
//!                   v                                     v
//!              the driver (async, elsewhere)          a store (elsewhere)
//! ```
//!
//! Nothing here reads a clock, draws a random number, spawns a task or does I/O: the time and
//! random numbers are arguments. The crate has no dependency and is `no_std`, so the compiler
//! checks this.
#![no_std]

extern crate alloc;

mod acquisition;
mod backoff;
mod id;
mod lease;
mod line;
mod places;
mod quorum;
pub mod rule;
mod time;

pub use acquisition::{Acquisition, Action, Event, WaitMode};
pub use backoff::Backoff;
pub use id::{BadTicketId, TicketId};
pub use lease::{Lease, LeaseTimer, Next};
pub use line::{Enter, Head, Line, Place, Places, Refusal, Seq, Standing, Ticket};
pub use places::MemoryPlaces;
pub use quorum::{Tally, Verdict, Vote};
pub use time::Time;
