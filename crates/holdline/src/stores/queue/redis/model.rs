//! Compares the scripts with the kernel's line.
//!
//! The server is that of `HOLDLINE_TEST_REDIS`, or a private one if `redis-server` is installed.

use super::decode;
use super::encode::{HOW, Kept, digits, letter, millis, standing, tail, wants};
use super::scripts::{BATCH, ENTER, EVICT, LEAVE, LOOK};
use crate::store::{Enter, QueueSnapshot, Refusal, Seq, Standing, Ticket, TicketId};
use crate::stores::queue::model::{Subject, Woken, run};
use crate::sync::Mutex;
use holdline_testkit::redis::start;
use redis::{Connection, Value};
use std::collections::HashMap;
use std::time::Duration;

/// A line's keys.
fn keys(line: &str) -> [String; 6] {
    ["", ":p", ":q", ":e", ":x", ":v"].map(|suffix| format!("model{{{line}}}{suffix}"))
}

const IDLE: Duration = Duration::from_secs(600);
const KEPT: Kept = Kept { idle: IDLE, clock_span: Duration::from_secs(1) };
/// So short that keys often expire.
const SHORT_IDLE: Duration = Duration::from_millis(10);

/// Serializes the tests, which use the same keys.
static TURN: Mutex<()> = Mutex::new(());

/// The number of places that are kept in a line's string.
const FEW: u8 = 8;

/// A script for the test: its clock is an argument, its messages go into a list, and the line's
/// string has room for `few` places. Keys live a million times longer, so that none expires by the
/// server's own clock: see [`Server::age`].
fn model_of(text: &str, few: u8) -> redis::Script {
    let text = text
        .replace("local FEW, SHORT = 8, ", &format!("local FEW, SHORT = {few}, "))
        .replace("redis.call('TIME')", "{KEYS[2], KEYS[3]}")
        .replace("call('TIME')", "{KEYS[2], KEYS[3]}")
        .replace(
            "redis.pcall('PUBLISH', reply_order_channel, ",
            "redis.pcall('RPUSH', 'model:woken', ",
        )
        .replace(
            "redis.pcall('PUBLISH', channel, ",
            "redis.pcall('RPUSH', 'model:woken', channel .. ' ' .. ",
        )
        .replace("'PX', ", "'PX', 1000000 * ")
        .replace("'PEXPIRE', key, ", "'PEXPIRE', key, 1000000 * ")
        .replace("'PEXPIRE', barred, ", "'PEXPIRE', barred, 1000000 * ");
    assert!(!text.contains("'TIME'") && !text.contains("PUBLISH"), "{text}");
    let times = text.matches("'PX'").count() + text.matches("'PEXPIRE'").count();
    assert_eq!(text.matches(", 1000000 * ").count(), times, "{text}");
    redis::Script::new(&text)
}

struct Server {
    conn: Connection,
    keys: [String; 6],
    idle: Duration,
    /// When keys expire, on the test's clock.
    ends: HashMap<String, u64>,
    enter: redis::Script,
    leave: redis::Script,
    evict: redis::Script,
    look: redis::Script,
    together: redis::Script,
}

impl Server {
    fn run(&mut self, script: &redis::Script, args: &[Vec<u8>], now: u64) -> Value {
        self.run_on(&[], script, args, now)
    }

    /// Runs a script with more keys than the line's and the time's.
    fn run_on(
        &mut self,
        more: &[&str],
        script: &redis::Script,
        args: &[Vec<u8>],
        now: u64,
    ) -> Value {
        let mut call = script.prepare_invoke();
        call.key(&self.keys[0]).key(now / 1_000_000).key(now % 1_000_000).key(more);
        for arg in args {
            call.arg(arg);
        }
        self.age(now);
        let answer = call.invoke(&mut self.conn).expect("the script runs");
        self.note_ends(now);
        answer
    }

    /// Lets the line's keys grow older by the test's clock, and expire. Evictions do not.
    fn age(&mut self, now: u64) {
        let mut aging = redis::pipe();
        for key in &self.keys[..5] {
            match self.ends.get(key) {
                Some(end) if *end <= now => drop(aging.cmd("DEL").arg(key)),
                Some(end) => drop(aging.cmd("PEXPIRE").arg(key).arg((end - now) * 1000)),
                None => {}
            }
        }
        if !aging.is_empty() {
            let _: () = aging.query(&mut self.conn).expect("works");
        }
    }

