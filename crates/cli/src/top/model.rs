//! The state of `holdline top`: the locks that were seen, and the user's choices. It does no I/O:
//! looks and keys come in, actions go out.

use super::seen::{Lock, Party};
use super::stats::Stats;
use holdline::store::TicketId;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a free lock is still shown.
const FREE_SHOWN: Duration = Duration::from_secs(5);
/// How long the result of an action is shown.
const SAID_SHOWN: Duration = Duration::from_secs(5);
/// The most unused locks whose history is kept.
const MOST_KEPT: usize = 10_000;
/// The span of the rate of acquisitions.
const RATE_SPAN: Duration = Duration::from_secs(10);
/// The longest filter, and the longest reason, in characters.
const MOST_TYPED: usize = 64;
/// The default reason for breaking a lock.
const REASON: &str = "by hand, in holdline top";

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

/// The mode of the keyboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Locks,
    /// The line of the selected lock.
    Line,
    Filter,
    Help,
    /// The question whether to break a lock.
    Break(Question),
    /// The reason for it is being typed.
    Reason(Question),
}

/// A pending break of a lock: the participant, and the reason. It stays about that participant,
/// whatever is seen meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) name: String,
    pub(super) id: TicketId,
    pub(super) who: String,
    pub(super) holds: bool,
    pub(super) reason: String,
}

/// A key with a meaning.
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
    /// Ctrl-L.
    Redraw,
    /// Ctrl-Z.
    Stop,
}

/// An action to carry out after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Quit,
    Redraw,
    Stop,
    Break { name: String, id: TicketId, reason: String },
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
    /// Why the last look failed.
    failure: Option<String>,
    /// The result of the last action, and until when it is shown.
    said: Option<(String, Duration)>,
    /// The number of locks that were not looked at.
    pub(super) unseen: usize,
    /// The rows, sorted and filtered.
    pub(super) rows: Vec<Row>,
    /// The selected lock, and the row where it was seen.
    selected: Option<String>,
    selected_at: usize,
    /// The selected participant of its line, and the place where it was seen.
    party: Option<TicketId>,
    pub(super) line_at: usize,
    locks: BTreeMap<String, (Lock, Stats, Duration)>,
    looked: bool,
    now: Duration,
    /// Recent acquisitions: when, and how many, within the span of the rate.
    recent: Vec<(Duration, u64)>,
}

impl Model {
    pub(super) fn new() -> Self {
        Model {
            mode: Mode::Locks,
            sort: Sort::Waiting,
            paused: false,
            filter: String::new(),
            failure: None,
            said: None,
            unseen: 0,
            rows: Vec::new(),
            selected: None,
            selected_at: 0,
            party: None,
            line_at: 0,
            locks: BTreeMap::new(),
            looked: false,
            now: Duration::ZERO,
            recent: Vec::new(),
        }
    }

    /// Applies a look at all locks. `now` counts from the start.
    pub(super) fn update(&mut self, now: Duration, seen: Vec<Lock>, unseen: usize) {
        (self.now, self.unseen, self.failure) = (now, unseen, None);
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

    /// Applies a failed look.
    pub(super) fn fail(&mut self, now: Duration, why: String) {
        (self.now, self.failure) = (now, Some(why));
    }

    /// Shows the result of an action for a while.
    pub(super) fn say(&mut self, text: impl Into<String>) {
        self.said = Some((text.into(), self.now + SAID_SHOWN));
    }

    /// The message to show: of the last action, or else of a failed look.
    pub(super) fn notice(&self) -> Option<&str> {
        let said = self.said.as_ref().filter(|(_, until)| self.now < *until);
        said.map(|(text, _)| text).or(self.failure.as_ref()).map(String::as_str)
    }

    /// The recent rate of acquisitions, per second.
    pub(super) fn rate(&self) -> f64 {
        let span = RATE_SPAN.min(self.now).as_secs_f64();
        let count: u64 = self.recent.iter().map(|(_, count)| count).sum();
        if span > 0.0 { count as f64 / span } else { 0.0 }
    }

    /// The numbers of holders, waiters, and losses seen.
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
        self.keep_selection();
    }

    /// Keeps the selection on its lock and participant, wherever they are now. If one has gone, the
    /// entry in its place is selected; the selection never moves to a line that the user did not
    /// choose.
    fn keep_selection(&mut self) {
        let name = self.selected.as_deref();
        let found = self.rows.iter().position(|row| Some(row.lock.name.as_str()) == name);
        if let Some(at) = found {
            self.selected_at = at;
        } else {
            self.select(self.selected_at);
            if self.mode == Mode::Line {
                self.mode = Mode::Locks;
            }
        }
        let parties = self.row().into_iter().flat_map(|row| row.lock.parties());
        let found = parties.map(|(_, party)| party.id).position(|id| Some(id) == self.party);
        self.select_party(found.unwrap_or(self.line_at));
    }

