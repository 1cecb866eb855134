//! What must hold of any two clients that share a lock. A row of the table runs all of it.

use crate::peer::{LONG, Peer, token};
use crate::toolchain::Language;
use holdline::{Backoff, Client, Guard, Mutex, RwLock, WriteGuard};
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex as Both;

/// A store as both see it, and the lock that each takes in it.
pub(crate) struct Row {
    pub(crate) client: Client,
    pub(crate) ours: Form,
    pub(crate) language: Language,
    /// Their name for it.
    pub(crate) theirs: &'static str,
    /// What they are told of the store.
    pub(crate) servers: String,
}

/// Which of our locks.
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "a build may lack the stores of some")]
pub(crate) enum Form {
    Mutex,
    Read,
    Write,
}

/// A lock of ours, held.
pub(crate) enum Held {
    One(Guard),
    Write(WriteGuard),
}

impl Deref for Held {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        match self {
            Held::One(guard) => guard,
            Held::Write(guard) => guard,
        }
    }
}

impl Held {
    pub(crate) async fn unlock(self) {
        let end = match self {
            Held::One(guard) => guard.unlock().await,
            Held::Write(guard) => guard.unlock().await,
        };
        end.expect("held to the end");
    }
}

/// A lock of ours.
#[derive(Clone)]
pub(crate) struct Ours {
    client: Client,
    form: Form,
    name: String,
    /// It is not renewed.
    lapses: bool,
}

impl Ours {
    fn mutex(&self) -> Mutex {
        let mut mutex = Mutex::new(&self.client, &self.name);
        if self.lapses {
            mutex = mutex.fixed_lease(LAPSE);
        }
        if self.client.capabilities().fair_queue {
            return mutex;
        }
        // About as often as they look, or neither side would meet the other; but not in step with
        // them, for on several servers that is a tie.
        mutex.poll(Backoff::fixed(Duration::from_millis(20)).jitter(50))
    }

    fn rwlock(&self) -> RwLock {
        let lock = RwLock::new(&self.client, &self.name);
        if self.lapses { lock.fixed_lease(LAPSE) } else { lock }
    }

    /// Waits for it, but not for ever.
    pub(crate) async fn lock(&self) -> Held {
        let held = match self.form {
            Form::Mutex => self.mutex().lock_within(LONG).await.map(|held| held.map(Held::One)),
            Form::Read => self.rwlock().read_within(LONG).await.map(|held| held.map(Held::One)),
            Form::Write => self.rwlock().write_within(LONG).await.map(|held| held.map(Held::Write)),
        };
        held.expect("the store is there").expect("our turn comes")
    }

    pub(crate) async fn try_lock(&self) -> Option<Held> {
        let held = match self.form {
            Form::Mutex => self.mutex().try_lock().await.map(|held| held.map(Held::One)),
            Form::Read => self.rwlock().try_read().await.map(|held| held.map(Held::One)),
            Form::Write => self.rwlock().try_write().await.map(|held| held.map(Held::Write)),
        };
        held.expect("the store is there")
    }
}

/// How long we make sure that somebody really waits.
const MOMENT: Duration = Duration::from_millis(300);
/// The lease of a peer that lives, and of one that is killed.
const LEASES: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(4)];
/// The lease of a lock of ours that is not renewed.
const LAPSE: Duration = Duration::from_secs(2);
/// How much longer than its lease a dead peer may be in the way.
const SLACK: Duration = Duration::from_secs(8);
/// How often each side takes the lock at least while the other does the same.
const ROUNDS: usize = 100;
/// How often the lock changes sides at least, and how long both go on until it has.
const TURNS: usize = ROUNDS / 10;
const MEETING: Duration = Duration::from_secs(30);

/// A name that nobody else uses, in this run or an earlier one.
pub(crate) fn fresh(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = std::time::UNIX_EPOCH.elapsed().expect("it is later").as_millis();
    format!("peers-{what}-{now:x}-{}-{count}", std::process::id())
}

impl Row {
    pub(crate) fn ours(&self, name: &str) -> Ours {
        Ours { client: self.client.clone(), form: self.ours, name: name.to_owned(), lapses: false }
    }

    /// A peer with a long lease.
    pub(crate) async fn peer(&self) -> Option<Peer> {
        Peer::start(self.language, &self.servers, LEASES[0]).await
    }

    /// All that must hold where the two exclude each other.
    pub(crate) async fn exclude(&self) {
        let Some(mut peer) = self.peer().await else { return };
        self.they_hold(&mut peer).await;
        self.we_hold(&mut peer).await;
        self.we_let_it_lapse(&mut peer).await;
        self.both_at_once(&mut peer).await;
        drop(peer);
        self.they_die().await;
    }

    /// The same of a peer that is told of releases, and sleeps for its own lease when ours ends.
    #[allow(dead_code, reason = "a build may lack the stores of some")]
    pub(crate) async fn exclude_where_lapses_are_not_told(&self) {
        let Some(mut peer) = self.peer().await else { return };
        self.they_hold(&mut peer).await;
        let start = Instant::now();
        self.we_hold(&mut peer).await;
        assert!(start.elapsed() < LEASES[0], "it was not told, but slept for its lease");
        self.both_at_once(&mut peer).await;
        drop(peer);
        self.they_die().await;
    }

