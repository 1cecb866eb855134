//! Replies are spoiled when that is asked for, and requests never.

use holdline_testkit::GarblingProxy;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// A server that sends back what it is sent.
fn echo() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = stream.try_clone().expect("a second handle");
                std::io::copy(&mut reader, &mut stream)
            });
        }
    });
    address
}

/// What comes back of so many zeros.
fn back(garble: &GarblingProxy, count: usize) -> Vec<u8> {
    let mut stream = TcpStream::connect(garble.address()).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("not zero");
    stream.write_all(&vec![0; count]).expect("it is there");
    stream.shutdown(std::net::Shutdown::Write).expect("it is open");
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

#[test]
fn replies_are_spoiled_only_when_asked_for() {
    let garble = GarblingProxy::to(echo(), 7).expect("a port is free");
    let mut stream = TcpStream::connect(garble.address()).expect("it listens");
    stream.write_all(&[0; 1000]).expect("it is there");
    let mut bytes = [1; 1000];
    stream.read_exact(&mut bytes).expect("all comes back");
    assert!(bytes == [0; 1000] && garble.faults() == 0);
    garble.every(50);
    let spoiled = (0..20).filter(|_| back(&garble, 1000) != [0; 1000]).count();
    assert!(spoiled > 10 && garble.faults() > 10, "{spoiled} of 20");
}
