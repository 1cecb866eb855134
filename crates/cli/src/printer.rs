//! The printer, the only module that prints. Answers go to stdout; messages about the program's
//! progress go to stderr, as sentences or as JSON lines.

use crate::exit::{Exit, Failure};
use crate::output_queue::{Output, STDERR, STDOUT};
use crate::{live_line, terminal, timestamp};
use rustix::termios::tcgetwinsize;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::future::pending;
use std::io::{ErrorKind, IsTerminal, stderr};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// The verbosity and the form of the output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

/// The weight of a message: when it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Always: an unexpected failure.
    Always,
    /// Unless `--quiet`.
    Usually,
    /// With `--verbose`.
    Verbosely,
}

/// The time limits for flushing at the end: if nothing reads the output, and if it is read.
const UNTAKEN: Duration = Duration::from_millis(400);
const TAKEN: Duration = Duration::from_secs(5);

impl Printer {
    /// Whether a message of this weight is printed. As JSON all are.
    pub(crate) fn prints(self, level: Level) -> bool {
        match level {
            Level::Always => true,
            Level::Usually => self.json || !self.quiet,
            Level::Verbosely => self.json || (self.verbose && !self.quiet),
        }
    }

    /// Whether progress can be shown on one line that is replaced.
    pub(crate) fn is_live(self) -> bool {
        !self.json && !self.quiet && stderr().is_terminal()
    }

    /// Prints an event on stderr, without waiting for a reader. `fields` are for machines, in
    /// addition to the sentence.
    pub(crate) fn say(self, level: Level, event: &str, message: &str, fields: Value) {
        if !self.prints(level) {
            return;
        }
        if self.json {
            STDERR.line(event_line(event, message, fields), |count| {
                let fields = json!({ "count": count });
                event_line("dropped", &dropped(count), fields)
            });
        } else {
            STDERR.line(sentence(message), |count| sentence(&dropped(count)));
        }
    }

    /// Prints the failure that ends the program.
    pub(crate) fn fail(self, failure: &Failure) {
        let level = if failure.expected { Level::Usually } else { Level::Always };
        let mut fields = failure.fields.clone();
        fields.insert("exit".to_owned(), failure.exit.0.into());
        self.say(level, failure.event, &failure.message, Value::Object(fields));
    }

    /// Shows a line that the next one replaces, fitted to the terminal's width; an empty one
    /// removes it.
    pub(crate) fn live(line: impl FnOnce(usize) -> String) {
        let width = tcgetwinsize(stderr()).ok().map(|size| usize::from(size.ws_col));
        let width = width.filter(|width| *width > 0).unwrap_or(80) - 1;
        STDERR.live(live_line::cut(&clean(&redact(&line(width))), width));
    }

    /// Prints lines on stderr, without waiting for a reader.
    pub(crate) fn lines(text: &str) {
        STDERR.line(escape(&redact(text)), |count| sentence(&dropped(count)));
    }

    /// Waits, for a short time, until all output is written.
    pub(crate) fn flush() {
        STDERR.flush(UNTAKEN, TAKEN);
        STDOUT.flush(UNTAKEN, TAKEN);
    }

    /// Prints an answer on stdout, for verbs that do nothing else. Returns false if its reader has
    /// closed stdout.
    ///
    /// # Errors
    ///
    /// The answer cannot be written, and a script must not mistake that for an empty answer.
    pub(crate) fn answer(text: &str) -> Result<bool, Failure> {
        Printer::answer_bytes(format!("{}\n", escape(text)).as_bytes())
    }

    /// Shows a text in place of the terminal's contents, cut to its size.
    pub(crate) fn screen(text: &str) -> Result<bool, Failure> {
        let (rows, columns) = terminal::size();
        let lines = text.lines().take(rows.saturating_sub(1));
        let lines: String = lines.fold(String::new(), |mut all, line| {
            all.push_str(&live_line::cut(&clean(line), columns));
            all.push_str("\x1b[K\r\n");
            all
        });
        Printer::answer_bytes_if_read(format!("\x1b[H{lines}\x1b[J").as_bytes())
    }

    /// The same for bytes, which are printed as is.
    pub(crate) fn answer_bytes(bytes: &[u8]) -> Result<bool, Failure> {
        if Output::Stdout.was_closed() {
            return Err(unwritten("it is closed"));
        }
        Printer::answer_bytes_if_read(bytes)
    }

    /// Prints an answer on stdout, for verbs that also do something else, or whose exit code is the
    /// answer, too: a closed stdout is no error.
    pub(crate) fn answer_if_read(text: &str) -> Result<bool, Failure> {
        Printer::answer_bytes_if_read(format!("{}\n", escape(text)).as_bytes())
    }

    /// The same for bytes, which are printed as is.
    pub(crate) fn answer_bytes_if_read(bytes: &[u8]) -> Result<bool, Failure> {
        match Output::Stdout.write_all(bytes) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(unwritten(&error.to_string())),
        }
    }

    /// Resolves when nothing reads stdout any more, as after `| head -1`.
    pub(crate) async fn unread() {
        let (send, unread) = oneshot::channel();
        let watch = move || {
            Output::Stdout.wait_until_unread();
            let _ = send.send(());
        };
        let started = thread::Builder::new().name("reader".to_owned()).spawn(watch);
        if started.is_err() || unread.await.is_err() {
            // Then the next answer finds out.
            pending::<()>().await;
        }
    }

    /// Prints an answer on stdout without waiting for a reader, for use while holding a lock.
    pub(crate) fn answer_later(text: &str) {
        STDOUT.line(escape(text), |count| format!("({count} lines were dropped)"));
    }
}

