//! Every await point is safe to cancel (G6): every acquire and every release of every recipe is
//! dropped after one poll, after two, and so on, until it gets to its end. Each time nothing must
//! be left behind, here or in the store, and whoever waits behind must get in.
//!
//! The store is made to stutter, so that each of its calls has several points at which to be cut
//! off. Nothing sleeps here: a future is polled when it asks to be, and others are waited for.

use holdline::conformance::{Chaos, Fault, Op};
use holdline::{
    Client, Election, Guard, Leader, Multi, MultiGuard, Mutex, Owner, ReentrantGuard,
    ReentrantMutex, Result, RwLock, Schedule, Semaphore, WriteGuard, open,
};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Longer than anything that is not broken takes.
const PATIENT: Duration = Duration::from_secs(30);
/// So many more places to be cut off before and after each call of the store.
const STUTTER: u32 = 2;
/// More polls than any of these futures needs.
const MANY: u32 = 2000;

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENT, work).await.unwrap_or_else(|_| panic!("{what}: too late"))
}

/// Polls a future up to `polls` times, whenever it asks for it.
async fn polled<F: Future>(mut future: Pin<&mut F>, mut polls: u32) -> Option<F::Output> {
    poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// All that can be acquired.
#[derive(Clone, Copy, Debug)]
enum Recipe {
    Try,
    Lock,
    Within,
    Unfair,
    Poll,
    Handoff,
    Read,
    Write,
    Semaphore,
    Multi,
    Election,
    Reentrant,
}

const RECIPES: [Recipe; 12] = [
    Recipe::Try,
    Recipe::Lock,
    Recipe::Within,
    Recipe::Unfair,
    Recipe::Poll,
    Recipe::Handoff,
    Recipe::Read,
    Recipe::Write,
    Recipe::Semaphore,
    Recipe::Multi,
    Recipe::Election,
    Recipe::Reentrant,
];

enum Grip {
    Plain(Guard),
    Write(WriteGuard),
    Multi(MultiGuard),
    Leader(Leader),
    Reentrant(ReentrantGuard),
}

impl Recipe {
    /// Acquires; nothing if it is only a try.
    async fn take(self, client: &Client, name: &str) -> Result<Option<Grip>> {
        let mutex = Mutex::new(client, name);
        let often = Schedule::fixed(Duration::from_millis(1));
        Ok(Some(match self {
            Recipe::Try => return Ok(mutex.try_lock().await?.map(Grip::Plain)),
            Recipe::Lock => Grip::Plain(mutex.lock().await?),
            Recipe::Within => return Ok(mutex.lock_within(PATIENT).await?.map(Grip::Plain)),
            Recipe::Unfair => Grip::Plain(mutex.unfair().poll(often).lock().await?),
            Recipe::Poll => Grip::Plain(mutex.poll(often).lock().await?),
            Recipe::Handoff => Grip::Plain(mutex.handoff(3, PATIENT).lock().await?),
            Recipe::Read => Grip::Plain(RwLock::new(client, name).read().await?),
            Recipe::Write => Grip::Write(RwLock::new(client, name).write().await?),
            Recipe::Semaphore => Grip::Plain(Semaphore::new(client, name, 3).acquire(2).await?),
            Recipe::Multi => {
                let names = [name.to_owned(), format!("{name} 2"), format!("{name} 3")];
                Grip::Multi(Multi::new(client, names).lock().await?)
            }
            Recipe::Election => Grip::Leader(Election::new(client, name).campaign("me").await?),
            Recipe::Reentrant => {
                Grip::Reentrant(ReentrantMutex::new(client, name).lock(&Owner::new()).await?)
            }
        }))
    }

    /// What keeps this recipe out.
    async fn rival(self, client: &Client, name: &str) -> Result<Grip> {
        let whole = match self {
            Recipe::Read => Recipe::Write,
            other => other,
        };
        let taken = match whole {
            Recipe::Try | Recipe::Unfair | Recipe::Poll => Recipe::Lock.take(client, name).await?,
            other => other.take(client, name).await?,
        };
        Ok(taken.expect("it is free"))
    }

    /// Whether it keeps a place while it waits for a rival.
    fn queues(self) -> bool {
        !matches!(self, Recipe::Try | Recipe::Unfair)
    }
}

impl Grip {
    async fn unlock(self) -> Result<()> {
        match self {
            Grip::Plain(guard) => guard.unlock().await,
            Grip::Write(guard) => guard.unlock().await,
            Grip::Multi(guard) => guard.unlock().await,
            Grip::Leader(guard) => guard.resign().await,
            Grip::Reentrant(guard) => guard.unlock().await,
        }
    }
}

/// A store, a client of it that stutters, and one that does not.
struct Scene {
    chaos: Chaos,
    near: Client,
    far: Client,
    recipe: Recipe,
    name: String,
}

impl Scene {
    async fn new(url: &str, recipe: Recipe) -> Self {
        let far = open(url).await.expect("the store opens");
        let chaos = Chaos::new(open(url).await.expect("the store opens").store().clone());
        for op in [Op::Enter, Op::Leave, Op::Watch] {
            chaos.always(op, Fault::Stutter(STUTTER));
        }
        let name = format!("cancel {recipe:?}");
        Scene { near: chaos.client(), chaos, far, recipe, name }
    }

    async fn line(&self, holders: usize, waiters: usize) {
        let there = async {
            loop {
                let info = self.far.inspect(&self.name).await.expect("the store is there");
                if (info.holders.len(), info.waiters.len()) == (holders, waiters) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        soon(&format!("{holders} holders and {waiters} waiters"), there).await;
    }

    /// Nothing is left, and the lock is to be had at once: by the same client, and by another.
    async fn is_clean(&self, after: &str) {
        soon("what was dropped", self.near.settle()).await;
        for name in [self.name.clone(), format!("{} 2", self.name), format!("{} 3", self.name)] {
            let info = self.far.inspect(&name).await.expect("the store is there");
            assert_eq!((info.holders, info.waiters), (vec![], vec![]), "{name}, {after}");
        }
        for client in [&self.near, &self.far] {
            let got = Mutex::new(client, &self.name).try_lock().await;
            let got = got.expect("the store is there");
            let got = got.unwrap_or_else(|| panic!("{}: the lock is stuck {after}", self.name));
            got.unlock().await.expect("it was held");
        }
    }

    /// Acquires on a free line, cut off after so many polls. Says whether it got to its end.
    async fn acquire_free(&self, polls: u32) -> bool {
        let mut take = Box::pin(self.recipe.take(&self.near, &self.name));
        let done = soon("the polls", polled(take.as_mut(), polls)).await;
        drop(take);
        if let Some(grip) = done {
            drop(grip.expect("the store is there").expect("it is free"));
            return true;
        }
        false
    }

    /// Acquires against a rival, who lets go as soon as it waits, with somebody waiting behind.
    async fn acquire_held(&self, polls: u32) -> bool {
        let rival = self.recipe.rival(&self.far, &self.name).await.expect("it is free");
        let asked = self.chaos.count(Op::Enter);
        let mut take = Box::pin(self.recipe.take(&self.near, &self.name));
        let cut = async {
            let done = polled(take.as_mut(), polls).await;
            let done = done.map(|grip| grip.expect("the store is there"));
            drop(take);
            done
        };
        let let_go = async {
            // It waits: it has a place, or it keeps asking.
            let waits = async {
                loop {
                    let info = self.far.inspect(&self.name).await.expect("the store is there");
                    if !info.waiters.is_empty() || self.chaos.count(Op::Enter) > asked + 1 {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                () = waits => {}
                () = self.cut_short(polls) => {}
            }
            rival.unlock().await.expect("it was held");
        };
        let (done, ()) = soon("the rival and the cut", async { tokio::join!(cut, let_go) }).await;
        match done {
            Some(grip) => {
                drop(grip);
                true
            }
            None => false,
        }
    }

    /// Few polls end before a place is taken: then there is nothing to wait for.
    async fn cut_short(&self, polls: u32) {
        for _ in 0..u64::from(polls) * 50 + 200 {
            tokio::task::yield_now().await;
        }
    }

    /// Releases, cut off after so many polls.
    async fn release(&self, polls: u32) -> bool {
        let take = self.recipe.take(&self.near, &self.name).await.expect("the store is there");
        let mut unlock = Box::pin(take.expect("it is free").unlock());
        let done = soon("the polls", polled(unlock.as_mut(), polls)).await;
        drop(unlock);
        if let Some(outcome) = done {
            outcome.expect("it was held");
            return true;
        }
        false
    }
}

/// What is cut off.
#[derive(Clone, Copy, Debug)]
enum What {
    AcquireFree,
    AcquireHeld,
    Release,
}

async fn cut_everywhere(url: &str, recipe: Recipe, what: What) {
    let scene = Scene::new(url, recipe).await;
    for polls in 0..MANY {
        let done = match what {
            What::AcquireFree => scene.acquire_free(polls).await,
            What::AcquireHeld => scene.acquire_held(polls).await,
            What::Release => scene.release(polls).await,
        };
        scene.is_clean(&format!("after {what:?} was cut off at poll {polls}")).await;
        if done {
            assert!(polls > 2 * STUTTER, "{recipe:?} was done after {polls} polls: no stutter");
            return;
        }
    }
    panic!("{recipe:?} was not done after {MANY} polls");
}

async fn all(url: impl Fn(Recipe) -> String, what: What) {
    for recipe in RECIPES {
        if matches!((recipe, what), (Recipe::Try, What::AcquireHeld)) {
            continue; // it does not wait
        }
        cut_everywhere(&url(recipe), recipe, what).await;
    }
}

/// A space of its own in this process's memory. Two clients of one URL share it.
fn memory(test: &str) -> impl Fn(Recipe) -> String {
    move |recipe| format!("memory:cancel-{test}-{recipe:?}")
}

#[tokio::test]
async fn acquiring_a_free_lock() {
    all(memory("free"), What::AcquireFree).await;
}

#[tokio::test]
async fn acquiring_a_held_lock() {
    all(memory("held"), What::AcquireHeld).await;
}

#[tokio::test]
async fn releasing() {
    all(memory("release"), What::Release).await;
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::{What, all};

    async fn on_a_file(what: What) {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        all(|_| format!("sqlite:{}", folder.path().join("locks").display()), what).await;
    }

    #[tokio::test]
    async fn acquiring_a_free_lock() {
        on_a_file(What::AcquireFree).await;
    }

    #[tokio::test]
    async fn acquiring_a_held_lock() {
        on_a_file(What::AcquireHeld).await;
    }

    #[tokio::test]
    async fn releasing() {
        on_a_file(What::Release).await;
    }
}

/// Somebody waits behind one that is cut off, in the same process and in another: both get in.
#[tokio::test]
async fn those_behind_get_in() {
    for recipe in RECIPES {
        if !recipe.queues() {
            continue;
        }
        for polls in 1..4 * STUTTER + 6 {
            behind_one_cut_off(&memory("behind")(recipe), recipe, polls).await;
        }
    }
}

async fn behind_one_cut_off(url: &str, recipe: Recipe, polls: u32) {
    let scene = Scene::new(url, recipe).await;
    let rival = recipe.rival(&scene.far, &scene.name).await.expect("it is free");
    let mut take = Box::pin(recipe.take(&scene.near, &scene.name));
    // After so many polls, or where it can get no further.
    tokio::select! {
        biased;
        done = polled(take.as_mut(), polls) => assert!(done.is_none(), "two hold it"),
        () = scene.line(1, 1) => {}
    }
    let mut behind = Vec::new();
    for client in [&scene.near, &scene.far] {
        let (client, name) = (client.clone(), scene.name.clone());
        behind.push(tokio::spawn(async move {
            let grip = recipe.take(&client, &name).await.expect("the store is there");
            grip.expect("in time").unlock().await.expect("it was held");
        }));
    }
    tokio::task::yield_now().await;
    drop(take);
    rival.unlock().await.expect("it was held");
    for task in behind {
        soon("those behind", task).await.expect("no task fails");
    }
    scene.is_clean(&format!("after a waiter was cut off at poll {polls}")).await;
}

/// A downgrade that is cut off releases the lock.
#[tokio::test]
async fn downgrading() {
    let scene = Scene::new("memory:cancel-downgrade", Recipe::Write).await;
    for polls in 0..MANY {
        let lock = RwLock::new(&scene.near, &scene.name);
        let writer = lock.write().await.expect("the store is there");
        let mut downgrade = Box::pin(writer.downgrade());
        let done = polled(downgrade.as_mut(), polls).await;
        drop(downgrade);
        if let Some(reader) = done {
            let reader = reader.map_err(|(_, error)| error).expect("it is held");
            let beside = lock.try_read().await.expect("the store is there");
            drop((reader, beside.expect("readers share")));
            scene.is_clean("after a downgrade").await;
            return;
        }
        scene.is_clean(&format!("after a downgrade was cut off at poll {polls}")).await;
    }
    panic!("the downgrade was not done after {MANY} polls");
}

/// The lock goes from task to task in this process, and the one whose turn it is is cut off.
#[tokio::test]
async fn a_handoff_to_somebody_who_goes_away() {
    let scene = Scene::new("memory:cancel-handoff", Recipe::Handoff).await;
    for polls in 1..8 {
        let lock = Mutex::new(&scene.near, &scene.name).handoff(5, PATIENT);
        let held = lock.lock().await.expect("the store is there");
        let (first, second) = (lock.clone(), lock.clone());
        let mut first = Box::pin(async move { first.lock().await });
        let mut second = Box::pin(async move { second.lock().await });
        assert!(polled(first.as_mut(), 1).await.is_none(), "it is held");
        assert!(polled(second.as_mut(), 1).await.is_none(), "it is held");
        held.unlock().await.expect("it was held"); // handed over to whoever comes first
        let got = if polls > 1 { polled(first.as_mut(), polls - 1).await } else { None };
        drop((first, got));
        let second = soon("the second", second).await.expect("the store is there");
        second.unlock().await.expect("it was held");
        scene.is_clean(&format!("after a handoff was cut off at poll {polls}")).await;
    }
}

/// The program's runtime goes away while a task of its waits, or holds.
#[test]
fn a_runtime_that_is_dropped() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runs");
    let outer = runtime();
    for recipe in RECIPES {
        let scene = outer.block_on(Scene::new(&memory("runtime")(recipe), recipe));
        let rival = outer.block_on(recipe.rival(&scene.far, &scene.name)).expect("it is free");
        let inner = runtime();
        let (client, name) = (scene.near.clone(), scene.name.clone());
        let other = format!("{name} 2");
        inner.spawn(async move {
            let held = Mutex::new(&client, &other).lock().await.expect("the store is there");
            let waits = recipe.take(&client, &name).await;
            drop((held, waits));
        });
        if recipe.queues() && !matches!(recipe, Recipe::Multi) {
            outer.block_on(scene.line(1, 1));
        }
        drop(inner);
        outer.block_on(async {
            rival.unlock().await.expect("it was held");
            scene.is_clean("after the runtime was dropped").await;
        });
    }
}

/// A panic under the lock releases it, and the next gets in.
#[tokio::test]
async fn a_panic_under_the_lock() {
    for recipe in RECIPES {
        let scene = Scene::new(&memory("panic")(recipe), recipe).await;
        let (client, name) = (scene.near.clone(), scene.name.clone());
        let fails = tokio::spawn(async move {
            let held = recipe.take(&client, &name).await.expect("the store is there");
            assert!(held.is_none(), "this panic is what is tested");
        });
        assert!(fails.await.is_err_and(|error| error.is_panic()));
        let next = soon("the next", recipe.take(&scene.near, &scene.name)).await;
        if let Some(next) = next.expect("the store is there") {
            next.unlock().await.expect("it was held");
        } else {
            assert!(matches!(recipe, Recipe::Try), "only a try gives up");
        }
        scene.is_clean("after a panic").await;
    }
}
