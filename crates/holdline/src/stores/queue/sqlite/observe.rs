//! Observers: one thread for each observed store, which the kernel (inotify) tells when the
//! database is written, or when a process closes its liveness lock, as on its death.
//!
//! Processes that lock do nothing for it. Every write is reported, whichever line it is about.
//! Expiries are not reported, so observers also poll.

use super::database::Site;
use crate::store::{Notifier, Subscription};
use crate::sync::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The quiet period after which a change is reported again: a write is visible to others only a
/// moment later.
const SETTLED: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The pause after `poll` has failed, for lack of memory or at a limit. Observers poll the database
/// meanwhile.
const PAUSE: Duration = Duration::from_millis(200);

/// The subscriptions of a store's observers.
#[derive(Debug, Default)]
pub(super) struct Observers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    list: Vec<(u64, Notifier)>,
    last: u64,
    /// Dropped to end the thread. `None` while there is no thread.
    running: Option<UnixStream>,
}

/// An observer's entry in the list, removed when this is dropped.
struct Observing {
    observers: Arc<Observers>,
    number: u64,
}

impl Drop for Observing {
    fn drop(&mut self) {
        let mut state = self.observers.0.lock();
        state.list.retain(|(number, _)| *number != self.number);
        if state.list.is_empty() {
            state.running = None;
        }
    }
}

impl Observers {
    /// Subscribes to all changes of the database. Without a thread or inotify, nothing is reported.
    pub(super) fn subscribe(self: &Arc<Self>, site: &Site) -> Subscription {
        let mut state = self.0.lock();
        if state.running.is_none() {
            match self.start(site) {
                Ok(running) => state.running = Some(running),
                Err(error) => {
                    tracing::debug!(%error, "observers of a lock database poll");
                    return Subscription::none();
                }
            }
        }
        let (notifier, subscription) = Subscription::new();
        state.last += 1;
        let number = state.last;
        state.list.push((number, notifier.clone()));
        drop(state);
        notifier.begin();
        subscription.keep(Observing { observers: Arc::clone(self), number })
    }

    fn start(self: &Arc<Self>, site: &Site) -> io::Result<UnixStream> {
        // A stream, because its other end notices when one is closed.
        let (running, ended) = UnixStream::pair()?;
        ended.set_nonblocking(true)?;
        let files = Files::watch(&site.wal(), site.live())?;
        let observers = Arc::clone(self);
        std::thread::Builder::new()
            .name("holdline-observe".to_owned())
            .spawn(move || observers.listen(files, &ended))?;
        Ok(running)
    }

    /// Listens until the other end of `ended` is closed.
    fn listen(&self, mut files: Files, mut ended: &UnixStream) {
        let mut unsettled = false;
        loop {
            let mut fds =
                [PollFd::new(&files.inotify, PollFlags::IN), PollFd::new(&ended, PollFlags::IN)];
            let ready = poll(&mut fds, unsettled.then_some(&SETTLED));
            if matches!(ended.read(&mut [0]), Ok(0)) {
                return;
            }
            let ready = match ready {
                Ok(ready) => ready,
                Err(Errno::INTR) => continue,
                Err(_) => {
                    unsettled = true; // what comes meanwhile is told afterwards
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            let news = ready > 0 && files.read();
            if news || (unsettled && ready == 0) {
                // Cloned, because a waker may drop its subscription on the spot.
                let list = self.0.lock().list.clone();
                for (_, notifier) in list {
                    notifier.changed();
                }
            }
            unsettled = news || (unsettled && ready > 0);
        }
    }
}

/// The watched files.
struct Files {
    inotify: OwnedFd,
    /// The file name of the write-ahead log.
    wal: OsString,
    live: PathBuf,
    /// The watch on the folder of the liveness locks, which is created when a process first locks.
    live_watch: Option<i32>,
}

impl Files {
    fn watch(wal: &Path, live: PathBuf) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let (Some(folder), Some(name)) = (wal.parent(), wal.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // The folder, not the file, which is created and removed.
        inotify::add_watch(&inotify, folder, WatchFlags::MODIFY | WatchFlags::CREATE)?;
        let mut files = Files { inotify, wal: name.to_owned(), live, live_watch: None };
        files.watch_live();
        Ok(files)
    }

    fn watch_live(&mut self) {
        if self.live_watch.is_none() {
            let flags = WatchFlags::CLOSE_WRITE | WatchFlags::ONLYDIR;
            self.live_watch = inotify::add_watch(&self.inotify, &self.live, flags).ok();
        }
    }

    /// Reads all pending events. Returns whether there was a change.
    fn read(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let (mut news, mut live_is_gone) = (false, false);
        while let Ok(event) = reader.next() {
            let of_live = Some(event.wd()) == self.live_watch;
            live_is_gone |= of_live && event.events().contains(ReadFlags::IGNORED);
            let name = event.file_name().map_or(&[][..], |name| name.to_bytes());
            news |= of_live
                || name == self.wal.as_bytes()
                || event.events().contains(ReadFlags::QUEUE_OVERFLOW);
        }
        if live_is_gone {
            self.live_watch = None;
        }
        if news {
            self.watch_live();
        }
        news
    }
}
