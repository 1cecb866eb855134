//! A comparison of the procedures with the kernel's line, on the environment's servers; and a test
//! of batches there.

use super::batch::{self, Queued};
use super::config::{Config, Scheme};
use super::connection::{ask, bare, run as run_prepared};
use super::text::{self, Key, NOW, Statement};
use super::{opts, schema};
use crate::clock;
use crate::names::Name;
use crate::store::{EVICTION_TIME, Enter, QueueSnapshot, Refusal, Seq, Standing, Ticket, TicketId};
use crate::stores::queue::calls::{Answer, Row, snapshot};
use crate::stores::queue::model::{Subject, Woken, numbers_end, run};
use holdline_kernel::Time;
use mysql_async::Conn;
use std::time::Duration;
use tokio::runtime::Runtime;

struct Server {
    runtime: Runtime,
    conn: Conn,
    line: Key,
}

impl Server {
    /// A server with a database of its own, whose procedures take the time from a variable.
    fn start(url: &str, database: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("the system gives a runtime");
        let conn = runtime.block_on(async {
            let mut conn = connected(url).await;
            let fresh = format!(
                "DROP DATABASE IF EXISTS {database}; CREATE DATABASE {database}; USE {database}"
            );
            ask(&mut conn, &fresh).await.expect("a database");
            for statement in schema::statements(schema::SCHEMA) {
                let statement = clocked(&statement);
                ask(&mut conn, &statement).await.unwrap_or_else(|error| panic!("{error:?}"));
            }
            conn
        });
        Server { runtime, conn, line: key("model") }
    }

    fn ask(&mut self, now: u64, statement: Statement) -> Answer {
        let text = clocked(&statement.text);
        self.runtime.block_on(async {
            ask(&mut self.conn, &format!("SET @now = {now}")).await.expect("it is set");
            let statement = Statement { text: text.into(), ..statement };
            // A quick statement is prepared, or as text in a batch.
            let answer = if statement.values.is_empty() || now.is_multiple_of(4) {
                ask(&mut self.conn, &statement.literal()).await
            } else {
                run_prepared(&mut self.conn, &statement).await
            };
            answer.expect("an answer")
        })
    }

    fn run(&mut self, now: u64, sql: &str) -> Vec<Row> {
        self.ask(now, Statement::text(sql.to_owned())).rows
    }
}

async fn connected(url: &str) -> Conn {
    let (_, rest) = url.split_once(':').expect("a URL");
    let options = opts::of(&Config::read(rest).expect("a good URL")).expect("good options");
    bare(&options).await.expect("the server runs")
}

fn key(name: &str) -> Key {
    Key::new(Scheme::Table, &Name::new(name).expect("a good name"))
}

fn clocked(sql: &str) -> String {
    let sql = sql.replace(NOW, "@now");
    assert!(!sql.contains("SYSDATE"), "{sql}");
    sql
}

impl Subject for Server {
    fn turn_to(&mut self, line: usize) {
        self.line = key(["model", "another"][line]);
    }

    fn enter(
        &mut self,
        now: u64,
        ticket: &Ticket,
        note: &str,
        how: Enter,
    ) -> (Result<Standing, Refusal>, Woken) {
        // The quick statements are used every other time.
        let quick = match how {
            Enter::Queue => text::quick_enter(&self.line, ticket, note),
            Enter::Keep(seq) => text::quick_renew(&self.line, ticket, note, seq),
            Enter::Try => None,
        };
        if let Some(quick) = quick.filter(|_| now.is_multiple_of(2)) {
            let answer = self.ask(now, quick);
            if answer.changed == 1 {
                let kept = if let Enter::Keep(seq) = how { Some(seq) } else { None };
                let seq = kept.unwrap_or(Seq(answer.insert_id));
                return (Ok(Standing::Admitted(seq)), Woken::new());
            }
        }
        let sql = text::enter(&self.line, ticket, note, how, 7);
        let rows = self.run(now, &sql);
        let (standing, woken) =
            text::standing(ticket, how, &rows).unwrap_or_else(|| panic!("{rows:?}"));
        (standing, woken.into_iter().collect())
    }

    fn leave(&mut self, now: u64, id: TicketId, bar: Option<Duration>) -> (bool, Woken) {
        let quick = bar.is_none() && now.is_multiple_of(2);
        if quick && self.ask(now, text::quick_leave(&self.line, id)).changed == 1 {
            return (true, Woken::new());
        }
        let rows = self.run(now, &text::leave(&self.line, id, bar.unwrap_or_default(), 7));
        let (left, woken) = text::left(&rows).expect("an answer that makes sense");
        (left == 1, woken.into_iter().collect())
    }

    fn evict(&mut self, now: u64, id: TicketId, note: &str) -> (Option<Seq>, Woken) {
        let rows = self.run(now, &text::evict(&self.line, id, note, EVICTION_TIME));
        let (token, woken) = text::left(&rows).expect("an answer that makes sense");
        (Some(Seq(token)).filter(|token| token.0 > 0), woken.into_iter().collect())
    }

    fn look(&mut self, now: u64) -> (QueueSnapshot, Woken) {
        let rows = self.run(now, &text::look(&self.line));
        (snapshot(&rows).expect("an answer that makes sense"), Woken::new())
    }
}

fn agree(variable: &str, database: &str) {
    let Ok(url) = std::env::var(variable) else {
        return holdline_testkit::missing(&format!("{variable} is not set"));
    };
    for seed in 1..=4 {
        run(&mut Server::start(&url, database), seed, 1500);
    }
}

#[test]
fn the_procedures_are_the_kernels_line_on_mariadb() {
    agree("HOLDLINE_TEST_MARIADB", "holdline_model");
}

