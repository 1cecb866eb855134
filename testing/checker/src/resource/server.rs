//! The resource as a process: one thread, one datagram socket.
//!
//! Datagrams keep requests whole and let one thread serve all clients: no client, however it is
//! stopped or killed, can make the server wait in the middle of a message.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use super::{Reply, Request, Resource};
use crate::writer::Writer;

/// The longest request; real ones are far shorter.
const LONGEST: usize = 64 * 1024;

/// A server of the guarded resource, bound to a path.
#[derive(Debug)]
pub struct Server {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Server {
    /// Binds the socket. A file left there by a killed server is replaced.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self { socket: UnixDatagram::bind(path)?, path: path.to_owned() })
    }

    /// Serves until a client asks to stop, then writes the dump.
    ///
    /// Every request is in the history before its answer is sent.
    pub fn run(&self, history: &Writer) -> io::Result<()> {
        let mut resource = Resource::new();
        let mut buffer = vec![0; LONGEST];
        loop {
            let (length, from) = self.socket.recv_from(&mut buffer)?;
            // An invalid request comes from no client that waits for an answer.
            let Ok(request) = serde_json::from_slice::<Request>(&buffer[..length]) else {
                continue;
            };
            let (reply, event) = resource.serve(history.next_n(), &request);
            if let Some(event) = event {
                history.write(event)?;
            }
            if request == Request::Stop {
                for event in resource.dump(history.next_n()) {
                    history.write(event)?;
                }
            }
            self.answer(&from, reply)?;
            if request == Request::Stop {
                return Ok(());
            }
        }
    }

    fn answer(&self, to: &SocketAddr, reply: Reply) -> io::Result<()> {
        let Some(path) = to.as_pathname() else { return Ok(()) };
        let answer = serde_json::to_vec(&reply)?;
        // A killed client no longer has a socket.
        _ = self.socket.send_to(&answer, path);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.path);
    }
}
