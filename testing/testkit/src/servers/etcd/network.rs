//! The network between the members of a cluster, so that a test can cut one of them off.
//!
//! All members reach a member at one address, so a link in front of it could not tell who calls.
//! What members say to each other begins with the caller's own address, and a front reads that, and
//! then uses the link between these two. Calls that do not name their caller (a follower that
//! passes a lease's sign of life on to the leader, mostly) have a link of their own.

use crate::link::{Link, Way, splice};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// The links between the members.
#[derive(Debug)]
pub struct Network {
    /// Where each member says that it can be reached: its front.
    pub(super) ports: Vec<u16>,
    /// From (row) and to (column); and in the last row, from who knows whom.
    links: Arc<Vec<Vec<Link>>>,
}

impl Network {
    /// In front of members that listen here.
    pub(super) fn to(members: &[u16]) -> Self {
        let row = || members.iter().map(|port| Link::to(("127.0.0.1", *port)).expect("a port"));
        let links: Arc<Vec<Vec<Link>>> =
            Arc::new((0..=members.len()).map(|_| row().collect()).collect());
        let fronts: Vec<_> =
            members.iter().map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let port = |front: &TcpListener| front.local_addr().expect("it has an address").port();
        let ports: Vec<u16> = fronts.iter().map(port).collect();
        for (to, front) in fronts.into_iter().enumerate() {
            let ways: Vec<SocketAddr> = links.iter().map(|row| row[to].address()).collect();
            let ports = ports.clone();
            // Ends with the process.
            std::thread::spawn(move || {
                for caller in front.incoming().flatten() {
                    let (ways, ports) = (ways.clone(), ports.clone());
                    std::thread::spawn(move || serve(caller, &ways, &ports));
                }
            });
        }
        Network { ports, links }
    }

    /// Cuts a member off from the others: nothing arrives, until [`mend`](Self::mend).
    pub fn cut_off(&self, member: usize) {
        self.about(member, |link| link.stall(Way::Both));
    }

    /// Everything that members say to each other takes so much longer, each way.
    pub fn delay(&self, one_way: Duration) {
        self.links.iter().flatten().for_each(|link| link.delay(one_way));
    }

    /// Ends what was done to the network.
    pub fn mend(&self) {
        self.links.iter().flatten().for_each(Link::mend);
    }

    fn about(&self, member: usize, act: impl Fn(&Link)) {
        self.links.iter().for_each(|row| act(&row[member]));
        self.links[member].iter().for_each(act);
    }
}

/// One connection, through the link that belongs to whoever calls.
fn serve(caller: TcpStream, ways: &[SocketAddr], ports: &[u16]) -> io::Result<()> {
    let from = who_calls(&caller, ports)?;
    let member = TcpStream::connect(ways[from.unwrap_or(ports.len())])?;
    splice(caller, member)
}

/// Looks into the head of the first request, and leaves it where it is.
fn who_calls(caller: &TcpStream, ports: &[u16]) -> io::Result<Option<usize>> {
    let mut head = [0; 4096];
    loop {
        let count = caller.peek(&mut head)?;
        let text = String::from_utf8_lossy(&head[..count]).to_ascii_lowercase();
        let name = |port: &u16| text.contains(&format!("x-peerurls: http://127.0.0.1:{port}\r"));
        if let Some(at) = ports.iter().position(name) {
            return Ok(Some(at));
        }
        if count == 0 || count == head.len() || text.contains("\r\n\r\n") {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(1)); // the rest of it is on its way
    }
}
