//! The link does what its names say: seen through a server that says everything again.

use holdline_testkit::{Link, Way};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

const BRIEF: Duration = Duration::from_millis(100);

/// A server that tells what it hears, and says it again.
fn echo() -> (SocketAddr, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, heard) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, tell) = (stream.unwrap(), tell.clone());
            thread::spawn(move || {
                let mut bytes = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    let _ = tell.send(bytes[..count].to_vec());
                    let _ = stream.write_all(&bytes[..count]);
                }
            });
        }
    });
    (address, heard)
}

fn connect(link: &Link) -> TcpStream {
    let stream = TcpStream::connect(link.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, word: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(word)?;
    let mut answer = vec![0; word.len()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn hears_nothing(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(BRIEF)).unwrap();
    let kind = stream.read(&mut [0; 16]).unwrap_err().kind();
    assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{kind}");
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
}

#[test]
fn a_mended_link_delivers_what_was_stalled() {
    let (server, heard) = echo();
    let link = Link::to(server).unwrap();
    let mut stream = connect(&link);
    assert_eq!(ask(&mut stream, b"one").unwrap(), b"one");
    assert_eq!(heard.recv().unwrap(), b"one");

    link.stall(Way::Replies);
    stream.write_all(b"two").unwrap();
    assert_eq!(heard.recv().unwrap(), b"two", "the server still hears");
    hears_nothing(&mut stream);

    link.stall(Way::Requests);
    stream.write_all(b"three").unwrap();
    assert!(heard.recv_timeout(BRIEF).is_err(), "now it does not");
    link.mend();
    assert_eq!(heard.recv().unwrap(), b"three");
    let mut answers = [0; 8];
    stream.read_exact(&mut answers).unwrap();
    assert_eq!(&answers, b"twothree");
}

#[test]
fn a_delay_adds_up_to_a_round_trip_and_does_not_queue() {
    let (server, _heard) = echo();
    let link = Link::to(server).unwrap();
    let mut stream = connect(&link);
    ask(&mut stream, b"warm").unwrap();
    link.delay(Duration::from_millis(50));
    let begun = Instant::now();
    for _ in 0..20 {
        stream.write_all(b"x").unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    stream.read_exact(&mut [0; 20]).unwrap();
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(100), "{took:?}");
    // One behind another they would take 2 s.
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_cut_link_closes_and_refuses_until_it_is_mended() {
    let (server, _heard) = echo();
    let link = Link::to(server).unwrap();
    let mut stream = connect(&link);
    ask(&mut stream, b"x").unwrap();
    assert_eq!(link.open(), 1);
    link.cut();
    assert!(ask(&mut stream, b"y").is_err());
    let refused = TcpStream::connect(link.address()).and_then(|mut stream| ask(&mut stream, b"z"));
    assert!(refused.is_err());
    link.mend();
    assert!(ask(&mut stream, b"y").is_err(), "what was cut stays cut");
    ask(&mut connect(&link), b"z").unwrap();

    let mut stream = connect(&link);
    ask(&mut stream, b"x").unwrap();
    link.reset();
    assert!(ask(&mut stream, b"y").is_err());
    ask(&mut connect(&link), b"z").unwrap();
}

#[test]
fn a_lost_reply_was_acted_upon() {
    let (server, heard) = echo();
    let link = Link::to(server).unwrap();
    let mut stream = connect(&link);
    ask(&mut stream, b"one").unwrap();
    heard.recv().unwrap();
    link.lose_next_reply();
    assert_eq!(link.replies_to_lose(), 1);
    assert!(ask(&mut stream, b"two").is_err());
    assert_eq!(heard.recv().unwrap(), b"two");
    assert_eq!(link.replies_to_lose(), 0);
    ask(&mut connect(&link), b"three").unwrap();
}
