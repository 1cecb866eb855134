//! A model test of the functions against the kernel's line: random operations on a real server,
//! step by step, with a clock that the test sets. Replies, wake-ups and tokens must agree.
//!
//! The server is that of `HOLDLINE_TEST_POSTGRES`.

use super::address::Address;
use super::connection::Param;
use super::encode::{self, Id, micros, number_of};
use super::schema::{statement, text};
use super::session::Session;
use crate::store::{EVICTIONS_KEPT, Enter, Refusal, Seq, Standing, Ticket, TicketId};
use holdline_kernel::{Head, Line, MemoryPlaces, Place, Time};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// A server whose functions go by a clock that the test sets, and keep notices in a table.
struct Server {
    session: Session,
    schema: String,
}

impl Server {
    async fn start(test: &str) -> Option<Server> {
        let Ok(url) = std::env::var("HOLDLINE_TEST_POSTGRES") else {
            holdline_testkit::missing(&format!("{test} needs HOLDLINE_TEST_POSTGRES"));
            return None;
        };
        let address = Address::read(url.split_once(':').expect("a scheme").1).expect("a good URL");
        let session = Session::open(&address, Box::new(|_| {})).await.expect("it runs");
        let schema = format!("holdline_{test}");
        let text = text(&schema)
            .expect("a good name")
            .replace(
                "extract(epoch FROM clock_timestamp()) * 1000000",
                "current_setting('a.clock')",
            )
            .replace("PERFORM pg_notify(", &format!("INSERT INTO \"{schema}\".woken VALUES ("));
        assert!(!text.contains("clock_timestamp") && !text.contains("notify"));
        let server = Server { session, schema };
        let clear = format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE;", server.schema);
        let woken = statement(&server.schema, "CREATE TABLE \"holdline\".woken (c text, p text);");
        let all = format!("{clear} {text}; {woken}");
        server.session.client.batch_execute(&all).await.expect("the schema is installed");
        Some(server)
    }

