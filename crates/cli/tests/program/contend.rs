//! Many processes, one file that nothing else protects.

use super::common::{Place, Running};

const PROCESSES: usize = 8;
const ROUNDS: usize = 25;

#[test]
fn no_update_is_lost_and_tokens_rise() {
    let place = Place::new();
    let (counter, tokens) = (place.path("counter"), place.path("tokens"));
    std::fs::write(&counter, "0").unwrap();
    // Read, and only then write: a rival in between would be overwritten.
    let script = "n=$(cat \"$0\"); echo $HOLDLINE_TOKEN >> \"$1\"; echo $((n + 1)) > \"$0\"";
    let each = std::thread::scope(|scope| {
        let workers = (0..PROCESSES).map(|_| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let (counter, tokens) = (counter.to_str().unwrap(), tokens.to_str().unwrap());
                    // A lease that a busy machine does not let run out.
                    let mut command = place.command(["run", "-w", "120s", "--lease", "60s", "x"]);
                    command.args(["--", "sh", "-c", script, counter, tokens]);
                    let mut running = Running::start(&mut command);
                    running.close_stdin();
                    let run = running.end();
                    assert_eq!((run.code, run.err.as_str()), (0, ""));
                }
            })
        });
        workers
            .collect::<Vec<_>>()
            .into_iter()
            .map(|worker| worker.join().is_ok())
            .collect::<Vec<_>>()
    });
    assert!(each.into_iter().all(|fine| fine));
    let count: usize = std::fs::read_to_string(&counter).unwrap().trim().parse().unwrap();
    assert_eq!(count, PROCESSES * ROUNDS);
    let tokens = std::fs::read_to_string(&tokens).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens.len(), PROCESSES * ROUNDS);
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "tokens rise strictly");
    assert_eq!(place.counts("x"), (0, 0));
}
