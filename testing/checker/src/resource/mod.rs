//! The guarded resource: stands for the data that a lock protects, and detects failures of the
//! lock.
//!
//! For each lock it has three registers, each a list of unique ids. A client reads a list, works,
//! and writes it back with one more id; if two clients do so at once, one id is lost. The registers
//! differ in when they check the fencing token: never, on writes, on reads and writes. Only the
//! last one loses nothing, and only if the client first opens it with its token.

mod client;
mod server;

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::event::{Event, Op, Phase, Reason, Register};

pub use client::Client;
pub use server::Server;

/// The most ids in one event of a dump, so that a line stays below a page.
const DUMPED_AT_ONCE: usize = 150;

/// A client's request to the resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Raise the mark of a fenced register to this token.
    Open(Access),
    /// Read the register.
    Read(Access),
    /// Write the list back with one more id.
    Write {
        /// The register and the token.
        #[serde(flatten)]
        access: Access,
        /// The last id of the list that was read; `None` if it was empty.
        base: Option<u64>,
        /// The id to append, never used before.
        uid: u64,
    },
    /// Write the contents of all registers into the history, and stop the server.
    Stop,
}

/// A register, and the token of the access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// The lock that guards it.
    pub lock: String,
    /// The register.
    pub reg: Register,
    /// The fencing token; 0 if the store has none.
    pub token: u64,
}

/// The resource's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Done. After a read: the last id of the list and its length.
    Done {
        /// The last id of the list; `None` if it is empty.
        last: Option<u64>,
        /// How many ids the list has.
        len: u64,
    },
    /// Refused: a higher token was seen.
    Stale {
        /// The highest token seen.
        highest: u64,
    },
}

/// A list of ids, stored as a tree: a write names the id after which it continues.
///
/// This is equivalent to writing the whole list back, but a message stays small.
#[derive(Debug, Default)]
struct Cell {
    /// Each id with the one before it and the length of the list up to it.
    before: HashMap<u64, (Option<u64>, u64)>,
    last: Option<u64>,
    highest: u64,
}

impl Cell {
    fn len_at(&self, id: Option<u64>) -> u64 {
        id.and_then(|id| self.before.get(&id)).map_or(0, |(_, len)| *len)
    }

    fn list(&self) -> Vec<u64> {
        let step = |id: &u64| self.before.get(id).and_then(|(before, _)| *before);
        let mut list: Vec<u64> = std::iter::successors(self.last, step).collect();
        list.reverse();
        list
    }
}

/// The resource itself, without a process: for simulations, and inside the server.
#[derive(Debug, Default)]
pub struct Resource {
    cells: BTreeMap<(String, Register), Cell>,
}

impl Resource {
    /// An empty resource.
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves a request. Also returns the event for the history, without its stamp.
    ///
    /// `n` numbers the events of the resource.
    pub fn serve(&mut self, n: u64, request: &Request) -> (Reply, Option<Event>) {
        let (op, access) = match request {
            Request::Open(access) => (Op::Open, access),
            Request::Read(access) => (Op::Read, access),
            Request::Write { access, .. } => (Op::Write, access),
            Request::Stop => return (Reply::Done { last: None, len: 0 }, None),
        };
        let cell = self.cells.entry((access.lock.clone(), access.reg)).or_default();
        let event =
            |ph| Event::new(op, ph, n).lock(&access.lock).reg(access.reg).fence(access.token);
        let fenced = match access.reg {
            Register::Plain => false,
            Register::FencedWrite => op == Op::Write,
            Register::FencedReadWrite => true,
        };
        if fenced {
            if access.token < cell.highest {
                let reply = Reply::Stale { highest: cell.highest };
                return (reply, Some(event(Phase::Fail).reason(Reason::Stale)));
            }
            cell.highest = access.token;
        }
        let mut done = event(Phase::Ok);
        if let Request::Write { base, uid, .. } = request {
            let len = cell.len_at(*base) + 1;
            cell.before.insert(*uid, (*base, len));
            cell.last = Some(*uid);
            done.uid = Some(*uid);
            done.base = *base;
        }
        (Reply::Done { last: cell.last, len: cell.len_at(cell.last) }, Some(done))
    }

    /// The contents of all registers, as events without stamps.
    pub fn dump(&self, n: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for ((lock, reg), cell) in &self.cells {
            let list = cell.list();
            let one = |uids: &[u64]| {
                let event = Event::new(Op::ResourceDump, Phase::Ok, n);
                event.lock(lock).reg(*reg).uids(uids.to_vec())
            };
            if list.is_empty() {
                events.push(one(&[]));
            }
            events.extend(list.chunks(DUMPED_AT_ONCE).map(one));
        }
        events
    }
}
