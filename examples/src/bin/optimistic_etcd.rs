//! An update without a lock, in etcd: a transaction that writes only if the key's `mod_revision` is
//! still the one that was read. etcd keeps that version itself.
//!
//! `cargo run -p holdline-examples --bin optimistic_etcd -- 127.0.0.1:2379`
//!
//! This uses etcd's JSON over HTTP, to show the whole transaction. A client of etcd needs less
//! code.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use holdline::Backoff;
use serde_json::{Value, json};
use std::env;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

/// Pauses between attempts: random, so that clients that collided do not collide again.
const PAUSES: Backoff =
    Backoff::exponential(Duration::from_millis(1), Duration::from_millis(50)).jitter(100);

/// Sells one, and returns the number of attempts; `None` if there are none left.
fn sell(etcd: &str, key: &str) -> Result<Option<u32>> {
    for tries in 1.. {
        let read = ask(etcd, "range", &json!({ "key": text(key) }))?;
        let found = &read["kvs"][0];
        let stock: u64 = number(&found["value"]).ok_or(ErrorKind::NotFound)?;
        if stock == 0 {
            return Ok(None);
        }
        // The slow part goes here. It may be done in vain, so it must have no effects.
        let left = (stock - 1).to_string();
        let write = json!({
            "compare": [{
                "key": text(key), "target": "MOD", "result": "EQUAL",
                "mod_revision": found["mod_revision"],
            }],
            "success": [{ "request_put": { "key": text(key), "value": text(&left) } }],
        });
        // etcd omits false values.
        if ask(etcd, "txn", &write)?["succeeded"] == true {
            return Ok(Some(tries));
        }
        thread::sleep(PAUSES.pause(tries - 1, fastrand::u64(..)));
    }
    unreachable!("it is tried until it succeeds")
}

/// Bytes are base64 in etcd's JSON.
fn text(bytes: &str) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn number(value: &Value) -> Option<u64> {
    let bytes = BASE64_STANDARD.decode(value.as_str()?).ok()?;
    String::from_utf8(bytes).ok()?.parse().ok()
}

fn ask(etcd: &str, what: &str, question: &Value) -> Result<Value> {
    let (body, mut stream) = (question.to_string(), TcpStream::connect(etcd)?);
    write!(
        stream,
        "POST /v3/kv/{what} HTTP/1.0\r\nHost: {etcd}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(ErrorKind::UnexpectedEof)?;
    if head.split(' ').nth(1) != Some("200") {
        return Err(Error::other(format!("etcd said: {body}")));
    }
    Ok(serde_json::from_str(body)?)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let etcd = env::args().nth(1).ok_or("usage: optimistic_etcd HOST:PORT [KEY]")?;
    let key = env::args().nth(2).unwrap_or_else(|| "inventory/s101".to_owned());
    ask(&etcd, "put", &json!({ "key": text(&key), "value": text("100") }))?;
    let sellers: Vec<_> = (0..8)
        .map(|_| {
            let (etcd, key) = (etcd.clone(), key.clone());
            thread::spawn(move || -> Result<(u32, u32)> {
                let (mut sold, mut tries) = (0, 0);
                while let Some(more) = sell(&etcd, &key)? {
                    (sold, tries) = (sold + 1, tries + more);
                }
                Ok((sold, tries))
            })
        })
        .collect();
    let (mut sold, mut tries) = (0, 0);
    for seller in sellers {
        let (one, more) = seller.join().expect("no thread panics")?;
        (sold, tries) = (sold + one, tries + more);
    }
    println!("sold {sold} in {tries} tries");
    Ok(())
}
