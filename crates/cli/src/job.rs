//! The job of `run` and `elect`: a command under a lock, from the flags to the exit code.

use crate::acquire::{self, LockRequest, WaitEnds};
use crate::child::{self, Ended, OnLoss, Policy, Running};
use crate::context::{OpenedStore, Session, check_name};
use crate::exit::{Exit, Failure};
use crate::held::HeldLock;
use crate::lock_kind::{LockKind, LockOptions};
use crate::nested::EnclosingLocks;
use crate::no_fork::{self, ExecStore};
use crate::participant;
use crate::printer::{Level, Printer};
use crate::signals::{self, Signals};
use crate::{duration, env};
use clap::Args;
use holdline::Client;
use serde_json::json;
use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::future::{Future, pending};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The default lease.
const LEASE: Duration = Duration::from_secs(10);

/// How to wait.
#[derive(Args, Clone, Debug)]
pub(crate) struct WaitArgs {
    /// Do not wait: exit with 75 if the lock is not free
    #[arg(help_heading = "Waiting", long, short = 'n', conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Wait at most this long, for the store and for the lock, then exit with 75; 0 is --no-wait
    #[arg(help_heading = "Waiting",
          long, short = 'w', value_name = "TIME", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    /// How long an outage of the store is waited out, once it has answered; or "forever"
    /// [default: 10m; forever for `elect`]
    #[arg(help_heading = "Waiting",
          long, value_name = "TIME", value_parser = duration::parse_bound)]
    pub(crate) outage: Option<Duration>,

    /// Keep no place in line: any waiter may be next
    #[arg(help_heading = "Waiting", long, conflicts_with = "no_wait")]
    pub(crate) unfair: bool,

    /// Poll the store at this interval, instead of listening for notices
    #[arg(help_heading = "Waiting", long, value_name = "TIME", conflicts_with = "no_wait",
          value_parser = duration::parse_interval)]
    pub(crate) poll: Option<Duration>,

    /// Exit code if the lock was not acquired
    #[arg(help_heading = "Waiting",
          long, short = 'E', value_name = "N", default_value_t = Exit::BUSY.0)]
    pub(crate) busy_code: u8,
}

impl WaitArgs {
    /// Whether to try once. A wait of no time is a try, too: no server answers in no time.
    fn is_try(&self) -> bool {
        self.no_wait || self.wait == Some(Duration::ZERO)
    }
}

/// The lease, and the label that others see.
#[derive(Args, Clone, Debug)]
pub(crate) struct LeaseArgs {
    /// How long the lock outlives a crash or a cut connection; it is renewed while the command runs
    /// [default: 10s]
    #[arg(help_heading = "Holding", long, value_name = "TIME", value_parser = duration::parse)]
    lease: Option<Duration>,

    /// Renew the lock at least this often [default: about a quarter of the lease]
    #[arg(help_heading = "Holding", long, value_name = "TIME", conflicts_with = "fixed_lease",
          value_parser = duration::parse_interval)]
    renew_every: Option<Duration>,

    /// With --lease: do not renew the lock; it is lost after the lease, and the command stopped in
    /// time
    #[arg(help_heading = "Holding", long)]
    fixed_lease: bool,

    /// A label for people who inspect the lock
    #[arg(help_heading = "Holding", long)]
    label: Option<String>,
}

/// How to hold.
#[derive(Args, Clone, Debug)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    lease: LeaseArgs,

    /// What to do with the command when the lock is lost
    #[arg(help_heading = "Holding", long, value_enum, default_value_t = OnLoss::Kill)]
    on_loss: OnLoss,

    /// Time between TERM and KILL when the lock is lost; at most half the lease
    /// [default: a fifth of the lease, 10s at most]
    #[arg(help_heading = "Holding", long, value_name = "TIME", value_parser = duration::parse)]
    grace: Option<Duration>,
}

impl LeaseArgs {
    /// Checks that a fixed lease is given. For clap's `requires` a default would not count.
    fn check(&self) -> Result<(), Failure> {
        match self.lease {
            None if self.fixed_lease => Err(Failure::usage(
                "--fixed-lease needs --lease: how long the lock may be held at most",
            )),
            _ => Ok(()),
        }
    }

    fn length(&self) -> Duration {
        self.lease.unwrap_or(LEASE)
    }
}

impl HoldArgs {
    /// The defaults, for a lock without a command.
    pub(crate) fn without_command(lease: LeaseArgs) -> Self {
        HoldArgs { lease, on_loss: OnLoss::Kill, grace: None }
    }

    /// The time for KILL to take effect: a twentieth of the lease.
    fn reserve(&self) -> Duration {
        self.lease.length() / 20
    }

