//! Servers that speak the protocol of Redis, and say what a test wants.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// A server that answers each command with what `reply` makes of its words. Returns its port.
pub(crate) fn server(reply: impl Fn(&[&str]) -> String + Send + Sync + 'static) -> u16 {
    server_of_connections(move |_, words| reply(words))
}

/// The same; `reply` also learns on which connection, counted from 0, a command came.
pub(crate) fn server_of_connections(
    reply: impl Fn(usize, &[&str]) -> String + Send + Sync + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let port = listener.local_addr().expect("it has one").port();
    let reply = Arc::new(reply);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let reply = Arc::clone(&reply);
            thread::spawn(move || serve(stream, &|words| reply(number, words)));
        }
    });
    port
}

fn serve(mut stream: TcpStream, reply: &dyn Fn(&[&str]) -> String) {
    let mut asked = BufReader::new(stream.try_clone().expect("it is open"));
    while let Some(words) = command(&mut asked) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if stream.write_all(reply(&words).as_bytes()).is_err() {
            return;
        }
    }
}

/// The words of the next command on a connection.
fn command(from: &mut impl BufRead) -> Option<Vec<String>> {
    let number = |from: &mut dyn BufRead| {
        let mut text = String::new();
        from.read_line(&mut text).ok()?;
        text.get(1..)?.trim().parse::<usize>().ok()
    };
    let count = number(from)?;
    (0..count)
        .map(|_| {
            let mut word = vec![0; number(from)? + 2];
            from.read_exact(&mut word).ok()?;
            word.truncate(word.len() - 2);
            Some(String::from_utf8_lossy(&word).into_owned())
        })
        .collect()
}
