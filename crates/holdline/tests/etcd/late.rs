//! Requests that arrive late, or again.

use holdline::Name;
use holdline::store::{Enter, Standing, Ticket, TicketId};
use holdline_testkit::etcd::start;
use holdline_testkit::flaky_links::{Cut, FlakyLinks};
use holdline_testkit::{soon, until};
use std::sync::Arc;
use std::time::Duration;

/// A client that asks again for a ticket that has lapsed meanwhile (it was stopped for long) must
/// not get a place whose key is on its way out: what removed the first one, or waits for it to
/// arrive late, would remove the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_that_has_lapsed_is_not_entered_again() {
    let Some(servers) = start(1) else { return };
    let flaky = FlakyLinks::to("etcd", &servers.hosts(), "");
    let client = flaky.client().await;
    let (store, line) = (client.store(), Name::new("x").expect("good"));
    let lease = Duration::from_secs(1);
    let ticket = |id| Ticket {
        id: TicketId(id),
        weight: 1,
        capacity: 1,
        lease,
        wait_lease: lease,
        token_count: 1,
        min_token: 0,
    };
    let note: Arc<str> = Arc::from("");
    let warm = soon("warm", store.enter(&line, &ticket(1), &note, Enter::Try)).await;
    assert!(matches!(warm, Ok(Standing::Admitted(_))));
    assert!(store.leave(&line, TicketId(1)).await.expect("it is there"));
    // Written, but nobody knows.
    flaky.cut(Cut::Replies);
    let second = ticket(2);
    let entering = store.enter(&line, &second, &note, Enter::Try);
    assert!(tokio::time::timeout(Duration::from_millis(150), entering).await.is_err());
    until("the key", async || servers.keys().len() == 1).await;
    flaky.mend();
    until("the lapse", async || servers.keys().is_empty()).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    for _ in 0..5 {
        let again = soon("an answer", store.enter(&line, &second, &note, Enter::Try)).await;
        if let Standing::Admitted(_) = again.expect("it is there") {
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(servers.keys().len(), 1, "it holds, and its key is gone");
        }
    }
    let other = soon("an answer", store.enter(&line, &ticket(3), &note, Enter::Try)).await;
    assert!(matches!(other, Ok(Standing::Admitted(_))));
    assert!(store.leave(&line, TicketId(3)).await.expect("it is there"));
}
