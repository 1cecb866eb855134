//! Groups: one process for each key (G26), in epochs that rise (G27), while members join, leave and
//! die.

use super::kit::{eventually, in_time, panic_message};
use super::process::{self, Taker, say};
use super::{Ctx, Fault, Op, clock, group};
use holdline::{Client, ErrorKind, Group, Member, Mutex, Ownership, Result, Route};
use holdline_kernel::Time;
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

group! { "group":
    each_key_has_one_owner needs Weights Fences,
    a_key_moves_to_a_member_that_joins needs Weights Fences,
    a_second_member_at_an_address_waits needs Weights Fences,
    one_task_at_a_time_has_a_key needs Weights Fences,
    a_removed_member_owns_nothing needs Weights Fences,
    a_cut_off_member_stops needs Weights Fences,
    observers_see_members_come_and_go needs Weights Fences,
    a_dropped_join_leaves_nothing needs Weights Fences,
    members_agree_on_the_time needs Weights Fences,
    servers_join_and_leave needs Weights Fences,
    servers_die needs Weights Fences Processes,
}

/// The number of keys.
const KEYS: u64 = 12;

fn key(number: u64) -> String {
    format!("order-{number}")
}

/// A group whose looks are valid for twice the lease, for a busy machine.
fn of(client: &Client, name: &str, lease: Duration) -> Group {
    Group::new(client, name).lease(lease * 2).margin(lease / 5).stale_after(lease * 2)
}

async fn join(ctx: &Ctx, address: &str) -> Member {
    let group = of(&ctx.client().await, &ctx.name("x"), ctx.lease);
    in_time("it joins", group.join(address)).await.expect("the store is there")
}

/// The observed time in which a key was owned.
#[derive(Debug)]
struct Use {
    key: u64,
    member: String,
    token: u64,
    from: Time,
    until: Time,
}

/// Asks a member for a key, and uses it briefly if it is the member's own. The recorded time lies
/// within the time of ownership, however slow the machine is.
async fn use_key(member: &Member, number: u64) -> Result<Option<Use>> {
    let Route::Mine(owned) = member.route(key(number)).await? else { return Ok(None) };
    let (from, mut until) = (clock::now(), None);
    for _ in 0..3 {
        let at = clock::now();
        if !owned.is_valid() {
            break;
        }
        until = Some(at);
        clock::pause(Duration::from_millis(fastrand::u64(0..4))).await;
    }
    let member = format!("{} {}", member.address(), member.ticket());
    let used = |until| Use { key: number, member, token: owned.token(), from, until };
    Ok(until.map(used))
}

/// Checks that no two members own a key at the same time, and that tokens rise from owner to owner.
fn judge(mut uses: Vec<Use>) {
    uses.sort_by_key(|used| (used.key, used.from));
    for pair in uses.windows(2).filter(|pair| pair[0].key == pair[1].key) {
        let [one, two] = pair else { continue };
        assert!(one.until <= two.from, "a key had two owners: {one:?} {two:?}");
        let rises = one.token < two.token || (one.member == two.member && one.token == two.token);
        assert!(rises, "a token did not rise: {one:?} {two:?}");
    }
}

/// Waits until each key is owned by one of these members.
async fn all_are_owned(members: &[&Member]) {
    let all = || async {
        for number in 0..KEYS {
            let mut owners = 0;
            for member in members {
                owners += u32::from(matches!(member.route(key(number)).await, Ok(Route::Mine(_))));
            }
            if owners != 1 {
                return false;
            }
        }
        true
    };
    eventually("each key has an owner", all).await;
}

/// Waits until this member owns a key: on a busy machine looks may be late.
async fn own<'a>(member: &'a Member, key: &str) -> Ownership<'a> {
    in_time("it owns the key", async {
        loop {
            if let Ok(Route::Mine(owned)) = member.route(key).await {
                return owned;
            }
            clock::pause(Duration::from_millis(3)).await;
        }
    })
    .await
}

async fn each_key_has_one_owner(ctx: Ctx) {
    let one = join(&ctx, "one:1").await;
    all_are_owned(&[&one]).await;
    let two = join(&ctx, "two:1").await;
    all_are_owned(&[&one, &two]).await;
    let members = of(&ctx.client().await, &ctx.name("x"), ctx.lease).members().await;
    let members = members.expect("the store is there");
    assert_eq!(members.addresses().collect::<Vec<_>>(), ["one:1", "two:1"]);
    for number in 0..KEYS {
        let owner = members.owner(key(number)).expect("there are members");
        let (owner, other) = if owner == "one:1" { (&one, &two) } else { (&two, &one) };
        let knows = || async {
            let route = other.route(key(number)).await;
            matches!(&route, Ok(Route::Other(at)) if at == owner.address())
        };
        eventually("the other knows the owner", knows).await;
    }
    one.leave().await.expect("it was a member");
    all_are_owned(&[&two]).await;
}

