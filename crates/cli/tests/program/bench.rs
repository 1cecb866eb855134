//! `bench`, on the stores that need no server: its table, its files, and what it refuses.

use super::common::{Place, Run, Running, until};
use rustix::process::Signal;
use serde_json::Value;

/// A short run of two clients, with these arguments more.
fn bench(place: &Place, args: &[&str]) -> Run {
    let short = ["bench", "--rounds", "2", "--time", "200ms", "--clients", "2", "--hold", "0"];
    place.run(short.iter().chain(args))
}

fn json(run: &Run) -> Value {
    assert_eq!(run.code, 0, "{run:?}");
    serde_json::from_str(&run.out).expect("it is JSON")
}

fn rows(report: &Value) -> &Vec<Value> {
    report["rows"].as_array().expect("there are rows")
}

#[test]
fn every_store_is_measured_with_every_way_to_wait() {
    let place = Place::new();
    let run = bench(&place, &["memory", "file", "--mode", "listen,handoff,poll", "--json"]);
    let report = json(&run);
    let rows = rows(&report);
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert_eq!(row["status"], "measured", "{row}");
        assert_eq!(row["rounds"], 2);
        assert_eq!(row["shares"].as_array().unwrap().len(), 2);
        // Nobody was let in while another one was there, whatever the speed of this machine.
        assert_eq!(row["figures"]["faults"]["high"], 0.0, "{row}");
        let rate = &row["figures"]["locks_per_s"];
        assert!(rate["low"].as_f64() <= rate["median"].as_f64(), "{rate}");
        assert!(rate["median"].as_f64() <= rate["high"].as_f64(), "{rate}");
        let waits: Vec<f64> = row["distribution"].as_array().unwrap().iter().map(wait).collect();
        assert!(waits.is_sorted(), "{waits:?}");
    }
    // Progress is told with the time that is left.
    let told = run.err.lines().filter(|line| line.contains("\"seconds_left\""));
    assert!(told.count() >= 12, "{}", run.err);
}

fn wait(point: &Value) -> f64 {
    point[1].as_f64().expect("a wait is a number")
}

