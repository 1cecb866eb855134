//! What the user's handles and the store's threads share: the desk, and how this process is seen by
//! others and hears of them.

use super::address::Address;
use super::base::Site;
use super::beacon::{Beacon, Shore};
use super::book::{self, Done, Entered, News, Notice, Outlook};
use super::desk::Desk;
use super::fault::refused;
use super::rows::Process;
use super::tower::{self, Crew, Findings, Tower};
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;
use crate::store::{LossHint, Standing, TicketId};
use crate::stores::wakes::Wakes;
use rusqlite::Connection;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// An open file store.
pub(super) struct House {
    pub(super) desk: Desk,
    pub(super) wakes: Wakes,
    pub(super) loss_hint: OnceLock<LossHint>,
    harbour: Mutex<Harbour>,
}

/// Built as far as it is needed.
#[derive(Debug, Default)]
struct Harbour {
    shore: Option<Arc<Shore>>,
    beacon: Option<Beacon>,
    tower: Option<Arc<Tower>>,
    mouth: Option<Arc<UnixDatagram>>,
    /// The tickets that may have a place.
    tickets: HashSet<TicketId>,
}

/// One new process in so many sweeps up behind the dead even if it never waits.
const SWEEP_ODDS: u8 = 32;

impl House {
    pub(super) fn open(address: Address) -> Result<Self> {
        let desk = Desk::open(Site::find(address)?)?;
        let harbour = Mutex::default();
        Ok(House { desk, wakes: Wakes::default(), loss_hint: OnceLock::new(), harbour })
    }

    /// Refuses a child that was forked off by the process that opened the store.
    pub(super) fn at_home(&self) -> Result<()> {
        if self.desk.at_home() {
            return Ok(());
        }
        let message = format!(
            "the lock database {} was opened before this process was forked off; open it again",
            self.desk.site.name.display()
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }

    fn harbour(&self) -> MutexGuard<'_, Harbour> {
        self.harbour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, error: io::Error) -> crate::error::Error {
        refused(
            "keep the files that show this process to be alive in",
            &self.desk.site.live(),
            error,
        )
    }

    /// The folder beside the database.
    fn shore(&self) -> io::Result<Arc<Shore>> {
        let mut harbour = self.harbour();
        if let Some(shore) = &harbour.shore {
            return Ok(Arc::clone(shore));
        }
        let shore = Arc::new(Shore::open(&self.desk.site.live())?);
        harbour.shore = Some(Arc::clone(&shore));
        Ok(shore)
    }

    /// This process's number, by a beacon that others can see.
    pub(super) fn process(self: &Arc<Self>) -> Result<Process> {
        if let Some(beacon) = &self.harbour().beacon
            && beacon.shines()
        {
            return Ok(beacon.process);
        }
        let process = self.light().map_err(|error| self.failed(error))?;
        if fastrand::u8(..SWEEP_ODDS) == 0 {
            self.try_to_man();
        }
        Ok(process)
    }

    /// Lights a beacon, perhaps in place of one that somebody removed; then the folder may be gone
    /// too, and the tower has to move.
    fn light(&self) -> io::Result<Process> {
        let mut harbour = self.harbour();
        if let Some(tower) = harbour.tower.take() {
            tower.close();
        }
        let shore = Arc::new(Shore::open(&self.desk.site.live())?);
        let beacon = shore.light()?;
        let process = beacon.process;
        harbour.shore = Some(shore);
        harbour.beacon = Some(beacon);
        Ok(process)
    }

    /// The tower, if it is there.
    fn tower(&self) -> Option<Arc<Tower>> {
        self.harbour().tower.clone()
    }

    /// Whether there is a tower already.
    pub(super) fn is_manned(&self) -> bool {
        self.harbour().tower.is_some()
    }

    /// Whether other processes can wake who waits here.
    pub(super) fn hears(&self) -> bool {
        self.tower().is_some_and(|tower| tower.hears())
    }

    /// Builds the tower if that can be done. Without one, waiters look by themselves.
    pub(super) fn try_to_man(self: &Arc<Self>) {
        if let Err(error) = self.man() {
            tracing::warn!(%error, "no thread or socket for wakes; waiting by looking often");
        }
    }

