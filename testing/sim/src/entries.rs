//! A simulated server of sequential entries: sessions that expire, and news of changes, which
//! arrive in order, or with a detectable gap.

use crate::invariants::{Line as At, Lock, PlaceView};
use crate::server::{Answer, Request, Seen};
use crate::world::{Event, World};
use holdline::stores::simulated::{Asked, Change, Listed, Question, Told};
use holdline_kernel::{Seq, TicketId, Time, rule};
use std::collections::BTreeMap;
use std::time::Duration;

/// The entries of a server.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    revision: i64,
    opened: u64,
    sessions: BTreeMap<u64, Session>,
    lines: BTreeMap<Lock, Vec<Entry>>,
    /// The clients that watch a line, each with the number of its last news.
    watchers: BTreeMap<(Lock, usize), u64>,
}

#[derive(Debug)]
struct Session {
    length: Duration,
    expires: Time,
    /// The number of its last request; earlier requests that arrive later are dropped.
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    listed: Listed,
    capacity: u32,
    session: u64,
    client: usize,
}

/// The changes, with their lines.
type Changes = Vec<(Lock, Change)>;

fn seq(create: i64) -> Seq {
    Seq(create.unsigned_abs())
}

impl Entries {
    pub(crate) fn seen(&self, lock: Lock) -> Seen {
        let line = self.lines.get(&lock).map_or(&[][..], Vec::as_slice);
        let capacity = line.first().map_or(0, |entry| entry.capacity);
        let weights = line.iter().map(|entry| entry.listed.weight);
        let place = |(entry, admitted): (&Entry, bool)| {
            let Listed { id, create, weight, .. } = entry.listed;
            PlaceView { id, seq: seq(create), weight, client: entry.client, admitted }
        };
        let expires = |entry: &Entry| {
            self.sessions.get(&entry.session).map_or(Time(0), |session| session.expires)
        };
        Seen {
            places: line.iter().zip(rule::admitted_prefix(capacity, weights)).map(place).collect(),
            expires: line.iter().map(expires).collect(),
            capacity,
        }
    }

    pub(crate) fn count(&self, lock: Lock) -> usize {
        self.lines.get(&lock).map_or(0, Vec::len)
    }

    pub(crate) fn first(&self, lock: Lock) -> Option<TicketId> {
        self.lines.get(&lock)?.first().map(|entry| entry.listed.id)
    }

    /// Removes the entries that `goes` selects.
    fn remove(&mut self, goes: impl Fn(&Lock, &Entry) -> bool) -> Changes {
        let mut changes = Vec::new();
        for (lock, line) in &mut self.lines {
            for entry in line.extract_if(.., |entry| goes(lock, entry)) {
                self.revision += 1;
                let change = Change::Entry(entry.listed.create, None, self.revision);
                changes.push((*lock, change));
            }
        }
        changes
    }

    /// Removes the entries of expired sessions.
    fn expire(&mut self, now: Time) -> Changes {
        self.sessions.retain(|_, session| session.expires > now);
        let living: Vec<u64> = self.sessions.keys().copied().collect();
        self.remove(|_, entry| !living.contains(&entry.session))
    }

    /// Carries out a request; `None` if it arrived after a later one.
    fn act(&mut self, now: Time, lock: Lock, client: usize, request: Request) -> Acted {
        let mut changes = self.expire(now);
        let answer = match request {
            Request::Ask(asked) => self.ask(now, (lock, client), asked, &mut changes),
            Request::Evict(id) => {
                let removed = self.remove(|at, entry| *at == lock && entry.listed.id == id);
                let create = match removed.first() {
                    Some((_, Change::Entry(create, ..))) => Some(*create),
                    _ => None,
                };
                let line = self.lines.entry(lock).or_default().iter();
                let mut behind = line.map(|entry| entry.listed.create);
                let fence = create.map(|gone| behind.find(|it| *it > gone));
                changes.extend(removed);
                Some(Answer::Evicted(fence.map(|next| seq(next.unwrap_or(self.revision)))))
            }
            _ => Some(Answer::Left(false)),
        };
        (answer, changes)
    }

