//! A server that stops for a while: who waits goes on, says so, and gives up only when told.

use super::common::{Place, Running, finish};
use super::server::Server;
use rustix::process::Signal;
use std::time::Duration;

/// Longer than any answer is waited for (a third of a lease of 1 s).
const OUTAGE: Duration = Duration::from_secs(3);

fn start(place: &Place, server: &Server, args: &[&str]) -> Running {
    Running::start(place.command(args).env("HOLDLINE_STORE", server.url()))
}

fn counts(place: &Place, server: &Server) -> (usize, usize) {
    let run = finish(place.command(["status", "--json", "x"]).env("HOLDLINE_STORE", server.url()));
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap_or_default();
    let count = |key: &str| json[key].as_array().map_or(0, Vec::len);
    (count("holders"), count("waiters"))
}

#[test]
fn who_waits_rides_it_out() {
    let place = Place::new();
    let Some(server) = Server::start() else { return };
    let mut holder = start(
        &place,
        &server,
        &["run", "--lease", "60s", "x", "--", "sh", "-c", "echo in; read x"],
    );
    assert_eq!(holder.line(), "in");
    let mut waiter = start(
        &place,
        &server,
        &["run", "-v", "--lease", "1s", "x", "--", "sh", "-c", "echo in; read x"],
    );
    let mut standby =
        start(&place, &server, &["elect", "--lease", "1s", "x", "me", "--", "echo", "led"]);
    let mut watch = start(&place, &server, &["watch", "x"]);
    for _ in 0..3 {
        assert!(watch.line().contains("token "));
    }
    let mut observer = start(&place, &server, &["elect", "--observe", "x"]);
    assert!(observer.line().contains("token "));
    let impatient =
        start(&place, &server, &["run", "--outage", "1s", "--lease", "1s", "x", "--", "true"]);
    assert!(watch.line().contains("waiting"));
    server.freeze();
    let run = impatient.end();
    assert_eq!(run.code, 69, "{run:?}");
    std::thread::sleep(OUTAGE);
    assert!(waiter.runs() && standby.runs() && watch.runs() && observer.runs());
    server.thaw();
    holder.tell("\n");
    assert_eq!(holder.end().code, 0);
    // The two may have lost their places, and their order.
    let led = std::thread::spawn(move || (standby.line(), standby.end()));
    assert_eq!(waiter.line(), "in");
    waiter.tell("\n");
    let run = waiter.end();
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.err.contains(" has not answered for "), "{run:?}");
    assert!(run.err.contains("warning: the store does not answer"), "{run:?}");
    assert!(run.err.contains("info: the store answers again"), "{run:?}");
    assert_eq!(led.join().unwrap().0, "led");
    super::common::until("all is free", || counts(&place, &server) == (0, 0));
    loop {
        if observer.line() == "nobody leads" {
            break;
        }
    }
    assert!(watch.runs());
    watch.signal(Signal::TERM);
}

#[test]
fn warnings_are_sentences_or_events_or_nothing() {
    let place = Place::new();
    let Some(server) = Server::start() else { return };
    let secret = "CaNaRy77";
    let url = format!("redis://:{secret}@127.0.0.1:{}", server.port);
    for (flags, log, said) in [
        (&[][..], "", &["holdline: warning: "][..]),
        (&["-q"], "", &[]),
        (&["-q"], "warn", &["holdline: warning: "]),
        (&["-vv"], "", &["holdline: warning: "]),
        (&[], "off", &[]),
        (&["--json"], "", &["\"event\":\"log\"", "\"level\":\"warn\""]),
    ] {
        let args = [
            &["run", "--lease", "1s", "--on-loss", "continue"],
            flags,
            &["x", "--", "sh", "-c", "echo in; read x"],
        ]
        .concat();
        // A server without a password takes any user's, as long as none is asked for.
        let mut command = place.command(args);
        let url = if log == "warn" { server.url() } else { url.clone() };
        command
            .env("HOLDLINE_STORE", url.replace(&format!(":{secret}@"), ""))
            .env("HOLDLINE_LOG", log);
        let mut running = Running::start(&mut command);
        assert_eq!(running.line(), "in");
        server.freeze();
        std::thread::sleep(Duration::from_secs(2));
        server.thaw();
        running.tell("\n");
        let run = running.end();
        assert_eq!(run.code, 76, "{run:?}");
        assert!(said.iter().all(|word| run.err.contains(word)), "{flags:?} {log:?}: {run:?}");
        assert!(!said.is_empty() || !run.err.contains("warning"), "{flags:?} {log:?}: {run:?}");
        assert!(!run.err.contains(secret));
    }
}
