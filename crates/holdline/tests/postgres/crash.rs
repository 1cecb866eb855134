//! What a server crash can bring back, and what it cannot.

use crate::raw::{Raw, ticket};
use crate::server::{one, private};
use holdline::store::Standing;
use holdline_testkit::{soon, until};

/// Asynchronous commits are written when the WAL writer wakes: never, in these tests.
async fn stop_wal_writer(server: &crate::server::Server) {
    let sql = server.sql().await;
    // One that is stopped while it writes keeps all others from writing. So it gets nothing to
    // write: what the schema's installation has left is written first.
    let write = "SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'x', 'x')";
    sql.batch_execute(write).await.expect("works");
    let idle = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'walwriter' \
                AND wait_event = 'WalWriterMain' \
                AND pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()";
    until("it has nothing to write", async || one(&sql, idle, &[]).await).await;
    let find = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'";
    let pid: i32 = one(&sql, find, &[]).await;
    let pid = rustix::process::Pid::from_raw(pid).expect("no zero");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("it is ours");
}

/// The commit of a leave is not waited for. After a crash the place is back, and the next ticket,
/// which was told that it holds, waits again. There are never two holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_left_comes_back_and_the_next_waits_again() {
    let Some(mut server) = private("comes_back", &["wal_writer_delay=10s"]) else { return };
    let raw = Raw::open(&server.url()).await;
    let (first, next, third) = (ticket(1, 1), ticket(1, 1), ticket(1, 1));
    stop_wal_writer(&server).await;
    raw.hold(&first).await;
    let seq = raw.queue(&next).await;
    server.listened_to().await;
    assert!(raw.leave(&first).await);
    // It may also be woken by the new connection, and must then ask, with a look, because a write
    // would make the departure durable.
    let told = soon("the notice", raw.store.watch(&raw.line, next.id)).await.expect("works");
    assert!(told.is_none_or(|told| told == seq));
    let holders = async || {
        let places = raw.seen().await.places.into_iter();
        places.filter(|place| place.admitted).map(|place| place.id).collect::<Vec<_>>()
    };
    assert_eq!(holders().await, [next.id], "it holds, as far as anybody knows");
    server.kill();
    server.start();
    let waits = |standing| matches!(standing, Standing::Waiting { seq: Some(_), .. });
    until("the server is back", async || raw.keep(&next, seq).await.is_ok()).await;
    assert!(waits(raw.keep(&next, seq).await.expect("works")), "it waits again");
    raw.queue(&third).await;
    assert_eq!(holders().await, [first.id], "and nobody but the first holds");
    assert!(raw.leave(&first).await, "as the end of its lease would, it lets the next in");
    assert_eq!(raw.keep(&next, seq).await.expect("works"), Standing::Admitted(seq));
    assert!(waits(raw.keep(&third, raw.seen().await.places[1].seq).await.expect("works")));
}

/// A renewal of the next ticket, whose commit is waited for, makes the earlier departure durable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_renewed_after_it_lasts() {
    let Some(mut server) = private("lasts", &["wal_writer_delay=10s"]) else { return };
    let raw = Raw::open(&server.url()).await;
    let (first, next) = (ticket(1, 1), ticket(1, 1));
    stop_wal_writer(&server).await;
    let gone = raw.hold(&first).await;
    let seq = raw.queue(&next).await;
    assert!(raw.leave(&first).await);
    assert_eq!(raw.keep(&next, seq).await.expect("works"), Standing::Admitted(seq));
    server.kill();
    server.start();
    until("the server is back", async || raw.keep(&next, seq).await.is_ok()).await;
    assert_eq!(raw.keep(&next, seq).await.expect("works"), Standing::Admitted(seq));
    assert_eq!(raw.keep(&first, gone).await.expect("works"), Standing::Lost);
}

/// A role with asynchronous commits still waits for those of locks and of removals by force: the
/// token of such a removal must stay above the removed holder's.
#[tokio::test]
async fn a_lock_is_waited_for_whatever_the_server_is_set_to() {
    let settings = ["wal_writer_delay=10s", "synchronous_commit=off"];
    let Some(mut server) = private("waited_for", &settings) else { return };
    let raw = Raw::open(&server.url()).await;
    let (mine, removed) = (ticket(1, 2), ticket(1, 2));
    stop_wal_writer(&server).await;
    let removed_at = raw.hold(&removed).await;
    let seq = raw.hold(&mine).await;
    server.kill();
    server.start();
    until("the server is back", async || raw.keep(&mine, seq).await.is_ok()).await;
    assert_eq!(raw.keep(&mine, seq).await.expect("works"), Standing::Admitted(seq));
    stop_wal_writer(&server).await;
    raw.store.evict(&raw.line, removed.id, "why").await.expect("works").expect("it held");
    server.kill();
    server.start();
    until("the server is back", async || raw.keep(&mine, seq).await.is_ok()).await;
    assert_eq!(raw.keep(&removed, removed_at).await.expect("works"), Standing::Lost);
}