    async fn ask(&self, now: u64, sql: &str, params: &[Param<'_>]) -> Vec<Row> {
        let client = &self.session.client;
        client.batch_execute(&format!("SET a.clock = '{now}'")).await.expect("it can be set");
        let sql = statement(&self.schema, sql);
        client.query_typed(&sql, params).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    async fn enter(&self, now: u64, ticket: &Ticket, how: Enter) -> Vec<i64> {
        let sql = "SELECT \"holdline\".enter('x', $1, $2, $3, $4, $5, $6, $7, $8, 'c', 'a note')";
        let (lease, wait_lease) = (micros(ticket.lease), micros(ticket.wait_lease));
        let numbers = [
            i64::from(ticket.weight),
            i64::from(ticket.capacity),
            lease,
            wait_lease,
            i64::from(ticket.token_count),
            ticket.min_token.cast_signed(),
            number_of(how),
        ];
        let id = Id(ticket.id);
        let mut params: Vec<Param<'_>> = vec![(&id, Type::UUID)];
        params.extend(numbers.iter().map(|number| (number as &(dyn ToSql + Sync), Type::INT8)));
        self.ask(now, sql, &params).await[0].get(0)
    }

    /// The tickets that the last operation woke, with their places.
    async fn woken(&self) -> BTreeSet<(TicketId, Seq)> {
        let rows = self.ask(0, "DELETE FROM \"holdline\".woken RETURNING p", &[]).await;
        let payloads: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let admitted = payloads.iter().filter_map(|payload| payload.strip_prefix('w'));
        let seq = |text: &str| Seq(text.parse().expect("a number"));
        admitted
            .map(|place| place.split_at(36))
            .map(|(id, place)| (super::listener::id_of(id).expect("an id"), seq(place)))
            .collect()
    }
}

#[derive(Default)]
struct Model {
    head: Head,
    deck: MemoryPlaces<()>,
    woken: BTreeSet<(TicketId, Seq)>,
    /// Tickets and notes, oldest first.
    evicted: Vec<(TicketId, String)>,
}

impl Model {
    fn on<T>(
        &mut self,
        now: u64,
        work: impl FnOnce(&mut Line<'_, MemoryPlaces<()>, &mut dyn FnMut(&Place<()>)>) -> T,
    ) -> T {
        let woken = &mut self.woken;
        let mut wake = |place: &Place<()>| {
            woken.insert((place.id, place.seq));
        };
        let mut line = Line {
            head: &mut self.head,
            places: &mut self.deck,
            now: Time(now * 1000),
            stamp: now,
            wake: &mut wake as &mut dyn FnMut(&Place<()>),
        };
        work(&mut line)
    }
}

struct Chance(fastrand::Rng, u64);

impl Chance {
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.0.usize(..choices.len())]
    }

    fn ticket(&mut self, ids: &[TicketId], capacity: u32) -> Ticket {
        let id = self.of(ids);
        // A ticket has one weight, most of the time.
        let weight = match self.0.u8(..10) {
            0 => 1 + self.0.u32(..capacity),
            _ => 1 + (id.0 as u32) % capacity,
        };
        Ticket {
            id,
            weight,
            capacity: if self.0.u8(..50) == 0 { capacity + 1 } else { capacity },
            lease: Duration::from_micros(self.0.u64(1000..3_000_000)),
            wait_lease: Duration::from_micros(self.0.u64(1000..1_000_000)),
            token_count: self.of(&[1, 1, 1, 0, 7]),
            min_token: self.of(&[0, 0, 0, 0, self.1]),
        }
    }
}

async fn both_enter(
    server: &Server,
    model: &mut Model,
    now: u64,
    ticket: &Ticket,
    how: Enter,
) -> Result<Standing, Refusal> {
    let Ok(expected) = model.on(now, |line| line.enter(ticket, how, ()));
    let numbers = server.enter(now, ticket, how).await;
    let answer = encode::standing(ticket, &numbers, true).expect("an answer that makes sense");
    assert_eq!(answer, expected, "{how:?} {ticket:?} {numbers:?}");
    expected
}

/// A snapshot changes nothing in the server, so it may change nothing in the model.
#[allow(clippy::redundant_closure_for_method_calls, reason = "a path is not general enough")]
async fn same_view(server: &Server, model: &Model, now: u64) {
    let kept = &model.evicted;
    let mut model = Model { head: model.head, deck: model.deck.clone(), ..Model::default() };
    let Ok(()) = model.on(now, |line| line.expire());
    let rows = server.ask(now, "SELECT * FROM \"holdline\".look('x')", &[]).await;
    let seen = encode::snapshot(&rows).expect("a view");
    let expected: Vec<_> = model
        .deck
        .iter()
        .map(|p| {
            (p.id, p.seq, p.weight, p.seq < model.head.front, Time(now * 1000).until(p.expires))
        })
        .collect();
    let evicted: Vec<_> = seen.evictions.iter().map(|one| (one.id, one.note.to_string())).collect();
    let places: Vec<_> =
        seen.places.iter().map(|p| (p.id, p.seq, p.weight, p.admitted, p.expires_in)).collect();
    assert_eq!(places, expected);
    let recent = &kept[kept.len().saturating_sub(EVICTIONS_KEPT)..];
    assert!(recent.ends_with(&evicted), "{evicted:?} of {recent:?}");
}

async fn run(server: &Server, seed: u64, steps: u32) {
    server.ask(0, "DELETE FROM \"holdline\".line", &[]).await;
    server.ask(0, "DELETE FROM \"holdline\".place", &[]).await;
    let mut model = Model::default();
    let mut chance = Chance(fastrand::Rng::with_seed(seed), 0);
    let ids: Vec<_> = (0..12).map(|n| TicketId(u128::MAX / 13 * n + n)).collect();
    let (mut now, mut capacity) = (1_700_000_000_000_000, 1);
    let mut seqs: Vec<(TicketId, Seq)> = Vec::new();
    for step in 0..steps {
        now += match chance.0.u8(..20) {
            0 => chance.0.u64(..4_000_000),
            1..5 => 0,
            _ => chance.0.u64(..50_000),
        };
        chance.1 = now - 1_000_000 + chance.0.u64(..2_000_000);
        if model.head.count == 0 && chance.0.u8(..4) == 0 {
            capacity = chance.of(&[1, 2, 5, 1 << 30]);
        }
        match chance.0.u8(..12) {
            0..7 => {
                let ticket = chance.ticket(&ids, capacity);
                let known = seqs.iter().rev().find(|(id, _)| *id == ticket.id);
                let how = match (chance.0.u8(..5), known) {
                    (0, _) => Enter::Try,
                    (1 | 2, Some((_, seq))) => Enter::Keep(*seq),
                    (3, Some((_, seq))) if step % 7 == 0 => Enter::Keep(Seq(seq.0 + 1)),
                    _ => Enter::Queue,
                };
                let answer = both_enter(server, &mut model, now, &ticket, how).await;
                if let Ok(Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. }) =
                    answer
                {
                    seqs.push((ticket.id, seq));
                }
            }
            7..10 => {
                let id = chance.of(&ids);
                let Ok(expected) = model.on(now, |line| line.leave(id));
                let sql = "SELECT \"holdline\".leave('x', $1, 0)";
                let rows = server.ask(now, sql, &[(&Id(id), Type::UUID)]).await;
                assert_eq!(rows[0].get::<_, bool>(0), expected);
            }
            10 => {
                let id = chance.of(&ids);
                let Ok(expected) = model.on(now, |line| line.evict(id));
                let sql = "SELECT \"holdline\".evict('x', $1, $2)";
                let note = format!("evicted in step {step}");
                let params: [Param<'_>; 2] = [(&Id(id), Type::UUID), (&note, Type::TEXT)];
                let token: Option<i64> = server.ask(now, sql, &params).await[0].get(0);
                model.evicted.extend(expected.map(|_| (id, note)));
                assert_eq!(token.map(|token| Seq(token.unsigned_abs())), expected);
            }
            _ => same_view(server, &model, now).await,
        }
        let woken = std::mem::take(&mut model.woken);
        assert_eq!(server.woken().await, woken, "seed {seed} step {step}");
    }
    assert!(seqs.len() > steps as usize / 10, "the run did something");
}

#[tokio::test]
async fn the_functions_are_the_kernels_line() {
    let Some(server) = Server::start("model").await else { return };
    for seed in 1..=10 {
        run(&server, seed, 1500).await;
    }
}