    fn ask(
        &mut self,
        now: Time,
        (lock, client): (Lock, usize),
        Asked { session, number, question }: Asked,
        changes: &mut Changes,
    ) -> Option<Answer> {
        if let Question::Open(length) = question {
            self.opened += 1;
            let session = Session { length, expires: now.after(length), last: 0 };
            self.sessions.insert(self.opened, session);
            return Some(self.told(lock, self.opened, false));
        }
        let Some(known) = self.sessions.get_mut(&session) else {
            return Some(self.told(lock, 0, false));
        };
        // A deletion by the key alone, as in etcd, is carried out however late it comes.
        if number <= known.last && !matches!(question, Question::Delete(_)) {
            return None;
        }
        known.last = number.max(known.last);
        let mut deleted = false;
        match question {
            Question::Beat => known.expires = now.after(known.length).max(known.expires),
            Question::Put(ticket) => {
                let line = self.lines.entry(lock).or_default();
                if !line.iter().any(|entry| entry.listed.id == ticket.id) {
                    self.revision += 1;
                    let (create, modified) = (self.revision, self.revision);
                    let listed = Listed { id: ticket.id, create, modified, weight: ticket.weight };
                    line.push(Entry { listed, capacity: ticket.capacity, session, client });
                }
            }
            Question::Lower(id, weight) => {
                let line = self.lines.entry(lock).or_default();
                for entry in line.iter_mut().filter(|entry| entry.listed.id == id) {
                    self.revision += 1;
                    entry.listed.modified = self.revision;
                    entry.listed.weight = weight.min(entry.listed.weight);
                    let (create, weight) = (entry.listed.create, entry.listed.weight);
                    changes.push((lock, Change::Entry(create, Some(weight), self.revision)));
                }
            }
            Question::Delete(id) => {
                let removed = self.remove(|at, entry| *at == lock && entry.listed.id == id);
                deleted = !removed.is_empty();
                changes.extend(removed);
            }
            Question::Watch => {
                self.watchers.entry((lock, client)).or_insert(0);
            }
            Question::List | Question::Open(_) => {}
        }
        Some(self.told(lock, session, deleted))
    }

    fn told(&self, lock: Lock, session: u64, deleted: bool) -> Answer {
        let line = self.lines.get(&lock).map_or(&[][..], Vec::as_slice);
        let entries = line.iter().map(|entry| entry.listed).collect();
        Answer::Told(Told { session, revision: self.revision, entries, deleted })
    }
}

type Acted = (Option<Answer>, Changes);

impl World {
    /// Carries out one request, notifies the watchers of the changes, and reports them.
    pub(crate) fn operate_entries(
        &mut self,
        (lock, server): At,
        client: usize,
        request: Request,
    ) -> Option<Answer> {
        let seen = |world: &Self| -> Vec<Seen> {
            let entries = &world.servers[server].entries;
            (0..world.plan.locks.len()).map(|lock| entries.seen(lock)).collect()
        };
        let before = seen(self);
        let now = self.servers[server].clock.local(self.now);
        let (answer, changes) = self.servers[server].entries.act(now, lock, client, request);
        if matches!(answer, Some(Answer::Evicted(Some(_)))) {
            self.stats.evictions += 1;
            self.note(format_args!("line {lock}: {request}: broken by force"));
        }
        for (lock, (before, after)) in before.iter().zip(seen(self)).enumerate() {
            self.tell_removed((lock, server), before, &after, request);
            self.tell_line((lock, server), before, &after);
        }
        for (lock, change) in changes {
            let watchers = &mut self.servers[server].entries.watchers;
            let told: Vec<_> = watchers
                .range_mut((lock, 0)..=(lock, usize::MAX))
                .map(|((_, client), number)| {
                    *number += 1;
                    (*client, *number)
                })
                .collect();
            for (client, number) in told {
                self.stats.notices += 1;
                self.post(client, server, Event::Changed { client, lock, number, change });
            }
        }
        answer
    }
}
