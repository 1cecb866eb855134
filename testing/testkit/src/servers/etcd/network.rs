//! Links between the members of an etcd cluster.
//!
//! All members reach a member at the same address, so a single link in front of it could not tell
//! its callers apart. Requests between members begin with the caller's address; a front reads it
//! and uses the link between these two. Calls that do not name their caller (mostly keep-alive
//! messages of leases that a follower forwards to the leader) have a link of their own.

use crate::network::{Acceptor, Network, link};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The network between members that listen at these ports, and the ports that they advertise: their
/// fronts.
pub(super) fn between(members: &[u16]) -> (Network, Vec<u16>) {
    let row = || members.iter().map(|port| vec![link(*port)]).collect();
    let network = Network { links: (0..=members.len()).map(|_| row()).collect() };
    let fronts: Vec<Acceptor> = members.iter().map(|_| Acceptor::new()).collect();
    let ports: Vec<u16> = fronts.iter().map(|front| front.port).collect();
    for (to, front) in fronts.into_iter().enumerate() {
        let ways: Vec<SocketAddr> = network.links.iter().map(|row| row[to][0].address()).collect();
        let ports = ports.clone();
        front.serve(move |caller| {
            let from = caller_of(caller, &ports)?;
            Ok((ways[from.unwrap_or(ports.len())], Vec::new()))
        });
    }
    (network, ports)
}

/// Peeks at the head of the first request, without consuming it.
fn caller_of(caller: &TcpStream, ports: &[u16]) -> io::Result<Option<usize>> {
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
        std::thread::sleep(Duration::from_millis(1)); // the rest is on its way
    }
}
