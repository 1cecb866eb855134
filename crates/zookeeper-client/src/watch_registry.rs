//! The watches that are registered with the servers, and their waiters.
//!
//! A watch is for one event. A server keeps it as long as the connection lasts. On the next
//! connection all watches that are still wanted are set again, and the server reports missed events
//! at once.

use crate::error::Error;
use crate::jute::{Reader, Writer};
use std::collections::HashMap;
use tokio::sync::{mpsc, oneshot, watch};

/// An event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The node was deleted.
    Deleted,
    /// Its data, or its list of children, has changed.
    Changed,
    /// The session has ended, so no event will come.
    Over,
}

/// Waits for one event. The server keeps the watch until the event comes or the connection ends,
/// even if this is dropped.
#[derive(Debug)]
pub struct Watch(oneshot::Receiver<Event>);

impl Watch {
    /// Waits for the event.
    ///
    /// # Cancel safety
    ///
    /// The event is lost if the future is dropped.
    pub async fn changed(self) -> Event {
        self.0.await.unwrap_or(Event::Over)
    }

    /// Whether the event has not come yet. Events are handled before the replies that the server
    /// sends after them.
    pub fn is_pending(&mut self) -> bool {
        matches!(self.0.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }
}

/// A channel for the events of many nodes, each with the path of its node. The end of the session
/// is not reported there.
pub type Listener = mpsc::UnboundedSender<(String, Event)>;

/// A watch on a node and all nodes below it, for any number of events. It ends with the connection,
/// of which [`Client::states`](crate::Client::states) tells; a new one must be set on the next.
#[derive(Debug)]
pub struct TreeWatch(watch::Receiver<()>);

impl TreeWatch {
    /// Waits until something has changed since the last call. `false` once the session is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no event.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

/// The watched part of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Data,
    Children,
    /// The data, until this connection ends.
    Connection,
}

/// A watch to be requested from a server.
pub(crate) enum Wanted {
    /// One with a waiter of its own.
    Waiter(Kind, String),
    /// One on a node's data, whose event goes to a listener.
    Listener(String, Listener),
}

/// All watches of a session.
#[derive(Debug, Default)]
pub(crate) struct WatchRegistry {
    nodes: HashMap<(Kind, String), Vec<oneshot::Sender<Event>>>,
    /// The watches on data whose events go to a listener: such a watch costs only an entry.
    listeners: HashMap<String, Listener>,
    trees: Vec<(String, watch::Sender<()>)>,
}

/// By default, servers accept no request longer than 1 MiB.
const CHUNK: usize = 128 << 10;

impl WatchRegistry {
    /// Registers a watch that a server has set.
    pub(crate) fn set(&mut self, wanted: Wanted) -> Option<Watch> {
        match wanted {
            Wanted::Waiter(kind, path) => Some(self.add(kind, path)),
            Wanted::Listener(path, listener) => {
                self.listeners.insert(path, listener);
                None
            }
        }
    }

    fn add(&mut self, kind: Kind, path: String) -> Watch {
        let (sender, receiver) = oneshot::channel();
        let watches = self.nodes.entry((kind, path)).or_default();
        watches.retain(|watch| !watch.is_closed());
        watches.push(sender);
        Watch(receiver)
    }

    /// Registers a tree watch that a server is about to be asked for.
    pub(crate) fn add_tree(&mut self, path: String) -> TreeWatch {
        let (sender, receiver) = watch::channel(());
        self.trees.retain(|(_, tree)| !tree.is_closed());
        self.trees.push((path, sender));
        TreeWatch(receiver)
    }

    /// Handles an event from a server.
    pub(crate) fn tell(&mut self, mut body: Reader<'_>) -> Result<(), Error> {
        let (event, _state, path) = (body.int()?, body.int()?, body.text()?);
        let (kinds, event): (&[Kind], _) = match event {
            1 | 3 => (&[Kind::Data, Kind::Connection], Event::Changed),
            2 => (&[Kind::Data, Kind::Children, Kind::Connection], Event::Deleted),
            4 => (&[Kind::Children], Event::Changed),
            _ => return Ok(()), // of sessions we hear by other ways
        };
        for (_, tree) in self.trees.iter().filter(|(root, _)| is_in(path, root)) {
            let _ = tree.send(());
        }
        for kind in kinds {
            for watch in self.nodes.remove(&(*kind, path.to_owned())).into_iter().flatten() {
                let _ = watch.send(event);
            }
        }
        if kinds.contains(&Kind::Data)
            && let Some((path, listener)) = self.listeners.remove_entry(path)
        {
            let _ = listener.send((path, event));
        }
        Ok(())
    }

    /// The requests that set all watches again, none of them too long. Changes since the
    /// transaction `seen` are reported at once.
    pub(crate) fn again(&mut self, seen: i64) -> Vec<Vec<u8>> {
        self.nodes.retain(|(kind, _), watches| {
            *kind != Kind::Connection && watches.iter().any(|watch| !watch.is_closed())
        });
        self.listeners.retain(|_, listener| !listener.is_closed());
        let (mut requests, mut size) = (Vec::new(), 0);
        let (mut data, mut children) = (Vec::new(), Vec::new());
        let request = |data: &mut Vec<&str>, children: &mut Vec<&str>| {
            let request = Writer::default().long(seen).texts(data).texts(&[]).texts(children);
            data.clear();
            children.clear();
            request.0
        };
        let waited = self.nodes.keys().map(|(kind, path)| (*kind, path));
        for (kind, path) in waited.chain(self.listeners.keys().map(|path| (Kind::Data, path))) {
            match kind {
                Kind::Children => children.push(path.as_str()),
                Kind::Data | Kind::Connection => data.push(path.as_str()),
            }
            size += path.len() + 4;
            if size >= CHUNK {
                requests.push(request(&mut data, &mut children));
                size = 0;
            }
        }
        if size > 0 {
            requests.push(request(&mut data, &mut children));
        }
        requests
    }