#[test]
fn the_procedures_are_the_kernels_line_on_mysql() {
    agree("HOLDLINE_TEST_MYSQL", "holdline_model");
}

fn numbers_end_at(variable: &str) {
    let Ok(url) = std::env::var(variable) else {
        return holdline_testkit::missing(&format!("{variable} is not set"));
    };
    numbers_end(&mut Server::start(&url, "holdline_numbers"));
}

#[test]
fn the_numbers_of_places_end_on_mariadb() {
    numbers_end_at("HOLDLINE_TEST_MARIADB");
}

#[test]
fn the_numbers_of_places_end_on_mysql() {
    numbers_end_at("HOLDLINE_TEST_MYSQL");
}

/// The server frees the rows of a refused batch whose client has stopped, and batches leave the
/// connection's settings as they were.
fn a_batch_ends(variable: &str) {
    let Ok(url) = std::env::var(variable) else {
        return holdline_testkit::missing(&format!("{variable} is not set"));
    };
    let Server { runtime, mut conn, .. } = Server::start(&url, "holdline_refused");
    let lines = ["a", "b"].map(key);
    let queued = |line| {
        let (reply, _) = tokio::sync::oneshot::channel();
        let call = text::quick_leave(line, TicketId(1));
        Queued { call, limit: Time(0), request: None, reply }
    };
    let calls: Vec<Queued> = lines.iter().map(queued).collect();
    runtime.block_on(async {
        let insert = "INSERT INTO holdline_line (name) VALUES ('a'), ('b')";
        ask(&mut conn, insert).await.expect("rows");
        let patience = async |conn: &mut Conn| {
            ask(conn, "SELECT @@SESSION.wait_timeout").await.expect("works").number::<u64>()
        };
        let before = patience(&mut conn).await;
        assert_eq!(batch::send(&mut conn, &calls).await.expect("it is not refused").len(), 2);
        assert_eq!(patience(&mut conn).await, before);

        let (mut blocks, mut next) = (connected(&url).await, connected(&url).await);
        let lock = "SELECT COUNT(*) FROM holdline_refused.holdline_line WHERE name =";
        let blocked = format!("START TRANSACTION; {lock} 'b' FOR UPDATE");
        ask(&mut blocks, &blocked).await.expect("it is free");
        let refused = batch::send(&mut conn, &calls).await.expect_err("a row is locked");
        assert!(refused.conflict(), "{refused:?}");
        assert_eq!(patience(&mut conn).await, before);

        batch::transaction(&mut conn, &calls).await.expect_err("a row is locked");
        let end = clock::now().after(Duration::from_secs(30));
        while let Err(fault) = ask(&mut next, &format!("{lock} 'a' FOR UPDATE")).await {
            assert!(fault.conflict() && clock::now() < end, "{fault:?}");
        }
        let fault = ask(&mut conn, "SELECT 1").await.expect_err("it was closed");
        assert!(fault.ended(), "{fault:?}");
    });
}

#[test]
fn the_server_undoes_a_refused_batch_on_mariadb() {
    a_batch_ends("HOLDLINE_TEST_MARIADB");
}

#[test]
fn the_server_undoes_a_refused_batch_on_mysql() {
    a_batch_ends("HOLDLINE_TEST_MYSQL");
}

/// A session that lost its settings, as behind a proxy, has another clock, or commits nothing: what
/// depends on them does nothing there.
fn other_settings_are_noticed(variable: &str) {
    let Ok(url) = std::env::var(variable) else {
        return holdline_testkit::missing(&format!("{variable} is not set"));
    };
    let mut server = Server::start(&url, "holdline_settings");
    let (line, now, long) = (key("x"), 1_700_000_000_000_000, Duration::from_secs(60));
    let (id, min_token) = (TicketId(1), 0);
    let ticket = Ticket {
        id,
        weight: 1,
        capacity: 1,
        lease: long,
        wait_lease: long,
        token_count: 1,
        min_token,
    };
    server.run(now, &text::make_line(&line));
    let enter = text::quick_enter(&line, &ticket, "").expect("a usual one");
    let renew = text::quick_renew(&line, &ticket, "", Seq(now)).expect("a usual one");
    let leave = text::quick_leave(&line, id);
    for (other, usual) in
        [("time_zone = '+05:30'", "time_zone = '+00:00'"), ("autocommit = 0", "autocommit = 1")]
    {
        // The place is taken, renewed and left once, each by a session with the usual settings.
        for statement in [&enter, &renew, &leave] {
            server.run(now, &format!("SET SESSION {other}"));
            assert_eq!(server.ask(now, statement.clone()).changed, 0, "{other}: {statement:?}");
            server.run(now, &format!("SET SESSION {usual}"));
            assert_eq!(server.ask(now, statement.clone()).changed, 1, "{usual}: {statement:?}");
        }
        server.run(now, "UPDATE holdline_line SET last = 0");
    }
    server.run(now, "SET SESSION time_zone = '+05:30'");
    let enter = text::enter(&line, &ticket, "", Enter::Queue, 0);
    for call in [enter, text::leave(&line, id, Duration::ZERO, 0)] {
        let refused = server.runtime.block_on(ask(&mut server.conn, &clocked(&call)));
        let fault = format!("{:?}", refused.expect_err("it has another clock"));
        assert!(fault.contains("another time zone"), "{fault}");
    }
}

#[test]
fn other_settings_of_a_session_are_noticed_on_mariadb() {
    other_settings_are_noticed("HOLDLINE_TEST_MARIADB");
}

#[test]
fn other_settings_of_a_session_are_noticed_on_mysql() {
    other_settings_are_noticed("HOLDLINE_TEST_MYSQL");
}