    async fn they_hold(&self, peer: &mut Peer) {
        let name = fresh("they-hold");
        let ours = self.ours(&name);
        let theirs = peer.lock(self.theirs, &name).await;
        assert!(ours.try_lock().await.is_none(), "they hold it");
        let view = self.client.inspect(&name).await.expect("works");
        assert_eq!(view.holders.len(), 1, "status shows them: {view:?}");
        let waiter = tokio::spawn(async move { ours.lock().await });
        tokio::time::sleep(MOMENT).await;
        assert!(!waiter.is_finished(), "we wait");
        peer.unlock().await;
        let held = waiter.await.expect("our turn comes");
        assert!(theirs.is_none_or(|theirs| theirs < held.token()), "tokens rise");
        held.unlock().await;
    }

    async fn we_hold(&self, peer: &mut Peer) {
        let name = fresh("we-hold");
        let ours = self.ours(&name);
        let held = ours.lock().await;
        let token_of_ours = held.token();
        assert!(!peer.try_lock(self.theirs, &name).await, "we hold it");
        peer.say(&format!("lock {} {name}", self.theirs)).await;
        assert_eq!(peer.answer_within(MOMENT).await, None, "they wait");
        assert!(held.is_valid());
        held.unlock().await;
        let theirs = token(&peer.answer().await);
        assert!(theirs.is_none_or(|theirs| theirs > token_of_ours), "tokens rise");
        assert!(ours.try_lock().await.is_none(), "they hold it");
        peer.unlock().await;
        ours.try_lock().await.expect("all have gone").unlock().await;
    }

    /// A lock of ours that nobody renews keeps them out until its lease ends, and no longer.
    async fn we_let_it_lapse(&self, peer: &mut Peer) {
        let name = fresh("we-lapse");
        let ours = Ours { lapses: true, ..self.ours(&name) };
        let start = Instant::now();
        let held = ours.lock().await;
        peer.lock(self.theirs, &name).await;
        let took = start.elapsed();
        assert!(!held.is_valid(), "they hold it");
        assert!(took < LAPSE + SLACK, "we were in the way for {took:?}");
        drop(held);
        self.client.settle().await;
        assert!(self.ours(&name).try_lock().await.is_none(), "they still hold it");
        peer.unlock().await;
    }

    /// Neither is ever inside while the other is, and no round is lost. One side may do all its
    /// rounds while the other has missed a notice, so both go on until they have met.
    async fn both_at_once(&self, peer: &mut Peer) {
        let name = fresh("both");
        let inside = Inside::default();
        let until = Instant::now() + MEETING;
        let goes_on =
            |round: &usize| *round < ROUNDS || inside.turns() < TURNS && Instant::now() < until;
        let we = async {
            let ours = self.ours(&name);
            for _ in (0..).take_while(goes_on) {
                let held = ours.lock().await;
                inside.enter_section('w', Some(held.token()).filter(|token| *token > 0)).await;
                held.unlock().await;
                pause().await;
            }
        };
        let they = async {
            for _ in (0..).take_while(goes_on) {
                let token = peer.lock(self.theirs, &name).await;
                inside.enter_section('t', token).await;
                peer.unlock().await;
                pause().await;
            }
        };
        tokio::join!(we, they);
        inside.judge();
    }

    /// A peer that is killed is in the way for no longer than its lease.
    async fn they_die(&self) {
        let Some(mut peer) = Peer::start(self.language, &self.servers, LEASES[1]).await else {
            return;
        };
        let name = fresh("they-die");
        let ours = self.ours(&name);
        peer.lock(self.theirs, &name).await;
        peer.kill().await;
        let start = Instant::now();
        assert!(ours.try_lock().await.is_none(), "a dead holder holds until its lease ends");
        ours.lock().await.unlock().await;
        let took = start.elapsed();
        println!("{}: {took:.1?} after its death", self.theirs);
        assert!(took < LEASES[1] + SLACK, "{} was in the way for {took:?}", self.theirs);
    }
}

/// A little time for the other, where the first to ask is next.
async fn pause() {
    let chance = std::time::UNIX_EPOCH.elapsed().expect("it is later").subsec_micros() % 16;
    tokio::time::sleep(Duration::from_millis(u64::from(chance))).await;
}

/// What the lock guards: a count that two at once would spoil.
#[derive(Default)]
struct Inside {
    busy: Both<()>,
    count: AtomicU32,
    log: std::sync::Mutex<Vec<(char, Option<u64>)>>,
}

impl Inside {
    async fn enter_section(&self, who: char, token: Option<u64>) {
        let _alone = self.busy.try_lock().expect("nobody else is inside");
        let count = self.count.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.count.store(count + 1, Ordering::Relaxed);
        self.log.lock().expect("no panic").push((who, token));
    }

    /// How often the lock has changed sides.
    fn turns(&self) -> usize {
        let log = self.log.lock().expect("no panic");
        log.windows(2).filter(|two| two[0].0 != two[1].0).count()
    }

    fn judge(&self) {
        let turns = self.turns();
        let log = self.log.lock().expect("no panic");
        let rounds = log.len();
        assert!(rounds >= 2 * ROUNDS, "only {rounds} rounds");
        assert_eq!(self.count.load(Ordering::Relaxed) as usize, rounds, "a round was lost");
        assert!(turns >= TURNS, "they hardly met: {turns} turns");
        let tokens: Vec<u64> = log.iter().filter_map(|(_, token)| *token).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "tokens rise: {log:?}");
        println!("{} tokens in {rounds} rounds, {turns} turns", tokens.len());
    }
}
