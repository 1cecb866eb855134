//! One owner for each order: servers that join, leave, and are killed, over HTTP.

use crate::support::{Example, Store, until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

struct Server {
    example: Example,
    address: String,
}

impl Server {
    /// A server that is a member.
    fn start(store: &Store) -> Self {
        let mut command = store.command(env!("CARGO_BIN_EXE_one_owner"));
        command.env("LISTEN", "127.0.0.1:0").env("PAYMENT_MS", "1");
        let example = Example::start(command);
        let address = example.says("listening on ").replace("listening on ", "");
        example.says("joined as");
        Server { example, address }
    }
}

/// Asks a server to pay an order: the status, the address in the response, and the body.
fn ask(address: &str, order: u32) -> Option<(u16, Option<String>, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("POST /orders/{order}/pay HTTP/1.1\r\nhost: x\r\n");
    write!(stream, "{request}connection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let location = head.lines().find_map(|line| line.strip_prefix("location: http://"));
    let there = location.and_then(|url| url.split('/').next()).map(str::to_owned);
    Some((status, there, body.to_owned()))
}

/// Pays an order, starting at this server. Returns which server paid it, and its epoch. `None` if
/// the request must be repeated: while members come and go, two may redirect it to each other.
fn pay(first: &str, order: u32) -> Option<(String, u64)> {
    let mut at = first.to_owned();
    for _ in 0..3 {
        match ask(&at, order)? {
            (200, _, body) => {
                let words: Vec<&str> = body.split_whitespace().collect();
                assert_eq!(words[..5], ["order", &order.to_string(), "is", "paid", "by"], "{body}");
                return Some((words[5].to_owned(), words[8].parse().expect("an epoch")));
            }
            (307, there, _) => at = there.expect("it says where"),
            (503, ..) => return None,
            (status, _, body) => panic!("{status}: {body}"),
        }
    }
    None
}

/// The server that pays each order, whichever is asked.
fn owners(servers: &[&Server]) -> BTreeMap<u32, (String, u64)> {
    let orders = (0..12).map(|order| {
        let first = &servers[order as usize % servers.len()].address;
        let paid = until("the order is paid", || pay(first, order));
        for server in servers {
            let again = until("the order is paid again", || pay(&server.address, order));
            assert_eq!(again.0, paid.0, "order {order} went to another server");
        }
        (order, paid)
    });
    orders.collect()
}

fn has(owners: &BTreeMap<u32, (String, u64)>, server: &Server) -> bool {
    owners.values().any(|(owner, _)| *owner == server.address)
}

#[test]
fn each_order_goes_to_one_server_while_servers_join_leave_and_die() {
    for store in Store::file_and("HOLDLINE_TEST_REDIS", "?prefix=examples-owner-") {
        let (one, mut two) = (Server::start(&store), Server::start(&store));
        let before = owners(&[&one, &two]);
        let three = Server::start(&store);
        let joined = owners(&[&one, &two, &three]);
        for (order, (owner, epoch)) in &joined {
            let (earlier, last) = &before[order];
            assert!(owner == earlier || *owner == three.address, "order {order} moved for nothing");
            assert!(owner == earlier || epoch > last, "order {order}: {epoch} came after {last}");
        }

        // The orders of a server move to the others when it leaves, and when it is killed.
        two.example.signal(Signal::TERM);
        two.example.says("left the group");
        assert_eq!(two.example.exit_code(), Some(0));
        let left = owners(&[&one, &three]);
        assert!(!has(&left, &two));
        three.example.signal(Signal::KILL);
        let alone = owners(&[&one]);
        assert!(alone.values().all(|(owner, _)| *owner == one.address));
        for (order, (owner, epoch)) in &alone {
            let (earlier, last) = &left[order];
            assert!(owner == earlier || epoch > last, "order {order}: {epoch} came after {last}");
        }
    }
}
