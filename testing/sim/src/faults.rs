//! Fault injection: the faults and their schedule.

use crate::invariants::{Cause, Fact, Line};
use crate::plan::Class;
use crate::server::Request;
use crate::world::{Event, World};
use holdline_kernel::TicketId;
use std::time::Duration;

/// One fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Choose a fault, inject it, and schedule the next choice.
    Next,
    /// An operator removes by force the holder seen earlier.
    Break { line: Line, id: TicketId },
    /// The end of all faults.
    Calm,
}

impl World {
    pub(crate) fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Calm => self.calm(),
            Fault::Break { line, id } => self.break_lock(line, id),
            Fault::Next if self.is_calm() => {}
            Fault::Next => {
                self.one_fault();
                let wait = self.rng.between(1, 2 * self.plan.between_faults);
                self.after(Duration::from_nanos(wait), Event::Fault(Fault::Next));
            }
        }
    }

    fn one_fault(&mut self) {
        self.stats.faults += 1;
        let special = self.rng.chance(300);
        match self.plan.class {
            Class::Wipes | Class::QuorumWipes if special => return self.wipe(),
            Class::Jumps | Class::QuorumJumps if special => {
                let forward = self.rng.chance(500);
                return self.jump(forward);
            }
            // A clock set back only makes leases longer.
            Class::Quorum if special => return self.jump(false),
            _ => {}
        }
        match self.rng.below(10) {
            0..=3 => self.pause(),
            4..=6 => self.cut(),
            7 => self.restart(),
            _ => self.plan_break(),
        }
    }

    /// A random time from now, but not after the faults stop.
    fn soon(&mut self, from: u64, to: u64) -> u64 {
        let wait = self.rng.millis(from, to).as_nanos() as u64;
        (self.now + wait).min(self.plan.calm)
    }

    fn any_client(&mut self) -> usize {
        self.rng.below(self.clients.len() as u64) as usize
    }

    fn bad_server(&mut self) -> usize {
        self.rng.below(self.plan.bad as u64) as usize
    }

    fn any_server(&mut self) -> usize {
        self.rng.below(self.servers.len() as u64) as usize
    }

    /// Pauses a client, perhaps for longer than its lease. Its clock goes on.
    fn pause(&mut self) {
        let client = self.any_client();
        let longest = self.rng.pick(&[300, 1_500, 5_000]);
        let until = self.soon(50, longest);
        self.clients[client].asleep_until = until;
        self.note(format_args!("client {client} is paused until {} ms", until / 1_000_000));
    }

    fn cut(&mut self) {
        let (client, server) = (self.any_client(), self.any_server());
        let longest = self.rng.pick(&[400, 2_000, 5_000]);
        let until = self.soon(50, longest);
        self.cut.insert((client, server), until);
        let millis = until / 1_000_000;
        self.note(format_args!("client {client} is cut off server {server} until {millis} ms"));
    }

    fn restart(&mut self) {
        let server = self.any_server();
        self.servers[server].down = self.soon(10, 1_500);
        self.note(format_args!("server {server} restarts, with its data"));
    }

    fn wipe(&mut self) {
        let server = self.bad_server();
        self.stats.wipes += 1;
        self.note(format_args!("server {server} restarts WITHOUT its data"));
        // A quorum's node stays down until all nodes' clocks have passed the tokens that it had
        // assigned.
        let least = if self.plan.class == Class::QuorumWipes { 100 } else { 1 };
        self.servers[server].down = self.soon(least, least + 300);
        let lines = std::mem::take(&mut self.servers[server].lines);
        for (lock, (head, places)) in lines {
            for place in places.iter() {
                let (id, seq) = (place.id, place.seq);
                self.tell(&Fact::Removed { line: (lock, server), id, seq, cause: Cause::Wiped });
            }
            let line = (lock, server);
            self.tell(&Fact::Wiped { line });
            self.tell(&Fact::Line { line, capacity: head.capacity, places: &[] });
        }
    }

    fn jump(&mut self, forward: bool) {
        let server = self.bad_server();
        let by = self.rng.millis(100, 4_000);
        let clock = &mut self.servers[server].clock;
        if forward {
            clock.offset += by.as_nanos() as u64;
        } else {
            clock.offset -= by.as_nanos() as u64;
            self.set_back += by;
        }
        let way = if forward { "forward" } else { "back" };
        self.note(format_args!("server {server}'s clock jumps {way} by {by:?}"));
    }

    /// Schedules an operator who reads the holder, and breaks its lock a little later. By then
    /// there may be another holder, which must not be evicted.
    fn plan_break(&mut self) {
        let lines = self.lines();
        let line = lines[self.rng.below(lines.len() as u64) as usize];
        if let Some(id) = self.servers[line.1].first(line.0) {
            let wait = self.rng.millis(0, 200);
            self.after(wait, Event::Fault(Fault::Break { line, id }));
        }
    }

    fn break_lock(&mut self, line: Line, id: TicketId) {
        if self.is_calm() {
            return;
        }
        if self.plan.class.is_quorum() {
            let operator = self.any_client();
            if self.clients[operator].asleep_until <= self.now {
                self.call(operator, line.0, Request::Evict(id));
            }
        } else if self.servers[line.1].down <= self.now {
            self.operate(line, usize::MAX, Request::Evict(id));
        }
    }
}
