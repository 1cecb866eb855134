//! What the library warns of.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// A subscriber that calls a function for each event of this level, or a more severe one.
pub fn on_event(
    level: Level,
    call: impl Fn(&Event<'_>) + Send + Sync + 'static,
) -> impl Subscriber + Send + Sync {
    // While a process has only one subscriber, and a thread without it is the first to reach an
    // event, tracing turns the event off for all threads.
    static ANOTHER: OnceLock<Dispatch> = OnceLock::new();
    let ignore = |_: &Event<'_>| ();
    ANOTHER.get_or_init(|| Dispatch::new(OnEvent { level: Level::TRACE, call: ignore }));
    OnEvent { level, call }
}

struct OnEvent<F> {
    level: Level,
    call: F,
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Subscriber for OnEvent<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        (self.call)(event);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A subscriber with a bug: it panics at every warning.
pub fn panicking_subscriber() -> impl Subscriber + Send + Sync {
    on_event(Level::WARN, |event| panic!("as it should, at {:?}", event.metadata().target()))
}

/// The warnings that a subscriber has kept, each as `field=value ` for each of its fields. Clones
/// share them.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// The subscriber that keeps them.
    pub fn subscriber(&self) -> impl Subscriber + Send + Sync + use<> {
        let all = Arc::clone(&self.0);
        on_event(Level::WARN, move |event| {
            let mut text = Text::default();
            event.record(&mut text);
            all.lock().unwrap_or_else(PoisonError::into_inner).push(text.0);
        })
    }

    /// All warnings so far.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_seen_though_a_thread_without_a_subscriber_was_first() {
        let warnings = Warnings::default();
        let _guard = tracing::subscriber::set_default(warnings.subscriber());
        let warn = || tracing::warn!("a test");
        std::thread::spawn(warn).join().expect("no panic");
        warn();
        assert_eq!(warnings.all().len(), 1);
    }
}
