//! The common parts of the blocking recipes and guards.

/// Defines a blocking recipe: a newtype of the async recipe, with its options.
macro_rules! recipe {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(recipes::$name);

        impl $name {
            /// Wraps an async recipe, with its options.
            pub fn new(recipe: recipes::$name) -> Self {
                $name(recipe)
            }
        }

        options!($name:
            lease(lease: Duration), renew_every(interval: Duration), margin(margin: Duration),
            label(label: impl Into<String>), on_loss(on_loss: OnLoss), fenced(),
            fixed_lease(lease: Duration), poll(schedule: Backoff), unfair());
    };
}

/// Defines option methods that change the async recipe.
macro_rules! options {
    ($name:ident: $($option:ident($($value:ident: $type:ty),*)),*) => {
        impl $name {$(
            #[doc = concat!("See [`", stringify!($option), "`](crate::", stringify!($name), "::",
                            stringify!($option), ").")]
            pub fn $option(self $(, $value: $type)*) -> Self {
                $name(self.0.$option($($value),*))
            }
        )*}
    };
}

/// Defines a blocking guard: every method of the async guard that does not wait, and `unlock`.
macro_rules! guard {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[must_use = "dropping the guard at once releases the lock at once"]
        pub struct $name(Held<$inner>);

        impl $name {
            fn new(guard: $inner) -> Self {
                $name(Held::new(guard))
            }

            /// Releases the lock, and reports the result.
            pub fn unlock(self) -> Result<()> {
                wait(self.0.take().unlock())
            }
        }

        impl Release for $inner {
            fn release(self) -> impl Future<Output = Result<()>> {
                self.unlock()
            }
        }

        may_be_lost!($name, "lock");
        works!($name, "the lock is held");

        impl Deref for $name {
            type Target = $inner;
            fn deref(&self) -> &$inner {
                &self.0
            }
        }
    };
}

/// Defines the methods that report a loss: of a lock, a leadership, or a membership.
macro_rules! may_be_lost {
    ($name:ident, $what:literal) => {
        impl $name {
            #[doc = concat!("Waits until the ", $what, " is lost, however long that takes.")]
            pub fn lost(&self) {
                wait(self.0.lost());
            }

            #[doc = concat!("Waits until the ", $what, " is lost, or for `time`; says whether it \
                             is lost.")]
            pub fn lost_within(&self, time: Duration) -> bool {
                wait($crate::clock::timeout(time, self.0.lost())).is_some()
            }

            #[doc = concat!("Why the ", $what, " was lost; `None` while it is not.")]
            pub fn loss(&self) -> Option<Loss> {
                wait(self.0.loss())
            }
        }
    };
}

/// Defines the methods that run work under a lock.
macro_rules! works {
    ($name:ty, $held:literal) => {
        impl $name {
            #[doc = concat!("Does `work` if ", $held, ", and says whether that was still so at \
                             the end. A thread cannot be stopped from outside: long work should \
                             ask `is_valid` between its steps.")]
            pub fn protect<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
                let check = || wait(self.0.protect(ready(())));
                check()?;
                let output = work(); // outside of the runtime, so that it can block as well
                check()?;
                Ok(output)
            }

            /// [`protect`](Self::protect) for work that is itself fallible: one `?` handles both
            /// errors.
            pub fn try_protect<T, E: From<Error>>(
                &self,
                work: impl FnOnce() -> Result<T, E>,
            ) -> Result<T, E> {
                self.protect(work)?
            }
        }
    };
}

/// Defines the other methods of a guard of a single lock.
macro_rules! one_lock {
    ($name:ident) => {
        impl $name {
            /// Extends the lease so that the lock is held for at least `by` from now. See
            /// [`Guard::extend`].
            pub fn extend(&self, by: Duration) -> Result<()> {
                wait(self.0.extend(by))
            }
        }
    };
}
