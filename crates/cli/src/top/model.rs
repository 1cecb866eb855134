//! The state of `holdline top`: what was seen of the locks, and what the user has chosen. It does no
//! input and output: looks and keys come in, actions go out.

use super::seen::{Lock, Party};
use super::stats::Stats;
use holdline::store::TicketId;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a lock that is free is still shown.
const FREE_SHOWN: Duration = Duration::from_secs(5);
/// The most locks whose history is kept while nobody uses them.
const MOST_KEPT: usize = 10_000;
/// The span of the rate of acquisitions.
const RATE_SPAN: Duration = Duration::from_secs(10);
/// The longest filter.
const MOST_FILTER: usize = 64;

/// The order of the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Waiting,
    Held,
    Taken,
    Lost,
    Name,
}

impl Sort {
    fn next(self) -> Sort {
        match self {
            Sort::Waiting => Sort::Held,
            Sort::Held => Sort::Taken,
            Sort::Taken => Sort::Lost,
            Sort::Lost => Sort::Name,
            Sort::Name => Sort::Waiting,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Sort::Waiting => "waiting",
            Sort::Held => "held",
            Sort::Taken => "taken",
            Sort::Lost => "lost",
            Sort::Name => "name",
        }
    }
}

/// What the keys are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Locks,
    /// The line of the selected lock.
    Line,
    Filter,
    Help,
    /// The question whether to break a lock.
    Break {
        name: String,
        id: TicketId,
        who: String,
    },
}

/// A key that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
    Tab,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C, or the end of the input.
    Interrupt,
}

/// What is to be done after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Quit,
    Break { name: String, id: TicketId },
}

/// A row of the table of locks.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) lock: Lock,
    pub(super) held: Option<Duration>,
    pub(super) stats: Stats,
}

/// The state.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) mode: Mode,
    pub(super) sort: Sort,
    pub(super) paused: bool,
    pub(super) filter: String,
    /// Why the last look failed, or what came of the last action.
    pub(super) notice: Option<String>,
    /// How many locks there are that were not looked at.
    pub(super) unseen: usize,
    /// The rows, sorted and filtered.
    pub(super) rows: Vec<Row>,
    selected: Option<String>,
    pub(super) line_at: usize,
    locks: BTreeMap<String, (Lock, Stats, Duration)>,
    looked: bool,
    now: Duration,
    /// When how many were acquired, within the span of the rate.
    recent: Vec<(Duration, u64)>,
}

impl Model {
    pub(super) fn new() -> Self {
        Model {
            mode: Mode::Locks,
            sort: Sort::Waiting,
            paused: false,
            filter: String::new(),
            notice: None,
            unseen: 0,
            rows: Vec::new(),
            selected: None,
            line_at: 0,
            locks: BTreeMap::new(),
            looked: false,
            now: Duration::ZERO,
            recent: Vec::new(),
        }
    }

    /// Takes a look at all locks into account. `now` counts from the start.
    pub(super) fn update(&mut self, now: Duration, seen: Vec<Lock>, unseen: usize) {
        (self.now, self.unseen, self.notice) = (now, unseen, None);
        let mut before = std::mem::take(&mut self.locks);
        let mut taken = 0;
        for lock in seen {
            let mut stats =
                before.remove(&lock.name).map(|(_, stats, _)| stats).unwrap_or_default();
            taken += stats.update(now, &lock, self.looked);
            self.locks.insert(lock.name.clone(), (lock, stats, now));
        }
        for (name, (lock, mut stats, seen)) in before {
            let free = lock.emptied();
            stats.update(now, &free, true);
            if self.locks.len() < MOST_KEPT {
                self.locks.insert(name, (free, stats, seen));
            }
        }
        self.looked = true;
        self.recent.push((now, taken));
        self.recent.retain(|(then, _)| now.saturating_sub(*then) < RATE_SPAN);
        self.arrange();
    }

    /// Acquisitions seen in a second, of late.
    pub(super) fn rate(&self) -> f64 {
        let span = RATE_SPAN.min(self.now).as_secs_f64();
        let count: u64 = self.recent.iter().map(|(_, count)| count).sum();
        if span > 0.0 { count as f64 / span } else { 0.0 }
    }

    /// How many hold, how many wait, and how many losses were seen.
    pub(super) fn totals(&self) -> (usize, usize, u64) {
        let locks = self.locks.values();
        locks.fold((0, 0, 0), |(held, waits, lost), (lock, stats, _)| {
            (held + lock.holders.len(), waits + lock.waiters.len(), lost + stats.lost)
        })
    }

