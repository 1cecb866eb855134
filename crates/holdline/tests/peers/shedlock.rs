//! ShedLock on PostgreSQL, MariaDB and MySQL: one-shot locks in its table, held for a time at most
//! and at least.

use crate::peer::Peer;
use crate::suite::{Form, Row, fresh};
use crate::toolchain::Language;
use holdline::{Client, Mutex, open};
use holdline_testkit::{Private, mysql, postgres};
use std::time::Duration;

/// A database, and a client of it that has made the table.
struct Database {
    _server: Private,
    client: Client,
    /// The database as ShedLock's driver knows it.
    jdbc: String,
}

/// A database of this kind, as JDBC calls it; `options` follow in the URL of the client.
async fn database(kind: &str, test: &str, options: &str) -> Option<Database> {
    let name = format!("{test}_{kind}");
    let (server, path) = match kind {
        "postgresql" => (postgres::start(&name)?, "postgres?user=postgres"),
        "mariadb" => (mysql::start(&name, mysql::mariadb)?, "holdline?user=holdline"),
        _ => (mysql::start(&name, mysql::mysql)?, "holdline?user=holdline"),
    };
    let url = format!("{}?scheme=shedlock&install=yes{options}", server.url());
    let client = open(&url).await.expect("opens");
    let jdbc = format!("{kind}://{}/{path}", server.hosts()[0]);
    Some(Database { _server: server, client, jdbc })
}

async fn exclude(kind: &str) {
    let Some(database) = database(kind, "shedlock", "").await else { return };
    let (ours, language, theirs) = (Form::Mutex, Language::Java, "shedlock");
    let (client, servers) = (database.client.clone(), database.jdbc.clone());
    Row { client, ours, language, theirs, servers }.exclude().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shedlock_on_postgresql() {
    exclude("postgresql").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shedlock_on_mariadb() {
    exclude("mariadb").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shedlock_on_mysql() {
    exclude("mysql").await;
}

/// A job that was quick stays locked for its time at least, for them and for us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shedlock_at_least_for() {
    const HOUR: Duration = Duration::from_secs(3600);
    for kind in ["postgresql", "mariadb", "mysql"] {
        let database = database(kind, "shedlock_at_least", "&at_least=1h").await;
        let Some(database) = database else { continue };
        let peer = Peer::start(Language::Java, &database.jdbc, 2 * HOUR).await;
        let (Some(mut peer), client) = (peer, &database.client) else { return };
        let job = |name: &str| Mutex::new(client, name).fixed_lease(2 * HOUR);
        let stays_locked = async |name: &str| {
            assert!(job(name).try_lock().await.expect("works").is_none(), "it is locked for us");
            let left = client.inspect(name).await.expect("works").holders[0].expires_in;
            assert!(left <= HOUR && left > HOUR / 2, "for {left:?}");
        };
        let [ours, theirs] = ["ours", "theirs"].map(fresh);
        let guard = job(&ours).try_lock().await.expect("works").expect("free");
        guard.unlock().await.expect("it was held");
        assert!(!peer.try_lock("shedlock-1h", &ours).await, "it is locked for them");
        stays_locked(&ours).await;
        peer.lock("shedlock-1h", &theirs).await;
        peer.unlock().await;
        assert!(!peer.try_lock("shedlock-1h", &theirs).await, "it is locked for them");
        stays_locked(&theirs).await;
    }
}
