//! Behind PgBouncer, which pools transactions: notices by a direct connection.

use crate::raw::{Raw, ticket};
use crate::server::one;
use holdline::store::{Enter, Standing};
use holdline_testkit::{Deployment, Private, free_port, postgres, soon, until};
use tokio_postgres::Client;

/// A pooler of this test alone, and the port of its server.
fn pooler() -> Option<(Private, u16)> {
    let mut port = 0;
    let pooled = Private::launch("pooled", || {
        let (front, server) = (free_port(), free_port());
        port = server;
        let servers = vec![postgres::node("postgres", server)];
        Deployment::new(postgres::url(front), servers).then(vec![postgres::pooler(front, server)])
    })?;
    Some((pooled, port))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notices_come_by_a_direct_connection() {
    let Some((pooled, server)) = pooler() else { return };
    let direct = format!("postgres%3A%2F%2Fpostgres%40127.0.0.1%3A{server}%2Fpostgres");
    let (sql, connection) =
        tokio_postgres::connect(&postgres::url(server), tokio_postgres::NoTls).await.expect("runs");
    tokio::spawn(connection);
    for scheme in ["table", "row"] {
        let url = format!("{}?install=yes&scheme={scheme}&listen={direct}", pooled.url());
        let (one, two) = (Raw::open(&url).await, Raw::open(&url).await);
        let (mine, next) = (ticket(1, 1), ticket(1, 1));
        one.hold(&mine).await;
        let standing = two.enter(&next, Enter::Queue).await.expect("works");
        let Standing::Waiting { seq, .. } = standing else { panic!("{standing:?}") };
        let listens = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' \
                       AND application_name = 'holdline'";
        until("it listens", async || one_of(&sql, listens).await >= 1).await;
        // It is woken when it listens, and looks again.
        soon("the wake", two.store.watch(&two.line, next.id)).await.expect("works");
        assert!(matches!(
            two.enter(&next, Enter::Queue).await.expect("works"),
            Standing::Waiting { .. }
        ));
        assert!(one.leave(&mine).await);
        let told = soon("the notice", two.store.watch(&two.line, next.id)).await.expect("works");
        assert_eq!(told, seq, "{scheme}: of its place, where there are places");
        two.hold(&next).await;
        assert!(two.leave(&next).await);
    }
}

async fn one_of(sql: &Client, query: &str) -> i64 {
    one(sql, query, &[]).await
}
