//! The configuration of a Redis store, from its URL: the servers, and the layout of locks.

use super::encode::Kept;
use crate::error::{Error, ErrorKind, Result};
use crate::stores::url;
use holdline_redis_client as client;
use holdline_redis_client::{Kind, duration, invalid};
use std::sync::Arc;
use std::time::Duration;

/// The servers of a store, and the options for its locks.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Config {
    pub(in crate::stores) servers: Arc<client::Config>,
    /// The prefix of all keys and channels.
    pub(in crate::stores) prefix: String,
    /// How the tokens of an unused line are kept.
    pub(in crate::stores) kept: Kept,
    pub(in crate::stores) layout: Layout,
    /// The signals that wake other libraries' waiters for strings.
    pub(in crate::stores) signals: Signals,
}

/// The signals that the release of a string lock sends. An empty name means none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::stores) struct Signals {
    /// The prefix of a list's name, followed by the lock's name; the signal adds an element.
    pub(in crate::stores) list: String,
    /// The prefix of a channel's name, followed by the key; the signal publishes the key.
    pub(in crate::stores) channel: String,
}

/// The layout of a lock in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stores) enum Layout {
    /// A line with places: see `lua/enter_one.lua`.
    Line,
    /// A string with an expiry, as the common Redis lock libraries have it.
    String,
    /// A hash with one field, as Redisson's `RLock` has it.
    Redisson,
}

impl Config {
    /// Parses the part of a URL after this scheme and the first colon.
    pub(in crate::stores) fn read(scheme: &str, rest: &str) -> Result<Config> {
        let (mut servers, options) = client::Config::read(scheme, rest)?;
        servers.connected = || crate::metrics::connected("redis");
        let mut config = Config {
            servers: Arc::new(servers),
            prefix: String::new(),
            kept: Kept { idle: Duration::from_secs(30), clock_span: Duration::from_secs(1) },
            layout: Layout::Line,
            signals: Signals::default(),
        };
        if config.servers.kind == Kind::Cluster {
            // A key for the clock would be in one slot only.
            config.kept = Kept { idle: Duration::from_secs(600), clock_span: Duration::ZERO };
        }
        let has_idle = options.iter().any(|(key, _)| *key == "idle");
        for (key, value) in options {
            config.set(&key, value)?;
        }
        if has_idle && config.layout != Layout::Line {
            return Err(invalid("has idle, which only scheme=line has").into());
        }
        if config.signals != Signals::default() {
            if config.layout != Layout::String {
                return Err(invalid("has signals, which only scheme=string has").into());
            }
            if config.servers.kind == client::Kind::Cluster {
                return Err(invalid("has signals, which cannot be sent in a cluster").into());
            }
        }
        if config.layout == Layout::Line && config.prefix.is_empty() {
            "holdline:".clone_into(&mut config.prefix);
        }
        Ok(config)
    }

    fn set(&mut self, key: &str, value: String) -> Result<()> {
        match key {
            "prefix" if value.contains(['{', '}']) || value.chars().any(char::is_whitespace) => {
                return Err(invalid("has a prefix with braces or spaces").into());
            }
            "prefix" => self.prefix = value,
            "signal_list" => self.signals.list = value,
            "signal_channel" => self.signals.channel = value,
            "idle" => self.kept.idle = duration(key, &value)?,
            "scheme" => {
                self.layout = match &*value {
                    "line" => Layout::Line,
                    "string" => Layout::String,
                    "redisson" => Layout::Redisson,
                    _ => {
                        let message = "a Redis store has the schemes \"line\", \"string\" and \
                            \"redisson\"; no other is supported";
                        return Err(Error::new(ErrorKind::Unsupported, message));
                    }
                }
            }
            _ => {
                let known =
                    format!("prefix, idle, scheme, signal_list, signal_channel, {}", client::KNOWN);
                return Err(invalid(&url::unknown_option(key, &known)).into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_make_sense() {
        let plain = Config::read("redis", "//h").expect("good");
        assert_eq!((plain.prefix.as_str(), plain.layout), ("holdline:", Layout::Line));
        let cluster = Config::read("redis+cluster", "//h").expect("good");
        assert!(cluster.kept.idle > plain.kept.idle && cluster.kept.clock_span.is_zero());
        let full = Config::read("redis", "//h?prefix=app:&idle=2s").expect("good");
        assert_eq!((full.prefix.as_str(), full.kept.idle), ("app:", Duration::from_secs(2)));
        let string = Config::read("redis", "//h?scheme=string").expect("good");
        assert_eq!((string.prefix.as_str(), string.layout), ("", Layout::String));
        let signals =
            Config::read("redis", "//h?scheme=string&signal_list=s:").expect("good").signals;
        assert_eq!((signals.list.as_str(), signals.channel.as_str()), ("s:", ""));
    }

    #[test]
    fn urls_that_do_not() {
        for rest in [
            "//u:canary@h?signal_list=x",
            "//u:canary@h?x=1",
            "//h?prefix={a}",
            "//h?ack=1",
            "//h?idle=5",
            "//h?idle=5s&scheme=string",
            "//h?scheme=redisson&idle=5s",
        ] {
            let error = Config::read("redis", rest).expect_err(rest);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{rest}");
            assert!(!format!("{error:?}").contains("canary"), "{error:?}");
        }
        let error = Config::read("redis", "//h?scheme=other").expect_err("no such scheme");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
