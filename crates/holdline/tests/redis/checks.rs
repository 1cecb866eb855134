//! What is found out about a server when it is opened: whether it may drop locks to make room, and
//! what its user may not ask.

use crate::fake;
use holdline::{Client, ErrorKind, Mutex, open};
use holdline_testkit::Warnings;
use holdline_testkit::redis::{cluster, private};
use std::time::Duration;

/// Opens the store, and says what it warns of.
async fn opened(url: &str) -> (Client, Vec<String>) {
    let warnings = Warnings::default();
    let heard = tracing::subscriber::set_default(warnings.subscriber());
    let client = open(url).await.expect("opens");
    drop(heard);
    (client, warnings.all())
}

async fn serves(client: &Client) {
    Mutex::new(client, "x").lock().await.expect("works").unlock().await.expect("held");
}

#[tokio::test]
async fn a_server_that_may_drop_locks_is_warned_of() {
    let Some(server) = private("evicts", &[]) else { return };
    for scheme in ["line", "string", "redisson"] {
        let url = format!("{}?scheme={scheme}", server.url());
        // All keys of locks expire, so those that drop only such keys drop locks as well.
        for policy in ["allkeys-lru", "volatile-ttl", "noeviction"] {
            let _: () = server.query(&["CONFIG", "SET", "maxmemory-policy", policy]);
            let (client, warnings) = opened(&url).await;
            match (policy, &warnings[..]) {
                ("noeviction", []) => {}
                ("allkeys-lru" | "volatile-ttl", [warning]) => {
                    assert!(warning.contains(&format!("maxmemory-policy {policy}:")), "{warning}");
                    assert!(warning.contains("set it to noeviction"), "{warning}");
                }
                _ => panic!("{scheme}, {policy}: {warnings:?}"),
            }
            serves(&client).await;
        }
    }
}

/// Any node of a cluster may be the one.
#[tokio::test]
async fn a_node_that_may_drop_locks_is_warned_of() {
    let Some(nodes) = cluster() else { return };
    let url = format!("redis+cluster://127.0.0.1:{}", nodes[0].port());
    assert_eq!(opened(&url).await.1, [""; 0]);
    for node in &nodes {
        let _: () = node.query(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lfu"]);
        let (client, warnings) = opened(&url).await;
        assert!(matches!(&warnings[..], [one] if one.contains("allkeys-lfu")), "{warnings:?}");
        serves(&client).await;
        let _: () = node.query(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    }
}

/// `INFO` and `CONFIG` are for administrators, as Redis sorts its commands.
#[tokio::test]
async fn a_user_without_the_right_to_ask_is_served() {
    let args = ["--maxmemory-policy", "allkeys-lru", "--notify-keyspace-events", "Kgx"];
    let Some(server) = private("may_not_ask", &args) else { return };
    let rights = ["+@all -config", "+@all -@admin -@dangerous"];
    for (rights, asked) in rights.into_iter().zip([true, false]) {
        let mut setuser = redis::cmd("ACL");
        setuser.arg("SETUSER").arg("app").arg(&["reset", "on", ">apples", "~*", "&*"]);
        setuser.arg(rights.split(' ').collect::<Vec<_>>());
        let _: () = setuser.query(&mut server.conn()).expect("a good ACL");
        for scheme in ["line", "string", "redisson"] {
            let host = format!("127.0.0.1:{}", server.port());
            let (client, warnings) =
                opened(&format!("redis://app:apples@{host}?scheme={scheme}")).await;
            assert_eq!(warnings.len(), usize::from(asked), "{rights}, {scheme}: {warnings:?}");
            // It cannot be known whether the server tells of its keys: so it is not believed to.
            assert_eq!(client.capabilities().notifications, scheme != "string", "{rights}");
            serves(&client).await;
        }
    }
}

/// Some who run servers for others take these commands away.
#[tokio::test]
async fn a_server_without_these_commands_serves() {
    let args = ["INFO", "CONFIG", "HELLO"].map(|command| ["--rename-command", command, ""]);
    let Some(server) = private("renamed", &args.concat()) else { return };
    for scheme in ["line", "string", "redisson"] {
        let (client, warnings) = opened(&format!("{}?scheme={scheme}", server.url())).await;
        assert_eq!(warnings, [""; 0]);
        serves(&client).await;
    }
}

/// What a node that is down keeps cannot be had. What the others keep can, also by who comes then.
#[tokio::test]
async fn a_node_that_is_down_keeps_nobody_out() {
    let Some(mut nodes) = cluster() else { return };
    for node in &nodes {
        let _: () = node.query(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    nodes[2].kill();
    let url = format!("redis+cluster://127.0.0.1:{}", nodes[0].port());
    let (client, _) = opened(&url).await;
    let mut served = 0;
    for n in 0..12 {
        let lock = Mutex::new(&client, format!("name {n}"));
        let got = lock.lock_within(Duration::from_millis(300)).await;
        served += usize::from(matches!(got, Ok(Some(_))));
    }
    assert!((1..12).contains(&served), "{served} of 12");
}

/// A server that takes writes beside another one gives its clients locks that those of the other
/// server have, too.
#[tokio::test]
async fn a_server_that_takes_writes_apart_is_refused() {
    let Some(primary) = private("apart_from", &[]) else { return };
    let port = primary.port().to_string();
    let args = ["--replicaof", &format!("127.0.0.1 {port}"), "--replica-read-only", "no"];
    let Some(replica) = private("apart", &args) else { return };
    let active = fake::server(|words| match words {
        ["INFO", ..] => {
            "$47\r\nredis_version:6.3.4\r\nrole:active-replica\r\nx:1\r\n\r\n".to_owned()
        }
        _ => "-ERR unknown command\r\n".to_owned(),
    });
    for (port, word) in [(replica.port(), "name the primary"), (active, "active replica")] {
        for scheme in ["line", "string", "redisson"] {
            let refused = open(&format!("redis://127.0.0.1:{port}?scheme={scheme}")).await;
            let error = refused.expect_err("its primary knows nothing of its locks");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }
    // One that takes none says so for each request, until it is promoted.
    let _: () = replica.query(&["CONFIG", "SET", "replica-read-only", "yes"]);
    let client = open(replica.url()).await.expect("opens");
    let error = Mutex::new(&client, "x").try_lock().await.expect_err("it takes no writes");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
