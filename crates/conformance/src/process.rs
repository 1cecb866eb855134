//! Other processes: this program, started again as a taker, then killed (G11, G12), stopped (G5),
//! or left running (G1).

use super::kit::{How, Recipe, TIME_LIMIT, Terms, eventually, in_time, line};
use super::{Ctx, group, groups};
use crate::clock;
use holdline::{Client, Mutex, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver};

group! { "process":
    another_process_holds_it needs Processes,
    another_process_is_woken needs Processes Wakes,
    a_killed_holder_frees_it_after_its_lease needs Processes,
    a_killed_holder_frees_it_at_once needs Processes CrashRelease,
    a_killed_waiter_blocks_nobody needs Processes Queues,
    a_stopped_holder_knows_when_it_wakes needs Processes,
    four_processes_one_counter needs Processes,
}

const ROLE: &str = "HOLDLINE_CONFORMANCE_TAKER";
const URL: &str = "HOLDLINE_CONFORMANCE_URL";
const NAME: &str = "HOLDLINE_CONFORMANCE_NAME";
const LEASE: &str = "HOLDLINE_CONFORMANCE_LEASE_MS";
const FILE: &str = "HOLDLINE_CONFORMANCE_FILE";
/// The number of increments by each process.
const ROUNDS: u64 = 25;

/// Runs as a taker, if this process was started as one. Returns whether it was: then `main` must
/// return.
///
/// A binary that runs the suite must call it before anything else.
pub fn taker() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let work = async {
        match role.as_str() {
            "count" => count().await,
            "serve" => groups::serve().await,
            _ => hold().await,
        }
    };
    let outcome = runtime.expect("the system gives a runtime").block_on(work);
    if let Err(error) = outcome {
        say(&format!("error {error:#}"));
    }
    true
}

pub(super) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The parent may have closed the pipe.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn env_value(what: &str) -> String {
    std::env::var(what).unwrap_or_default()
}

/// The client of a taker, and the name of its lock.
pub(super) async fn place() -> Result<(Client, String)> {
    Ok((holdline::open(&env_value(URL)).await?, env_value(NAME)))
}

/// The lease that a taker was given.
pub(super) fn lease() -> Duration {
    Duration::from_millis(env_value(LEASE).parse().unwrap_or(1000))
}