    fn policy(&self, grace: Duration) -> Policy {
        Policy { on_loss: self.on_loss, grace, reserve: self.reserve() }
    }

    fn grace(&self) -> Result<Duration, Failure> {
        let lease = self.lease.length();
        let longest = lease / 2;
        match self.grace {
            Some(grace) if grace > longest => Err(Failure::usage(format!(
                "a grace time of {} does not fit a lease of {}, of which it may take half; give a \
                 longer --lease or a shorter --grace",
                duration::show(grace),
                duration::show(lease)
            ))),
            Some(grace) => Ok(grace),
            None => Ok((lease / 5).min(Duration::from_secs(10))),
        }
    }
}

/// A command to run under a lock.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    /// More locks to hold with it.
    pub(crate) also: Vec<String>,
    pub(crate) lock_kind: LockKind,
    pub(crate) value: Option<String>,
    pub(crate) wait: WaitArgs,
    pub(crate) hold: HoldArgs,
    pub(crate) min_hold: Option<Duration>,
    /// The default limit of an outage during the wait.
    pub(crate) outage: Duration,
    /// Whether the command takes the place of this process.
    pub(crate) no_fork: bool,
    /// Whether the command is a shell for the user.
    pub(crate) shell: bool,
    /// Whether the command is told the store's URL.
    pub(crate) export_store: bool,
    /// The command; if empty, the lock is held until a signal comes.
    pub(crate) command: Vec<OsString>,
}

/// The result of a release.
#[derive(Debug)]
pub(crate) enum Released {
    Confirmed,
    /// The store did not answer, as this message, which was printed, says.
    Unconfirmed(String),
    /// The lock was lost before.
    Lost(holdline::Error),
}

/// The result of acquiring a job's lock.
#[derive(Debug)]
pub(crate) struct Obtained {
    pub(crate) client: Client,
    pub(crate) hold: HeldLock,
    pub(crate) signals: Signals,
    enclosing: EnclosingLocks,
    grace: Duration,
    /// The command's file; empty if there is no command.
    program: PathBuf,
    /// The store of a lock that the command will hold by itself.
    exec_store: Option<ExecStore>,
}

impl Job {
    fn lease(&self) -> Duration {
        if self.no_fork { no_fork::LEASE } else { self.hold.lease.length() }
    }

    /// Opens the store and acquires the lock, unless a signal comes first, or the end of the lock's
    /// owner, as the failure that it causes.
    pub(crate) async fn obtain(
        &self,
        session: &Session,
        owner_end: impl Future<Output = Failure>,
    ) -> Result<Obtained, Failure> {
        for name in self.names() {
            check_name(name)?;
        }
        self.hold.lease.check()?;
        let grace = self.hold.grace()?;
        let program = match self.command.first() {
            Some(program) => child::lookup::find(program)?,
            None => PathBuf::new(),
        };
        let (mut signals, mut owner_end) = (Signals::new()?, pin!(owner_end));
        let mut ends = WaitEnds { signals: &mut signals, owner_end: owner_end.as_mut() };
        let (opened, exec_store) = ends.unless_come(self.open(session)).await?;
        let enclosing = EnclosingLocks::read();
        let inherited = self.inherited(&enclosing, &opened.client);
        let hold = match ends.unless_come(inherited).await? {
            Some(hold) => hold,
            None => self.acquire(session, &opened, grace, ends).await?,
        };
        self.announce(session, &opened.client, &hold);
        let client = opened.client;
        Ok(Obtained { client, hold, signals, enclosing, grace, program, exec_store })
    }

