//! ZooKeeper servers of a test's own, and what can be asked of them behind the store's back.

pub(crate) use crate::eventually::{soon, until};
use holdline::{Guard, Mutex};
pub(crate) use holdline_testkit::free_port;
pub(crate) use holdline_testkit::zookeeper::*;
use std::time::Duration;
use zookeeper_client as zk;

/// A session with these hosts, behind the store's back.
pub(crate) async fn raw(hosts: &str) -> zk::Client {
    let connector = zk::Client::connector().with_session_timeout(Duration::from_secs(30));
    connector.connect(hosts).await.expect("it is there")
}

/// Locks, however often that fails on a machine that is busy, or in an ensemble that has no leader.
pub(crate) async fn persist(lock: Mutex) -> Guard {
    loop {
        match lock.lock().await {
            Ok(guard) => return guard,
            Err(error) => assert!(error.retryable(), "{error}"),
        }
    }
}
