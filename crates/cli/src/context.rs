//! The context of every verb: the store, opened within a time limit.

use crate::duration;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use crate::store_url;
use holdline::store::Lines;
use holdline::{Client, Name};
use rustix::process::{Resource, getrlimit};
use std::future::{Future, pending};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// The time limit for opening a store and its first answer, for verbs that only query it.
const ASKING: Duration = Duration::from_millis(1_800);
/// The same for verbs that wait.
const WAITING: Duration = Duration::from_secs(15);
/// The flag that sets these limits.
const TIMEOUT: &str = "--connect-timeout";
/// The pause before opening is tried again.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a store that refuses is tried, unless a time limit was given.
pub(crate) const TRIES: u32 = 5;
/// A store that has not answered for this long is silent, and not refusing.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);
/// The minimum time for one answer, however long opening took.
const ANSWER: Duration = Duration::from_millis(50);

/// The context of a verb.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) printer: Printer,
    /// The URL, with absolute paths; empty for the default.
    pub(crate) store: String,
    pub(crate) began: Instant,
    pub(crate) connect_timeout: Option<Duration>,
}

/// An opened store, and the deadline for its first answer.
#[derive(Clone, Debug)]
pub(crate) struct OpenedStore {
    pub(crate) client: Client,
    pub(crate) until: Instant,
    pub(crate) limit: Duration,
    /// The flag that sets the limit.
    pub(crate) by: &'static str,
}

impl Session {
    /// The URL for the command, also of the default store.
    pub(crate) fn exported_store(&self) -> Option<String> {
        if self.store.is_empty() { store_url::of_default() } else { Some(self.store.clone()) }
    }

    /// The store's address, before it is open.
    fn address(&self) -> String {
        match self.store.as_str() {
            "" => "the default store".to_owned(),
            url => holdline::address_of(url),
        }
    }

    /// The store for people: its address, and for the default store also its users.
    pub(crate) fn describe(&self, client: &Client) -> String {
        let address = client.address();
        match self.store.as_str() {
            "" if address.ends_with(store_url::MACHINE_PATH) => {
                format!("{address} (shared by all users of this machine)")
            }
            "" => format!("{address} (private to this user)"),
            _ => address,
        }
    }

    /// Opens the store for a verb that queries it once. Its calls are bounded by the time left.
    pub(crate) async fn ask(&self) -> Result<Client, Failure> {
        Ok(self.open_for_try().await?.client)
    }

    /// The same, with the bound.
    pub(crate) async fn open_for_try(&self) -> Result<OpenedStore, Failure> {
        self.open(self.connect_timeout.unwrap_or(ASKING), TIMEOUT).await
    }

    /// Opens the store for a verb that waits, at most for `wait`.
    pub(crate) async fn open_to_wait(
        &self,
        wait: Option<Duration>,
    ) -> Result<OpenedStore, Failure> {
        let limit = self.connect_timeout.unwrap_or(WAITING);
        match wait.filter(|wait| *wait < limit) {
            Some(wait) => self.open(wait, "--wait").await,
            None => self.open(limit, TIMEOUT).await,
        }
    }

    /// Opens the store, in `limit` from the program's start at most, as the flag `by` says.
    async fn open(&self, limit: Duration, by: &'static str) -> Result<OpenedStore, Failure> {
        let until = self.began + limit;
        let opened = timeout_at(until, self.keep_opening(until)).await;
        let client = opened.unwrap_or_else(|_| Err(silent(&self.address(), limit, by)))?;
        let left = until.saturating_duration_since(Instant::now()).max(ANSWER);
        let left = Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        Ok(OpenedStore { client: client.response_timeout(left), until, limit, by })
    }

    /// A store that is open already.
    pub(crate) fn opened(&self, client: Client) -> OpenedStore {
        let limit = self.connect_timeout.unwrap_or(ASKING);
        let until = self.began + limit;
        OpenedStore { client: client.response_timeout(limit), until, limit, by: TIMEOUT }
    }