    /// Ends all watches with the session.
    pub(crate) fn end(&mut self) {
        self.nodes.clear();
        self.listeners.clear();
        self.trees.clear();
    }
}

/// Whether a node is the root of a tree, or below it.
fn is_in(path: &str, root: &str) -> bool {
    let rest = path.strip_prefix(root.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: i32, path: &str) -> Vec<u8> {
        Writer::default().int(kind).int(3).text(path).0
    }

    #[tokio::test]
    async fn an_event_reaches_whom_it_concerns() {
        let mut watches = WatchRegistry::default();
        let data = [(); 2].map(|()| watches.add(Kind::Data, "/a".to_owned()));
        let children = watches.add(Kind::Children, "/a".to_owned());
        let other = watches.add(Kind::Data, "/b".to_owned());
        watches.tell(Reader(&event(3, "/a"))).expect("good");
        for watch in data {
            assert_eq!(watch.changed().await, Event::Changed);
        }
        watches.tell(Reader(&event(2, "/a"))).expect("good");
        assert_eq!(children.changed().await, Event::Deleted);
        assert_eq!(watches.tell(Reader(&event(3, "/b")[..9])), Err(Error::Garbled));
        watches.end();
        assert_eq!(other.changed().await, Event::Over);
    }

    #[test]
    fn a_listener_is_told_of_each_node_once() {
        let mut watches = WatchRegistry::default();
        let (listener, mut told) = mpsc::unbounded_channel();
        let listen = |watches: &mut WatchRegistry, path: &str| {
            assert!(watches.set(Wanted::Listener(path.to_owned(), listener.clone())).is_none());
        };
        for path in ["/a", "/b", "/c"] {
            listen(&mut watches, path);
        }
        for (kind, path) in [(3, "/a"), (3, "/a"), (4, "/b"), (2, "/b")] {
            watches.tell(Reader(&event(kind, path))).expect("good");
        }
        listen(&mut watches, "/a");
        watches.tell(Reader(&event(2, "/a"))).expect("good");
        let expected = [("/a", Event::Changed), ("/b", Event::Deleted), ("/a", Event::Deleted)];
        for (path, event) in expected {
            assert_eq!(told.try_recv(), Ok((path.to_owned(), event)));
        }
        let again = Writer::default().long(7).texts(&["/c"]).texts(&[]).texts(&[]).0;
        assert_eq!(watches.again(7), [again], "it is set again on the next connection");
        drop(told);
        assert!(watches.again(7).is_empty(), "nobody listens");
    }

    #[tokio::test]
    async fn a_tree_is_told_of_what_is_in_it() {
        let mut watches = WatchRegistry::default();
        let mut trees = ["/", "/a", "/ab"].map(|root| watches.add_tree(root.to_owned()));
        watches.tell(Reader(&event(1, "/a/b"))).expect("good");
        assert_eq!(trees.each_ref().map(|tree| tree.0.has_changed().unwrap()), [true, true, false]);
        watches.tell(Reader(&event(2, "/ab"))).expect("good");
        assert!(trees[2].changed().await);
        drop(trees);
        drop(watches.add_tree("/c".to_owned()));
        assert_eq!(watches.trees.len(), 1, "those that nobody wants are gone");
        let mut tree = watches.add_tree("/d".to_owned());
        watches.end();
        assert!(!tree.changed().await);
    }

    #[test]
    fn what_is_still_wanted_is_set_again() {
        let mut watches = WatchRegistry::default();
        drop(watches.add(Kind::Data, "/unwanted".to_owned()));
        assert!(watches.again(7).is_empty());
        let mut data = watches.add(Kind::Data, "/a".to_owned());
        let mut connection = watches.add(Kind::Connection, "/a".to_owned());
        assert!(data.is_pending() && connection.is_pending());
        let _children = watches.add(Kind::Children, "/b".to_owned());
        let expected = Writer::default().long(7).texts(&["/a"]).texts(&[]).texts(&["/b"]).0;
        assert_eq!(watches.again(7), [expected]);
        assert!(data.is_pending() && !connection.is_pending(), "it was for that connection");
        let mut same = ["/a", "/b"].map(|path| watches.add(Kind::Connection, path.to_owned()));
        watches.tell(Reader(&event(3, "/a"))).expect("good");
        assert_eq!(same.each_mut().map(Watch::is_pending), [false, true]);
        let _data = watches.add(Kind::Data, "/a".to_owned());
        let path = |at: usize| format!("/{at:0>1000}");
        let _many: Vec<_> = (0..500).map(|at| watches.add(Kind::Data, path(at))).collect();
        let requests = watches.again(7);
        assert!(requests.len() > 3 && requests.iter().all(|one| one.len() < CHUNK + 2000));
        let mut again = 0;
        for request in &requests {
            let mut reader = Reader(request);
            assert_eq!(reader.long(), Ok(7));
            for _ in 0..3 {
                again += reader.texts().expect("good").len();
            }
            assert!(reader.0.is_empty());
        }
        assert_eq!(again, 502);
    }
}
