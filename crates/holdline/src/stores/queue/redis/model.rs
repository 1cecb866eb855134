//! A model test of the scripts against the kernel's line: random operations on a real server, step
//! by step, with a clock that the test sets. Replies, wake-ups and tokens must agree.
//!
//! The server is that of `HOLDLINE_TEST_REDIS`, or a private one if `redis-server` is installed.

use super::connection::{BATCH, ENTER, EVICT, LEAVE, LOOK};
use super::decode;
use super::encode::{digits, millis, standing, tail, wants};
use crate::store::{EVICTIONS_KEPT, Enter, Refusal, Seq, Standing, Ticket, TicketId};
use crate::sync::Mutex;
use holdline_kernel::{Head, Line, MemoryPlaces, Place, Time};
use holdline_testkit::redis::start;
use redis::{Connection, Value};
use std::collections::BTreeSet;
use std::time::Duration;

const KEYS: [&str; 6] =
    ["model{x}", "model{x}:p", "model{x}:q", "model{x}:e", "model{x}:x", "model{x}:v"];
const IDLE: Duration = Duration::from_secs(600);

/// Serialises the tests, which use the same keys.
static TURN: Mutex<()> = Mutex::new(());

/// The number of places that are kept in a line's string.
const FEW: u8 = 8;

/// A script for the test: its clock is an argument, its messages go into a list, and `few` places
/// fit the line's string.
fn model_of(text: &str, few: u8) -> redis::Script {
    let text = text
        .replace("local FEW, SHORT = 8, ", &format!("local FEW, SHORT = {few}, "))
        .replace("redis.call('TIME')", "{KEYS[2], KEYS[3]}")
        .replace("call('TIME')", "{KEYS[2], KEYS[3]}")
        .replace(
            "redis.pcall('PUBLISH', reply_order_channel, ",
            "redis.pcall('RPUSH', 'model:woken', ",
        )
        .replace("redis.pcall('PUBLISH', channel, ", "redis.pcall('RPUSH', 'model:woken', ");
    assert!(!text.contains("'TIME'") && !text.contains("PUBLISH"), "{text}");
    redis::Script::new(&text)
}

struct Server {
    conn: Connection,
    enter: redis::Script,
    leave: redis::Script,
    evict: redis::Script,
    look: redis::Script,
    together: redis::Script,
}

impl Server {
    fn run(&mut self, script: &redis::Script, args: &[Vec<u8>], now: u64) -> Value {
        let mut call = script.prepare_invoke();
        call.key(KEYS[0]).key(now / 1_000_000).key(now % 1_000_000);
        for arg in args {
            call.arg(arg);
        }
        call.invoke(&mut self.conn).expect("the script runs")
    }

    /// Runs one operation; every other time in a batch of three, of which two leave empty lines
    /// (whose keys are the parts of the time).
    fn step(&mut self, letter: char, args: Vec<Vec<u8>>, now: u64) -> Value {
        if now.is_multiple_of(2) {
            let script = if letter == 'e' { self.enter.clone() } else { self.leave.clone() };
            let args = if letter == 'e' {
                args
            } else {
                [args, vec![b"reply_order_channel".to_vec()]].concat()
            };
            return self.run(&script, &args, now);
        }
        let letters = vec![format!("{letter}ll").into_bytes(), b"reply_order_channel".to_vec()];
        let nobody = || going(TicketId(1 << 127));
        let script = self.together.clone();
        let answer = self.run(&script, &[letters, args, nobody(), nobody()].concat(), now);
        let Value::Array(mut answers) = answer else { panic!("{answer:?}") };
        assert_eq!(answers[1..], [Value::Int(0), Value::Int(0)]);
        answers.swap_remove(0)
    }