    /// Notes when the line's keys expire. All that exist must do so.
    fn note_ends(&mut self, now: u64) {
        let mut asking = redis::pipe();
        for key in &self.keys[..5] {
            asking.cmd("PTTL").arg(key);
        }
        let left: Vec<i64> = asking.query(&mut self.conn).expect("works");
        for (key, left) in self.keys.iter().zip(left) {
            assert_ne!(left, -1, "{key} is kept for ever");
            match u64::try_from(left) {
                Ok(left) => self.ends.insert(key.clone(), now + left.div_ceil(1000)),
                Err(_) => self.ends.remove(key),
            };
        }
    }

    fn idle(&self) -> Vec<Vec<u8>> {
        vec![millis(self.idle).to_string().into_bytes()]
    }

    /// Runs one operation; every other time in a batch, before departures of nonexistent tickets:
    /// from two empty lines (whose keys are the parts of the time), and once more from the line
    /// itself.
    fn step(&mut self, letter: char, args: Vec<Vec<u8>>, now: u64) -> Value {
        if now.is_multiple_of(2) {
            let (script, args) = match letter {
                'l' => (self.leave.clone(), [args, self.idle(), order()].concat()),
                'b' => {
                    let (id, bar) = args.split_at(1);
                    (self.leave.clone(), [id, &self.idle(), &order(), bar].concat())
                }
                _ => (self.enter.clone(), args),
            };
            return self.run(&script, &args, now);
        }
        let (letters, args) = if matches!(letter, 'l' | 'b') {
            (format!("{letter}llal"), args)
        } else {
            let (numbers, how) = args[0].split_at(HOW);
            let how = if letter == 'k' { vec![how.to_vec()] } else { Vec::new() };
            (format!("w{letter}llal"), [vec![numbers.to_vec(), args[1].clone()], how].concat())
        };
        let head = [vec![letters.into_bytes()], order(), self.idle()].concat();
        let nobody = || going(TicketId(1 << 127));
        let (script, line) = (self.together.clone(), self.keys[0].clone());
        let args = [head, args, nobody(), nobody(), nobody()].concat();
        let answer = self.run_on(&[&line], &script, &args, now);
        let Value::Array(mut answers) = answer else { panic!("{answer:?}") };
        assert_eq!(answers[1..], [const { Value::Int(0) }; 3]);
        answers.swap_remove(0)
    }

    /// The tickets that the last operation woke, with their places.
    fn woken(&mut self) -> Woken {
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
        let mut woken = Woken::new();
        for message in rest {
            let (channel, message) =
                message.split_at(message.iter().position(|byte| *byte == b' ').expect("a channel"));
            let Some(places) = message.strip_prefix(b" w") else { continue };
            for place in places.chunks(super::pubsub::PLACE) {
                let place = super::pubsub::place_of(place).expect("a place");
                assert_eq!(channel, channel_of(place.0).as_bytes(), "another ticket's channel");
                woken.insert(place);
            }
        }
        assert!(cues.is_empty() || !woken.is_empty());
        woken
    }
}

fn channel_of(id: TicketId) -> String {
    format!("channel-{}", id.0 % 3) // of three processes
}

fn arguments(ticket: &Ticket, note: &str, how: Enter, idle: Duration) -> Vec<Vec<u8>> {
    let tail = tail(ticket.id, &channel_of(ticket.id), note);
    vec![wants(ticket, how, Kept { idle, ..KEPT }).to_vec(), tail]
}

fn going(id: TicketId) -> Vec<Vec<u8>> {
    vec![digits(id).to_vec()]
}

fn order() -> Vec<Vec<u8>> {
    vec![b"reply_order_channel".to_vec()]
}

impl Subject for Server {
    fn turn_to(&mut self, line: usize) {
        self.keys = keys(["x", "y"][line]);
    }

    fn enter(
        &mut self,
        now: u64,
        ticket: &Ticket,
        note: &str,
        how: Enter,
    ) -> (Result<Standing, Refusal>, Woken) {
        let args = arguments(ticket, note, how, self.idle);
        let value = self.step(letter(how).into(), args, now);
        let standing = standing(ticket, how, &value).expect("an answer that makes sense");
        (standing, self.woken())
    }

    fn leave(&mut self, now: u64, id: TicketId, bar: Option<Duration>) -> (bool, Woken) {
        let bar = bar.map(|bar| bar.as_micros().to_string().into_bytes());
        let letter = if bar.is_some() { 'b' } else { 'l' };
        let args = going(id).into_iter().chain(bar).collect();
        let Value::Int(left @ (0 | 1)) = self.step(letter, args, now) else {
            panic!("an answer that makes no sense")
        };
        (left == 1, self.woken())
    }

