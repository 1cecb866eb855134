//! A resource that refuses a holder that others have followed: the only full protection.
//!
//! `cargo run -p holdline --example fenced`

use holdline::{Client, Fence, Mutex, Stale, open};
use std::sync::Mutex as Local;

/// An account that looks at the token with every read and every write.
#[derive(Default)]
struct Account {
    fence: Fence,
    balance: Local<i64>,
}

impl Account {
    fn read(&self, token: u64) -> Result<i64, Stale> {
        self.fence.check(token)?;
        Ok(*self.balance.lock().expect("nobody panics here"))
    }

    fn write(&self, token: u64, balance: i64) -> Result<(), Stale> {
        // In a database, the check and the write are one statement.
        let mut current = self.balance.lock().expect("nobody panics here");
        self.fence.check(token)?;
        *current = balance;
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = open("memory:").await?;
    let lock = Mutex::new(&client, "account-17");
    let account = Account::default();

    let slow = lock.lock().await?;
    let seen = account.read(slow.token())?;

    // While the slow holder is stopped, somebody breaks its lock; another process pays in.
    client.force_unlock("account-17", slow.ticket(), "the example").await?;
    let elsewhere = Client::new(client.store().clone());
    let next = Mutex::new(&elsewhere, "account-17").lock().await?;
    account.write(next.token(), account.read(next.token())? + 100)?;

    // It wakes, and writes what it computed from the old balance: refused.
    let refused = account.write(slow.token(), seen + 1).expect_err("it is stale");
    println!("refused, as it must be: {refused}");
    println!("the balance is {}", account.read(next.token())?);
    Ok(())
}
