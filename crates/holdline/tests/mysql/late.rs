//! Requests that the server carries out late, when their clients have long asked again.

use crate::server::{databases, first};
use holdline::{Mutex, open};
use holdline_testkit::until;
use mysql_async::prelude::Queryable;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex as Cell};
use std::thread;
use std::time::Duration;

/// A proxy that can keep a statement back, and closes its connection then.
struct Keeping {
    address: SocketAddr,
    state: Arc<Cell<State>>,
}

#[derive(Default)]
struct State {
    /// A part of the statement to be kept back.
    wanted: Option<&'static str>,
    kept: Option<String>,
}

impl Keeping {
    fn to(server: &str) -> Keeping {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it has one");
        let (server, state) = (server.to_owned(), Arc::<Cell<State>>::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(&*server).expect("it listens");
                let state = Arc::clone(&shared);
                thread::spawn(move || pass_on(&state, &client, &server));
            }
        });
        Keeping { address, state }
    }

    /// Keeps the next statement back that contains this.
    fn keep_next(&self, wanted: &'static str) {
        self.state.lock().expect("no panic").wanted = Some(wanted);
    }

    /// The statement that was kept back.
    fn kept(&self) -> String {
        self.state.lock().expect("no panic").kept.take().expect("a statement was kept back")
    }
}

fn pass_on(state: &Cell<State>, mut client: &TcpStream, mut server: &TcpStream) {
    let mut replies = server.try_clone().expect("it is open");
    let mut back = client.try_clone().expect("it is open");
    thread::spawn(move || {
        let _ = std::io::copy(&mut replies, &mut back);
        let _ = back.shutdown(Shutdown::Both);
    });
    let mut bytes = vec![0; 65536];
    while let Ok(size @ 1..) = client.read(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..size]);
        let mut state = state.lock().expect("no panic");
        if let Some(at) = state.wanted.and_then(|wanted| text.find(wanted)) {
            state.wanted = None;
            state.kept = Some(text[at..].to_owned());
            break;
        }
        drop(state);
        if server.write_all(&bytes[..size]).is_err() {
            break;
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

/// A record that comes late is that of a session which has ended, and replaces no other. The next
/// holder would be told that its lock is lost; and who breaks the lock that the record shows would
/// end the session of another lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_comes_late_is_not_made() {
    for database in databases("late_record").await {
        for scheme in ["row", "named"] {
            let url = database.url(&format!("&scheme={scheme}"));
            let host = url.split(['@', '/']).nth(3).expect("there is one");
            let proxy = Keeping::to(host);
            let over = open(&url.replace(host, &proxy.address.to_string())).await.expect("opens");
            let lock = Mutex::new(&over, "x");
            lock.lock().await.expect("works").unlock().await.expect("held"); // makes the line
            proxy.keep_next("UPDATE holdline_line SET expires");
            lock.lock().await.expect("asked again").unlock().await.expect("held");
            let direct = open(&url).await.expect("opens");
            let lock = Mutex::new(&direct, "x").lease(Duration::from_secs(600));
            let guard = lock.lock().await.expect("works");
            let mut conn = database.conn().await;
            let late = proxy.kept();
            let (_, session) = late.rsplit_once("IS_USED_LOCK").expect("it names its session");
            let session = format!("SELECT IS_USED_LOCK{}", session.replace(" IS NOT NULL", ""));
            until("its session has ended", async || {
                first::<Option<u64>>(&mut conn, &session).await.is_none()
            })
            .await;
            conn.query_drop(late).await.expect("works");
            let holders = direct.inspect("x").await.expect("works").holders;
            let ids: Vec<_> = holders.iter().map(|holder| holder.id).collect();
            assert_eq!(ids, [guard.ticket()], "{scheme}");
            guard.extend(Duration::from_secs(900)).await.expect("it is still held");
            guard.unlock().await.expect("held");
        }
    }
}
