//! Probes: ask a server in its own protocol whether it serves.
//!
//! Written by hand over a socket: each is a few lines, and so nothing depends on the client library
//! under test, or on `redis-cli` and `etcdctl`.

use crate::Outcome;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// The time limit for an answer; short, because a silent node is asked again.
const PATIENCE: Duration = Duration::from_millis(500);

/// The longest reply: a longer one is not from one of our servers.
const LONGEST: u64 = 1 << 20;

/// A request to a server, and the condition of a good answer.
#[derive(Clone, Copy, Debug)]
pub enum Probe {
    /// A Redis command. All the texts must be in the reply, whose parts are joined by spaces.
    Redis(&'static [&'static str], &'static [&'static str]),
    /// Redis, once it has its data: any answer will do, even the demand for a password.
    RedisLoaded,
    /// `GET /health`, which must say that it is healthy.
    Etcd,
    /// `srvr`, which must tell the node's mode; a node without a quorum tells none.
    ZooKeeper,
    /// A login as `postgres`, after which the server is ready for queries.
    Postgres,
    /// The greeting that a MySQL or MariaDB server begins with.
    Mysql,
    /// Something listens.
    Listens,
    /// A request of the server's own file, on this port; the error says what was wrong.
    Custom(fn(u16) -> Outcome<()>),
}

impl Probe {
    /// Asks the server on this port.
    ///
    /// # Errors
    ///
    /// It does not answer as it should; the message has its answer.
    pub fn ask(self, port: u16) -> Outcome<()> {
        let (answer, wanted): (String, &[&str]) = match self {
            Self::Listens => return connect(port).map(|_| ()),
            Self::Redis(command, wanted) => (redis_command(port, command)?, wanted),
            Self::RedisLoaded => {
                let answer = redis_command(port, &["PING"])?;
                return if answer.starts_with("-LOADING") { Err(answer) } else { Ok(()) };
            }
            Self::Custom(ask) => return ask(port),
            Self::Etcd => (http_get(port, "/health")?, &["\"health\":\"true\""]),
            Self::ZooKeeper => (talk(port, "srvr")?, &["Mode: "]),
            Self::Postgres => (postgres_login(port)?, &["ready for queries"]),
            Self::Mysql => (mysql_greeting(port)?, &["greeting"]),
        };
        match wanted.iter().find(|text| !answer.contains(**text)) {
            None => Ok(()),
            Some(text) => Err(format!(
                "The server on port {port} answers, but without {text:?}: {:?}.",
                answer.chars().take(300).collect::<String>()
            )),
        }
    }
}

pub(crate) fn connect(port: u16) -> Outcome<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let attempt = || {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    };
    attempt().map_err(|e: std::io::Error| format!("Nothing answers on port {port}: {e}."))
}

/// Sends one Redis command, and returns the reply's parts, each followed by a space.
pub(crate) fn redis_command(port: u16, command: &[&str]) -> Outcome<String> {
    let mut request = format!("*{}\r\n", command.len());
    for word in command {
        let _ = write!(request, "${}\r\n{word}\r\n", word.len());
    }
    let stream = connect(port)?;
    let exchange = || {
        (&stream).write_all(request.as_bytes())?;
        let mut reply = String::new();
        read_reply(&mut BufReader::new(&stream).take(LONGEST), &mut reply)?;
        Ok(reply)
    };
    exchange().map_err(|e: std::io::Error| format!("Redis on port {port} gave no reply: {e}."))
}

/// Reads one RESP2 value, with all that it contains.
fn read_reply(from: &mut impl BufRead, into: &mut String) -> std::io::Result<()> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let number = || line.get(1..).and_then(|n| n.parse::<i64>().ok()).unwrap_or(-1);
    match line.as_bytes().first() {
        Some(b'*') => {
            for _ in 0..number() {
                read_reply(from, into)?;
            }
        }
        Some(b'$') => {
            let Ok(length) = u64::try_from(number()) else { return Ok(()) };
            let mut bulk = Vec::new();
            from.take(length + 2).read_to_end(&mut bulk)?;
            into.push_str(String::from_utf8_lossy(&bulk).trim_end_matches("\r\n"));
            into.push(' ');
        }
        _ => {
            into.push_str(line.trim_start_matches(['+', ':']));
            into.push(' ');
        }
    }
    Ok(())
}

