//! Links between the members of a ZooKeeper ensemble.
//!
//! Each member has the addresses of the others in its own configuration, so every ordered pair has
//! links of its own, for data and for elections. In an election, a member announces its number and
//! address, and is called back there; a front replaces the address in that greeting, so that the
//! callback uses a link as well.

use crate::network::{Acceptor, Network, link};
use std::io::{self, Read};
use std::net::TcpStream;

/// The network between members that listen at these ports (for clients, data and elections), and a
/// row for each member with the ports at which it reaches all of them.
pub(super) fn between(members: &[[u16; 3]]) -> (Network, Vec<Vec<[u16; 3]>>) {
    let row = || members.iter().map(|[_, data, votes]| vec![link(*data), link(*votes)]).collect();
    let network = Network { links: members.iter().map(|_| row()).collect() };
    let row = || members.iter().map(|_| Acceptor::new()).collect();
    let fronts: Vec<Vec<Acceptor>> = members.iter().map(|_| row()).collect();
    let ports = |row: &Vec<Acceptor>| row.iter().map(|front| front.port).collect();
    let ports: Vec<Vec<u16>> = fronts.iter().map(ports).collect();
    for (from, row) in fronts.into_iter().enumerate() {
        for (to, front) in row.into_iter().enumerate() {
            let (way, back) = (network.links[from][to][1].address(), ports[to][from]);
            front.serve(move |caller| Ok((way, greeting(caller, back)?)));
        }
    }
    let seen = |from: usize, to: usize| {
        let data = network.links[from][to][0].address().port();
        if to == from { members[to] } else { [members[to][0], data, ports[from][to]] }
    };
    let count = members.len();
    let seen = (0..count).map(|from| (0..count).map(|to| seen(from, to)).collect()).collect();
    (network, seen)
}

/// A caller's greeting (its version, its number, and its length-prefixed address) with the address
/// replaced.
fn greeting(caller: &mut TcpStream, back: u16) -> io::Result<Vec<u8>> {
    let mut head = [0; 20];
    caller.read_exact(&mut head)?;
    let (who, length) = head.split_at(16);
    let length = u32::from_be_bytes(length.try_into().expect("four bytes"));
    io::copy(&mut caller.take(u64::from(length)), &mut io::sink())?;
    let address = format!("127.0.0.1:{back}");
    let length = u32::try_from(address.len()).expect("a small number");
    Ok([who, &length.to_be_bytes(), address.as_bytes()].concat())
}
