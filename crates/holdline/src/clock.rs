//! The clocks, re-exported from `holdline-base`.
//!
//! Leases are measured by the boot-time clock. Unlike [`std::time::Instant`] on Linux, it keeps
//! running while the machine is suspended, so a laptop that slept past a lease knows so when it
//! resumes. The wall clock only stamps fencing tokens and messages; nothing that a lock depends on
//! compares the wall clocks of two machines.

#[cfg(feature = "simulation")]
pub use holdline_base::clock::simulated;
pub(crate) use holdline_base::clock::{instant_in, pause, sleep_until, timeout, within};
#[doc(inline)]
pub use holdline_base::clock::{now, wall_micros};