    fn man(self: &Arc<Self>) -> Result<Arc<Tower>> {
        if let Some(tower) = self.tower() {
            return Ok(tower);
        }
        let process = self.process()?;
        let shore = self.shore().map_err(|error| self.failed(error))?;
        let mut harbour = self.harbour();
        if let Some(tower) = &harbour.tower {
            return Ok(Arc::clone(tower));
        }
        let tower = Tower::new(shore, process).map_err(|error| self.failed(error))?;
        let tower = Arc::new(tower);
        let (house, runs) = (Arc::clone(self), Arc::clone(&tower));
        std::thread::Builder::new()
            .name("holdline-wake".to_owned())
            .spawn(move || {
                house.sweep();
                runs.run(&*house);
            })
            .map_err(|error| self.failed(error))?;
        harbour.tower = Some(Arc::clone(&tower));
        Ok(tower)
    }

    /// Somebody begins to wait.
    pub(super) fn post(self: &Arc<Self>, line: &Name, id: TicketId) -> Result<Post> {
        let tower = self.man()?;
        tower.post(line, id);
        Ok(Post { tower, id })
    }

    /// Remembers whether a ticket may have a place.
    pub(super) fn note(&self, id: TicketId, entered: &Entered) {
        match entered.outcome {
            Ok(Standing::Admitted(_) | Standing::Waiting { seq: Some(_), .. }) => {
                self.harbour().tickets.insert(id);
            }
            Ok(Standing::Lost) => self.forget(id),
            Ok(Standing::Waiting { seq: None, .. }) | Err(_) => {}
        }
    }

    /// A ticket has no place any more.
    pub(super) fn forget(&self, id: TicketId) {
        self.harbour().tickets.remove(&id);
    }

    /// Which of these processes are dead.
    pub(super) fn dead_of(&self, processes: &[Process]) -> Result<Vec<Process>> {
        let shore = self.shore().map_err(|error| self.failed(error))?;
        let own = self.harbour().beacon.as_ref().map(|beacon| beacon.process);
        let mut others = processes.to_vec();
        others.sort_unstable();
        others.dedup();
        others.retain(|one| Some(*one) != own && shore.sight(*one).is_some_and(|it| it.dark()));
        Ok(others)
    }

    /// Tells the living from the dead among many, each looked at once.
    pub(super) fn living(&self) -> impl FnMut(Process) -> bool {
        let (shore, own) = {
            let harbour = self.harbour();
            (harbour.shore.clone(), harbour.beacon.as_ref().map(|beacon| beacon.process))
        };
        let shore = shore.or_else(|| Shore::find(&self.desk.site.live()).ok().map(Arc::new));
        let mut known: HashMap<Process, bool> = own.map(|own| (own, true)).into_iter().collect();
        move |process| {
            // Without a beacon to look at, only the lease decides.
            let look = || shore.as_ref()?.sight(process).map(|sight| !sight.dark());
            *known.entry(process).or_insert_with(|| look().unwrap_or(true))
        }
    }

    /// Removes the files of a process that is dead and has no places.
    pub(super) fn clear(&self, process: Process) {
        if let Ok(shore) = self.shore() {
            shore.clear(process);
        }
    }

    /// Tells everybody concerned of what a transaction did, and gives back what it came to.
    pub(super) fn deliver<T>(&self, mut done: Done<T>) -> T {
        if !done.notices.is_empty() {
            self.tell(&mut done.notices);
        }
        done.value
    }

    fn tell(&self, notices: &mut [Notice]) {
        let own = self.harbour().beacon.as_ref().map(|beacon| beacon.process);
        notices.sort_by_key(|notice| (notice.process, notice.news as u8));
        for same in notices.chunk_by(|a, b| (a.process, a.news) == (b.process, b.news)) {
            let (to, news) = (same[0].process, same[0].news);
            if Some(to) == own {
                self.heard(news, &mut same.iter().map(|notice| notice.id));
                continue;
            }
            let ids: Vec<TicketId> = same.iter().map(|notice| notice.id).collect();
            let sent = self.shore().and_then(|shore| {
                let mouth = self.mouth()?;
                tower::send(&mouth, &shore, to, news, &ids)
            });
            if let Err(error) = sent {
                // It may be dead, or have no socket; if it waits, it will look by itself.
                tracing::debug!(process = to, %error, "a notice was not delivered");
            }
        }
    }

