//! Reads a history; reports the first invalid line.

use std::fmt;
use std::path::Path;

use crate::event::{Event, VERSION};

/// All events of a run, in order of time.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The events, sorted by time; simultaneous ones keep the order of the file.
    pub events: Vec<Event>,
    /// The number of the last line if it is incomplete, as a process killed while writing leaves
    /// it.
    pub torn: Option<usize>,
}

/// Why a history cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// The file could not be read.
    Io(std::io::Error),
    /// A line is not an event.
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "The history could not be read: {error}."),
            Self::Line { line, what } => {
                write!(f, "Line {line} of the history is not an event: {what}.")
            }
        }
    }
}

impl std::error::Error for ReadError {}

impl History {
    /// Creates a history from events in memory.
    pub fn new(mut events: Vec<Event>) -> Self {
        events.sort_by_key(|e| e.t);
        Self { events, torn: None }
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        Self::parse(&std::fs::read(path).map_err(ReadError::Io)?)
    }

    /// Parses the bytes of a file. Skips empty lines; an incomplete last line is noted, and no
    /// error.
    pub fn parse(bytes: &[u8]) -> Result<Self, ReadError> {
        let mut history = Self::default();
        let mut rest = bytes;
        let mut number = 0;
        while !rest.is_empty() {
            number += 1;
            let end = rest.iter().position(|b| *b == b'\n');
            let (line, after) = match end {
                Some(end) => (&rest[..end], &rest[end + 1..]),
                None => (rest, &[][..]),
            };
            rest = after;
            if line.trim_ascii().is_empty() {
                continue;
            }
            match one(line) {
                Ok(mut event) => {
                    event.line = number;
                    history.events.push(event);
                }
                // Only a line without an end can come from a killed process.
                Err(bad) if end.is_none() && bad.cut_off => history.torn = Some(number),
                Err(bad) => return Err(ReadError::Line { line: number, what: bad.what }),
            }
        }
        history.events.sort_by_key(|e| e.t);
        Ok(history)
    }
}

struct Malformed {
    what: String,
    cut_off: bool,
}

fn one(line: &[u8]) -> Result<Event, Malformed> {
    let bad = |e: serde_json::Error| Malformed { what: e.to_string(), cut_off: e.is_eof() };
    let event: Event = serde_json::from_slice(line).map_err(bad)?;
    if event.v == VERSION {
        return Ok(event);
    }
    let what = format!("its version is {}, and this program reads version {VERSION}", event.v);
    Err(Malformed { what, cut_off: false })
}
