//! The network between the members of a cluster, so that a test can isolate one of them.

use crate::link::{Link, Way, splice};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// The links between the members of a cluster.
#[derive(Debug)]
pub struct Network {
    /// From (row) and to (column). The row after the members' is for unknown callers.
    pub(crate) links: Vec<Vec<Vec<Link>>>,
}

impl Network {
    /// Isolates a member from the others: nothing arrives, until [`mend`](Self::mend).
    pub fn cut_off(&self, member: usize) {
        for (from, row) in self.links.iter().enumerate() {
            let cut = row.iter().enumerate().filter(|(to, _)| from == member || *to == member);
            cut.flat_map(|(_, links)| links).for_each(|link| link.stall(Way::Both));
        }
    }

    /// Delays all messages between members by this long, each way.
    pub fn delay(&self, one_way: Duration) {
        self.all().for_each(|link| link.delay(one_way));
    }

    /// Ends all changes to the network.
    pub fn mend(&self) {
        self.all().for_each(Link::mend);
    }

    fn all(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().flatten().flatten()
    }
}

/// A link to a port of this machine.
pub(crate) fn link(port: u16) -> Link {
    Link::to(("127.0.0.1", port)).expect("a port is free")
}

/// A port that accepts callers, until the process ends.
pub(crate) struct Acceptor {
    pub(crate) port: u16,
    listener: TcpListener,
}

impl Acceptor {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        Acceptor { port, listener }
    }

    /// Connects each caller, once `meet` has read its first bytes and returned where to connect it,
    /// and what to send there first.
    pub(crate) fn serve<M>(self, meet: M)
    where
        M: Fn(&mut TcpStream) -> io::Result<(SocketAddr, Vec<u8>)> + Clone + Send + 'static,
    {
        thread::spawn(move || {
            for mut caller in self.listener.incoming().flatten() {
                let meet = meet.clone();
                thread::spawn(move || {
                    let (member, first) = meet(&mut caller)?;
                    let mut member = TcpStream::connect(member)?;
                    io::Write::write_all(&mut member, &first)?;
                    splice(caller, member)
                });
            }
        });
    }
}
