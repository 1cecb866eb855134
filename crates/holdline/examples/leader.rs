//! A leader that others can see, and what happens when it goes.
//!
//! `cargo run -p holdline --example leader` in two terminals; stop the first with Ctrl-C, or kill
//! it.

use holdline::{Election, open};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> holdline::Result<()> {
    let path = std::env::temp_dir().join("holdline-example.db");
    let client = open(&format!("sqlite:{}", path.display())).await?;
    let election = Election::new(&client, "scheduler").label("example");

    if let Some(leader) = election.leader().await? {
        println!("{} leads; waiting for our turn", leader.value);
    }
    let leader = election.campaign(format!("pid {}", std::process::id())).await?;
    println!("we lead, with token {}", leader.token());

    // Lead for ten seconds, or until the leadership is lost.
    let led = leader.protect(tokio::time::sleep(Duration::from_secs(10))).await;
    match led {
        Ok(()) => leader.resign().await,
        Err(lost) => Err(lost),
    }
}