    /// Opens the store, and retries retryable errors: a few times if it refuses.
    async fn keep_opening(&self, until: Instant) -> Result<Client, Failure> {
        let mut refused = 0;
        loop {
            let began = Instant::now();
            let opening = match self.store.as_str() {
                "" => holdline::open_default(),
                url => holdline::open(url).await,
            };
            if began.elapsed() < SILENCE && self.connect_timeout.is_none() {
                refused += 1;
            }
            let goes_on = refused < TRIES && Instant::now() + PAUSE * 2 < until;
            match opening {
                Err(error) if error.retryable() && goes_on => sleep(PAUSE).await,
                other => return Ok(other?),
            }
        }
    }

    /// The client, with the time limit for the answers after the first.
    pub(crate) fn with_response_timeout(&self, client: Client) -> Client {
        client.response_timeout(self.connect_timeout.unwrap_or(ASKING))
    }
}

impl OpenedStore {
    /// Resolves when the deadline has passed without any answer of the store.
    pub(crate) async fn no_answer(&self) -> Failure {
        sleep_until(self.until).await;
        if self.client.has_answered() {
            return pending().await;
        }
        silent(&self.client.address(), self.limit, self.by)
    }
}

fn silent(store: &str, limit: Duration, by: &str) -> Failure {
    let message = format!(
        "{store} did not answer within {}; check that it runs and can be reached, or give it more \
         time by {by}",
        duration::show(limit)
    );
    Failure::new(Exit::STORE, "store", message)
}

/// Validates a name before anything else happens.
pub(crate) fn check_name(name: &str) -> Result<(), Failure> {
    parse_name(name).map(|_| ())
}

/// The name of a lock. A store's URL with a user is refused, and not shown: it is meant for
/// `--store`, and as a name its password would be printed and kept in another store.
fn parse_name(name: &str) -> Result<Name, Failure> {
    if store_url::has_user(name) {
        return Err(Failure::usage(
            "the name of the lock is the URL of a store, with a user or a password; name the store \
             by --store or HOLDLINE_STORE",
        ));
    }
    Ok(Name::new(name)?)
}

/// The lock of this name, or all locks whose names begin with the prefix.
pub(crate) fn lines(name: Option<&str>, prefix: &str) -> Result<Lines, Failure> {
    Ok(match name {
        Some(name) => Lines::Named(parse_name(name)?),
        None => Lines::Prefix(prefix.to_owned()),
    })
}

/// The number of files that a lock may need to open, with any store.
const FILES: u64 = 20;

/// Checks, before a lock is taken, that enough file descriptors are free.
fn check_room() -> Result<(), Failure> {
    if free_descriptors().is_some_and(|free| free >= FILES) {
        return Ok(());
    }
    let dup = |_| rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 3);
    // All stay open until the last one is open.
    let room: Result<Vec<_>, _> = (0..FILES).map(dup).collect();
    let failure =
        room.err().and_then(|errno| Failure::resource_shortage("cannot start", &errno.into()));
    failure.map_or(Ok(()), Err)
}

/// The number of file descriptors that are free at least, if the system tells how many are open:
/// Linux does since 6.2, by the length of the folder that lists them.
fn free_descriptors() -> Option<u64> {
    let open = std::fs::metadata("/proc/self/fd").ok()?.len();
    let limit = getrlimit(Resource::Nofile).current?;
    (open > 0).then(|| limit.saturating_sub(open))
}

/// Runs a verb that prints until it is stopped, or nothing reads what it prints.
pub(crate) async fn while_read(
    verb: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    tokio::select! {
        biased;
        done = verb => done,
        () = Printer::unread() => Ok(Exit::DONE),
    }
}

/// Runs a future on the program's runtime, which has one thread.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, Failure> {
    check_room()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::resource_shortage("cannot start", &error).unwrap_or_else(|| {
            Failure::new(Exit::INTERNAL, "internal", format!("cannot start a runtime: {error}"))
        })
    })?;
    let output = runtime.block_on(future);
    // Does not wait for blocking work, such as a name look-up.
    runtime.shutdown_background();
    Ok(output)
}
