//! The file store, with real processes: this program starts itself again in other roles.

#![cfg(feature = "sqlite")]

mod children;
mod containers;
mod contend;
mod cost;
mod death;
mod evictions;
mod faults;
mod log;
mod nonsense;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod observers;
mod outages;
mod speed;
mod storm;
mod tidy;
mod wakes;
