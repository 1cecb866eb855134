//! The ZooKeeper store against real servers, which these tests start, stop, freeze and kill: what
//! the conformance suite does not know about. Without a ZooKeeper on this machine they
//! were not run, and do not pass: see `holdline_testkit::missing`.
#![cfg(feature = "zookeeper")]

mod absent;
mod cost;
mod dialects;
mod divergent_replica;
mod doubles;
mod evictions;
mod faults;
mod garbled;
mod loss;
mod observe;
mod old_servers;
mod other_clients;
mod outages;
mod places;
mod recipes;
mod rollback;
mod storm;
mod strangers;
#[cfg(feature = "zookeeper-tls")]
mod tls;
mod trials;
mod trips;
mod uncontended;
mod unreliable;
mod users;

use holdline::Client;
use holdline_testkit::Link;
use holdline_testkit::zookeeper::Servers;

/// A client of the first member through a link of its own, whose URL ends with these options.
async fn linked(servers: &Servers, options: &str) -> (Client, Link) {
    let link = Link::to(servers.hosts()[0].as_str()).expect("a port is free");
    let url = format!("zookeeper://{}{options}", link.address());
    (holdline::open(&url).await.expect("a good URL"), link)
}