/// The answer to an HTTP request: its head and its body.
///
/// # Errors
///
/// No server answers.
pub fn http_get(port: u16, path: &str) -> Outcome<String> {
    // By HTTP/1.0 the server closes the connection after its answer.
    talk(port, &format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"))
}

/// Logs in as `postgres`, and returns whether the server was then ready for queries. A server
/// message is a letter and a length, which includes itself; `Z` is the last message of a login.
fn postgres_login(port: u16) -> Outcome<String> {
    let parameters = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
    let length = u32::try_from(parameters.len() + 4).unwrap_or(u32::MAX);
    let mut stream = connect(port)?;
    let mut exchange = || {
        stream.write_all(&[&length.to_be_bytes(), &parameters[..]].concat())?;
        loop {
            let mut head = [0; 5];
            stream.read_exact(&mut head)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            let mut body = Vec::new();
            (&stream)
                .take(u64::from(length.saturating_sub(4)).min(LONGEST))
                .read_to_end(&mut body)?;
            match head[0] {
                b'Z' => return Ok("ready for queries".to_owned()),
                b'E' => return Ok(String::from_utf8_lossy(&body).into_owned()),
                _ => {}
            }
        }
    };
    exchange().map_err(|e: std::io::Error| format!("PostgreSQL on port {port} is not up: {e}."))
}

/// A packet is three bytes of length and a number; the greeting begins with 10, its version.
fn mysql_greeting(port: u16) -> Outcome<String> {
    let mut begin = [0; 5];
    let read = connect(port)?.read_exact(&mut begin);
    read.map_err(|e| format!("The server on port {port} gave no greeting: {e}."))?;
    Ok(if begin[4] == 10 { "greeting" } else { "a refusal" }.to_owned())
}

/// Sends `request` and reads until the server closes the connection.
///
/// # Errors
///
/// No server answers.
pub fn talk(port: u16, request: &str) -> Outcome<String> {
    let mut stream = connect(port)?;
    let mut answer = Vec::new();
    stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.take(LONGEST).read_to_end(&mut answer))
        .map_err(|e| format!("The server on port {port} gave no answer: {e}."))?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn parse(bytes: &str) -> String {
        let mut reply = String::new();
        read_reply(&mut bytes.as_bytes(), &mut reply).unwrap();
        reply
    }

    /// A server that answers once, whatever it is asked, and hangs up.
    fn answer_once(answer: &'static str) -> (u16, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 256];
            assert!(stream.read(&mut asked).unwrap() > 0);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        (port, server)
    }

    #[test]
    fn replies_are_read_whole() {
        assert_eq!(parse("+PONG\r\n"), "PONG ");
        assert_eq!(parse("-ERR no\r\n"), "-ERR no ");
        assert_eq!(parse("*3\r\n$2\r\na\n\r\n:7\r\n*1\r\n$-1\r\n"), "a\n 7 ");
    }

    #[test]
    fn a_reply_cut_short_is_an_error() {
        let error = read_reply(&mut "*2\r\n:1\r\n".as_bytes(), &mut String::new()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn good_and_bad_answers_are_told_apart() {
        let cases = [
            (Probe::Redis(&["PING"], &["PONG"]), "+PONG\r\n", true),
            (Probe::Redis(&["PING"], &["PONG"]), "-LOADING\r\n", false),
            (Probe::RedisLoaded, "-NOAUTH who are you\r\n", true),
            (Probe::RedisLoaded, "-LOADING\r\n", false),
            (Probe::Etcd, "HTTP/1.0 200 OK\r\n\r\n{\"health\":\"true\"}", true),
            (Probe::Etcd, "HTTP/1.0 503 No\r\n\r\n{\"health\":\"false\"}", false),
            (Probe::ZooKeeper, "Zookeeper version: 3.8.0\nMode: leader\n", true),
            (Probe::Postgres, "R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I", true),
            (Probe::Postgres, "E\0\0\0\x0fSFATAL\0\0\0\0\0", false),
            (Probe::ZooKeeper, "This ZooKeeper instance is not currently serving", false),
        ];
        for (probe, answer, good) in cases {
            let (port, server) = answer_once(answer);
            assert_eq!(probe.ask(port).is_ok(), good, "{answer}");
            server.join().unwrap();
        }
    }

    #[test]
    fn a_greeting_is_told_from_a_refusal() {
        for (begin, good) in [(b"\x01\0\0\0\x0a", true), (b"\x01\0\0\0\xff", false)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = std::thread::spawn(move || {
                listener.accept().unwrap().0.write_all(begin).unwrap();
            });
            assert_eq!(Probe::Mysql.ask(port).is_ok(), good, "{begin:?}");
            server.join().unwrap();
        }
    }
}
