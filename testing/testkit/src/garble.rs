//! A fuzzing proxy: it corrupts a server's replies, for tests that a client survives them.

use crate::link::Proxy;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// A TCP proxy to one server, which flips, cuts, repeats and invents bytes of the server's replies.
/// Requests pass as they are. Dropping it closes all of its connections.
///
/// The place and kind of each fault depend only on the seed, the number of the connection and the
/// position of the byte: not on how the bytes are split into packets.
///
/// ```no_run
/// # fn main() -> std::io::Result<()> {
/// let garble = holdline_testkit::GarblingProxy::to("127.0.0.1:2181", 1)?;
/// let url = format!("zookeeper://{}", garble.address());
/// garble.every(2000); // one fault in some 2000 bytes of replies
/// garble.every(0); // from now on all bytes arrive as they were sent
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct GarblingProxy {
    address: SocketAddr,
    state: Arc<State>,
    /// An option, so that it can be shut down without waiting, also inside another runtime.
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct State {
    server: SocketAddr,
    seed: u64,
    /// The mean distance of two faults, in bytes; 0 for none.
    every: AtomicU64,
    /// The number of faults so far.
    faults: AtomicU64,
}

impl GarblingProxy {
    /// Opens a local port that leads to `server`, without faults yet.
    ///
    /// # Errors
    ///
    /// The address does not resolve, or no port or thread can be had.
    pub fn to(server: impl ToSocketAddrs, seed: u64) -> io::Result<Self> {
        let Proxy { server, address, runtime, listener } = Proxy::to(server, "garble")?;
        let (every, faults) = (AtomicU64::new(0), AtomicU64::new(0));
        let state = Arc::new(State { server, seed, every, faults });
        runtime.spawn(accept(listener, Arc::clone(&state)));
        Ok(Self { address, state, runtime: Some(runtime) })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the mean distance of faults in each connection's replies, in bytes; 0 for none.
    pub fn every(&self, bytes: u64) {
        self.state.every.store(bytes, Ordering::SeqCst);
    }

    /// The number of faults so far.
    pub fn faults(&self) -> u64 {
        self.state.faults.load(Ordering::SeqCst)
    }
}

impl Drop for GarblingProxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    for number in 0.. {
        match listener.accept().await {
            Ok((client, _)) => drop(tokio::spawn(serve(client, number, Arc::clone(&state)))),
            // Out of file descriptors, for example: retry later.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Serves one connection.
async fn serve(client: TcpStream, number: u64, state: Arc<State>) {
    let Ok(server) = TcpStream::connect(state.server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut requests, to_client) = client.into_split();
    let (replies, mut to_server) = server.into_split();
    // When the client has closed its side, the server is told, and may still answer.
    let ask = async {
        let _ = copy(&mut requests, &mut to_server).await;
        let _ = to_server.shutdown().await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = ask => {}
        () = spoil(replies, to_client, number, &state) => {}
    }
}

/// Forwards replies, with faults in them, until either end closes or a fault ends the connection.
async fn spoil(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, number: u64, state: &State) {
    let mut faults = Faults::new(state.seed, number);
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let every = state.every.load(Ordering::SeqCst);
        let mut spoiled = Vec::with_capacity(count);
        let goes_on = bytes[..count].iter().all(|byte| faults.pass(*byte, every, &mut spoiled));
        state.faults.fetch_add(std::mem::take(&mut faults.count), Ordering::SeqCst);
        if to.write_all(&spoiled).await.is_err() || !goes_on {
            return;
        }
    }
}

/// The faults of one connection.
struct Faults {
    rng: u64,
    /// The bytes until the next fault, for this mean distance.
    left: u64,
    every: u64,
    /// The bytes that are still to be skipped.
    skip: u64,
    count: u64,
}

impl Faults {
    fn new(seed: u64, number: u64) -> Self {
        let rng = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number.wrapping_mul(0xD6E8_FEB8_6659);
        Faults { rng, left: 0, every: 0, skip: 0, count: 0 }
    }

    /// The next random number (`SplitMix64`), below a limit.
    fn below(&mut self, limit: u64) -> u64 {
        self.rng = self.rng.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.rng;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// Forwards a byte, or the result of its fault. Returns false if the connection ends here.
    fn pass(&mut self, byte: u8, every: u64, to: &mut Vec<u8>) -> bool {
        if every != self.every {
            self.every = every;
            self.left = if every == 0 { 0 } else { 1 + self.below(every * 2) };
        }
        if self.skip > 0 {
            self.skip -= 1;
            return true;
        }
        self.left = self.left.saturating_sub(1);
        if every == 0 || self.left > 0 {
            to.push(byte);
            return true;
        }
        self.left = 1 + self.below(every * 2);
        self.count += 1;
        let any = |faults: &mut Self| u8::try_from(faults.below(256)).unwrap_or_default();
        match self.below(8) {
            0..3 => to.push(byte ^ (1 << self.below(8))),
            3 => to.push(any(self)),
            4 => self.skip = self.below(16),
            5 => to.extend_from_slice(&[byte, byte]),
            6 => {
                to.push(byte);
                for _ in 0..=self.below(8) {
                    let invented = any(self);
                    to.push(invented);
                }
            }
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64, every: u64) -> (Vec<u8>, u64) {
        let (mut faults, mut to) = (Faults::new(seed, 0), Vec::new());
        for at in 0..100_000_u32 {
            if !faults.pass(at.to_le_bytes()[0], every, &mut to) {
                break;
            }
        }
        (to, faults.count)
    }

    #[test]
    fn faults_depend_on_the_seed_alone() {
        let (sound, none) = run(1, 0);
        assert_eq!((sound.len(), none), (100_000, 0));
        let (spoiled, count) = run(1, 100);
        assert!(count > 0 && !sound.starts_with(&spoiled));
        assert_eq!(run(1, 100), (spoiled.clone(), count));
        assert_ne!(run(2, 100).0, spoiled);
    }

    #[test]
    fn faults_are_as_frequent_as_asked() {
        let runs = (0..200).map(|seed| run(seed, 100));
        let (bytes, count) = runs.fold((0, 0), |(bytes, count), (some, faults)| {
            (bytes + some.len() as u64, count + faults)
        });
        assert!((bytes / 130..bytes / 70).contains(&count), "{count} in {bytes}");
    }
}
