//! The log: the library's `tracing` events, as sentences or JSON lines on stderr.
//!
//! The subscriber is our own: it prints events one by one, enables no spans and stores nothing, so
//! it never blocks.

use crate::env;
use crate::exit::Failure;
use crate::printer::{Level, Printer};
use serde_json::{Map, Value, json};
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The events that the program reports itself: not printed again, unless details are requested.
const SAID_ANYWAY: &[&str] =
    &["lock lost", "lock broken by force", "place removed by force", "evicted"];

/// The target of the library's modules; those of its clients of servers are `holdline_...`.
const LIBRARY: &str = "holdline";

/// Installs the subscriber. `verbosity` counts the `-v` flags; the environment variable overrides
/// it.
pub(crate) fn show(printer: Printer, verbosity: u8) -> Result<(), Failure> {
    let usual = match verbosity {
        _ if printer.quiet => LevelFilter::ERROR,
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter = match std::env::var(env::LOG) {
        Ok(text) if !text.trim().is_empty() => Filter::parse(&text).map_err(Failure::usage)?,
        _ => Filter(vec![(LIBRARY.to_owned(), usual)]),
    };
    let twice = filter.most() >= LevelFilter::DEBUG;
    // It fails only if there is one already, and nothing else sets one.
    let _ = tracing::subscriber::set_global_default(Log { printer, filter, twice });
    Ok(())
}

/// The filter of events by target prefix and level; the longest matching prefix counts.
#[derive(Debug)]
struct Filter(Vec<(String, LevelFilter)>);

impl Filter {
    /// Parses a comma-separated list of `LEVEL` and `TARGET=LEVEL`.
    fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (target, level) = part.split_once('=').unwrap_or((LIBRARY, part));
            let level = level.trim().parse().map_err(|_| {
                format!(
                    "{} knows the levels off, error, warn, info, debug and trace, and \
                     TARGET=LEVEL, with commas between several",
                    env::LOG
                )
            })?;
            rules.push((target.trim().to_owned(), level));
        }
        rules.sort_by_key(|(target, _)| std::cmp::Reverse(target.len()));
        Ok(Filter(rules))
    }

    fn allows(&self, target: &str, level: LevelFilter) -> bool {
        let fits = |prefix: &str| {
            let rest = target.strip_prefix(prefix);
            let crates = prefix == LIBRARY;
            rest.is_some_and(|rest| {
                rest.is_empty() || rest.starts_with("::") || crates && rest.starts_with('_')
            })
        };
        self.0.iter().find(|(prefix, _)| fits(prefix)).is_some_and(|(_, most)| level <= *most)
    }

    fn most(&self) -> LevelFilter {
        self.0.iter().map(|(_, level)| *level).max().unwrap_or(LevelFilter::OFF)
    }
}

/// The subscriber.
struct Log {
    printer: Printer,
    filter: Filter,
    /// Whether events that the program reports by itself are shown too.
    twice: bool,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let level = LevelFilter::from_level(*metadata.level());
        metadata.is_event() && self.filter.allows(metadata.target(), level)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.filter.most())
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = EventText::default();
        event.record(&mut text);
        if !self.twice && SAID_ANYWAY.contains(&text.message.as_str()) {
            return;
        }
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let message = text.sentence(&level);
        let target = event.metadata().target();
        let fields = json!({ "level": level, "target": target, "fields": text.fields });
        self.printer.say(Level::Always, "log", &message, fields);
    }

    // Spans are not enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An event's message and fields.
#[derive(Debug, Default)]
struct EventText {
    message: String,
    fields: Map<String, Value>,
}

impl EventText {
    /// `warning: renewal failed (name x, token 7): the store did not answer`.
    fn sentence(&self, level: &str) -> String {
        let level = if level == "warn" { "warning" } else { level };
        let (mut about, mut why) = (Vec::new(), String::new());
        for (key, value) in &self.fields {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match key.as_str() {
                "error" | "why" | "reason" => why = format!(": {value}"),
                _ => about.push(format!("{key} {value}")),
            }
        }
        let about =
            if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
        format!("{level}: {}{about}{why}", self.message)
    }

    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => {
                self.fields.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::{EventText, Filter};
    use serde_json::{Map, json};
    use tracing::level_filters::LevelFilter;

    #[test]
    fn the_longest_target_counts() {
        let filter = Filter::parse("warn, holdline::keeper=trace, h2=info").unwrap();
        assert!(filter.allows("holdline::driver", LevelFilter::WARN));
        assert!(!filter.allows("holdline::driver", LevelFilter::INFO));
        assert!(filter.allows("holdline::keeper", LevelFilter::TRACE));
        assert!(filter.allows("h2::proto", LevelFilter::INFO));
        assert!(!filter.allows("h2x", LevelFilter::ERROR));
        assert!(filter.allows("holdline_redis_client::checks", LevelFilter::WARN));
        assert!(!filter.allows("holdlines", LevelFilter::ERROR));
        assert_eq!(filter.most(), LevelFilter::TRACE);
        assert!(!Filter::parse("off").unwrap().allows("holdline", LevelFilter::ERROR));
        assert!(Filter::parse("loud").is_err() && Filter::parse("a=b").is_err());
    }

    #[test]
    fn an_event_is_a_sentence() {
        let mut fields = Map::new();
        fields.insert("error".into(), "no answer".into());
        fields.insert("name".into(), "x".into());
        fields.insert("token".into(), json!(7));
        let text = EventText { message: "renewal failed".into(), fields };
        let shown = "warning: renewal failed (name x, token 7): no answer";
        assert_eq!(text.sentence("warn"), shown);
    }
}
