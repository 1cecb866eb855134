//! The web service: busy, lost, finished and given up, over HTTP.

use crate::support::{Example, Store, until};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::{self, JoinHandle};

/// A payment that takes so long, in milliseconds, that only a loss or a signal ends it.
const NEVER: &str = "600000";

struct Service {
    example: Example,
    address: String,
}

impl Service {
    fn start(store: &Store, payment: &str, grace: &str) -> Self {
        let mut command = store.command(env!("CARGO_BIN_EXE_web_service"));
        command.env("LISTEN", "127.0.0.1:0").env("PAYMENT_MS", payment).env("GRACE_MS", grace);
        let example = Example::start(command);
        let address = example.says("listening on ").replace("listening on ", "");
        Service { example, address }
    }

    /// Pays an order, and returns the status and the body.
    fn pay(&self, order: &str) -> JoinHandle<(u16, String)> {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let request = format!("POST /orders/{order}/pay HTTP/1.1\r\nhost: x\r\n");
        write!(stream, "{request}connection: close\r\n\r\n").expect("it reads");
        thread::spawn(move || {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("it answers");
            let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
            let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
            (status.expect("a status"), body.expect("a body"))
        })
    }
}

fn answer(request: JoinHandle<(u16, String)>) -> (u16, String) {
    until("an answer", || request.is_finished().then_some(()));
    request.join().expect("it answers")
}

#[test]
fn one_order_is_paid_once_at_a_time_and_others_do_not_wait() {
    let store = Store::file();
    let service = Service::start(&store, "1", "5000");
    let elsewhere = store.client.mutex("orders/17").lock().expect("it is free");
    let (status, body) = answer(service.pay("17"));
    assert_eq!(status, 409, "{body}");
    let (status, body) = answer(service.pay("18"));
    assert!(status == 200 && body.starts_with("order 18 is paid"), "{status} {body}");
    elsewhere.unlock().expect("it was held all the time");
    let (status, body) = answer(service.pay("17"));
    assert!(status == 200 && body.starts_with("order 17 is paid"), "{status} {body}");
    let (status, _) = answer(service.pay(&"9".repeat(600)));
    assert_eq!(status, 400, "no lock has such a name");
}

#[test]
fn a_payment_whose_lock_is_lost_is_stopped() {
    let store = Store::file();
    let service = Service::start(&store, NEVER, "5000");
    let request = service.pay("17");
    store.break_lock("orders/17", store.holder("orders/17"));
    let (status, body) = answer(request);
    assert!(status == 500 && body.contains("lost"), "{status} {body}");
}

#[test]
fn what_is_under_way_may_finish_before_the_server_stops() {
    let store = Store::file();
    let mut service = Service::start(&store, "300", NEVER);
    let request = service.pay("17");
    // On a stalled machine, the payment may be over before it is seen.
    until("it is being paid", || {
        (!store.is_free("orders/17") || request.is_finished()).then_some(())
    });
    service.example.signal(Signal::TERM);
    let (status, body) = answer(request);
    assert_eq!(status, 200, "{body}");
    service.example.says("all locks are released");
    assert_eq!(service.example.exit_code(), Some(0));
}

#[test]
fn what_takes_too_long_is_given_up_and_its_lock_released() {
    let store = Store::file();
    let mut service = Service::start(&store, NEVER, "1");
    let request = service.pay("17");
    store.holder("orders/17");
    service.example.signal(Signal::INT);
    let (status, body) = answer(request);
    assert_eq!(status, 503, "{body}");
    service.example.says("all locks are released");
    assert!(store.is_free("orders/17"));
    assert_eq!(service.example.exit_code(), Some(0));
}
