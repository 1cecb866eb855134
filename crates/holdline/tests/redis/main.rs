//! The stores on Redis against real servers, which these tests start, stop, freeze and kill: what
//! the conformance suite does not know about. Without a `redis-server` in the path they were not
//! run, and do not pass: see `holdline_testkit::missing`.
#![cfg(feature = "redis")]

mod bounds;
mod checks;
mod clocks;
mod cost;
mod doubt;
mod evictions;
mod fake;
mod faults;
mod first;
mod garble;
mod line;
mod link;
mod outage;
mod redisson;
mod runtimes;
mod schemes;
mod speed;
mod stopped;
mod storm;
mod string;
#[cfg(feature = "redis-tls")]
mod tls;
mod together;
mod topologies;
