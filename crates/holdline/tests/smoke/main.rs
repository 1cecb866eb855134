//! What needs no server: first steps, the blocking API, addresses at which no store is,
//! cancellation at every await point, and the thread that renews.

mod addresses;
mod blocking;
mod cancel;
mod doubt;
mod first_steps;
mod handoff;
mod limits;
mod metrics;
mod notice;
mod renewals;
mod renewer;
mod traps;
