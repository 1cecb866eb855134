//! Compares the operations on rows with the kernel's line in memory.

use super::address::Address;
use super::database::{OpenDatabase, Site};
use super::operations::{self, Done, NoticeKind};
use super::rows::Owner;
use crate::clock::simulated;
use crate::names::Name;
use crate::store::{Enter, QueueSnapshot, Refusal, Seq, Standing, Ticket, TicketId};
use crate::stores::queue::model::{Subject, Woken, run};
use holdline_kernel::Time;
use rusqlite::{Connection, Result};
use std::time::Duration;

/// A line in a file, which two processes use in turn.
struct Rows {
    processes: [OpenDatabase; 2],
    line: Name,
    /// Whether the line is so long that its places are found by indexes.
    long: bool,
}

impl Rows {
    /// Runs one operation at this instant. Returns its answer, and the tickets that it admits.
    fn at<T>(
        &mut self,
        now: u64,
        work: impl FnOnce(&Connection, &Name) -> Result<Done<T>>,
    ) -> (T, Woken) {
        self.processes.swap(0, 1);
        let conn = &self.processes[0].conn;
        let (done, _) = simulated::at(Time(now * 1000), now, || work(conn, &self.line));
        let Done { value, notices } = done.expect("the transaction is made");
        let admitted = notices.iter().filter(|notice| notice.kind == NoticeKind::Admitted);
        (value, admitted.map(|notice| notice.place).collect())
    }
}

impl Subject for Rows {
    fn turn_to(&mut self, line: usize) {
        self.line = Name::new(["model", "another"][line]).expect("a good name");
    }

    fn enter(
        &mut self,
        now: u64,
        ticket: &Ticket,
        note: &str,
        how: Enter,
    ) -> (Result<Standing, Refusal>, Woken) {
        let owner = Owner { process: now, note: Some(note.into()) };
        let enter =
            |conn: &Connection, line: &Name| operations::enter(conn, line, ticket, how, &owner);
        let (entered, woken) = self.at(now, enter);
        (entered.outcome, woken)
    }

    fn leave(&mut self, now: u64, id: TicketId, _bar: Option<Duration>) -> (bool, Woken) {
        self.at(now, |conn, line| operations::leave(conn, line, id))
    }

    fn evict(&mut self, now: u64, id: TicketId, note: &str) -> (Option<Seq>, Woken) {
        self.at(now, |conn, line| operations::evict(conn, line, id, note))
    }

    fn look(&mut self, now: u64) -> (QueueSnapshot, Woken) {
        self.at(now, |conn, line| operations::snapshot(conn, line, &mut |_| true))
    }

    fn bars(&self) -> bool {
        false
    }

    fn tickets(&self) -> u128 {
        if self.long { 60 } else { 12 }
    }

    fn longest_lease(&self) -> u64 {
        if self.long { 60_000_000 } else { 3_000_000 }
    }
}

#[test]
fn the_rows_are_the_kernels_line() {
    let folder = tempfile::tempdir().expect("a folder");
    for seed in 1..=8 {
        let file = folder.path().join(format!("locks-{seed}.db"));
        let site = Site::find(Address::of(file)).expect("a new database");
        let processes = [(); 2].map(|()| site.open().expect("it is there"));
        let line = Name::new("model").expect("a good name");
        let long = seed % 2 == 0;
        let longest = run(&mut Rows { processes, line, long }, seed, 3000);
        assert!(!long || longest > 16, "no place was found by an index: {longest}");
    }
}
