//! What a client does while it holds: ask whether it still does, read, work, write back.

use holdline_checker::resource::{Access, Reply, Request as ToResource};
use holdline_checker::{Op, Phase, Register};

use super::client::Job;
use super::world::{Timer, World};
use super::{Bug, LOCKS, MS};

impl Job {
    fn exclusive(&self) -> bool {
        self.weight == LOCKS[self.lock].1
    }

    fn access(&self, reg: Register) -> Access {
        Access { lock: LOCKS[self.lock].0.to_owned(), reg, token: self.fence }
    }
}

impl World {
    /// The user asks the handle whether it is valid.
    pub(crate) fn sample(&mut self, i: usize) {
        let event = self.about(i, Op::Claim, Phase::Invoke);
        self.log(i, event);
        let valid = self.clock(i) < self.job(i).deadline;
        let event = self.about(i, Op::Claim, if valid { Phase::Ok } else { Phase::Fail });
        self.log(i, event);
    }

    /// Half of the clients look at the deadline before they write; no client looks again after.
    pub(crate) fn check_then_write(&mut self, i: usize) {
        let valid = self.clock(i) < self.job(i).deadline;
        let n = self.job(i).n;
        if i.is_multiple_of(2)
            && !valid
            && !self.has(Bug::LossNotTold)
            && !self.has(Bug::RenewRecreates)
        {
            self.lose(i);
        } else {
            self.timer(i, MS, Timer::Write { n });
        }
    }

    pub(super) fn read_resource(&mut self, i: usize) {
        let job = self.job(i).clone();
        if !job.exclusive() || self.clients[i].probe.is_some() {
            return;
        }
        for reg in Register::ALL {
            let access = job.access(reg);
            self.resource(&ToResource::Open(access.clone()));
            if let Reply::Done { last, .. } = self.resource(&ToResource::Read(access)) {
                let cached = self.clients[i].cache.get(&reg).copied();
                let cached = cached.filter(|_| self.has(Bug::CachedRead));
                self.job(i).read.insert(reg, cached.or(last));
            }
        }
    }

    pub(crate) fn write(&mut self, i: usize) {
        let job = self.job(i).clone();
        self.write_as(i, &job);
        self.release(i);
    }

    /// Somebody who was told of the loss and did not listen writes all the same.
    pub(crate) fn write_too_late(&mut self, i: usize) {
        if let Some(job) = self.clients[i].zombie.take() {
            self.write_as(i, &job);
        }
    }

    fn write_as(&mut self, i: usize, job: &Job) {
        for reg in Register::ALL {
            let Some(base) = job.read.get(&reg).copied() else { continue };
            self.next_uid += 1;
            let uid = self.next_uid;
            let mut access = job.access(reg);
            let ask = |access| ToResource::Write { access, base, uid };
            let reply = self.resource(&ask(access.clone()));
            if let Reply::Stale { highest } = reply
                && self.has(Bug::TokenFromResource)
            {
                access.token = highest;
                self.resource(&ask(access));
            }
            self.clients[i].cache.insert(reg, uid);
        }
    }
}
