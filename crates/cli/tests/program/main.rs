//! Whole runs of the real program: what it prints, what it leaves behind, and how it ends.
//!
//! Nothing here sleeps and hopes: commands under a lock say when they are there, and every wait for
//! something has an end.

#[cfg(feature = "bench")]
mod bench;
mod bounds;
mod codes;
mod common;
mod contend;
mod defaults;
mod doctor;
mod documents;
mod events;
mod kinds;
mod look;
mod loss;
mod nested;
#[cfg(target_os = "linux")]
mod no_fork;
mod options;
#[cfg(feature = "redis")]
mod outage;
mod printed;
mod schema;
mod sections;
mod signals;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(target_os = "linux")]
mod top;
mod unread;
#[cfg(target_os = "linux")]
mod users;