async fn a_key_moves_to_a_member_that_joins(ctx: Ctx) {
    let one = join(&ctx, "one:1").await;
    // A key that the second will have.
    let members = holdline::Members::of(["one:1", "two:1"]);
    let moving = (0..1000).map(key).find(|key| members.owner(key) == Some("two:1"));
    let moving = moving.expect("half of them");
    let mine = own(&one, &moving).await;
    let token = mine.token();
    let stopped = mine.protect(std::future::pending::<()>());
    let (stopped, two) = tokio::join!(in_time("it is stopped", stopped), join(&ctx, "two:1"));
    let error = stopped.expect_err("the key has moved");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains("two:1"), "{error}");
    assert!(!mine.is_valid() && one.is_valid());
    let theirs = own(&two, &moving).await;
    assert!(token < theirs.token(), "{token} is not before {}", theirs.token());
    drop(theirs);
    // And back, in a later epoch.
    let second = two.token();
    two.leave().await.expect("it was a member");
    drop(mine);
    let back = own(&one, &moving).await;
    assert!(second < back.token(), "{second} is not before {}", back.token());
}

/// A server is restarted while its predecessor lives, alone in the group: the later one gets the
/// keys, but not before the earlier one has lost them.
async fn a_second_member_at_an_address_waits(ctx: Ctx) {
    let one = join(&ctx, "one:1").await;
    let owned = own(&one, "order-1").await;
    let two = join(&ctx, "one:1").await;
    let owned_by_two = own(&two, "order-1").await;
    assert!(!owned.is_valid(), "the key has two owners");
    assert!(owned.token() < owned_by_two.token());
    drop(owned_by_two);
    two.leave().await.expect("it is a member");
    drop(owned);
    drop(own(&one, "order-1").await);
}