    /// The tickets that the last operation woke, with their places.
    fn woken(&mut self) -> BTreeSet<(TicketId, Seq)> {
        let messages: Vec<Vec<u8>> = redis::cmd("LRANGE")
            .arg("model:woken")
            .arg(0)
            .arg(-1)
            .query(&mut self.conn)
            .expect("a list");
        let _: () = redis::cmd("DEL").arg("model:woken").query(&mut self.conn).expect("works");
        // The reply-order message comes at most once, and before the others.
        let cues: Vec<_> = messages.iter().take_while(|message| message.is_empty()).collect();
        let rest = &messages[cues.len()..];
        assert!(cues.len() <= 1 && rest.iter().all(|message| !message.is_empty()), "{messages:?}");
        assert!(cues.is_empty() || rest.iter().any(|message| message.starts_with(b"w")));
        let admitted = messages.iter().filter_map(|message| message.strip_prefix(b"w"));
        admitted
            .flat_map(|places| places.chunks(super::pubsub::PLACE))
            .map(|place| super::pubsub::place_of(place).expect("a place"))
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

fn arguments(ticket: &Ticket, how: Enter) -> Vec<Vec<u8>> {
    let tail = tail(ticket.id, "channel", "a note, with\nlines\0 and all");
    vec![wants(ticket, how, IDLE).to_vec(), tail]
}

fn going(id: TicketId) -> Vec<Vec<u8>> {
    vec![digits(id).to_vec(), millis(IDLE).to_string().into_bytes()]
}

fn both_enter(
    server: &mut Server,
    model: &mut Model,
    now: u64,
    ticket: &Ticket,
    how: Enter,
) -> Result<Standing, Refusal> {
    let Ok(expected) = model.on(now, |line| line.enter(ticket, how, ()));
    let value = server.step('e', arguments(ticket, how), now);
    let answer = standing(ticket, how, &value).expect("an answer that makes sense");
    assert_eq!(answer, expected, "{how:?} {ticket:?} {value:?}");
    expected
}

/// A snapshot changes nothing in the server, so it may change nothing in the model.
#[allow(clippy::redundant_closure_for_method_calls, reason = "a path is not general enough")]
fn same_view(server: &mut Server, model: &Model, now: u64) {
    let kept = &model.evicted;
    let mut model = Model { head: model.head, deck: model.deck.clone(), ..Model::default() };
    let Ok(()) = model.on(now, |line| line.expire());
    let script = server.look.clone();
    let seen = decode::read(&server.run(&script, &[], now)).expect("a view");
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
    let seen = (evicted, places);
    assert_eq!(seen.1, expected);
    assert_eq!(seen.0, kept[kept.len().saturating_sub(EVICTIONS_KEPT)..]);
}

fn run(seed: u64, steps: u32, few: u8) {
    let _turn = TURN.lock();
    let Some(server) = start("model") else { return };
    let client = redis::Client::open(server.url()).expect("a good URL");
    let mut server = Server {
        conn: client.get_connection().expect("it runs"),
        enter: model_of(ENTER.text(), few),
        leave: model_of(LEAVE.text(), few),
        evict: model_of(EVICT.text(), few),
        look: model_of(LOOK.text(), few),
        together: model_of(BATCH.text(), few),
    };
    let _: () =
        redis::cmd("DEL").arg(&KEYS).arg("model:woken").query(&mut server.conn).expect("ok");
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
                let answer = both_enter(&mut server, &mut model, now, &ticket, how);
                if let Ok(Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. }) =
                    answer
                {
                    seqs.push((ticket.id, seq));
                }
            }
            7..10 => {
                let id = chance.of(&ids);
                let Ok(expected) = model.on(now, |line| line.leave(id));
                assert_eq!(server.step('l', going(id), now), Value::Int(i64::from(expected)));
            }
            10 if chance.0.bool() => {
                let id = chance.of(&ids);
                let Ok(expected) = model.on(now, |line| line.evict(id));
                let script = server.evict.clone();
                let note = format!("evicted in step {step}, with a \0");
                let rest = vec![Vec::new(), b"0".to_vec(), note.clone().into_bytes()];
                let value = server.run(&script, &[going(id), rest].concat(), now);
                model.evicted.extend(expected.map(|_| (id, note)));
                let expected = expected.map_or(Value::Nil, |seq| Value::Int(seq.0.cast_signed()));
                assert_eq!(value, expected);
            }
            10 => lose_an_index(&mut server, &mut chance),
            _ => same_view(&mut server, &model, now),
        }
        assert_eq!(server.woken(), std::mem::take(&mut model.woken), "seed {seed} step {step}");
    }
    assert!(seqs.len() > steps as usize / 10, "the run did something");
}

/// The indexes may be removed at any time: they are rebuilt from the places.
fn lose_an_index(server: &mut Server, chance: &mut Chance) {
    let key = chance.of(&[KEYS[2], KEYS[3]]);
    let _: () = redis::cmd("DEL").arg(key).query(&mut server.conn).expect("works");
}

#[test]
fn the_scripts_are_the_kernels_line() {
    assert!(ENTER.text().contains("local FEW, SHORT = 8, ") && FEW == 8);
    for seed in 1..=5 {
        run(seed, 4000, FEW);
    }
}

#[test]
fn they_are_so_when_lines_often_outgrow_one_string() {
    for (seed, few) in [(6, 0), (7, 1), (8, 2), (9, 2), (10, 3), (11, 3)] {
        run(seed, 4000, few);
    }
}

#[test]
fn they_are_so_when_lines_never_outgrow_one_string() {
    for seed in 12..=14 {
        run(seed, 4000, 100);
    }
}

#[test]
fn tokens_end_before_doubles_lose_count() {
    let Some(server) = start("tokens") else { return };
    let client = redis::Client::open(server.url()).expect("a good URL");
    let mut conn = client.get_connection().expect("it runs");
    let _: () = redis::cmd("DEL").arg("tokens{x}").query(&mut conn).expect("ok");
    let ticket = Ticket {
        id: TicketId(1),
        weight: 1,
        capacity: 1,
        lease: Duration::from_secs(1),
        wait_lease: Duration::from_secs(1),
        token_count: 2,
        min_token: 0,
    };
    let mut enter = |last_micros: u64| {
        let script = model_of(ENTER.text(), FEW);
        let mut call = script.prepare_invoke();
        call.key("tokens{x}").key(last_micros / 1_000_000).key(last_micros % 1_000_000);
        for arg in arguments(&ticket, Enter::Try) {
            call.arg(arg);
        }
        let value = call.invoke(&mut conn).expect("the script runs");
        standing(&ticket, Enter::Try, &value).expect("an answer that makes sense")
    };
    assert_eq!(enter((1 << 53) - 1), Err(Refusal::Exhausted));
    let seq = Seq((1 << 53) - 2);
    assert_eq!(enter(seq.0), Ok(Standing::Admitted(seq)));
}
