//! A store that stutters, and acquires and releases on it that are cut off.

use super::recipe::{RECIPES, Recipe};
use holdline::store::Store;
use holdline::stores::memory::Memory;
use holdline::stores::quorum::Quorum;
use holdline::{Client, Mutex, open};
use holdline_conformance::{Chaos, Fault, Op};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Longer than anything that is not broken takes.
pub(crate) const PATIENT: Duration = Duration::from_secs(30);
/// So many more places to be cut off before and after each call of the store.
pub(crate) const STUTTER: u32 = 2;
/// More polls than any of these futures needs.
pub(crate) const MANY: u32 = 2000;

pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENT, work).await.unwrap_or_else(|_| panic!("{what}: too late"))
}

/// Polls a future up to `polls` times, whenever it asks for it.
pub(crate) async fn polled<F: Future>(
    mut future: Pin<&mut F>,
    mut polls: u32,
) -> Option<F::Output> {
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

/// A store, a client of it that stutters, and one that does not.
pub(crate) struct Setup {
    chaos: Chaos,
    pub(crate) near: Client,
    pub(crate) far: Client,
    recipe: Recipe,
    pub(crate) name: String,
}

impl Setup {
    pub(crate) async fn new(url: &str, recipe: Recipe) -> Self {
        let far = open(url).await.expect("the store opens");
        let chaos = Chaos::new(open(url).await.expect("the store opens").store().clone());
        for op in [Op::Enter, Op::Leave, Op::Watch] {
            chaos.always(op, Fault::Stutter(STUTTER));
        }
        Setup::of(chaos, far, recipe)
    }

    /// A quorum of three spaces in this process's memory, each of which stutters for itself.
    pub(crate) fn on_a_quorum(test: &str, recipe: Recipe) -> Self {
        let space = |node| {
            Arc::new(Memory::shared(&format!("cancel-{test}-{recipe:?}-{node}"))) as Arc<dyn Store>
        };
        let quorum = |nodes: [Arc<dyn Store>; 3]| {
            Arc::new(Quorum::new(nodes).expect("three nodes")) as Arc<dyn Store>
        };
        let far = Client::new(quorum([1, 2, 3].map(space)));
        let near = quorum([1, 2, 3].map(|node| {
            let chaos = Chaos::new(space(node));
            // Their answers come one after the other.
            chaos.always(Op::Enter, Fault::Stutter(STUTTER * node));
            // A store sends a request as soon as it is asked to; one that stutters does not, and a
            // quorum does not wait for the last one's answer when it leaves.
            chaos.always(Op::Leave, Fault::Stutter(STUTTER));
            Arc::new(chaos) as Arc<dyn Store>
        }));
        Setup::of(Chaos::new(near), far, recipe)
    }

    fn of(chaos: Chaos, far: Client, recipe: Recipe) -> Self {
        let name = format!("cancel {recipe:?}");
        Setup { near: chaos.client(), chaos, far, recipe, name }
    }

    pub(crate) async fn line(&self, holders: usize, waiters: usize) {
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
    pub(crate) async fn is_clean(&self, after: &str) {
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
        if let Some(taken) = done {
            drop(taken.expect("the store is there").expect("it is free"));
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
            let done = done.map(|taken| taken.expect("the store is there"));
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
            Some(taken) => {
                drop(taken);
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
pub(crate) enum What {
    AcquireFree,
    AcquireHeld,
    Release,
}

/// So many polls at least are there to be cut off at: each call to a store stutters.
pub(crate) const POLLS: u32 = 2 * STUTTER + 1;

/// Cuts one recipe off everywhere.
pub(crate) async fn cut_everywhere(setup: &Setup, what: What, least: u32) {
    let recipe = setup.recipe;
    for polls in 0..MANY {
        let done = match what {
            What::AcquireFree => setup.acquire_free(polls).await,
            What::AcquireHeld => setup.acquire_held(polls).await,
            What::Release => setup.release(polls).await,
        };
        setup.is_clean(&format!("after {what:?} was cut off at poll {polls}")).await;
        if done {
            assert!(polls >= least, "{recipe:?} was done after {polls} polls: no stutter");
            return;
        }
    }
    panic!("{recipe:?} was not done after {MANY} polls");
}

pub(crate) async fn all(url: impl Fn(Recipe) -> String, what: What) {
    for recipe in RECIPES {
        if matches!((recipe, what), (Recipe::Try, What::AcquireHeld)) {
            continue; // it does not wait
        }
        cut_everywhere(&Setup::new(&url(recipe), recipe).await, what, POLLS).await;
    }
}
