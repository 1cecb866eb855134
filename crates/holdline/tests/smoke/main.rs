//! What needs no server: first steps, the blocking API, addresses at which no store is,
//! cancellation at every await point, the thread that renews, and what a holder may believe after
//! which answer; and bounds of types.

mod addresses;
mod blocking;
mod bounds;
mod cancel;
mod doubt;
mod first_steps;
mod handoff;
mod limits;
mod metrics;
mod notice;
mod renewals;
mod renewer;
mod room;
mod scripted;
mod several;
mod traps;
mod trust;
