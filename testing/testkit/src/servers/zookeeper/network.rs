//! The network between the members of an ensemble, so that a test can cut one of them off.
//!
//! Each member is told by its own configuration where the others are, so every ordered pair has
//! links of its own: for data, and for elections. In an election a member says who it is and where
//! *it* can be reached, and is called back there; a front puts another address into that greeting,
//! so that the call comes back over a link as well.

use crate::link::{Link, Way, splice};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// The links between the members.
#[derive(Debug)]
pub struct Network {
    /// From (row) and to (column): for data, and for elections.
    links: Vec<Vec<[Link; 2]>>,
    /// Where each (row) finds each other (column) for elections.
    fronts: Vec<Vec<u16>>,
}

impl Network {
    /// Between members that listen at these ports: for clients, data and elections.
    pub(super) fn to(members: &[[u16; 3]]) -> Self {
        let link = |port| Link::to(("127.0.0.1", port)).expect("a port is free");
        let row = || members.iter().map(|[_, data, votes]| [link(*data), link(*votes)]).collect();
        let links: Vec<Vec<[Link; 2]>> = members.iter().map(|_| row()).collect();
        let front = || TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let row = || members.iter().map(|_| front()).collect();
        let listeners: Vec<Vec<TcpListener>> = members.iter().map(|_| row()).collect();
        let port = |front: &TcpListener| front.local_addr().expect("it has an address").port();
        let ports = |row: &Vec<TcpListener>| row.iter().map(port).collect();
        let fronts: Vec<Vec<u16>> = listeners.iter().map(ports).collect();
        for (from, row) in listeners.into_iter().enumerate() {
            for (to, front) in row.into_iter().enumerate() {
                let (way, back) = (links[from][to][1].address(), fronts[to][from]);
                // Ends with the process.
                std::thread::spawn(move || {
                    for caller in front.incoming().flatten() {
                        std::thread::spawn(move || serve(caller, way, back));
                    }
                });
            }
        }
        Network { links, fronts }
    }

    /// The ports of all as this member sees them.
    pub(super) fn seen_by(&self, from: usize, members: &[[u16; 3]]) -> Vec<[u16; 3]> {
        let seen = |(to, own): (usize, &[u16; 3])| {
            let data = self.links[from][to][0].address().port();
            if to == from { *own } else { [own[0], data, self.fronts[from][to]] }
        };
        members.iter().enumerate().map(seen).collect()
    }

    /// Cuts a member off from the others: nothing arrives, until [`mend`](Self::mend).
    pub fn cut_off(&self, member: usize) {
        for (from, row) in self.links.iter().enumerate() {
            let cut = row.iter().enumerate().filter(|(to, _)| from == member || *to == member);
            cut.flat_map(|(_, links)| links).for_each(|link| link.stall(Way::Both));
        }
    }

    /// Everything that members say to each other takes so much longer, each way.
    pub fn delay(&self, one_way: Duration) {
        self.links.iter().flatten().flatten().for_each(|link| link.delay(one_way));
    }

    /// Ends what was done to the network.
    pub fn mend(&self) {
        self.links.iter().flatten().flatten().for_each(Link::mend);
    }
}

/// One connection for elections, whose caller is to be called back at this port.
fn serve(mut caller: TcpStream, way: SocketAddr, back: u16) -> io::Result<()> {
    let greeting = greeting(&mut caller, back)?;
    let mut member = TcpStream::connect(way)?;
    member.write_all(&greeting)?;
    splice(caller, member)
}

/// What a caller says first (its version, who it is, and its address with the length of that before
/// it), with another address.
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