fn unwritten(why: &str) -> Failure {
    let message = format!("the answer could not be written to stdout: {why}");
    Failure::new(Exit::OUTPUT, "output", message)
}

fn dropped(count: u64) -> String {
    format!("{count} messages were dropped here, because nothing read them in time")
}

fn sentence(message: &str) -> String {
    format!("holdline: {}", clean(&redact(message)))
}

fn event_line(event: &str, message: &str, fields: Value) -> String {
    let mut line = Map::new();
    line.insert("event".to_owned(), event.into());
    line.insert("time".to_owned(), timestamp::show(timestamp::now()).into());
    line.insert("message".to_owned(), message.into());
    if let Value::Object(fields) = fields {
        line.extend(fields);
    }
    let mut line = Value::Object(line);
    redact_fields(&mut line);
    escape(&line.to_string())
}

/// The fields whose texts are users' own words, which are printed as they are.
const WORDS_OF_USERS: &[&str] = &["name", "label", "value", "reason"];

/// Hides passwords in the texts of an event.
fn redact_fields(value: &mut Value) {
    match value {
        Value::String(text) => *text = redact(text),
        Value::Array(values) => values.iter_mut().for_each(redact_fields),
        Value::Object(fields) => {
            let ours = fields.iter_mut().filter(|(key, _)| !WORDS_OF_USERS.contains(&key.as_str()));
            ours.for_each(|(_, value)| redact_fields(value));
        }
        _ => {}
    }
}

/// Whether a terminal does not display the character as such: control characters, changes of text
/// direction, and characters without width or glyph.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Escapes hidden characters: in JSON all of them, elsewhere all but line ends and tabs, which are
/// the program's own.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) && !matches!(c, '\n' | '\t') {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Makes text of other programs harmless for a terminal: replaces hidden characters.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { '\u{fffd}' } else { c }).collect()
}

/// Hides passwords in URLs. Messages should have none; this is a second line of defence.
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
pub(crate) fn redact_word(word: &str) -> String {
    let mut word = word.to_owned();
    let scheme = word.find("://").map(|at| at + 3);
    let from = scheme.unwrap_or(0);
    // With several nodes, or an `@` in the password, this hides more than necessary.
    if let Some(at) = word.rfind('@').filter(|at| *at > from) {
        match word[from..at].find(':') {
            Some(colon) => word.replace_range(from + colon + 1..at, "***"),
            // A name alone is often a password whose colon was forgotten.
            None if scheme.is_some() => word.replace_range(from..at, "***"),
            None => {}
        }
    }
    for key in ["password=", "passwd=", "auth=", "pass="] {
        let mut begin = 0;
        while let Some(at) = word[begin..].find(key) {
            let from = begin + at + key.len();
            let to = word[from..].find('&').map_or(word.len(), |end| from + end);
            word.replace_range(from..to, "***");
            begin = from;
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::{clean, escape, event_line, redact};
    use serde_json::{Value, json};

    #[test]
    fn passwords_are_hidden() {
        for (text, shown) in [
            ("at redis://me:secret@host/0, so", "at redis://me:***@host/0, so"),
            ("\"redis://:se/cr@et@host\"", "\"redis://:***@host\""),
            ("quorum:redis://:a@h,redis://:b@i x", "quorum:redis://:***@i x"),
            ("postgres://h/db?password=secret&x=1", "postgres://h/db?password=***&x=1"),
            ("without a scheme: 'me:secret@host'", "without a scheme: 'me:***@host'"),
            ("sqlite:x.db?password=secret", "sqlite:x.db?password=***"),
            ("h?password=secret&x=1&password=secret", "h?password=***&x=1&password=***"),
            ("at redis://secret@host/0", "at redis://***@host/0"),
            ("mail to me@host", "mail to me@host"),
            ("etcd://host:2379 is gone", "etcd://host:2379 is gone"),
        ] {
            assert_eq!(redact(text), shown);
        }
    }

    #[test]
    fn words_of_users_stay_as_they_are_in_events() {
        let words = "deploy:web@prod pass=\"";
        let fields = json!({
            "store": "redis://me:secret@host",
            "name": words,
            "holders": [{ "label": words, "address": "h?password=secret" }],
        });
        let line = event_line("busy", "auth=\"x\" at redis://:secret@host", fields);
        assert!(!line.contains("secret"), "{line}");
        let event: Value = serde_json::from_str(&line).expect("it is JSON");
        assert_eq!((&event["name"], &event["holders"][0]["label"]), (&json!(words), &json!(words)));
        assert_eq!(event["store"], "redis://me:***@host");
        assert_eq!(event["message"], "auth=***\"x\" at redis://:***@host");
    }

    #[test]
    fn a_label_cannot_drive_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb"), "a\u{fffd}[2Jb");
        assert_eq!(
            clean("a\u{202e}b\u{200b}\u{2066}\u{feff}"),
            "a\u{fffd}b\u{fffd}\u{fffd}\u{fffd}"
        );
        assert_eq!(clean("Grüße, 日本 é"), "Grüße, 日本 é");
    }

    #[test]
    fn json_says_the_same_without_hidden_characters() {
        let text = "a\u{202e}\u{1}\u{e0041}\n";
        let line = escape(&serde_json::Value::from(text).to_string());
        assert!(line.is_ascii(), "{line}");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }
}
