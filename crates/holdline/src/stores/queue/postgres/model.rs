//! A comparison of the functions with the kernel's line, on the server of `HOLDLINE_TEST_POSTGRES`.

use super::address::Address;
use super::encode;
use super::schema::{LONGEST, statement, text};
use super::session::Session;
use crate::store::{Enter, QueueSnapshot, Refusal, Seq, Standing, Ticket, TicketId};
use crate::stores::queue::calls::{Row, id_of, snapshot};
use crate::stores::queue::model::{Subject, Woken, numbers_end, run};
use std::time::Duration;
use tokio::runtime::Runtime;

/// What [`statement`] replaces.
const SCHEMA: &str = "\"holdline\"";

/// A server whose functions use a clock that the test sets, and keep notices in a table.
struct Server {
    runtime: Runtime,
    session: Session,
    schema: String,
    line: &'static str,
}

impl Server {
    fn start(test: &str) -> Option<Server> {
        let Ok(url) = std::env::var("HOLDLINE_TEST_POSTGRES") else {
            holdline_testkit::missing(&format!("{test} needs HOLDLINE_TEST_POSTGRES"));
            return None;
        };
        let address = Address::read(url.split_once(':').expect("a scheme").1).expect("a good URL");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("the system gives a runtime");
        let session = runtime.block_on(Session::open(&address, None));
        let mut session = session.expect("it runs");
        session.timeout = LONGEST;
        let schema = format!("holdline_{test}");
        let text = text(&schema)
            .expect("a good name")
            .replace(
                "extract(epoch FROM clock_timestamp()) * 1000000",
                "current_setting('a.clock')",
            )
            .replace("PERFORM pg_notify(", &format!("INSERT INTO \"{schema}\".woken VALUES ("));
        assert!(!text.contains("clock_timestamp") && !text.contains("notify"));
        let server = Server { runtime, session, schema, line: "model" };
        let clear = format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE;", server.schema);
        let woken = statement(&server.schema, "CREATE TABLE \"holdline\".woken (c text, p text);");
        let all = format!("{clear} {text}; {woken}");
        let installed = server.runtime.block_on(server.session.ask(&all));
        installed.expect("the schema is installed");
        Some(server)
    }

    fn ask(&self, now: u64, sql: &str) -> Vec<Row> {
        let sql = statement(&self.schema, sql);
        self.runtime.block_on(async {
            let set = self.session.ask(&format!("SET a.clock = '{now}'")).await;
            set.expect("it can be set");
            let said = self.session.ask(&sql).await;
            said.unwrap_or_else(|fault| panic!("{sql}: {fault:?}")).rows
        })
    }

    /// The tickets that the last operation woke, with their places.
    fn woken(&self) -> Woken {
        let rows = self.ask(0, "DELETE FROM \"holdline\".woken RETURNING p, c");
        let admitted = rows.iter().filter_map(|row| {
            let (id, seq) = row.text(0)?.strip_prefix('w')?.split_at(36);
            let id = id_of(id).expect("an id");
            assert_eq!(row.text(1), Some(&*channel_of(id)), "another ticket's channel");
            Some((id, Seq(seq.parse().expect("a number"))))
        });
        admitted.collect()
    }
}

fn channel_of(id: TicketId) -> String {
    format!("channel_{}", id.0 % 3) // of three processes
}

impl Subject for Server {
    fn turn_to(&mut self, line: usize) {
        self.line = ["model", "another"][line];
    }

    fn enter(
        &mut self,
        now: u64,
        ticket: &Ticket,
        note: &str,
        how: Enter,
    ) -> (Result<Standing, Refusal>, Woken) {
        let channel = channel_of(ticket.id);
        let sql = encode::enter(SCHEMA, self.line, ticket, how, &channel, note);
        let answer = self.ask(now, &sql.expect("no zeros")).remove(0);
        let standing = encode::standing(ticket, &answer, true).expect("an answer that makes sense");
        (standing, self.woken())
    }

    fn leave(&mut self, now: u64, id: TicketId, bar: Option<Duration>) -> (bool, Woken) {
        let sql = encode::leave(SCHEMA, self.line, id, bar.unwrap_or_default());
        let answer = self.ask(now, &sql.expect("no zeros")).remove(0);
        (answer.truth(0).expect("a boolean"), self.woken())
    }

    fn evict(&mut self, now: u64, id: TicketId, note: &str) -> (Option<Seq>, Woken) {
        let sql = encode::evict(SCHEMA, self.line, id, note);
        let answer = self.ask(now, &sql.expect("no zeros")).remove(0);
        (answer.number(0).map(Seq), self.woken())
    }

    /// A PostgreSQL text cannot contain a zero.
    fn note(&self, text: String) -> String {
        text + ", with\nlines, ' and all"
    }

    fn look(&mut self, now: u64) -> (QueueSnapshot, Woken) {
        let rows = self.ask(now, &format!("SELECT * FROM \"holdline\".look('{}')", self.line));
        (snapshot(&rows).expect("a view"), self.woken())
    }
}

#[test]
fn the_functions_are_the_kernels_line() {
    let Some(mut server) = Server::start("model") else { return };
    for seed in 1..=10 {
        server.ask(0, "DELETE FROM \"holdline\".line");
        server.ask(0, "DELETE FROM \"holdline\".place");
        server.ask(0, "DELETE FROM \"holdline\".barred");
        run(&mut server, seed, 1500);
    }
}

#[test]
fn the_numbers_of_places_end() {
    let Some(mut server) = Server::start("numbers") else { return };
    numbers_end(&mut server);
}

/// The one statement that renews a place behind the first asks for it, too.
#[test]
fn no_place_is_kept_with_another_capacity() {
    let Some(mut server) = Server::start("capacity") else { return };
    let lease = Duration::from_secs(60);
    let ticket = |id, capacity| Ticket {
        id: TicketId(id),
        weight: 1,
        capacity,
        lease,
        wait_lease: lease,
        token_count: 1,
        min_token: 0,
    };
    for id in 1..=2 {
        let (standing, _) = server.enter(1_000, &ticket(id, 3), "", Enter::Queue);
        let Ok(Standing::Admitted(seq)) = standing else { panic!("{standing:?}") };
        let mut keep =
            |capacity| server.enter(1_001, &ticket(id, capacity), "", Enter::Keep(seq)).0;
        assert_eq!(keep(2), Err(Refusal::Capacity { line: 3 }), "place {id}");
        assert_eq!(keep(3), Ok(Standing::Admitted(seq)), "place {id}");
    }
}
