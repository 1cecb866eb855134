//! How fast the line store is beside the bare idiom through the same client: ratios from one run on
//! one server. Not a test of right and wrong, so it runs only when asked for:
//! `cargo test --release --features redis --test redis speed -- --ignored --nocapture`.

use holdline::{Mutex, open};
use holdline_testkit::redis::private;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use std::future::Future;
use std::time::Instant;

const DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('DEL', KEYS[1]) else return 0 end";

const ENTER: &str = concat!(
    include_str!("../../src/stores/queue/redis/lua/enter_head.lua"),
    include_str!("../../src/stores/queue/redis/lua/enter_one.lua"),
    include_str!("../../src/stores/queue/redis/lua/queue.lua"),
    include_str!("../../src/stores/queue/redis/lua/enter.lua")
);
const LEAVE: &str = concat!(
    include_str!("../../src/stores/queue/redis/lua/leave_head.lua"),
    include_str!("../../src/stores/queue/redis/lua/leave_one.lua"),
    include_str!("../../src/stores/queue/redis/lua/queue.lua"),
    include_str!("../../src/stores/queue/redis/lua/leave.lua")
);

/// Our own scripts, with nothing around them.
async fn scripts(conn: &mut MultiplexedConnection, hashes: &[String; 2], name: &str) {
    let id = format!("{:032x}", fastrand::u128(..));
    let wants = [1.0_f64, 1.0, 1e7, 3e6, 1.0, -2.0, 6e8, 0.0].map(f64::to_le_bytes).concat();
    let tail = format!("{id}holdline:wake:{id} {}", "x".repeat(60));
    let mut enter = redis::cmd("EVALSHA");
    enter.arg(&hashes[0]).arg(1).arg(name).arg(&wants).arg(tail);
    let seq: u64 = enter.query_async(conn).await.expect("works");
    assert!(seq > 0);
    let mut leave = redis::cmd("EVALSHA");
    leave.arg(&hashes[1]).arg(1).arg(name).arg(&id).arg(600_000).arg("");
    let gone: i64 = leave.query_async(conn).await.expect("works");
    assert_eq!(gone, 1);
}

/// One bare lock and unlock: what every Redis lock library does.
async fn bare(conn: &mut MultiplexedConnection, hash: &str, name: &str) {
    let value = format!("{:032x}", fastrand::u128(..));
    let mut set = redis::cmd("SET");
    set.arg(name).arg(&value).arg("NX").arg("PX").arg(10_000);
    let got: Option<String> = set.query_async(conn).await.expect("works");
    assert!(got.is_some());
    let mut delete = redis::cmd("EVALSHA");
    delete.arg(hash).arg(1).arg(name).arg(&value);
    let gone: i64 = delete.query_async(conn).await.expect("works");
    assert_eq!(gone, 1);
}

async fn rate<F: Future<Output = ()> + Send + 'static>(
    tasks: usize,
    each: u32,
    work: impl Fn(usize, u32) -> F,
) -> f64 {
    let start = Instant::now();
    let tasks: Vec<_> = (0..tasks).map(|n| tokio::spawn(work(n, each))).collect();
    let count = tasks.len();
    for task in tasks {
        task.await.expect("no panic");
    }
    f64::from(each) * count as f64 / start.elapsed().as_secs_f64()
}

