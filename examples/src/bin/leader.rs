//! Leader election: of all processes that run this, one works at a time. If it ends, or is
//! disconnected, the next takes over.
//!
//! `cargo run -p holdline-examples --bin leader` in two terminals; then stop the first one with
//! Ctrl-C, kill it, or break its leadership: `holdline break scheduler ID --reason TEXT`, with the
//! ID that `holdline status` shows.
//!
//! Environment: `HOLDLINE_STORE`, such as `etcd://127.0.0.1:2379`; default: the file store.

use holdline::{Election, open};
use std::convert::Infallible;
use std::env;
use std::pin::pin;
use std::time::Duration;

/// The work of the leader, for as long as it leads. It never ends by itself.
///
/// All of its writes should carry the token: a process can be stopped between its last look at the
/// clock and its next write, and no election can prevent that (see `fenced_sql`).
async fn lead(token: u64) -> Infallible {
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        println!("working under token {token}");
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = match env::var("HOLDLINE_STORE") {
        Err(env::VarError::NotPresent) => holdline::open_default()?,
        url => open(&url?).await?,
    };
    // A crash keeps others waiting for the rest of the lease. The margin is the time for the work
    // to stop, between the notice of a loss and the earliest moment at which another can lead.
    let election = Election::new(&client, "scheduler")
        .lease(Duration::from_secs(5))
        .margin(Duration::from_secs(1))
        .label("example");
    let me = format!("process {}", std::process::id());
    let mut stop = pin!(tokio::signal::ctrl_c());

    loop {
        if let Ok(Some(leader)) = election.leader().await {
            println!("{} leads", leader.value);
        }
        // An outage of the store is waited out here; an error is one that waiting does not cure.
        let leader = tokio::select! {
            elected = election.campaign(&me) => elected?,
            _ = &mut stop => break, // a dropped candidature is withdrawn in the background
        };
        println!("we lead, with token {}", leader.token());

        // The work runs only inside `protect`, so it cannot outlive the leadership.
        let led = tokio::select! {
            led = leader.protect(lead(leader.token())) => led,
            _ = &mut stop => {
                // Others need not wait for the lease. An error says if it was lost at the last
                // moment, or if the store has not confirmed it yet.
                match leader.resign().await {
                    Ok(()) => println!("resigned"),
                    Err(error) => println!("{error}"),
                }
                break;
            }
        };
        // Only a loss ends it. The error has the cause: the lease expired, or the lock was broken.
        let Err(lost) = led;
        println!("we lead no more: {lost}");
    }
    client.settle().await;
    Ok(())
}