    fn evict(&mut self, now: u64, id: TicketId, note: &str) -> (Option<Seq>, Woken) {
        let script = self.evict.clone();
        let span = b"1000000".to_vec();
        let rest = vec![Vec::new(), b"0".to_vec(), note.as_bytes().to_vec(), span];
        let token = match self.run(&script, &[going(id), self.idle(), rest].concat(), now) {
            Value::Nil => None,
            Value::Int(token) => Some(Seq(token.unsigned_abs())),
            other => panic!("{other:?}"),
        };
        (token, self.woken())
    }

    fn look(&mut self, now: u64) -> (QueueSnapshot, Woken) {
        let script = self.look.clone();
        let seen = decode::read(&self.run(&script, &[], now)).expect("a view");
        (seen, self.woken())
    }

    /// Short ones where keys expire soon, so that lines are often almost over.
    fn longest_lease(&self) -> u64 {
        if self.idle == SHORT_IDLE { 300_000 } else { 3_000_000 }
    }

    /// Keys are kept for as long as tickets' leases as holders.
    fn waits_longer(&self) -> bool {
        self.idle != SHORT_IDLE
    }

    /// They expire by the server's own clock.
    fn forgets_evictions(&self) -> bool {
        false
    }

    /// The indexes may be removed at any time: they are rebuilt from the places.
    fn disturb(&mut self, random: u64) {
        let key = &self.keys[if random.is_multiple_of(2) { 2 } else { 3 }];
        let _: () = redis::cmd("DEL").arg(key).query(&mut self.conn).expect("works");
    }
}

/// Compares lines whose first `few` places fit one string, and whose keys are kept for `idle` when
/// nothing needs them any more, with the kernel's.
fn agree(seed: u64, few: u8, idle: Duration) {
    let _turn = TURN.lock();
    let Some(server) = start("model") else { return };
    let client = redis::Client::open(server.url()).expect("a good URL");
    let mut server = Server {
        conn: client.get_connection().expect("it runs"),
        keys: keys("x"),
        idle,
        ends: HashMap::new(),
        enter: model_of(ENTER.text(), few),
        leave: model_of(LEAVE.text(), few),
        evict: model_of(EVICT.text(), few),
        look: model_of(LOOK.text(), few),
        together: model_of(BATCH.text(), few),
    };
    let mut clear = redis::cmd("DEL");
    clear.arg(&keys("x")).arg(&keys("y")).arg(&["modelclock", "model:woken"]);
    let _: () = clear.query(&mut server.conn).expect("works");
    run(&mut server, seed, 4000);
}

#[test]
fn the_scripts_are_the_kernels_line() {
    assert!(ENTER.text().contains("local FEW, SHORT = 8, ") && FEW == 8);
    for seed in 1..=5 {
        agree(seed, FEW, IDLE);
    }
}

#[test]
fn they_are_so_when_lines_often_outgrow_one_string() {
    for (seed, few) in [(6, 0), (7, 1), (8, 2), (9, 2), (10, 3), (11, 3)] {
        agree(seed, few, IDLE);
    }
}

/// A key that expires takes nothing along that matters: no place, no bar, and no token that the
/// clock has not passed.
#[test]
fn they_are_so_when_keys_expire_soon() {
    for (seed, few) in [(15, FEW), (16, 0), (17, 1), (18, 100), (24, 2), (27, 0), (30, FEW)] {
        agree(seed, few, SHORT_IDLE);
    }
}

#[test]
fn they_are_so_when_lines_never_outgrow_one_string() {
    for seed in 12..=14 {
        agree(seed, 100, IDLE);
    }
}

#[test]
fn tokens_end_before_doubles_lose_count() {
    let Some(server) = start("tokens") else { return };
    let client = redis::Client::open(server.url()).expect("a good URL");
    let mut conn = client.get_connection().expect("it runs");
    let _: () = redis::cmd("DEL").arg("tokens{x}").arg("tokensclock").query(&mut conn).expect("ok");
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
        for arg in arguments(&ticket, "", Enter::Try, IDLE) {
            call.arg(arg);
        }
        let value = call.invoke(&mut conn).expect("the script runs");
        standing(&ticket, Enter::Try, &value).expect("an answer that makes sense")
    };
    assert_eq!(enter((1 << 53) - 1), Err(Refusal::Exhausted));
    let seq = Seq((1 << 53) - 2);
    assert_eq!(enter(seq.0), Ok(Standing::Admitted(seq)));
}