    /// Filters and sorts the rows.
    fn arrange(&mut self) {
        let (now, filter) = (self.now, self.filter.to_lowercase());
        let shown = self.locks.values().filter(|(lock, _, seen)| {
            (lock.is_used() || now.saturating_sub(*seen) < FREE_SHOWN)
                && lock.name.to_lowercase().contains(&filter)
        });
        self.rows = shown
            .map(|(lock, stats, _)| {
                let held = lock.holders.iter().filter_map(|holder| stats.held(now, holder)).max();
                Row { lock: lock.clone(), held, stats: stats.clone() }
            })
            .collect();
        match self.sort {
            Sort::Name => {}
            Sort::Waiting => self.rows.sort_by_key(|row| {
                std::cmp::Reverse((row.lock.waiters.len(), row.held.unwrap_or_default()))
            }),
            Sort::Held => self.rows.sort_by_key(|row| std::cmp::Reverse(row.held)),
            Sort::Taken => self.rows.sort_by_key(|row| std::cmp::Reverse(row.stats.taken)),
            Sort::Lost => self.rows.sort_by_key(|row| std::cmp::Reverse(row.stats.lost)),
        }
        if self.selected.is_none() {
            self.selected = self.rows.first().map(|row| row.lock.name.clone());
        }
        let most = self.row().map_or(0, |row| row.lock.parties().count().saturating_sub(1));
        self.line_at = self.line_at.min(most);
    }

    /// The place of the selected row: it stays with its lock, wherever that is sorted to.
    pub(super) fn selected(&self) -> Option<usize> {
        let name = self.selected.as_deref()?;
        let found = self.rows.iter().position(|row| row.lock.name == name);
        found.or((!self.rows.is_empty()).then_some(0))
    }

    /// The selected row.
    pub(super) fn row(&self) -> Option<&Row> {
        self.selected().map(|at| &self.rows[at])
    }

    /// Takes a key; says what is to be done.
    pub(super) fn key(&mut self, key: Key) -> Action {
        if key == Key::Interrupt {
            return Action::Quit;
        }
        match self.mode.clone() {
            Mode::Help => self.mode = Mode::Locks,
            Mode::Filter => self.edit_filter(key),
            Mode::Break { name, id, .. } => {
                self.mode = Mode::Locks;
                if matches!(key, Key::Char('y' | 'Y')) {
                    return Action::Break { name, id };
                }
                self.notice = Some("nothing was broken".to_owned());
            }
            Mode::Locks | Mode::Line => return self.command(key),
        }
        Action::Nothing
    }

    fn edit_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.mode = Mode::Locks,
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Locks;
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(c) if self.filter.len() < MOST_FILTER => self.filter.push(c),
            _ => {}
        }
        self.arrange();
    }

    fn command(&mut self, key: Key) -> Action {
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Up | Key::Char('k') => self.step(-1),
            Key::Down | Key::Char('j') => self.step(1),
            Key::PageUp => self.step(-10),
            Key::PageDown => self.step(10),
            Key::Home | Key::Char('g') => self.step(isize::MIN / 2),
            Key::End | Key::Char('G') => self.step(isize::MAX / 2),
            Key::Right | Key::Enter | Key::Char('l') => self.mode = Mode::Line,
            Key::Left | Key::Escape | Key::Char('h') => self.mode = Mode::Locks,
            Key::Tab if self.mode == Mode::Locks => self.mode = Mode::Line,
            Key::Tab => self.mode = Mode::Locks,
            Key::Char('s') => {
                self.sort = self.sort.next();
                self.arrange();
            }
            Key::Char('p' | ' ') => self.paused = !self.paused,
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Char('?') => self.mode = Mode::Help,
            Key::Char('b') => self.ask_to_break(),
            _ => {}
        }
        Action::Nothing
    }

    /// Moves the selection.
    fn step(&mut self, by: isize) {
        let moved =
            |at: usize, count: usize| at.saturating_add_signed(by).min(count.saturating_sub(1));
        if self.mode == Mode::Line {
            let count = self.row().map_or(0, |row| row.lock.parties().count());
            self.line_at = moved(self.line_at, count);
        } else if let Some(at) = self.selected() {
            let at = moved(at, self.rows.len());
            self.selected = Some(self.rows[at].lock.name.clone());
            self.line_at = 0;
        }
    }

    /// Asks whether to break the lock of the selected party: of the first, in the table of locks.
    fn ask_to_break(&mut self) {
        let at = if self.mode == Mode::Line { self.line_at } else { 0 };
        let found = self.row().and_then(|row| {
            let (_, Party { id, who, .. }) = row.lock.parties().nth(at)?;
            Some(Mode::Break { name: row.lock.name.clone(), id: *id, who: who.clone() })
        });
        match found {
            Some(question) => self.mode = question,
            None => self.notice = Some("nobody holds or waits here".to_owned()),
        }
    }
}
