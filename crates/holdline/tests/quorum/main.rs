//! A quorum of stores in memory, and one of real Redis servers, of which some fail, forget, lag or
//! say nothing. (The conformance suite runs quorums that are healthy.)

#[cfg(feature = "redis")]
mod away;
#[path = "../support/eventually.rs"]
mod eventually;
mod leaving;
mod nodes;
#[cfg(feature = "redis")]
#[path = "../redis_server/mod.rs"]
mod redis_server;
mod silent;
#[cfg(all(feature = "redis", target_os = "linux"))]
mod storm;
