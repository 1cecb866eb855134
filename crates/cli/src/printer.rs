//! The one place that prints. What a verb was asked for goes to stdout; everything that the program
//! says about its own doings goes to stderr, as sentences or as JSON lines.

use crate::exit::Failure;
use crate::stamp;
use rustix::termios::tcgetwinsize;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Write, stderr, stdout};

/// How much is said, and in which form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

/// When something is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Always: something failed that nobody reckoned with.
    Always,
    /// Unless `--quiet`.
    Usually,
    /// With `--verbose`.
    Verbosely,
}

impl Printer {
    /// Whether something of this weight is said at all. All of it is, as JSON.
    pub(crate) fn says(self, when: When) -> bool {
        match when {
            When::Always => true,
            When::Usually => self.json || !self.quiet,
            When::Verbosely => self.json || (self.verbose && !self.quiet),
        }
    }

    /// Whether news can be shown in place, on one line that changes.
    pub(crate) fn is_live(self) -> bool {
        !self.json && !self.quiet && stderr().is_terminal()
    }

    /// Says what happened, on stderr. `fields` are for machines, beside the sentence.
    pub(crate) fn say(self, when: When, event: &str, message: &str, fields: Value) {
        if !self.says(when) {
            return;
        }
        let text = if self.json {
            let mut line = Map::new();
            line.insert("event".to_owned(), event.into());
            line.insert("time".to_owned(), stamp::show(stamp::now()).into());
            line.insert("message".to_owned(), message.into());
            if let Value::Object(fields) = fields {
                line.extend(fields);
            }
            Value::Object(line).to_string()
        } else {
            format!("holdline: {message}")
        };
        // Nobody may listen any more; that must not change what the program does.
        let _ = writeln!(stderr(), "{}", redact(&text));
    }

    /// Says why the program ends.
    pub(crate) fn fail(self, failure: &Failure) {
        let when = if failure.expected { When::Usually } else { When::Always };
        self.say(when, failure.event, &failure.message, json!({ "exit": failure.exit.0 }));
    }

    /// Shows a line that the next one replaces, as much of it as fits the terminal.
    pub(crate) fn live(line: &str) {
        let width = tcgetwinsize(stderr()).map_or(80, |size| usize::from(size.ws_col)).max(20);
        let shown: String = redact(line).chars().take(width - 1).collect();
        let _ = write!(stderr(), "\r\x1b[K{shown}");
        let _ = stderr().flush();
    }

    /// Prints an answer on stdout. False means that nobody reads it any more.
    pub(crate) fn answer(text: &str) -> bool {
        let mut out = stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).is_ok()
    }
}

/// Text from elsewhere, made harmless for a terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Hides passwords of URLs. Messages have none to begin with; this is the net below.
pub(crate) fn redact(text: &str) -> String {
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (word, tail) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
        out.push_str(&redact_word(word));
        let next = tail.find(|c| !ends(c)).unwrap_or(tail.len());
        out.push_str(&tail[..next]);
        rest = &tail[next..];
    }
    out
}

/// The same for one word, which may be a URL, or one without its scheme.
fn redact_word(word: &str) -> String {
    let mut word = word.to_owned();
    let from = word.find("://").map_or(0, |at| at + 3);
    // With several nodes, or an `@` in the password, it hides more than it must.
    if let Some(at) = word.rfind('@')
        && let Some(colon) = word[from..at.max(from)].find(':')
    {
        word.replace_range(from + colon + 1..at, "***");
    }
    for key in ["password=", "passwd=", "auth=", "pass="] {
        if let Some(at) = word.find(key) {
            let from = at + key.len();
            let to = word[from..].find('&').map_or(word.len(), |end| from + end);
            word.replace_range(from..to, "***");
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::{clean, redact};

    #[test]
    fn passwords_are_hidden() {
        for (text, shown) in [
            ("at redis://me:secret@host/0, so", "at redis://me:***@host/0, so"),
            ("\"redis://:se/cr@et@host\"", "\"redis://:***@host\""),
            ("quorum:redis://:a@h,redis://:b@i x", "quorum:redis://:***@i x"),
            ("postgres://h/db?password=secret&x=1", "postgres://h/db?password=***&x=1"),
            ("without a scheme: 'me:secret@host'", "without a scheme: 'me:***@host'"),
            ("sqlite:x.db?password=secret", "sqlite:x.db?password=***"),
            ("etcd://host:2379 is gone", "etcd://host:2379 is gone"),
        ] {
            assert_eq!(redact(text), shown);
        }
    }

    #[test]
    fn a_label_cannot_drive_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb"), "a\u{fffd}[2Jb");
    }
}
