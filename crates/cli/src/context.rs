//! What every verb begins with: the store, opened and answering within a time.

use crate::duration;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use holdline::{Client, Name};
use std::future::{Future, pending};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// How long opening a store and its first answer may take for verbs that only ask something.
const ASKING: Duration = Duration::from_millis(1_800);
/// The same for verbs that wait.
const WAITING: Duration = Duration::from_secs(15);
/// The pause before opening is tried again.
const PAUSE: Duration = Duration::from_millis(200);
/// The least time for one answer, however long opening took.
const ANSWER: Duration = Duration::from_millis(50);

/// What all verbs are given.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) printer: Printer,
    /// The URL as it was given; empty for the default.
    pub(crate) store: String,
    pub(crate) began: Instant,
    pub(crate) connect_timeout: Option<Duration>,
}

/// A store that was opened, and until when it must have answered.
#[derive(Clone, Debug)]
pub(crate) struct Contact {
    pub(crate) client: Client,
    pub(crate) until: Instant,
    pub(crate) limit: Duration,
}

impl Session {
    /// Opens the store for a verb that asks something once. Its calls are bounded by what is left.
    pub(crate) async fn ask(&self) -> Result<Client, Failure> {
        Ok(self.open_for_try().await?.client)
    }

    /// The same, with the bound.
    pub(crate) async fn open_for_try(&self) -> Result<Contact, Failure> {
        self.open(self.connect_timeout.unwrap_or(ASKING)).await
    }

    /// Opens the store for a verb that waits, at most for `wait`.
    pub(crate) async fn stay(&self, wait: Option<Duration>) -> Result<Contact, Failure> {
        let limit = self.connect_timeout.unwrap_or(WAITING);
        self.open(wait.map_or(limit, |wait| wait.min(limit))).await
    }

    /// Opens the store, in `limit` from the program's start at most.
    async fn open(&self, limit: Duration) -> Result<Contact, Failure> {
        let until = self.began + limit;
        let opened = timeout_at(until, self.keep_opening(until)).await;
        let client = opened.unwrap_or_else(|_| Err(silent("the store", limit)))?;
        let left = until.saturating_duration_since(Instant::now()).max(ANSWER);
        let left = Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        Ok(Contact { client: client.response_timeout(left), until, limit })
    }

    /// Opens the store, again and again if that may help.
    async fn keep_opening(&self, until: Instant) -> Result<Client, Failure> {
        loop {
            let opening = holdline::open(&self.store).await;
            match opening {
                Err(error) if error.retryable() && Instant::now() + PAUSE * 2 < until => {
                    sleep(PAUSE).await;
                }
                other => return Ok(other?),
            }
        }
    }

    /// The client, with the bound that a verb uses for the answers after the first.
    pub(crate) fn steady(&self, client: Client) -> Client {
        client.response_timeout(self.connect_timeout.unwrap_or(ASKING))
    }
}

impl Contact {
    /// Resolves when the time is over and the store has not answered anything.
    pub(crate) async fn missing(&self) -> Failure {
        sleep_until(self.until).await;
        if self.client.has_answered() {
            return pending().await;
        }
        silent(&self.client.address(), self.limit)
    }
}

fn silent(store: &str, limit: Duration) -> Failure {
    let message = format!(
        "{store} did not answer within {}; check that it runs and can be reached, or give it more \
         time by --connect-timeout",
        duration::show(limit)
    );
    Failure::new(Exit::STORE, "store", message)
}

/// Checks a name before anything else happens.
pub(crate) fn check_name(name: &str) -> Result<(), Failure> {
    Ok(Name::new(name).map(|_| ())?)
}

/// So many files a lock may need to open, on the most modest store.
const FILES: usize = 20;

/// Refuses to begin without what will be needed, before a lock is taken.
fn check_room() -> Result<(), Failure> {
    let dup = |_| rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 3);
    // All are held until the last is there.
    let room: Result<Vec<_>, _> = (0..FILES).map(dup).collect();
    let lacking = room.err().and_then(|errno| Failure::lacking("cannot start", &errno.into()));
    lacking.map_or(Ok(()), Err)
}

/// The one runtime: a thread is all that a lock needs.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, Failure> {
    check_room()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::lacking("cannot start", &error).unwrap_or_else(|| {
            Failure::new(Exit::INTERNAL, "internal", format!("cannot start a runtime: {error}"))
        })
    })?;
    let output = runtime.block_on(future);
    // A name that is still being looked up, for example, is not waited for.
    runtime.shutdown_background();
    Ok(output)
}
