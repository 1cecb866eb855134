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

/// Sends a request to a URL, which is given without its scheme. Returns the status, the URL in the
/// response, and the body.
fn ask(url: &str) -> Option<(u16, Option<String>, String)> {
    let (address, path) = url.split_once('/').expect("a URL with a path");
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("POST /{path} HTTP/1.1\r\nhost: x\r\n");
    write!(stream, "{request}connection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let location = head.lines().find_map(|line| line.strip_prefix("location: http://"));
    Some((status, location.map(str::to_owned), body.to_owned()))
}

/// Pays an order, starting at this server.
fn pay(first: &str, order: u32) -> Option<(String, u64)> {
    pay_encoded(first, &order.to_string(), &order.to_string())
}

/// Pays an order that is written in URLs as `encoded`. Returns which server paid it, and its epoch.
/// `None` if the request must be repeated: while members come and go, two may redirect it to each
/// other.
fn pay_encoded(first: &str, encoded: &str, order: &str) -> Option<(String, u64)> {
    let mut at = format!("{first}/orders/{encoded}/pay");
    for _ in 0..3 {
        match ask(&at)? {
            (200, _, body) => {
                let words: Vec<&str> = body.split_whitespace().collect();
                assert_eq!(words[..5], ["order", order, "is", "paid", "by"], "{body}");
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

/// Each order is asked for at both servers, one of which is not its owner.
#[test]
fn an_order_with_any_characters_is_redirected() {
    let store = Store::file();
    let servers = [Server::start(&store), Server::start(&store)];
    for (encoded, order) in [("17%3Fx", "17?x"), ("a%2Fb", "a/b"), ("%C3%A9", "é")] {
        let paid = servers.each_ref().map(|server| {
            until("the order is paid", || pay_encoded(&server.address, encoded, order))
        });
        assert_eq!(paid[0].0, paid[1].0, "{order}");
    }
}
