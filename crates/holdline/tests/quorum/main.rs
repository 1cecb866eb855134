//! A quorum of stores in memory, and one of real Redis servers, of which some fail, forget, lag or
//! say nothing. (The conformance suite runs quorums that are healthy.)

#[cfg(feature = "redis")]
mod away;
mod leaving;
mod nodes;
mod silent;
#[cfg(all(feature = "redis", target_os = "linux"))]
mod storm;