fn middle(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn beside_the_bare_idiom() {
    let Some(server) = private("speed", &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    let info = redis::IntoConnectionInfo::into_connection_info(server.url()).expect("a good URL");
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let plain = redis::Client::open(info.set_tcp_settings(tcp)).expect("a good URL");
    let conn = plain
        .get_multiplexed_async_connection_with_config(&AsyncConnectionConfig::new())
        .await
        .expect("connects");
    let hash = redis::Script::new(DELETE).get_hash().to_owned();
    let _: String = server.query(&["SCRIPT", "LOAD", DELETE]);
    let bare_work = |n: usize, each: u32| {
        let (mut conn, hash, name) = (conn.clone(), hash.clone(), format!("bare{n}"));
        async move {
            for _ in 0..each {
                bare(&mut conn, &hash, &name).await;
            }
        }
    };
    let hashes = [ENTER, LEAVE].map(|text| server.query::<String>(&["SCRIPT", "LOAD", text]));
    let raw_work = |n: usize, each: u32| {
        let (mut conn, hashes, name) = (conn.clone(), hashes.clone(), format!("raw{n}"));
        async move {
            for _ in 0..each {
                scripts(&mut conn, &hashes, &name).await;
            }
        }
    };
    let line_work = |n: usize, each: u32| {
        let lock = Mutex::new(&client, format!("line{n}"));
        async move {
            for _ in 0..each {
                lock.lock().await.expect("works").unlock().await.expect("held");
            }
        }
    };
    for (tasks, each) in [(1, 4000), (64, 400)] {
        let [mut bares, mut raws, mut lines, mut to_bare, mut to_raw] = [const { Vec::new() }; 5];
        for _ in 0..9 {
            let bare = rate(tasks, each, bare_work).await;
            let raw = rate(tasks, each, raw_work).await;
            let line = rate(tasks, each, line_work).await;
            bares.push(bare);
            raws.push(raw);
            lines.push(line);
            to_bare.push(line / bare);
            to_raw.push(line / raw);
        }
        println!(
            "{tasks} tasks on as many names: bare {:.0}/s, our scripts {:.0}/s, holdline {:.0}/s; \
             of bare {:.2} (time {:.2}), of our scripts {:.2}",
            middle(bares),
            middle(raws),
            middle(lines),
            middle(to_bare.clone()),
            1.0 / middle(to_bare),
            middle(to_raw)
        );
    }
    let stats: String = server.query(&["INFO", "commandstats"]);
    for line in
        stats.lines().filter(|line| line.contains("evalsha") || line.contains("cmdstat_set:"))
    {
        println!("{line}");
    }
}

/// From the beginning of a release to the next one's grant, between two clients that are two
/// processes as far as the server can see; beside one bare request's time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn handing_over() {
    let Some(server) = private("handing_over", &[]) else { return };
    let clients =
        [open(server.url()).await.expect("opens"), open(server.url()).await.expect("opens")];
    let info = redis::IntoConnectionInfo::into_connection_info(server.url()).expect("a good URL");
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let plain = redis::Client::open(info.set_tcp_settings(tcp)).expect("a good URL");
    let mut conn = plain.get_multiplexed_async_connection().await.expect("connects");
    let mut pings = Vec::new();
    let mut overs = Vec::new();
    let mut guard = Mutex::new(&clients[0], "x").lock().await.expect("works");
    for n in 0..2000 {
        let lock = Mutex::new(&clients[(n + 1) % 2], "x");
        let next = tokio::spawn(async move {
            let guard = lock.lock().await.expect("works");
            (guard, Instant::now())
        });
        while clients[0].inspect("x").await.expect("works").waiters.is_empty() {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        let _: String = redis::cmd("PING").query_async(&mut conn).await.expect("works");
        pings.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        guard.unlock().await.expect("held");
        let (given, at) = next.await.expect("no panic");
        overs.push(at.duration_since(start).as_secs_f64() * 1e6);
        guard = given;
    }
    overs.sort_by(f64::total_cmp);
    println!(
        "one request: median {:.0} us; handing over: median {:.0} us, 99% {:.0} us, most {:.0} us",
        middle(pings),
        overs[1000],
        overs[1980],
        overs[1999]
    );
}

/// All of a process's locks, renewed at once over one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn ten_thousand_renewals() {
    let Some(server) = private("renewals", &[]) else { return };
    let client = open(server.url()).await.expect("opens");
    let store = client.store();
    let note = std::sync::Arc::from("note");
    let locks: Vec<_> = (0..10_000_u128)
        .map(|n| {
            let ticket = holdline::store::Ticket {
                id: holdline::store::TicketId(n),
                weight: 1,
                capacity: 1,
                lease: std::time::Duration::from_secs(60),
                wait_lease: std::time::Duration::from_secs(3),
                token_count: 1,
                min_token: 0,
            };
            (holdline::Name::new(format!("lock {n}")).expect("good"), ticket)
        })
        .collect();
    for round in ["taken", "renewed", "renewed", "renewed"] {
        let start = Instant::now();
        let calls = locks
            .iter()
            .map(|(line, ticket)| store.enter(line, ticket, &note, holdline::store::Enter::Try));
        for standing in futures_util::future::join_all(calls).await {
            standing.expect("works");
        }
        println!("10,000 locks {round} in {:.0?}", start.elapsed());
    }
}
