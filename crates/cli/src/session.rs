//! What every verb begins with: the store, opened within a time.

use crate::duration;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use holdline::{Client, Name};
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// How long opening a store may take, unless a shorter time is asked for.
const OPENING: Duration = Duration::from_secs(15);
/// How often it is tried, and the pause between.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// What all verbs are given.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) printer: Printer,
    /// The URL as it was given; empty for the default.
    pub(crate) store: String,
    pub(crate) began: Instant,
}

impl Session {
    /// Opens the store, in `limit` from the program's start at most.
    pub(crate) async fn open(&self, limit: Option<Duration>) -> Result<Client, Failure> {
        let limit = limit.map_or(OPENING, |limit| limit.min(OPENING));
        let opening = timeout_at(self.began + limit, self.keep_opening());
        opening.await.unwrap_or_else(|_| {
            let message = format!(
                "the store did not answer within {}; check its URL, and that it runs",
                duration::show(limit)
            );
            Err(Failure::new(Exit::STORE, "store", message))
        })
    }

    async fn keep_opening(&self) -> Result<Client, Failure> {
        for _ in 1..TRIES {
            match holdline::open(&self.store).await {
                Err(error) if error.retryable() => sleep(PAUSE).await,
                other => return other.map_err(Failure::from),
            }
        }
        Ok(holdline::open(&self.store).await?)
    }

    /// Opens the store and asks it something once, for verbs that only look.
    pub(crate) async fn ask<T, F>(&self, question: impl Fn(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = holdline::Result<T>>,
    {
        let client = self.open(None).await?;
        let address = client.address();
        let answer = timeout_at(Instant::now() + OPENING, question(client)).await;
        let answer = answer.map_err(|_| {
            let message = format!("{address} did not answer; check that it runs");
            Failure::new(Exit::STORE, "store", message)
        })?;
        Ok(answer?)
    }
}

/// Checks a name before anything else happens.
pub(crate) fn check_name(name: &str) -> Result<(), Failure> {
    Ok(Name::new(name).map(|_| ())?)
}

/// The one runtime: a thread is all that a lock needs.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::new(Exit::INTERNAL, "internal", format!("cannot start a runtime: {error}"))
    })?;
    Ok(runtime.block_on(future))
}