    /// Runs the job.
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        let obtained = self.obtain(session, pending()).await?;
        let Obtained { client, hold, mut signals, enclosing, grace, program, exec_store } =
            obtained;
        let since = Instant::now();
        if self.command.is_empty() {
            return self.hold_until_signal(session, &client, hold, signals).await;
        }
        let env = [
            (env::NAME, Some(self.name.clone())),
            (env::TOKEN, Some(hold.token(&self.name).to_string())),
            (env::STORE, session.exported_store().filter(|_| self.export_store)),
            (env::HELD, Some(enclosing.with(&hold))),
        ];
        if let Some(store) = &exec_store {
            Printer::flush();
            let failure = match signals.arrived().await {
                Some(signal) => acquire::interrupted(signal),
                None => store.exec(&hold, &program, &self.command, &env),
            };
            self.release(session, &client, hold, &mut signals).await;
            return Err(failure);
        }
        if self.shell {
            let message = format!("a shell under {}; its end releases the lock", self.title());
            let fields = json!({ "name": self.name });
            session.printer.say(Level::Usually, "shell", &message, fields);
        }
        let command = (program.as_path(), self.command.as_slice());
        let running = Running::start(command, &env, &hold, &mut signals, session.printer);
        let ended = match running {
            Ok(None) => Ended::Unstarted,
            Ok(Some(running)) => {
                let policy = self.hold.policy(grace);
                running.supervise(&hold, &mut signals, policy, session.printer).await?
            }
            Err(failure) => {
                self.release(session, &client, hold, &mut signals).await;
                return Err(failure);
            }
        };
        let exit = match ended {
            Ended::Done(exit) => exit,
            Ended::Late(_) | Ended::Stopped | Ended::Unstarted => {
                return Err(self.lost(&client, &hold, ended).await);
            }
        };
        let message = format!("the command ended with {}", exit.0);
        session.printer.say(Level::Verbosely, "ended", &message, json!({ "exit": exit.0 }));
        let confirmed = self.hold_minimum(since, &hold, &mut signals).await;
        match self.release(session, &client, hold, &mut signals).await {
            Released::Lost(error) if !confirmed => Err(self.late(&client, exit, &error)),
            _ => Ok(exit),
        }
    }

    /// The lock for messages; several are counted as one.
    pub(crate) fn title(&self) -> String {
        acquire::title(&self.names().collect())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.also).map(String::as_str)
    }

    /// The lock, if an outer program holds it.
    async fn inherited(
        &self,
        enclosing: &EnclosingLocks,
        client: &Client,
    ) -> Result<Option<HeldLock>, Failure> {
        if self.also.is_empty() {
            return enclosing.find(client, &self.name, &self.lock_kind).await;
        }
        for name in self.names() {
            if enclosing.find(client, name, &self.lock_kind).await?.is_some() {
                return Err(Failure::usage(format!(
                    "lock \"{name}\" is held by the holdline around this one; a set of locks that \
                     is taken in parts can deadlock, so ask for all of them in the outer one"
                )));
            }
        }
        Ok(None)
    }

    /// Opens the store, within the wait limit.
    async fn open(&self, session: &Session) -> Result<(OpenedStore, Option<ExecStore>), Failure> {
        let file = if self.no_fork { Some(ExecStore::open(&session.store)?) } else { None };
        let opened = match &file {
            Some(file) => {
                let client = file.client();
                if !self.wait.is_try() {
                    // A client that had an answer waits, even while another process blocks writes.
                    let _ = client.inspect(&self.name).await;
                }
                session.opened(client)
            }
            None if self.wait.is_try() => session.open_for_try().await?,
            None => session.open_to_wait(self.wait.wait).await?,
        };
        let client = opened.client.outage(self.wait.outage.unwrap_or(self.outage));
        Ok((OpenedStore { client, ..opened }, file))
    }

    async fn acquire(
        &self,
        session: &Session,
        opened: &OpenedStore,
        grace: Duration,
        ends: WaitEnds<'_, impl Future<Output = Failure>>,
    ) -> Result<HeldLock, Failure> {
        let LeaseArgs { label, fixed_lease, renew_every, .. } = &self.hold.lease;
        let options = LockOptions {
            lease: self.lease(),
            margin: grace + self.hold.reserve(),
            label: label.clone(),
            value: self.value.clone(),
            renew: !fixed_lease && !self.no_fork,
            renew_every: *renew_every,
            fair: !self.wait.unfair,
            poll: self.wait.poll,
        };
        let names: BTreeSet<&str> = self.names().collect();
        let waiting_client = session.with_response_timeout(opened.client.clone());
        let request = LockRequest {
            opened,
            client: if self.wait.is_try() { &opened.client } else { &waiting_client },
            names: &names,
            lock_kind: &self.lock_kind,
            options: &options,
            deadline: self.wait.wait.map(|limit| session.began + limit),
            no_wait: self.wait.is_try(),
            busy: Exit(self.wait.busy_code),
            printer: session.printer,
        };
        request.acquire(ends).await
    }

    fn announce(&self, session: &Session, client: &Client, hold: &HeldLock) {
        if !session.printer.prints(Level::Verbosely) {
            return;
        }
        let (name, address) = (&self.name, client.address());
        let (id, token) = hold.entry(name);
        let (event, how) = match hold {
            HeldLock::Inherited(_) => ("inherited", "is held by the holdline around this one"),
            _ => ("acquired", "was acquired"),
        };
        let with = participant::with_token(", with", token);
        let message = format!("{} in {address} {how}{with}", self.title());
        let (id, token) = (id.to_string(), participant::known(token));
        let fields = json!({ "name": name, "store": address, "token": token, "id": id });
        session.printer.say(Level::Verbosely, event, &message, fields);
    }

    /// Holds the lock until a signal comes.
    async fn hold_until_signal(
        &self,
        session: &Session,
        client: &Client,
        hold: HeldLock,
        mut signals: Signals,
    ) -> Result<Exit, Failure> {
        let token = hold.token(&self.name);
        let line = if session.printer.json {
            let token = participant::known(token);
            json!({ "name": self.name, "token": token, "value": self.value }).to_string()
        } else {
            format!("leading \"{}\"{}", self.name, participant::with_token(" with", token))
        };
        Printer::answer_later(&line);
        let lost = tokio::select! {
            biased;
            () = hold.lost() => true,
            signal = signals.next() => {
                let message = format!("{}: giving up the lead", signals::name(signal));
                session.printer.say(Level::Verbosely, "signal", &message, json!({}));
                false
            }
        };
        let (why, fields) = if lost {
            hold.loss().await
        } else {
            match self.release(session, client, hold, &mut signals).await {
                Released::Lost(error) => (error.to_string(), json!({})),
                Released::Confirmed | Released::Unconfirmed(_) => return Ok(Exit::DONE),
            }
        };
        let message = format!("lock \"{}\" in {} was lost: {why}", self.name, client.address());
        Err(Failure::new(Exit::LOST, "lost", message).with(fields))
    }

    /// Holds the lock for the minimum time, unless a signal or the loss ends that. Returns whether
    /// the store confirmed at its begin that the lock was held: then a later loss does not affect
    /// the command, which has ended.
    async fn hold_minimum(&self, since: Instant, hold: &HeldLock, signals: &mut Signals) -> bool {
        let end = self.min_hold.map(|least| since + least);
        let Some(end) = end.filter(|end| *end > Instant::now()) else { return false };
        let mut signalled = pin!(async { while !signals::ends_waits(signals.next().await) {} });
        let confirmed = tokio::select! {
            biased;
            () = &mut signalled => return false,
            outcome = hold.confirm() => outcome.is_ok(),
            () = sleep_until(end) => return false, // a silent store makes it no longer
        };
        tokio::select! {
            biased;
            () = signalled => {}
            () = hold.lost() => {}
            () = sleep_until(end) => {}
        }
        confirmed
    }

    /// Releases the lock, and says so if that was not confirmed.
    pub(crate) async fn release(
        &self,
        session: &Session,
        client: &Client,
        hold: HeldLock,
        signals: &mut Signals,
    ) -> Released {
        let released = self.release_silently(client, hold, signals).await;
        if let Released::Unconfirmed(message) = &released {
            let fields = json!({ "name": self.name, "store": client.address() });
            session.printer.say(Level::Usually, "unreleased", message, fields);
        }
        released
    }

    /// Releases the lock. If the store does not answer, the library retries in the background, and
    /// this waits for that a little.
    pub(crate) async fn release_silently(
        &self,
        client: &Client,
        hold: HeldLock,
        signals: &mut Signals,
    ) -> Released {
        match hold.release().await {
            Ok(()) => Released::Confirmed,
            Err(error) if error.is_lost() => Released::Lost(error),
            Err(_) if acquire::settles(client, signals).await => Released::Confirmed,
            Err(error) => {
                // The error itself promises more tries, but the program ends now.
                let cause = error.source().map(ToString::to_string);
                let why = cause.unwrap_or_else(|| "it did not answer in time".to_owned());
                let message = format!(
                    "the release of {} in {} was not confirmed; others wait until its lease is \
                     over at the latest: {why}",
                    self.title(),
                    client.address(),
                );
                Released::Unconfirmed(message)
            }
        }
    }

    /// The failure after a loss that was noticed in time.
    async fn lost(&self, client: &Client, hold: &HeldLock, ended: Ended) -> Failure {
        let how = match ended {
            Ended::Done(exit) | Ended::Late(exit) => format!("it ended with {}", exit.0),
            Ended::Stopped => "it was stopped".to_owned(),
            Ended::Unstarted => "it was not started".to_owned(),
        };
        let (why, fields) = hold.loss().await;
        self.loss(client, &how, &why).with(fields)
    }

    /// The failure after a loss that only the release has noticed.
    fn late(&self, client: &Client, exit: Exit, error: &holdline::Error) -> Failure {
        self.loss(client, &format!("it ended with {}", exit.0), &error.to_string())
    }

    fn loss(&self, client: &Client, how: &str, why: &str) -> Failure {
        let message = format!(
            "{} in {} was lost before the command ended ({how}): {why}; check what the command \
             did, for others may have held the lock meanwhile",
            self.title(),
            client.address(),
        );
        Failure::new(Exit::LOST, "lost", message)
    }
}
