//! Locks shared with Go's client, which `etcdctl` is.

use holdline::{Election, Mutex};
use holdline_testkit::etcd::{Servers, start};
use holdline_testkit::{soon, until};
use std::process::{Child, Stdio};
use std::time::Duration;

/// `etcdctl lock` or `elect`, for as long as this lives.
struct Go(Child);

impl Go {
    fn start(servers: &Servers, arguments: &[&str]) -> Go {
        let mut command = servers.ctl();
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        Go(command.spawn().expect("etcdctl runs"))
    }

    /// The first line that it prints, which it does when it holds.
    fn first_line(&mut self) -> String {
        use std::io::BufRead;
        let out = self.0.stdout.take().expect("it is piped");
        let mut line = String::new();
        std::io::BufReader::new(out).read_line(&mut line).expect("text");
        line.trim().to_owned()
    }

    fn is_done(&mut self) -> bool {
        self.0.try_wait().expect("it can be asked").is_some()
    }

    fn interrupt(&mut self) {
        let pid = i32::try_from(self.0.id()).expect("a small number");
        let pid = rustix::process::Pid::from_raw(pid).expect("not 0");
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Go {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_waits_for_us() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let guard = Mutex::new(&client, "jobs/x").lock().await.expect("it is there");
    let mut go = Go::start(&servers, &["lock", "jobs/x", "true"]);
    until("Go in the line", async || {
        client.inspect("jobs/x").await.expect("works").waiters.len() == 1
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!go.is_done(), "it did not wait");
    guard.unlock().await.expect("held");
    until("Go has its turn", async || go.is_done()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_wait_for_go() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let mut go = Go::start(&servers, &["lock", "x"]);
    assert!(go.first_line().starts_with("x/"));
    let lock = Mutex::new(&client, "x");
    assert!(lock.try_lock().await.expect("it is there").is_none());
    let waiting = lock.clone();
    let waiting = tokio::spawn(async move { waiting.lock().await });
    until("us in the line", async || client.inspect("x").await.expect("works").waiters.len() == 1)
        .await;
    assert!(!waiting.is_finished());
    let holder = client.inspect("x").await.expect("works").holders.remove(0);
    go.interrupt();
    let guard = soon("our turn", waiting).await.expect("no panic").expect("it is there");
    assert!(guard.token() > holder.token);
    guard.unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_unlock_removes_go() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let mut go = Go::start(&servers, &["lock", "x"]);
    assert!(!go.first_line().is_empty());
    let holder = client.inspect("x").await.expect("works").holders.remove(0);
    let token = client.force_unlock("x", holder.id, "a test").await.expect("works");
    assert!(token.expect("it was there") > holder.token);
    assert!(client.force_unlock("x", holder.id, "a test").await.expect("works").is_none());
    let guard = Mutex::new(&client, "x").try_lock().await.expect("works").expect("free");
    guard.unlock().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elections_are_seen_both_ways() {
    let Some(servers) = start(1) else { return };
    let client = servers.client().await;
    let election = Election::new(&client, "boss");
    let leader = election.campaign("rust:1").await.expect("it is there");
    let mut watch = Go::start(&servers, &["elect", "-l", "boss"]);
    assert!(watch.first_line().starts_with("boss/"));
    assert_eq!(
        servers
            .say(&[
                "get",
                "boss/",
                "--prefix",
                "--limit",
                "1",
                "--print-value-only",
                "--sort-by",
                "CREATE"
            ])
            .trim(),
        "rust:1"
    );
    leader.proclaim("rust:2").await.expect("it leads");
    let keys = servers.say(&[
        "get",
        "boss/",
        "--prefix",
        "--print-value-only",
        "--limit",
        "1",
        "--sort-by",
        "CREATE",
    ]);
    assert_eq!(keys.trim(), "rust:2");
    let mut go = Go::start(&servers, &["elect", "boss", "go:1"]);
    until("Go in the line", async || {
        client.inspect("boss").await.expect("works").waiters.len() == 1
    })
    .await;
    leader.resign().await.expect("it led");
    until("Go leads", async || {
        let leader = election.leader().await.expect("works");
        leader.is_some_and(|leader| leader.value == "go:1")
    })
    .await;
    // Interrupted before it has read its key, etcdctl leaves that to its session of a minute.
    assert!(go.first_line().starts_with("boss/"));
    go.interrupt();
    until("nobody leads", async || election.leader().await.expect("works").is_none()).await;
    assert_eq!(servers.keys(), Vec::<String>::new(), "notes go with their places");
}
