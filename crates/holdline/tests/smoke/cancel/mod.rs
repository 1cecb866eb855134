//! Every await point is safe to cancel (G6): every acquire and every release of every recipe is
//! dropped after one poll, after two, and so on, until it gets to its end. Each time nothing must
//! be left behind, here or in the store, and those behind must get in.
//!
//! The store is made to stutter, so that each of its calls has several points at which to be cut
//! off. Nothing sleeps here: a future is polled when it asks to be, and others are waited for.

mod others;
mod recipe;
mod setup;

use recipe::{RECIPES, Recipe};
use setup::{POLLS, Setup, What, all, cut_everywhere};

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

/// A quorum asks several nodes at once, and asks again; it may be cut off after any of the answers.
mod quorum {
    use super::{POLLS, RECIPES, Recipe, Setup, What, cut_everywhere};

    async fn on_a_quorum(test: &str, what: What, least: u32) {
        let waits = |recipe| !matches!((recipe, what), (Recipe::Try, What::AcquireHeld));
        let recipes = RECIPES.into_iter().filter(|recipe| recipe.is_plain() && waits(*recipe));
        // All at once, for each pauses between its tries.
        let all = recipes.map(|recipe| async move {
            cut_everywhere(&Setup::on_a_quorum(test, recipe), what, least).await;
        });
        futures_util::future::join_all(all).await;
    }

    #[tokio::test]
    async fn acquiring_a_free_lock() {
        on_a_quorum("quorum-free", What::AcquireFree, POLLS).await;
    }

    #[tokio::test]
    async fn acquiring_a_held_lock() {
        on_a_quorum("quorum-held", What::AcquireHeld, POLLS).await;
    }

    #[tokio::test]
    async fn releasing() {
        // Each node is told by a task of its own, which nothing cuts off; so the stutter is there.
        on_a_quorum("quorum-release", What::Release, 1).await;
    }
}