/// A channel of the input's lines, read by a thread of its own.
fn lines(input: impl std::io::Read + Send + 'static) -> UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(input).lines().map_while(std::io::Result::ok);
        for line in lines {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Acquires the lock, and carries out orders about it, one per line.
async fn hold() -> Result<()> {
    let mut orders = lines(std::io::stdin());
    let (client, name) = place().await?;
    let Terms { lease, margin } = Terms::of(lease());
    let guard = Mutex::new(&client, name).lease(lease).margin(margin).lock().await?;
    say(&format!("held {}", guard.token()));
    while let Some(order) = orders.recv().await {
        if order == "valid" {
            say(&format!("valid {}", guard.is_valid()));
            continue;
        }
        if order == "act" {
            match guard.protect(async { say("acts") }).await {
                Ok(()) => say("acted"),
                Err(error) => say(&format!("refused {:?}", error.kind())),
            }
            continue;
        }
        match guard.unlock().await {
            Ok(()) => say("unlocked"),
            Err(error) => say(&format!("unlocked {:?}", error.kind())),
        }
        break;
    }
    Ok(())
}

/// Increments a number in a file and stores the token with it, under the lock.
async fn count() -> Result<()> {
    let (client, name) = place().await?;
    let (lock, file) = (Mutex::new(&client, name), env_value(FILE));
    for _ in 0..ROUNDS {
        let guard = lock.lock().await?;
        let (number, token) = read(Path::new(&file));
        if client.capabilities().fencing_tokens && token >= guard.token() {
            say(&format!("error: token {} came after {token}", guard.token()));
        }
        std::thread::yield_now();
        if let Err(error) = std::fs::write(&file, format!("{} {}", number + 1, guard.token())) {
            say(&format!("error {error}"));
        }
        guard.unlock().await?;
    }
    say("done");
    Ok(())
}

fn read(file: &Path) -> (u64, u64) {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut numbers = text.split(' ').map(|word| word.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// A handle of the other process. Dropping it kills the process.
pub(super) struct Taker {
    child: Child,
    orders: ChildStdin,
    answers: UnboundedReceiver<String>,
}

impl Taker {
    pub(super) fn start(ctx: &Ctx, role: &str, lease: Duration, file: Option<&Path>) -> Self {
        let program = std::env::current_exe().expect("the system knows what runs");
        let mut command = Command::new(program);
        command.env(ROLE, role).env(URL, ctx.subject.url().expect("it was asked for"));
        command.env(NAME, ctx.name("x")).env(LEASE, lease.as_millis().to_string());
        if let Some(file) = file {
            command.env(FILE, file);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        let orders = child.stdin.take().expect("it is piped");
        let answers = lines(child.stdout.take().expect("it is piped"));
        Taker { child, orders, answers }
    }

    pub(super) async fn answer(&mut self) -> String {
        let answer = in_time("the other process answers", self.answers.recv()).await;
        answer.expect("the other process lives; it calls conformance::taker() first in main")
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the other process lives");
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the other process lives");
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("it is our child");
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that holds the lock, and its token.
async fn holder(ctx: &Ctx, lease: Duration) -> (Taker, u64) {
    let mut taker = Taker::start(ctx, "hold", lease, None);
    let answer = taker.answer().await;
    let token = answer.strip_prefix("held ").and_then(|token| token.parse().ok());
    (taker, token.unwrap_or_else(|| panic!("it said {answer:?}")))
}

/// A lease so long that no case waits for its end.
fn long(ctx: &Ctx) -> Duration {
    (TIME_LIMIT * 20).min(ctx.capabilities.lease_max)
}

async fn another_process_holds_it(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let (mut taker, token) = holder(&ctx, long(&ctx)).await;
    assert!(Recipe::Mutex.try_lock(&client, &name).await.is_none(), "two processes hold it");
    let info = line(&client, &name, 1, 0).await;
    assert_eq!(info.holders[0].note.pid, taker.child.id());
    assert_eq!(info.holders[0].token, token);
    taker.order("act");
    assert_eq!([taker.answer().await, taker.answer().await], ["acts", "acted"]);
    taker.order("unlock");
    assert_eq!(taker.answer().await, "unlocked");
    let held = Recipe::Mutex.lock(&client, &name).await;
    assert!(!ctx.capabilities.fencing_tokens || token < held.guard().token());
    held.unlock().await.expect("it was held");
}

/// A release in one process wakes a waiter in another before its next poll.
async fn another_process_is_woken(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let (mut taker, _) = holder(&ctx, long(&ctx)).await;
        let waiter = {
            let (client, name) = (client.clone(), name.clone());
            tokio::spawn(async move {
                let held = Recipe::Mutex.lock(&client, &name).await;
                let now = clock::now();
                held.unlock().await.expect("it was held");
                now
            })
        };
        line(&client, &name, 1, usize::from(ctx.capabilities.fair_queue)).await;
        if !ctx.capabilities.fair_queue {
            // The waiter cannot be seen from here. Its next poll is a second away.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let start = clock::now();
        taker.order("unlock");
        let got = in_time("the waiter", waiter).await.expect("no task fails");
        fastest = fastest.min(start.until(got));
    }
    assert!(fastest < Duration::from_millis(400), "at best it was woken after {fastest:?}");
}

async fn a_killed_holder_frees_it_after_its_lease(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let (mut taker, token) = holder(&ctx, ctx.lease).await;
    taker.kill();
    let held = Recipe::Mutex.lock(&client, &name).await;
    assert!(!ctx.capabilities.fencing_tokens || token < held.guard().token());
    held.unlock().await.expect("it was held");
}

async fn a_killed_holder_frees_it_at_once(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let (mut taker, token) = holder(&ctx, long(&ctx)).await;
    // Once for a waiter that waits already,
    let waiter = {
        let (client, name) = (client.clone(), name.clone());
        tokio::spawn(async move { Recipe::Mutex.lock(&client, &name).await })
    };
    line(&client, &name, 1, usize::from(ctx.capabilities.fair_queue)).await;
    taker.kill();
    let held = in_time("the waiter", waiter).await.expect("no task fails");
    assert!(!ctx.capabilities.fencing_tokens || token < held.guard().token());
    held.unlock().await.expect("it was held");
    // and once for one that arrives later.
    let (mut taker, _) = holder(&ctx, long(&ctx)).await;
    taker.kill();
    let free = || async { Recipe::Mutex.try_lock(&client, &name).await.is_some() };
    eventually("the lock is free", free).await;
}

/// A request of the waiter that is under way when it is killed may be served when the lock has
/// become its own. Then it holds for its whole lease, and another one is killed.
async fn a_killed_waiter_blocks_nobody(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    for _ in 0..3 {
        let held = Recipe::Mutex.lock(&client, &name).await;
        let mut taker = Taker::start(&ctx, "hold", long(&ctx), None);
        line(&client, &name, 1, 1).await;
        taker.kill();
        let next = {
            let (client, name, how) = (ctx.client().await, name.clone(), How::Within(TIME_LIMIT));
            tokio::spawn(async move { Recipe::Mutex.take(&client, &name, how, Terms::LONG).await })
        };
        held.unlock().await.expect("it was held");
        let next = clock::within(clock::now().after(TIME_LIMIT * 2), next).await;
        let next = next.expect("its limit ends it").expect("no task fails");
        if let Some(next) = next.expect("the store is there") {
            next.unlock().await.expect("it was held");
            return;
        }
        let dead = line(&client, &name, 1, 0).await.holders[0].id;
        client.force_unlock(&name, dead, "it was killed").await.expect("works");
    }
    panic!("each waiter that was killed blocked the lock");
}

async fn a_stopped_holder_knows_when_it_wakes(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let (mut taker, token) = holder(&ctx, ctx.lease).await;
    taker.signal(Signal::STOP);
    let held = Recipe::Mutex.lock(&client, &name).await; // when the lease has expired
    assert!(!ctx.capabilities.fencing_tokens || token < held.guard().token());
    taker.order("valid"); // it reads these when it resumes
    taker.order("act");
    taker.signal(Signal::CONT);
    assert_eq!(taker.answer().await, "valid false");
    assert_eq!(taker.answer().await, "refused Lost");
    taker.order("unlock");
    assert_eq!(taker.answer().await, "unlocked Lost");
    assert!(held.guard().is_valid());
    line(&client, &name, 1, 0).await;
    held.unlock().await.expect("it was held");
}

async fn four_processes_one_counter(ctx: Ctx) {
    let file = std::env::temp_dir().join(format!("holdline-{:016x}", fastrand::u64(..)));
    let mut takers: Vec<_> =
        (0..4).map(|_| Taker::start(&ctx, "count", ctx.lease, Some(&file))).collect();
    for taker in &mut takers {
        let answer = taker.answers.recv();
        let answer = clock::within(clock::now().after(TIME_LIMIT * 3), answer).await;
        assert_eq!(answer.flatten().as_deref(), Some("done"));
    }
    let (number, _) = read(&file);
    let _ = std::fs::remove_file(&file);
    assert_eq!(number, 4 * ROUNDS, "updates were lost");
    line(&ctx.client().await, &ctx.name("x"), 0, 0).await;
}