async fn one_task_at_a_time_has_a_key(ctx: Ctx) {
    let member = Arc::new(join(&ctx, "one:1").await);
    let used = Arc::new(AtomicBool::new(false));
    let tasks: Vec<JoinHandle<()>> = (0..20)
        .map(|_| {
            let (member, used) = (Arc::clone(&member), Arc::clone(&used));
            tokio::spawn(async move {
                let _owned = own(&member, "the key").await;
                assert!(!used.swap(true, Ordering::SeqCst), "two tasks have a key");
                tokio::task::yield_now().await;
                used.store(false, Ordering::SeqCst);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap_or_else(|error| panic!("{}", panic_message(error)));
    }
}

async fn a_removed_member_owns_nothing(ctx: Ctx) {
    let (one, client) = (join(&ctx, "one:1").await, ctx.client().await);
    let owned = own(&one, "the key").await;
    client
        .force_unlock(ctx.name("x"), one.ticket(), "a test")
        .await
        .expect("works")
        .expect("there");
    in_time("it is told", owned.lost()).await;
    assert!(!owned.is_valid());
    in_time("it is told", one.lost()).await;
    drop(owned);
    // At once, from its loss notice on.
    let error = one.route("the key").await.expect_err("it has no place");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let error = one.leave().await.expect_err("it has no place");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

async fn a_cut_off_member_stops(ctx: Ctx) {
    let (chaos, client) = ctx.chaos().await;
    let group = of(&client, &ctx.name("x"), ctx.lease).lease(ctx.longer(20));
    let one = group.join("one:1").await.expect("the store is there");
    let owned = own(&one, "the key").await;
    let token = owned.token();
    // It cannot see which members join.
    chaos.always(Op::Snapshot, Fault::HangBefore);
    in_time("it stops", owned.lost()).await;
    assert!(one.is_valid() && !owned.is_valid());
    drop(owned);
    let error = one.route("the key").await.expect_err("it is not known whose it is");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    chaos.heal();
    let again = own(&one, "the key").await;
    assert!(token < again.token(), "somebody may have had it meanwhile");
}

async fn observers_see_members_come_and_go(ctx: Ctx) {
    let group = of(&ctx.client().await, &ctx.name("x"), ctx.lease);
    let mut observer = group.observe().every(Duration::from_millis(10));
    let mut next = async || {
        let seen = in_time("a change", observer.next()).await.expect("the store is there");
        seen.addresses().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(next().await.is_empty(), "at first it says how things are");
    let one = join(&ctx, "one:1").await;
    assert_eq!(next().await, ["one:1"]);
    let (two, seen) = tokio::join!(join(&ctx, "two:1"), next());
    assert_eq!(seen, ["one:1", "two:1"], "it is seen before it may own keys");
    one.leave().await.expect("it was a member");
    assert_eq!(next().await, ["two:1"]);
    drop(two);
    assert!(next().await.is_empty());
}

async fn a_dropped_join_leaves_nothing(ctx: Ctx) {
    let one = join(&ctx, "one:1").await;
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let group = of(&client, &name, ctx.lease);
    {
        let mut joining = Box::pin(group.join("two:1"));
        let mut seen = group.observe().every(Duration::from_millis(10));
        let joined = async {
            while in_time("it is seen", seen.next()).await.expect("the store is there").len() < 2 {}
        };
        tokio::select! {
            // It waits until all looks that do not show it are stale.
            joined = &mut joining => drop(joined.expect("the store is there")),
            () = joined => {}
        }
    }
    let alone = || async { group.members().await.is_ok_and(|members| members.len() == 1) };
    eventually("the other has left", alone).await;
    all_are_owned(&[&one]).await;
}

async fn members_agree_on_the_time(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name("x"));
    let one = join(&ctx, "one:1").await;
    let other = of(&client, &name, ctx.lease).stale_after(ctx.lease * 3);
    let error = other.join("two:1").await.expect_err("another time");
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert!(error.to_string().contains("stale_after"), "{error}");
    let error = Mutex::new(&client, &name).lock().await.expect_err("another recipe");
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    for group in [other.stale_after(Duration::ZERO), of(&client, "", ctx.lease)] {
        let error = group.join("two:1").await.expect_err("it makes no sense");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let error = of(&client, &name, ctx.lease).join("").await.expect_err("no address");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(one.is_valid());
}

/// A server: a member that is asked for keys all the time, and reports when it owned them.
struct Server {
    member: Arc<Member>,
    work: JoinHandle<()>,
}

impl Server {
    async fn start(ctx: &Ctx, address: &str, report: &UnboundedSender<Use>) -> Self {
        let member = Arc::new(join(ctx, address).await);
        let (working, report) = (Arc::clone(&member), report.clone());
        let work = tokio::spawn(async move {
            while working.is_valid() {
                if let Ok(Some(used)) = use_key(&working, fastrand::u64(0..KEYS)).await {
                    let _ = report.send(used);
                }
                tokio::task::yield_now().await;
            }
        });
        Server { member, work }
    }

    /// Ends its work at once, and leaves the group.
    async fn stop(self) {
        self.work.abort();
        let _ = self.work.await;
        let member = Arc::into_inner(self.member).expect("its work is over");
        // On a busy machine it may have lost its place before.
        let _ = member.leave().await;
    }
}

/// The case of D5: requests for a key go to the same server, which needs only a local lock.
async fn servers_join_and_leave(ctx: Ctx) {
    let (report, mut uses) = unbounded_channel();
    let mut servers = Vec::new();
    for number in 0..3 {
        servers.push(Server::start(&ctx, &format!("server-{number}:1"), &report).await);
    }
    for number in 3..5 {
        servers.remove(0).stop().await;
        servers.push(Server::start(&ctx, &format!("server-{number}:1"), &report).await);
    }
    // One that is restarted at the same address.
    servers.pop().expect("there are three").stop().await;
    servers.push(Server::start(&ctx, "server-4:1", &report).await);
    for server in servers {
        server.stop().await;
    }
    drop(report);
    let mut all = Vec::new();
    while let Some(used) = uses.recv().await {
        all.push(used);
    }
    assert!(all.len() > 20, "keys were used {} times only", all.len());
    judge(all);
}

/// Runs a server in a process of its own, and prints when it owned which key.
pub(super) async fn serve() -> Result<()> {
    let (client, name) = process::place().await?;
    let address = format!("process-{}", std::process::id());
    let member = of(&client, &name, process::lease()).join(address).await?;
    say("joined");
    while member.is_valid() {
        if let Ok(Some(used)) = use_key(&member, fastrand::u64(0..KEYS)).await {
            let Use { key, token, from: Time(from), until: Time(until), .. } = used;
            say(&format!("{key} {token} {from} {until}"));
        }
        tokio::task::yield_now().await;
    }
    say("lost");
    Ok(())
}

/// Parses another process's report of a key that it owned.
fn heard(line: &str, process: u32) -> Option<Use> {
    let mut numbers = line.split(' ').map(str::parse);
    let mut number = || numbers.next()?.ok();
    let (key, token, from, until) = (number()?, number()?, number()?, number()?);
    let member = format!("process {process}");
    Some(Use { key, member, token, from: Time(from), until: Time(until) })
}

async fn servers_die(ctx: Ctx) {
    let (report, mut uses) = unbounded_channel();
    let here = Server::start(&ctx, "here:1", &report).await;
    let mut all = Vec::new();
    for signal in [Signal::KILL, Signal::STOP] {
        let mut taker = Taker::start(&ctx, "serve", ctx.lease, None);
        assert_eq!(taker.answer().await, "joined");
        // In the middle of its work.
        for _ in 0..10 {
            let line = taker.answer().await;
            all.push(heard(&line, taker.id()).unwrap_or_else(|| panic!("it said {line:?}")));
        }
        taker.signal(signal);
        all_are_owned(&[&here.member]).await;
        // A process that was stopped owns nothing when it resumes: its reports are checked as well.
        taker.signal(if signal == Signal::STOP { Signal::CONT } else { signal });
        if signal == Signal::STOP {
            while let Some(used) = heard(&taker.answer().await, taker.id()) {
                all.push(used);
            }
        }
    }
    here.stop().await;
    drop(report);
    while let Some(used) = uses.recv().await {
        all.push(used);
    }
    judge(all);
}