#[test]
fn a_table_says_what_it_was_measured_on() {
    let run = bench(&Place::new(), &["file", "--mode", "listen"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    for text in ["2 clients", "file: listen, fair", "cores", "load before", "holdline bench"] {
        assert!(run.out.contains(text), "{text}: {}", run.out);
    }
}

#[test]
fn the_store_of_the_environment_is_measured_if_none_is_named() {
    let place = Place::new();
    let report = json(&bench(&place, &["--mode", "listen", "--json"]));
    assert_eq!(rows(&report)[0]["store"], place.url());
    assert!(place.files().contains(&"locks.db".to_owned()));
}

#[test]
fn files_are_whole() {
    let place = Place::new();
    let (csv, html) = (place.path("a.csv"), place.path("a.html"));
    let files = ["--csv", csv.to_str().unwrap(), "--html", html.to_str().unwrap()];
    // One of the rows is refused, and is in the files all the same.
    let args = ["memory", "--mode", "listen,poll,poll-string", "--scenario", "mutex,burst"];
    assert_eq!(bench(&place, &[&args[..], &files].concat()).code, 0);
    let csv = std::fs::read_to_string(csv).unwrap();
    let fields: Vec<usize> = csv.lines().map(fields).collect();
    assert_eq!(fields.len(), 1 + 6, "{csv}");
    assert!(fields.iter().all(|count| *count == fields[0]), "{fields:?}");
    assert_eq!(csv.lines().filter(|line| line.contains("not run: poll-string")).count(), 2);
    let html = std::fs::read_to_string(html).unwrap();
    well_formed(&html);
    assert!(html.contains("<svg") && html.contains("prefers-color-scheme:dark"));
    assert!(html.contains("not run: poll-string"));
    // It needs nothing from anywhere.
    for word in ["http:", "https:", "src=", "@import", "<script", "<link"] {
        assert!(!html.contains(word), "{word}");
    }
}

#[test]
fn a_picture_is_a_file_of_its_own() {
    let place = Place::new();
    let svg = place.path("a.svg");
    let args = ["memory", "--mode", "listen,poll", "--svg", svg.to_str().unwrap()];
    assert_eq!(bench(&place, &args).code, 0);
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg xmlns='http://www.w3.org/2000/svg'"), "{svg}");
    assert!(svg.ends_with("</svg>\n") && svg.matches("<svg").count() == 1, "{svg}");
    for words in ["memory: listen, fair", "locks of each client", "2 rounds", "holdline bench"] {
        assert!(svg.contains(words), "{words}: {svg}");
    }
    for word in ["https:", "href", "@import", "<script"] {
        assert!(!svg.contains(word), "{word}");
    }
}

/// The number of fields of a line of CSV.
fn fields(line: &str) -> usize {
    let mut quoted = false;
    let commas = line.chars().filter(|c| {
        quoted ^= *c == '"';
        *c == ',' && !quoted
    });
    commas.count() + 1
}

/// Every tag is closed, in order.
fn well_formed(html: &str) {
    assert!(html.starts_with("<!DOCTYPE html>") && html.trim_end().ends_with("</html>"));
    let mut open: Vec<&str> = Vec::new();
    for tag in html.split('<').skip(2) {
        let (tag, _) = tag.split_once('>').expect("every tag ends");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed));
        } else if !tag.ends_with('/') && name != "meta" {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn clients_in_several_processes_compete_with_each_other() {
    let place = Place::new();
    let args = ["file", "--mode", "listen,poll-unfair", "--processes", "2", "--json"];
    let report = json(&bench(&place, &args));
    for row in rows(&report) {
        assert_eq!(row["status"], "measured", "{row}");
        assert_eq!(row["processes"], 2);
        assert_eq!(row["shares"].as_array().unwrap().len(), 2);
        assert_eq!(row["figures"]["faults"]["high"], 0.0);
    }
}

#[test]
fn a_killed_holder_is_followed() {
    let place = Place::new();
    let args = ["bench", "file", "--scenario", "crash", "--mode", "listen", "--rounds", "1"];
    let report = json(&place.run(args.iter().chain(&["--lease", "2s", "--json"])));
    assert_eq!(rows(&report).len(), 1);
    assert!(rows(&report)[0]["figures"]["recovery"]["median"].as_f64() > Some(0.0));
}

#[test]
fn what_a_store_does_not_have_is_refused() {
    let place = Place::new();
    for (args, word) in [
        (&["memory", "--mode", "poll-string"][..], "string keys"),
        (&["memory", "--mode", "listen-unfair"], "only Redis"),
        (&["memory", "--mode", "listen", "--processes", "2"], "one process"),
        (&["memory", "--mode", "listen", "--delay", "5ms"], "link"),
        (&["file", "--mode", "listen", "--scenario", "leader"], "crash and leader"),
        (&["file", "--mode", "listen", "--lease", "1ms"], "leases from"),
        (&["file", "--mode", "listen", "--rate", "0"], "rate"),
        (&["nonsense", "--mode", "listen"], "no store"),
    ] {
        let run = bench(&place, args);
        assert_eq!((run.code, run.out.as_str()), (64, ""), "{args:?}: {run:?}");
        assert!(run.err.contains(word), "{args:?}: {}", run.err);
    }
    for args in [
        &["bench", "--mode", "spin"][..],
        &["bench", "--mode", "poll:fixed=0ms"],
        &["bench", "--scenario", "semaphore=0"],
        &["bench", "--preset", "polling", "--clients", "3"],
        &["bench", "--preset", "unheard-of"],
        &["bench", "--quick", "--rounds", "3"],
        // Numbers with which the clock would overflow.
        &["bench", "memory", "--quick", "--rate", "1e-300"],
        &["bench", "memory", "--quick", "--hold", "100000000000000s"],
        &["bench", "memory", "--time", "100000000000000s"],
        &["bench", "memory", "--rounds", "18446744073709551615"],
    ] {
        assert_eq!(place.run(args).code, 64, "{args:?}");
    }
}

#[test]
fn a_refused_row_says_why_and_the_others_are_measured() {
    let report = json(&bench(&Place::new(), &["memory", "--mode", "poll-string,poll", "--json"]));
    let status = |at: usize| rows(&report)[at]["status"].as_str().unwrap().to_owned();
    assert!(status(0).starts_with("not run: poll-string:fixed=50ms needs"), "{}", status(0));
    assert_eq!(status(1), "measured");
}

#[test]
fn a_file_that_cannot_be_written_is_found_before_the_run() {
    let place = Place::new();
    let file = place.path("no/such/folder/a.html");
    let run = place.run(["bench", "--preset", "soak", "--html", file.to_str().unwrap()]);
    assert_eq!(run.code, 74, "{run:?}");
}

#[test]
fn a_signal_ends_a_run_and_its_folder() {
    let place = Place::new();
    let mut command = place.command(["bench", "file", "--mode", "listen", "--time", "100s"]);
    command.args(["--json"]).env("TMPDIR", place.path(""));
    let run = Running::start(&mut command);
    until("the run has a folder with a store", || {
        place.files().iter().any(|file| {
            file.starts_with("holdline-bench-") && place.path(file).join("locks.db").exists()
        })
    });
    run.signal(Signal::TERM);
    assert_eq!(run.end().code, 128 + 15);
    assert_eq!(place.files(), Vec::<String>::new());
}

#[test]
fn a_password_is_nowhere_in_a_report() {
    for url in ["redis://me:secret@127.0.0.1:1", "redis://:it's-secret@127.0.0.1:1"] {
        let run = bench(&Place::new(), &["memory", url, "--mode", "listen"]);
        assert_ne!(run.code, 0);
        assert!(!run.out.contains("secret") && !run.err.contains("secret"), "{run:?}");
    }
}

/// With a rate, a lock that was due counts, even if its client was late and had not asked for it.
#[test]
fn all_locks_that_a_rate_wants_are_counted() {
    let args = ["memory", "--mode", "listen", "--json", "--rate", "1000", "--clients", "2"];
    let long = ["bench", "--rounds", "1", "--time", "2s", "--hold", "20ms"];
    let report = json(&Place::new().run(long.iter().chain(&args)));
    let figure = |key: &str| rows(&report)[0]["figures"][key]["median"].as_f64().unwrap();
    let locks = figure("locks_per_s") * 2.0;
    // Those of the warm-up are among those that are late.
    let all = locks + figure("unfinished");
    assert!(locks < 200.0 && (1900.0..2500.0).contains(&all), "{locks} of {all}");
    assert!(figure("wait_p90") > 1.5, "most were wanted long before the end");
}

#[test]
fn a_picture_that_cannot_be_drawn_costs_no_results() {
    let place = Place::new();
    let svg = place.path("a.svg");
    let svg = ["--svg", svg.to_str().unwrap()];
    let crash = ["bench", "file", "--scenario", "crash", "--mode", "listen", "--time", "1h"];
    let run = place.run(crash.iter().chain(&svg));
    assert_eq!((run.code, run.out.as_str()), (64, ""), "before anything is measured: {run:?}");
    // The first load has no way to be measured, and the second is drawn.
    let args = ["memory", "--mode", "listen", "--delay", "5ms,0"];
    let run = bench(&place, &[&args[..], &svg].concat());
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.out.contains("not run") && run.out.contains("listen, fair"), "{run:?}");
    assert!(std::fs::read_to_string(svg[1]).unwrap().contains("memory: listen, fair"));
}

/// A server that accepts connections, and says nothing.
#[cfg(feature = "redis")]
#[test]
fn a_signal_ends_a_run_that_waits_for_a_store() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let place = Place::new();
    let mut command = place.command(["bench", &url, "--mode", "listen,poll,poll-unfair"]);
    command.env("TMPDIR", place.path(""));
    let run = Running::start(&mut command);
    let (_connection, _) = silent.accept().unwrap();
    let began = std::time::Instant::now();
    run.signal(Signal::TERM);
    assert_eq!(run.end().code, 128 + 15);
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(place.files(), Vec::<String>::new());
}

