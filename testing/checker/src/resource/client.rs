//! A blocking client of the guarded resource.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Access, Reply, Request};
use crate::event::Register;

/// The time limit for an answer. The server answers at once, so this detects a dead one.
const PATIENCE: Duration = Duration::from_secs(10);

/// Distinguishes the clients of one process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A client of the guarded resource. One request at a time.
#[derive(Debug)]
pub struct Client {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Client {
    /// Connects to the server at this path. The client's own socket is beside it.
    pub fn connect(server: &Path) -> io::Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut path = server.as_os_str().to_owned();
        path.push(format!(".{}.{number}", std::process::id()));
        let path = PathBuf::from(path);
        _ = std::fs::remove_file(&path);
        let client = Self { socket: UnixDatagram::bind(&path)?, path };
        client.socket.connect(server)?;
        client.socket.set_read_timeout(Some(PATIENCE))?;
        client.socket.set_write_timeout(Some(PATIENCE))?;
        Ok(client)
    }

    /// Raises the register's mark to the token. Do this first, or a stale writer may write between
    /// your read and your write.
    pub fn open(&self, lock: &str, reg: Register, token: u64) -> io::Result<Reply> {
        self.ask(&Request::Open(access(lock, reg, token)))
    }

    /// Reads the register: its last id and its length.
    pub fn read(&self, lock: &str, reg: Register, token: u64) -> io::Result<Reply> {
        self.ask(&Request::Read(access(lock, reg, token)))
    }

    /// Writes the list back with one more id; `base` was the last id that was read.
    pub fn write(
        &self,
        lock: &str,
        reg: Register,
        token: u64,
        base: Option<u64>,
        uid: u64,
    ) -> io::Result<Reply> {
        self.ask(&Request::Write { access: access(lock, reg, token), base, uid })
    }

    /// Makes the server write its dump and exit.
    pub fn stop(&self) -> io::Result<()> {
        self.ask(&Request::Stop).map(drop)
    }

    fn ask(&self, request: &Request) -> io::Result<Reply> {
        let request = serde_json::to_vec(request)?;
        let mut buffer = [0; 1024];
        persist(|| self.socket.send(&request))?;
        let length = persist(|| self.socket.recv(&mut buffer))?;
        Ok(serde_json::from_slice(&buffer[..length])?)
    }
}

/// Repeats an interrupted call: in a process that was stopped and continued, calls with a time
/// limit are interrupted. The answer still comes, and must not be mistaken for the next one's.
fn persist<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn access(lock: &str, reg: Register, token: u64) -> Access {
    Access { lock: lock.to_owned(), reg, token }
}

impl Drop for Client {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.path);
    }
}
