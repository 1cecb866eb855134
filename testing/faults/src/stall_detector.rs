//! A busy machine stops processes too, and nobody plans it. Each process of a run watches for that
//! and writes it down, and the checker is told of it as of any other pause: a lock that ran out, or
//! a place that lapsed, because its process got no time is not the library's fault.

use holdline_checker::{Event, FaultKind, History, Op, Phase, Writer};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(20);
/// Less is not worth a word. A request is passed on by half a dozen processes and threads: where
/// each waits so long for a processor, the shortest leases here run out before they are renewed.
const STALL: Duration = Duration::from_millis(30);

/// Watches until it is dropped.
pub(crate) struct StallDetector {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StallDetector {
    /// Of a process of this name; without one, of that in which the faults and the links live,
    /// which is in everybody's way.
    pub(crate) fn start(history: &Path, run: &str, name: Option<&str>) -> Self {
        let pen = Writer::open(history, run, &format!("{}'s pulse", name.unwrap_or("all")));
        let (pen, name) = (pen.unwrap(), name.map(ToOwned::to_owned));
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Acquire) {
                let before = Instant::now();
                std::thread::sleep(BEAT);
                let late = before.elapsed().saturating_sub(BEAT);
                if late > STALL {
                    pen.write(stall(pen.next_n(), name.as_deref(), late)).unwrap();
                }
            }
        });
        StallDetector { over, thread: Some(thread) }
    }
}

impl Drop for StallDetector {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Its name in the history.
pub(crate) fn kind() -> FaultKind {
    FaultKind::Other("stalled".to_owned())
}

/// It has just ended.
fn stall(n: u64, target: Option<&str>, length: Duration) -> Event {
    let event = Event::new(Op::Fault, Phase::Info, n).fault(kind());
    let event = event.ttl_ms(u64::try_from(length.as_millis()).unwrap());
    match target {
        Some(target) => event.target(target),
        None => event,
    }
}

fn tells_of_one(event: &Event) -> bool {
    event.op == Op::Fault && event.fault == Some(kind())
}

/// Those that no planned pause explains, and when each began. A pause that was written down only
/// long after the process stood still (the one who stopped it had no time either) does not.
pub(crate) fn unplanned(events: &[Event]) -> Vec<(u64, &Event)> {
    let pause = |e: &&Event| e.op == Op::Fault && e.fault == Some(FaultKind::Pause);
    let pauses: Vec<_> = events.iter().filter(pause).filter(|e| e.ph == Phase::Ok).collect();
    let began = |e: &Event| e.t.saturating_sub(e.ttl_ms.unwrap_or(0) * 1_000_000);
    let planned = |stall: &Event| {
        let near = |pause: &Event| pause.t.abs_diff(began(stall)) < 50_000_000;
        pauses.iter().any(|e| e.target == stall.target && near(e))
    };
    let stalls = events.iter().filter(|e| tells_of_one(e) && !planned(e));
    stalls.map(|stall| (began(stall), stall)).collect()
}

/// Writes the stalls as faults that were there and were healed.
pub(crate) fn settle(history: &mut History) {
    let mut began_and_healed = Vec::new();
    for (from, stall) in unplanned(&history.events) {
        let fault = Event { ph: Phase::Ok, ttl_ms: None, ..stall.clone() };
        let heal = Event { op: Op::Heal, fault: None, ..fault.clone() };
        began_and_healed.extend([Event { t: from, ..fault }, heal]);
    }
    history.events.retain(|e| !tells_of_one(e));
    history.events.extend(began_and_healed);
    history.events.sort_by_key(|e| e.t);
}
