//! The clocks, of which `holdline-base` is the home.
//!
//! Leases are measured by the boot-time clock: unlike [`std::time::Instant`] on Linux it goes on
//! while the machine is suspended, so a laptop that was suspended past its lease knows so when it
//! resumes. The wall clock only stamps fencing tokens and messages; no decision compares the wall
//! clocks of two machines.

#[cfg(feature = "simulation")]
pub use holdline_base::clock::simulated;
pub(crate) use holdline_base::clock::{instant_in, pause, sleep_until, timeout, within};
#[doc(inline)]
pub use holdline_base::clock::{now, wall_micros};
