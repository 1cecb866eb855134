//! Distributed locks with fencing tokens, renewal and loss notice, over many stores.
#![doc = ""]

mod client;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod driver;
mod error;
mod fence;
mod gate;
mod guard;
mod held;
mod keeper;
mod names;
mod note;
mod observe;
mod open;
mod recipes;
mod settings;
pub mod store;
pub mod stores;

pub use client::{Client, Info, Party};
pub use error::{Error, ErrorKind, Result};
pub use fence::{Fence, Stale};
pub use guard::{Guard, OnLoss};
pub use holdline_kernel::Schedule;
pub use names::Name;
pub use note::Note;
pub use open::open;
pub use recipes::{
    Election, Leader, Leadership, Multi, MultiGuard, Mutex, Observer, Owner, ReentrantGuard,
    ReentrantMutex, RwLock, Semaphore, WriteGuard,
};
