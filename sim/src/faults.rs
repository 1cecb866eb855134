//! What goes wrong, and when.

use crate::invariants::{Cause, Fact, Lock};
use crate::plan::Class;
use crate::server::Request;
use crate::world::{Event, World};
use holdline_kernel::TicketId;
use std::time::Duration;

/// One fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Choose one, do it, and plan the next choice.
    Next,
    /// Somebody who looked at a line's holder removes it by force.
    Break { lock: Lock, id: TicketId },
    /// No more.
    Calm,
}

impl World {
    pub(crate) fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Calm => self.calm(),
            Fault::Break { lock, id } => self.break_lock(lock, id),
            Fault::Next if self.is_calm() => {}
            Fault::Next => {
                self.one_fault();
                let wait = self.rng.between(1, 2 * self.plan.between_faults);
                self.after(Duration::from_nanos(wait), Event::Goes(Fault::Next));
            }
        }
    }

    fn one_fault(&mut self) {
        self.stats.faults += 1;
        let special = self.rng.chance(300);
        match self.plan.class {
            Class::Wipes if special => return self.wipe(),
            Class::Jumps if special => return self.jump(),
            _ => {}
        }
        match self.rng.below(10) {
            0..=3 => self.pause(),
            4..=6 => self.cut(),
            7 => self.restart(),
            _ => self.plan_break(),
        }
    }

    /// A moment from now, but not after the faults stop.
    fn soon(&mut self, from: u64, to: u64) -> u64 {
        let wait = self.rng.millis(from, to).as_nanos() as u64;
        (self.now + wait).min(self.plan.calm)
    }

    fn any_client(&mut self) -> usize {
        self.rng.below(self.clients.len() as u64) as usize
    }

    fn any_server(&mut self) -> usize {
        self.rng.below(self.servers.len() as u64) as usize
    }

    /// A client stops, perhaps for longer than its lease. Its clock does not.
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
        let server = self.any_server();
        self.stats.wipes += 1;
        self.note(format_args!("server {server} restarts WITHOUT its data"));
        self.servers[server].down = self.soon(1, 300);
        let lines = std::mem::take(&mut self.servers[server].lines);
        for (lock, (head, deck)) in lines {
            for place in deck.iter() {
                let (id, seq) = (place.id, place.seq);
                self.tell(&Fact::Removed { lock, id, seq, cause: Cause::Wiped });
            }
            self.tell(&Fact::Line { lock, capacity: head.capacity, places: &[] });
        }
    }

    fn jump(&mut self) {
        let server = self.any_server();
        let by = self.rng.millis(100, 4_000);
        let forward = self.rng.chance(500);
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

    /// An operator looks who holds, and breaks that lock a little later. By then it may be
    /// another's: it must not be that one which is broken.
    fn plan_break(&mut self) {
        let lock = self.rng.below(self.plan.locks.len() as u64) as usize;
        if let Some(place) = self.server_of(lock).first(lock) {
            let id = place.id;
            let wait = self.rng.millis(0, 200);
            self.after(wait, Event::Goes(Fault::Break { lock, id }));
        }
    }

    fn break_lock(&mut self, lock: Lock, id: TicketId) {
        let server = self.plan.locks[lock].server;
        if self.is_calm() || self.servers[server].down > self.now {
            return;
        }
        let (_, deck) = self.servers[server].lines.entry(lock).or_default();
        let Some(place) = deck.iter().find(|place| place.id == id) else { return };
        let (client, seq) = (place.data, place.seq);
        self.stats.evictions += 1;
        self.note(format_args!("line {lock}: {seq:?} of client {client} is broken by force"));
        self.operate(lock, usize::MAX, Request::Evict(id));
        self.post(client, server, Event::Noticed { client, id, seq });
    }
}
