//! Private Redis servers, to which a test may do anything.

use super::sentinel::watchers_of;
use super::{node, url};
use crate::ports::{free_cluster_port, free_port};
use crate::wall_clock::{CC, SOURCE};
use crate::{Deployment, Folder, Node, Private, Probe, Program};
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;

/// A Redis server, private or shared. To a private one, a test may do whatever [`crate::Server`]
/// allows; it ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    url: String,
    own: Option<Own>,
}

#[derive(Debug)]
struct Own {
    server: crate::Server,
    /// The last server of a group to be dropped removes the data of all.
    _folder: Arc<Folder>,
}

/// The shared server of `HOLDLINE_TEST_REDIS`, or else a private one; `None` if there is neither,
/// which is noted by [`crate::missing()`].
pub fn start(name: &str) -> Option<Server> {
    match std::env::var(super::SINGLE.env) {
        Ok(url) => Some(Server { url, own: None }),
        Err(_) => private(name, &[]),
    }
}

/// A private server with these additional arguments, and its folder of this name.
pub fn private(name: &str, args: &[&str]) -> Option<Server> {
    one(name, |port| of_test(port).args(args.iter().copied()))
}

/// Independent private servers with these arguments; more than one are a quorum.
pub fn several(count: usize, args: &[&str]) -> Option<Private> {
    Private::launch("redis", || {
        let ports = free_ports(count);
        let named = (1..).zip(&ports).map(|(at, port)| node(format!("redis-{at}"), *port));
        let nodes = named.map(|node| node.args(args.iter().copied())).collect();
        Deployment::new(super::quorum(&ports), nodes)
    })
}

/// A private server whose wall clock the test may move, by [`Server::shift`]. Needs a C compiler.
pub fn shifted(name: &str) -> Option<Server> {
    let compile = ["-shared", "-fPIC", "-O1", "-o", "{dir}/wallshift.so", "{dir}/wallshift.c"];
    let no_shift = ["if=/dev/zero", "of={dir}/shift", "bs=8", "count=1"];
    one(name, |port| {
        of_test(port)
            .file("wallshift.c", SOURCE)
            .before(&CC, compile)
            .before(&DD, no_shift)
            .variable("LD_PRELOAD", "{dir}/wallshift.so")
            .variable("WALLSHIFT", "{dir}/shift")
    })
}

const DD: Program = Program::new("dd", "coreutils", "install coreutils");

/// A primary, its replica, three sentinels that know both, and the URL of all that.
pub fn behind_sentinels() -> Option<(Server, Server, Vec<Server>, String)> {
    let describe = || super::sentinel::deployment(&free_ports(5), QUICK);
    let (servers, url) = group("sentinel", describe)?;
    let mut servers = servers.into_iter();
    Some((servers.next()?, servers.next()?, servers.collect(), url))
}

/// Three sentinels that watch the primary on this port and know its one replica, and the URL.
pub fn sentinels(primary: u16) -> Option<(Vec<Server>, String)> {
    group("sentinels", || watchers_of(primary, &free_ports(3), QUICK))
}

/// The milliseconds until sentinels consider a primary down, and another's failover failed.
const QUICK: [u32; 2] = [500, 3000];

/// A cluster of three primaries that is ready to serve.
pub fn cluster() -> Option<Vec<Server>> {
    cluster_with(&[])
}

/// The same, with these additional arguments for its servers.
pub fn cluster_with(args: &[&str]) -> Option<Vec<Server>> {
    let describe = || {
        let ports: Vec<u16> = (0..3).map(|_| free_cluster_port()).collect();
        super::cluster::three(&ports, args)
    };
    group("cluster", describe).map(|(servers, _)| servers)
}

fn free_ports(count: usize) -> Vec<u16> {
    (0..count).map(|_| free_port()).collect()
}

/// A server for a test, which also has a socket, and may need a password.
fn of_test(port: u16) -> Node {
    node("redis", port).args(["--unixsocket", "{dir}/socket"]).up(port, Probe::RedisLoaded)
}

fn one(name: &str, node: impl Fn(u16) -> Node) -> Option<Server> {
    group(name, || Deployment::new("", vec![node(free_port())]))?.0.pop()
}

fn group(name: &str, describe: impl Fn() -> Deployment) -> Option<(Vec<Server>, String)> {
    let Private { url: whole, servers, folder, .. } = Private::launch(name, describe)?;
    let folder = Arc::new(folder);
    let own = |server: crate::Server| {
        let url = url(server.port());
        Server { url, own: Some(Own { server, _folder: Arc::clone(&folder) }) }
    };
    Some((servers.into_iter().map(own).collect(), whole))
}

impl Server {
    /// The URL for the store.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The Unix socket on which it also listens.
    pub fn socket(&self) -> PathBuf {
        self.dir().join("socket")
    }

    /// Removes its data while it is not running.
    pub fn forget(&self) {
        let _ = std::fs::remove_dir_all(self.dir().join("appendonlydir"));
        let _ = std::fs::remove_file(self.dir().join("dump.rdb"));
    }

    /// Restarts it with its data.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self) {
        crate::Server::restart(self).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[cfg(feature = "library")]
impl Server {
    /// A client of the library, with these options after the URL, such as `?scheme=redisson`.
    ///
    /// # Panics
    ///
    /// If the server refuses it, or the library was built without Redis.
    pub async fn open(&self, options: &str) -> holdline::Client {
        holdline::open(&format!("{}{options}", self.url())).await.expect("the server takes us")
    }
}

/// Methods that use the Redis client library.
#[cfg(feature = "redis")]
impl Server {
    /// A client separate from the store's.
    ///
    /// # Panics
    ///
    /// If `HOLDLINE_TEST_REDIS` is no URL of a Redis server.
    pub fn client(&self) -> ::redis::Client {
        ::redis::Client::open(self.url()).expect("a good URL")
    }

    /// A connection separate from the store's.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub fn conn(&self) -> ::redis::Connection {
        self.client().get_connection().expect("it runs")
    }

    /// The reply to a command. For a second, it is sent again if the server closes the connection:
    /// a server that becomes a replica closes those of all its clients.
    ///
    /// # Panics
    ///
    /// If the reply is an error.
    pub fn query<T: ::redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = ::redis::cmd(words[0]);
        command.arg(&words[1..]);
        let ask = || command.query(&mut self.client().get_connection()?);
        let mut reply = ask();
        for _ in 0..20 {
            match reply {
                Err(error) if error.is_io_error() => {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    reply = ask();
                }
                other => return other.expect("the server takes it"),
            }
        }
        reply.expect("the server takes it")
    }

    /// Sets its wall clock this many seconds ahead of the machine's, or behind. Only for
    /// [`shifted`].
    ///
    /// # Panics
    ///
    /// If the clock was not moved.
    pub fn shift(&self, seconds: i64) {
        use std::io::Write;
        // Written in place, because the server has mapped the file.
        let file = std::fs::OpenOptions::new().write(true).open(self.dir().join("shift"));
        let micros = (seconds * 1_000_000).to_ne_bytes();
        file.and_then(|mut file| file.write_all(&micros)).expect("there is room");
        let shown: Vec<String> = self.query(&["TIME"]);
        let shown: i64 = shown[0].parse().expect("seconds");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.expect("after 1970").as_secs().cast_signed();
        assert!((shown - now - seconds).abs() <= 2, "the clock was moved: {shown} at {now}");
    }
}

impl Deref for Server {
    type Target = crate::Server;

    fn deref(&self) -> &crate::Server {
        &self.own.as_ref().expect("a private server").server
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut crate::Server {
        &mut self.own.as_mut().expect("a private server").server
    }
}
