//! Answers whose bytes were flipped and cut on the way: no panic, no hang, and no lock that the
//! servers do not have.

use holdline::store::TicketId;
use holdline::{Client, ErrorKind, Mutex, open};
use holdline_testkit::zookeeper::start;
use holdline_testkit::{GarblingProxy, soon, until};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zookeeper_client as zk;

/// Of calls that do not wait for a lock, as they are bounded unless told otherwise.
const ANSWER: Duration = Duration::from_millis(1800);
/// For the machine.
const SLACK: Duration = Duration::from_millis(1500);

/// Does something within its bound.
async fn within<T>(what: &str, bound: Duration, work: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let done = tokio::time::timeout(bound + SLACK, work).await;
    done.unwrap_or_else(|_| panic!("{what}: {:?} and not done", began.elapsed()))
}

async fn children(raw: &zk::Client, name: &str) -> Vec<String> {
    raw.list_children(&format!("/{name}")).await.unwrap_or_default()
}

/// Whether the servers have a place of this ticket.
async fn is_there(raw: &zk::Client, name: &str, id: TicketId) -> bool {
    let children = children(raw, name).await;
    let id = format!("{:032x}", id.0);
    children.iter().any(|child| child.replace('-', "").contains(&id))
}

/// Locks, tries and looks for a while. Says how many locks there were.
async fn use_it(client: &Client, raw: &zk::Client, seed: u64) -> usize {
    let (mut rng, mut locked) = (fastrand::Rng::with_seed(seed), 0);
    for _ in 0..30 {
        let name = format!("x{}", rng.u8(..3));
        let time = Duration::from_millis(rng.u64(50..800));
        let lock = Mutex::new(client, &name).lease(Duration::from_millis(1500));
        let got = match rng.u8(..3) {
            0 => within("a try", ANSWER, lock.try_lock()).await,
            _ => within("a lock", time, lock.lock_within(time)).await,
        };
        match got {
            Ok(Some(guard)) => {
                let there = is_there(raw, &name, guard.ticket()).await;
                assert!(there || !guard.is_valid(), "seed {seed}: {name} is held by nobody");
                locked += 1;
                if rng.bool() {
                    let _ = within("an unlock", Duration::from_secs(5), guard.unlock()).await;
                }
            }
            Ok(None) => {}
            Err(error) => assert_ne!(error.kind(), ErrorKind::Invalid, "{error:#}"),
        }
        let _ = within("a look", ANSWER, client.inspect(&name)).await;
    }
    locked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_survived() {
    let Some(servers) = start(1) else { return };
    let host = servers.hosts().remove(0);
    let raw = servers.raw().await;
    let (mut locked, mut faults) = (0, 0);
    for seed in 0..16 {
        let garble = GarblingProxy::to(host.as_str(), seed).expect("a port is free");
        let url = format!("zookeeper://{}?session=5", garble.address());
        let client = open(&url).await.expect("a good URL");
        garble.every([300, 800, 2000, 6000][seed as usize % 4]);
        locked += use_it(&client, &raw, seed).await;
        garble.every(0);
        faults += garble.faults();
        // A name that was spoiled in a list may have hidden a place from those who removed it. Such
        // a place is found by the session that it is on.
        for name in ["x0", "x1", "x2"] {
            let lock = Mutex::new(&client, name).lease(Duration::from_millis(1500));
            let guard = soon("a lock", lock.lock()).await.expect("the server is there");
            assert!(is_there(&raw, name, guard.ticket()).await);
            // What was spoiled before may still be in the way: then it is made up for.
            let _ = soon("an unlock", guard.unlock()).await;
        }
        soon("what was given up", client.settle()).await;
        for name in ["x0", "x1", "x2"] {
            until("nothing is left", async || children(&raw, name).await.is_empty()).await;
        }
    }
    println!("{locked} locks and {faults} faults");
    assert!(locked > 50 && faults > 100, "{locked} locks and {faults} faults");
}

/// A proxy that changes the names of places in all that the server says, as long as it is told to.
fn rename_places(server: &str) -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address").to_string();
    let renames = Arc::new(AtomicBool::new(false));
    let (server, switch) = (server.to_owned(), Arc::clone(&renames));
    // Ends with the process.
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&server) else { continue };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let requests = (client.try_clone(), server.try_clone());
            let (Ok(mut from), Ok(mut to)) = requests else { continue };
            std::thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            let switch = Arc::clone(&switch);
            std::thread::spawn(move || pass_renamed(server, client, &switch));
        }
    });
    (address, renames)
}

fn pass_renamed(mut from: TcpStream, mut to: TcpStream, renames: &AtomicBool) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let passed = &mut bytes[..count];
        if renames.load(Ordering::SeqCst) {
            for at in 0..count.saturating_sub(2) {
                if &passed[at..at + 3] == b"_c_" {
                    passed[at + 1] = b'd';
                }
            }
        }
        if to.write_all(passed).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// The answers hide from a client all that it has made: it makes more, and its releases are done,
/// for all that it can see. What is left must go all the same, though its session lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_answers_have_hidden_does_not_stay() {
    let Some(servers) = start(1) else { return };
    let (raw, other) = (servers.raw().await, servers.client().await);
    let (address, renames) = rename_places(&servers.hosts()[0]);
    let client = open(&format!("zookeeper://{address}")).await.expect("a good URL");
    // Its session lives, whatever becomes of the other lock.
    let held = Mutex::new(&client, "held").lock().await.expect("the server is there");
    let lock = Mutex::new(&client, "x");
    lock.lock().await.expect("the server is there").unlock().await.expect("held");
    renames.store(true, Ordering::SeqCst);
    assert!(!matches!(lock.lock_within(Duration::from_secs(2)).await, Ok(Some(_))));
    soon("what was given up, as far as it can see", client.settle()).await;
    renames.store(false, Ordering::SeqCst);
    assert!(!children(&raw, "x").await.is_empty(), "nothing was hidden");
    let rival = soon("a lock", Mutex::new(&other, "x").lock()).await.expect("the server is there");
    assert!(is_there(&raw, "x", rival.ticket()).await);
    rival.unlock().await.expect("held");
    until("nothing is left", async || children(&raw, "x").await.is_empty()).await;
    assert!(held.is_valid(), "its session went");
    assert!(is_there(&raw, "held", held.ticket()).await, "it was taken for one of those");
    held.unlock().await.expect("held");
}