    fn mouth(&self) -> io::Result<Arc<UnixDatagram>> {
        let mut harbour = self.harbour();
        if let Some(mouth) = &harbour.mouth {
            return Ok(Arc::clone(mouth));
        }
        let mouth = UnixDatagram::unbound()?;
        mouth.set_nonblocking(true)?;
        let mouth = Arc::new(mouth);
        harbour.mouth = Some(Arc::clone(&mouth));
        Ok(mouth)
    }

    /// Removes the places and files of all that died.
    fn sweep(&self) {
        let Ok(shore) = self.shore() else { return };
        let (dark, flotsam) = shore.wrecks();
        for process in flotsam {
            shore.clear(process);
        }
        if dark.is_empty() {
            return;
        }
        let Ok(owners) = self.desk.in_turn(self.desk.limit(), || true, book::owners) else {
            return;
        };
        // Looked at again: a beacon that is just being lit was dark for an instant. But who has
        // places has lit it before.
        let Ok(dead) = self.dead_of(&dark) else { return };
        for process in dead {
            if !owners.value.contains(&process) || self.bury(process) {
                shore.clear(process);
            }
        }
    }

    /// Removes all places of a dead process. Says whether that was done.
    fn bury(&self, process: Process) -> bool {
        loop {
            let limit = self.desk.limit();
            match self.desk.in_turn(limit, || true, |conn| book::bury(conn, process)) {
                Ok(done) => {
                    if !self.deliver(done) {
                        return true;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the places of a dead process are left to their leases");
                    return false;
                }
            }
        }
    }

    /// Finds out again whom somebody has to watch.
    fn look_ahead(&self, tower: &Tower, line: &Name, id: TicketId) {
        let outlook = |conn: &Connection| book::outlook(conn, line, id);
        match self.desk.in_turn(self.desk.limit(), || true, outlook) {
            Ok(Done { value: Outlook::Waits(processes), .. }) => tower.watch(id, processes),
            Ok(Done { value: Outlook::Decided, .. }) => self.wakes.wake(id),
            Err(_) => tower.doubt(id),
        }
    }

    /// The last handle is going.
    pub(super) fn close(&self) {
        if !self.desk.at_home() {
            return; // a forked child: the files are its parent's
        }
        let mut harbour = self.harbour();
        if let Some(tower) = harbour.tower.take() {
            tower.close();
        }
        let beacon = harbour.beacon.take();
        if let (Some(beacon), Some(shore)) = (&beacon, &harbour.shore)
            && harbour.tickets.is_empty()
            && self.desk.idle()
        {
            shore.remove(beacon.process);
        }
        // Otherwise the beacon is left there, dark, so that others bury what is left.
        drop(beacon);
        drop(harbour);
        self.desk.close();
    }
}

impl Crew for House {
    fn heard(&self, news: News, ids: &mut dyn Iterator<Item = TicketId>) {
        let tower = if news == News::First { self.tower() } else { None };
        for id in ids {
            match news {
                News::Admitted => self.wakes.wake(id),
                News::First => tower.iter().for_each(|tower| tower.doubt(id)),
                News::Evicted => {
                    self.wakes.wake(id);
                    if let Some(loss_hint) = self.loss_hint.get() {
                        loss_hint(id);
                    }
                }
            }
        }
    }

    fn found(&self, tower: &Tower, findings: Findings) {
        for process in findings.dead {
            if self.bury(process) {
                self.clear(process);
            }
        }
        for (line, id) in findings.stale {
            self.look_ahead(tower, &line, id);
        }
    }
}

/// Somebody who waits, until it is dropped.
#[derive(Debug)]
pub(super) struct Post {
    tower: Arc<Tower>,
    id: TicketId,
}

impl Post {
    /// Says whom to watch.
    pub(super) fn watch(&self, processes: Vec<Process>) {
        self.tower.watch(self.id, processes);
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.tower.leave_post(self.id);
    }
}

impl fmt::Debug for House {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("House").field("desk", &self.desk).finish_non_exhaustive()
    }
}
