//! The file store, with real processes: this program starts itself again in other roles.

#![cfg(feature = "sqlite")]

mod children;
mod contend;
mod cost;
mod death;
mod faults;
mod model;
mod tidy;
mod wakes;
