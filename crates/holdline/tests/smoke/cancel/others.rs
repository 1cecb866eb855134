//! What is cut off beside others: with somebody behind, in a handoff, by a panic or with its
//! runtime.

use super::memory;
use super::recipe::{RECIPES, Recipe};
use super::setup::{MANY, PATIENT, STUTTER, Setup, polled, soon};
use holdline::{Mutex, RwLock};

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
    let setup = Setup::new(url, recipe).await;
    let rival = recipe.rival(&setup.far, &setup.name).await.expect("it is free");
    let mut take = Box::pin(recipe.take(&setup.near, &setup.name));
    // After so many polls, or where it can get no further.
    tokio::select! {
        biased;
        done = polled(take.as_mut(), polls) => assert!(done.is_none(), "two hold it"),
        () = setup.line(1, 1) => {}
    }
    let mut behind = Vec::new();
    for client in [&setup.near, &setup.far] {
        let (client, name) = (client.clone(), setup.name.clone());
        behind.push(tokio::spawn(async move {
            let taken = recipe.take(&client, &name).await.expect("the store is there");
            taken.expect("in time").unlock().await.expect("it was held");
        }));
    }
    tokio::task::yield_now().await;
    drop(take);
    rival.unlock().await.expect("it was held");
    for task in behind {
        soon("those behind", task).await.expect("no task fails");
    }
    setup.is_clean(&format!("after a waiter was cut off at poll {polls}")).await;
}

/// A downgrade that is cut off releases the lock.
#[tokio::test]
async fn downgrading() {
    let setup = Setup::new("memory:cancel-downgrade", Recipe::Write).await;
    for polls in 0..MANY {
        let lock = RwLock::new(&setup.near, &setup.name);
        let writer = lock.write().await.expect("the store is there");
        let mut downgrade = Box::pin(writer.downgrade());
        let done = polled(downgrade.as_mut(), polls).await;
        drop(downgrade);
        if let Some(reader) = done {
            let reader = reader.map_err(|(_, error)| error).expect("it is held");
            let beside = lock.try_read().await.expect("the store is there");
            drop((reader, beside.expect("readers share")));
            setup.is_clean("after a downgrade").await;
            return;
        }
        setup.is_clean(&format!("after a downgrade was cut off at poll {polls}")).await;
    }
    panic!("the downgrade was not done after {MANY} polls");
}

/// The lock goes from task to task in this process, and the one whose turn it is is cut off.
#[tokio::test]
async fn a_handoff_to_somebody_who_goes_away() {
    let setup = Setup::new("memory:cancel-handoff", Recipe::Handoff).await;
    for polls in 1..8 {
        let lock = Mutex::new(&setup.near, &setup.name).handoff(5, PATIENT);
        let held = lock.lock().await.expect("the store is there");
        let (first, second) = (lock.clone(), lock.clone());
        let mut first = Box::pin(async move { first.lock().await });
        let mut second = Box::pin(async move { second.lock().await });
        assert!(polled(first.as_mut(), 1).await.is_none(), "it is held");
        assert!(polled(second.as_mut(), 1).await.is_none(), "it is held");
        held.unlock().await.expect("it was held"); // handed over to the first that comes
        let got = if polls > 1 { polled(first.as_mut(), polls - 1).await } else { None };
        drop((first, got));
        let second = soon("the second", second).await.expect("the store is there");
        second.unlock().await.expect("it was held");
        setup.is_clean(&format!("after a handoff was cut off at poll {polls}")).await;
    }
}

/// The program's runtime goes away while a task of its waits, or holds.
#[test]
fn a_runtime_that_is_dropped() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runs");
    let outer = runtime();
    for recipe in RECIPES {
        let setup = outer.block_on(Setup::new(&memory("runtime")(recipe), recipe));
        let rival = outer.block_on(recipe.rival(&setup.far, &setup.name)).expect("it is free");
        let inner = runtime();
        let (client, name) = (setup.near.clone(), setup.name.clone());
        let other = format!("{name} 2");
        inner.spawn(async move {
            let held = Mutex::new(&client, &other).lock().await.expect("the store is there");
            let waits = recipe.take(&client, &name).await;
            drop((held, waits));
        });
        if recipe.queues() && !matches!(recipe, Recipe::Multi) {
            outer.block_on(setup.line(1, 1));
        }
        drop(inner);
        outer.block_on(async {
            rival.unlock().await.expect("it was held");
            setup.is_clean("after the runtime was dropped").await;
        });
    }
}

/// A panic under the lock releases it, and the next gets in.
#[tokio::test]
async fn a_panic_under_the_lock() {
    for recipe in RECIPES {
        let setup = Setup::new(&memory("panic")(recipe), recipe).await;
        let (client, name) = (setup.near.clone(), setup.name.clone());
        let fails = tokio::spawn(async move {
            let held = recipe.take(&client, &name).await.expect("the store is there");
            assert!(held.is_none(), "this panic is what is tested");
        });
        assert!(fails.await.is_err_and(|error| error.is_panic()));
        let next = soon("the next", recipe.take(&setup.near, &setup.name)).await;
        if let Some(next) = next.expect("the store is there") {
            next.unlock().await.expect("it was held");
        } else {
            assert!(matches!(recipe, Recipe::Try), "only a try gives up");
        }
        setup.is_clean("after a panic").await;
    }
}