    /// Selects the lock in this row, or in the last.
    fn select(&mut self, at: usize) {
        self.selected_at = at.min(self.rows.len().saturating_sub(1));
        self.selected = self.rows.get(self.selected_at).map(|row| row.lock.name.clone());
        self.select_party(0);
    }

    /// Selects the participant at this place in the line, or the last.
    fn select_party(&mut self, at: usize) {
        let ids = self.row().into_iter().flat_map(|row| row.lock.parties()).map(|(_, it)| it.id);
        let found = ids.enumerate().take(at.saturating_add(1)).last();
        (self.line_at, self.party) = found.map_or((0, None), |(at, id)| (at, Some(id)));
    }

    /// The place of the selected row.
    pub(super) fn selected(&self) -> Option<usize> {
        (!self.rows.is_empty()).then_some(self.selected_at)
    }

    /// The selected row.
    pub(super) fn row(&self) -> Option<&Row> {
        self.selected().map(|at| &self.rows[at])
    }

    /// Handles a key, and returns the action to carry out.
    pub(super) fn key(&mut self, key: Key) -> Action {
        match (key, self.mode.clone()) {
            (Key::Redraw, _) => return Action::Redraw,
            (Key::Stop, _) => return Action::Stop,
            (Key::Interrupt, Mode::Break(_) | Mode::Reason(_)) => self.leave_question(),
            (key, Mode::Break(question)) => return self.answer(key, question),
            (key, Mode::Reason(question)) => self.edit_reason(key, question),
            (Key::Interrupt, _) => return Action::Quit,
            (_, Mode::Help) => self.mode = Mode::Locks,
            (key, Mode::Filter) => self.edit_filter(key),
            (key, Mode::Locks | Mode::Line) => return self.command(key),
        }
        Action::Nothing
    }

    /// Handles the answer to the question whether to break a lock.
    fn answer(&mut self, key: Key, question: Question) -> Action {
        match key {
            Key::Char('r') => {
                let reason = String::new();
                self.mode = Mode::Reason(Question { reason, ..question });
            }
            Key::Char('y' | 'Y') => {
                self.mode = Mode::Locks;
                let Question { name, id, reason, .. } = question;
                return Action::Break { name, id, reason };
            }
            _ => self.leave_question(),
        }
        Action::Nothing
    }

    fn leave_question(&mut self) {
        self.mode = Mode::Locks;
        self.say("nothing was broken");
    }

    /// Handles a key of the reason. An empty reason becomes the default one.
    fn edit_reason(&mut self, key: Key, mut question: Question) {
        match key {
            Key::Escape => question.reason.clear(),
            Key::Enter => {}
            key => {
                edit(&mut question.reason, key);
                self.mode = Mode::Reason(question);
                return;
            }
        }
        if question.reason.trim().is_empty() {
            REASON.clone_into(&mut question.reason);
        }
        self.mode = Mode::Break(question);
    }

    fn edit_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.mode = Mode::Locks,
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Locks;
            }
            key => edit(&mut self.filter, key),
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
            Key::Tab if self.mode == Mode::Locks => self.mode = Mode::Line,
            Key::Tab | Key::Left | Key::Escape | Key::Char('h') => self.mode = Mode::Locks,
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
            self.select_party(moved(self.line_at, count));
        } else {
            self.select(moved(self.selected_at, self.rows.len()));
        }
    }

    /// Asks whether to break the lock of the selected participant; in the table of locks, of the
    /// first.
    fn ask_to_break(&mut self) {
        let at = if self.mode == Mode::Line { self.line_at } else { 0 };
        let found = self.row().and_then(|row| {
            let (holds, Party { id, who, .. }) = row.lock.parties().nth(at)?;
            let (name, who, reason) = (row.lock.name.clone(), who.clone(), REASON.to_owned());
            Some(Question { name, id: *id, who, holds, reason })
        });
        match found {
            Some(question) => self.mode = Mode::Break(question),
            None => self.say("no lock is held or waited for"),
        }
    }
}

/// Handles a key of a text that is being typed.
fn edit(text: &mut String, key: Key) {
    match key {
        Key::Backspace => {
            text.pop();
        }
        Key::Char(c) if text.chars().count() < MOST_TYPED => text.push(c),
        _ => {}
    }
}
