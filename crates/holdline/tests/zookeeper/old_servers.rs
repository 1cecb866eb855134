//! Servers before 3.6, played by a proxy: they refuse a request that they do not know ahead of the
//! answers to earlier ones, and close the connection.

use holdline::{Mutex, open};
use holdline_testkit::zookeeper::start;
use holdline_testkit::{persist, until};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex as AsyncMutex;

/// The request for a session's nodes, and the answer of servers that do not know it.
const GET_EPHEMERALS: i32 = 103;
const UNIMPLEMENTED: i32 = -6;
/// How late all other answers come, so that earlier requests are unanswered.
const LATE: Duration = Duration::from_millis(20);

type Caller = Arc<AsyncMutex<OwnedWriteHalf>>;

/// Opens a port that leads to a server which seems to be old. Counts what it has refused.
async fn age(server: String) -> io::Result<(SocketAddr, Arc<AtomicU32>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, refused) = (listener.local_addr()?, Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&refused);
    tokio::spawn(async move {
        while let Ok((caller, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&server).await else { continue };
            let (requests, caller) = caller.into_split();
            let (answers, server) = server.into_split();
            let caller = Arc::new(AsyncMutex::new(caller));
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                tokio::select! {
                    _ = pass_on(requests, server, &caller, &count) => {}
                    _ = answer(answers, &caller) => {}
                }
            });
        }
    });
    Ok((address, refused))
}

/// Passes requests on until one is refused.
async fn pass_on(
    mut requests: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    caller: &Caller,
    refused: &AtomicU32,
) -> io::Result<()> {
    loop {
        let len = requests.read_u32().await?;
        let mut body = vec![0; len as usize];
        requests.read_exact(&mut body).await?;
        if body.len() > 8 && body[4..8] == GET_EPHEMERALS.to_be_bytes() {
            refused.fetch_add(1, Ordering::SeqCst);
            let answer = [&16_u32.to_be_bytes(), &body[..4], &[0; 8], &UNIMPLEMENTED.to_be_bytes()];
            let mut caller = caller.lock().await;
            caller.write_all(&answer.concat()).await?;
            caller.shutdown().await?;
            // Unread requests would make the system reset the connection, and discard the answer.
            return tokio::io::copy(&mut requests, &mut tokio::io::sink()).await.map(drop);
        }
        server.write_all(&[&len.to_be_bytes(), &body[..]].concat()).await?;
    }
}

async fn answer(mut answers: OwnedReadHalf, caller: &Caller) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = answers.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        tokio::time::sleep(LATE).await;
        caller.lock().await.write_all(&bytes[..count]).await?;
    }
}

/// The look for orphans costs one connection, whatever else is under way on it, and not one after
/// the other for as long as a look may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_servers_are_asked_once_for_orphans() {
    let Some(servers) = start(1) else { return };
    let (address, refused) = age(servers.hosts()[0].clone()).await.expect("a port is free");
    let client = open(&format!("zookeeper://{address}")).await.expect("a good URL");
    let busy: Vec<_> = (0..4)
        .map(|name| {
            let lock = Mutex::new(&client, format!("lock {name}"));
            tokio::spawn(async move {
                loop {
                    // If the connection breaks at it, the release goes on in the background.
                    let _ = persist(lock.clone()).await.unlock().await;
                }
            })
        })
        .collect();
    until("a look", async || refused.load(Ordering::SeqCst) > 0).await;
    tokio::time::sleep(Duration::from_secs(3)).await; // a look lasts for 2 s at most
    assert_eq!(refused.load(Ordering::SeqCst), 1, "looks that broke a connection");
    for task in busy {
        assert!(!task.is_finished());
        task.abort();
    }
}
