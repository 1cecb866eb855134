//! The leader: two processes that take over from each other.

use crate::support::{Example, Store};
use rustix::process::Signal;

fn start(store: &Store) -> Example {
    Example::start(store.command(env!("CARGO_BIN_EXE_leader")))
}

fn token_in(line: &str) -> u64 {
    let token = line.rsplit(' ').next().and_then(|word| word.parse().ok());
    token.unwrap_or_else(|| panic!("{line:?} ends with a token"))
}

#[test]
fn one_works_at_a_time_and_the_next_takes_over() {
    for store in Store::file_and("HOLDLINE_TEST_ETCD", "/examples-leader-") {
        let mut first = start(&store);
        let token = token_in(&first.says("we lead"));
        first.says(&format!("working under token {token}"));

        // It learns that its leadership is broken, and why; the next takes over; it stands again.
        let mut second = start(&store);
        second.says("leads");
        store.is_awaited("scheduler"); // or else the first might be in line before the second
        store.break_lock("scheduler", store.holder("scheduler"));
        let loss = first.says("we lead no more");
        assert!(loss.contains("broken by force") && loss.contains("a test"), "{loss}");
        let next = token_in(&second.says("we lead"));
        second.says(&format!("working under token {next}"));
        assert!(next > token, "{next} is not after {token}");

        // Ctrl-C: it resigns, and the other need not wait for its lease.
        second.signal(Signal::INT);
        second.says("resigned");
        assert_eq!(second.exit_code(), Some(0));
        assert!(token_in(&first.says("we lead, with token")) > next);

        first.signal(Signal::INT);
        assert_eq!(first.exit_code(), Some(0));
        assert!(store.is_free("scheduler"));
    }
}
