//! Leases count by the server's live clock, whatever a statement waits for.

use crate::raw::{Raw, ticket};
use crate::server::{one, private};
use holdline::store::{Enter, Standing, Ticket};
use holdline_testkit::until;
use std::time::Duration;

/// `now()` would be the start of the statement, and a lease renewed by a blocked statement would be
/// too short by the time of the wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_has_its_full_length_after_a_blocked_renewal() {
    let Some(server) = private("full_length", &["fsync=off"]) else { return };
    let raw = Raw::open(&server.url()).await;
    let shared = Raw::named(&server.url(), "shared").await;
    let empty = Raw::named(&server.url(), "empty").await;
    let (mine, first, second, new) = (ticket(1, 1), ticket(1, 2), ticket(1, 2), ticket(1, 1));
    let keep = Enter::Keep;
    let mine_at = raw.hold(&mine).await;
    let (first_at, second_at) = (shared.hold(&first).await, shared.hold(&second).await);
    empty.hold(&new).await;
    assert!(empty.leave(&new).await);
    for (raw, ticket, how) in [
        (&raw, mine, keep(mine_at)),
        (&shared, first, keep(first_at)),
        (&shared, second, keep(second_at)),
        (&empty, new, Enter::Queue),
        (&empty, new, Enter::Queue),
    ] {
        let mut sql = server.sql().await;
        let (before, standing) = loop {
            let blocker = sql.transaction().await.expect("begins");
            for table in ["line", "place"] {
                let lock = format!("SELECT 1 FROM holdline.{table} FOR UPDATE");
                blocker.execute(&lock, &[]).await.expect("locks");
            }
            let renewing = {
                let raw = raw.clone();
                tokio::spawn(async move { raw.enter(&ticket, how).await })
            };
            tokio::time::sleep(Duration::from_millis(500)).await;
            let blocked = !renewing.is_finished();
            // In the blocking transaction, so that it is the time just before its end.
            let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
            let before: i64 = blocker.query_one(clock, &[]).await.expect("works").get(0);
            blocker.commit().await.expect("ends");
            match renewing.await.expect("no panic") {
                Ok(standing) => {
                    assert!(blocked, "it waits for the row");
                    break (before, standing);
                }
                // On a slow machine it may be blocked for longer than a call waits for a row.
                Err(error) => assert!(error.retryable(), "{error}"),
            }
        };
        assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
        let find = "SELECT expires FROM holdline.line WHERE replace(id::text, '-', '') = $1 \
                    UNION ALL \
                    SELECT expires FROM holdline.place WHERE replace(id::text, '-', '') = $1";
        let left = one::<i64>(&sql, find, &[&format!("{:032x}", ticket.id.0)]).await - before;
        assert!(left >= ticket.lease.as_micros() as i64, "{left} us are left: {how:?}");
    }
}

/// A call that is blocked for long fails, so that later calls are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_locked_for_long_is_an_error_that_may_be_retried() {
    let Some(server) = private("locked", &["fsync=off"]) else { return };
    let raw = Raw::open(&server.url()).await;
    let other = Raw { line: holdline::Name::new("other").expect("good"), ..raw.clone() };
    let mine = ticket(1, 1);
    let seq = raw.hold(&mine).await;
    let mut sql = server.sql().await;
    let blocker = sql.transaction().await.expect("begins");
    blocker.execute("SELECT 1 FROM holdline.line FOR UPDATE", &[]).await.expect("locks");
    let (error, seq_of_other) = tokio::join!(raw.keep(&mine, seq), other.hold(&mine));
    let error = error.expect_err("it is locked");
    assert!(error.retryable(), "{error:?}");
    assert!(error.to_string().contains("locked by another transaction"), "{error}");
    assert!(seq_of_other.0 > 0, "the next call is served");
    blocker.rollback().await.expect("ends");
    assert_eq!(raw.keep(&mine, seq).await.expect("works"), Standing::Admitted(seq));
}

/// A renewal concurrent with a longer one of the same place leaves the longer lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_does_not_shorten_one_that_it_meets() {
    let Some(server) = private("meets", &["fsync=off"]) else { return };
    let raw = Raw::open(&server.url()).await;
    raw.hold(&ticket(1, 2)).await;
    let mine = ticket(1, 2);
    let seq = raw.hold(&mine).await;
    let (mut sql, id) = (server.sql().await, format!("{:032x}", mine.id.0));
    let observer = server.sql().await;
    // A renewal for an hour or two, not committed yet, and one for ten minutes, which locks the
    // line only if it raises the lower bound of tokens.
    for (hours, min_token) in [(1, 1), (2, 0)] {
        let first = sql.transaction().await.expect("begins");
        let long = "SELECT holdline.enter('x', $1::text::uuid, 1, 2, $3, $3, 1, 0, $2, '', '')";
        let lease: i64 = hours * 3_600_000_000;
        first.query(long, &[&id, &(seq.0.cast_signed()), &lease]).await.expect("works");
        let short = Ticket { min_token, ..mine };
        let renewing = {
            let raw = raw.clone();
            tokio::spawn(async move { raw.keep(&short, seq).await })
        };
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        until("it meets the other", async || one::<i64>(&observer, blocked, &[]).await == 1).await;
        first.commit().await.expect("ends");
        let standing = match renewing.await.expect("no panic") {
            // On a slow machine it may wait for longer than a call waits for a row.
            Err(error) if error.retryable() => raw.keep(&short, seq).await,
            standing => standing,
        };
        assert_eq!(standing.expect("works"), Standing::Admitted(seq));
        let places = raw.seen().await.places;
        let left = places.iter().find(|place| place.id == mine.id).expect("it holds").expires_in;
        let least = Duration::from_secs(3000 * hours.unsigned_abs());
        assert!(left > least, "{left:?} of {hours} hours are left");
    }
}