/// Servers of databases are started, get their tables, and are gone afterwards.
#[test]
#[cfg(all(feature = "postgres", feature = "mysql"))]
fn databases_are_started_for_the_run() {
    use holdline_testkit::{missing, mysql, postgres};
    let mut programs = postgres::SINGLE.programs().into_iter().chain(mysql::MARIADB.programs());
    if let Some(what) = programs.find_map(|program| program.find().err()) {
        return missing(&what);
    }
    let measured = |time: &str| {
        let what =
            ["postgres", "mariadb", "--mode", "listen", "--clients", "2", "--delay", "0,2ms"];
        let short = ["bench", "--rounds", "1", "--json", "--time", time];
        let report = json(&Place::new().run(short.iter().chain(&what)));
        assert_eq!(rows(&report).len(), 4, "{report}");
        report
    };
    let has = |row: &Value, figure: &str| {
        row["figures"][figure]["median"].as_f64().is_some_and(|median| median > 0.0)
    };
    let is_whole = |row: &Value| has(row, "locks_per_s") && has(row, "server_cpu_per_lock");
    // A lock waits for the disk, which may be busy for longer than a short round; and the system
    // counts processor time in ticks of 10 ms.
    let mut report = measured("300ms");
    if !rows(&report).iter().all(is_whole) {
        report = measured("8s");
    }
    for row in rows(&report) {
        assert_eq!(row["status"], "measured", "{row}");
        assert!(is_whole(row), "{row}");
    }
    let stores = report["stores"].to_string();
    assert!(stores.contains("PostgreSQL") && stores.contains("MariaDB"), "{stores}");
}
