//! The detector of stalls: a busy machine also stops processes, without a plan. Each process of a
//! run watches for that and records it, and the checker treats it as any other pause: an expired
//! lock or place of a process that got no time is not the library's fault.

use holdline_checker::{Event, FaultKind, History, Op, Phase, Rule, Unpromised, Writer};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(20);
/// The shortest stall to record. A request passes through half a dozen processes and threads: if
/// each waits so long for a processor, the shortest leases here expire before they are renewed.
const STALL: Duration = Duration::from_millis(30);

/// A detector that watches until it is dropped.
pub(crate) struct StallDetector {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StallDetector {
    /// Starts it for the process of this name; without a name, for the process of the faults and
    /// links, which affects all clients.
    pub(crate) fn start(history: &Path, run: &str, name: Option<&str>) -> Self {
        let writer = Writer::open(history, run, &format!("{}'s stalls", name.unwrap_or("all")));
        let (writer, name) = (writer.unwrap(), name.map(ToOwned::to_owned));
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Acquire) {
                let before = Instant::now();
                std::thread::sleep(BEAT);
                let late = before.elapsed().saturating_sub(BEAT);
                if late > STALL {
                    writer.write(stall(writer.next_n(), name.as_deref(), late)).unwrap();
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

/// The excuse of a stall: the process that got no time records the notice of a loss late. That it
/// may lose a lock or a place by that is so under any fault.
pub(crate) fn unpromised() -> Unpromised {
    Unpromised::to_its_target(kind(), [Rule::R5])
}

/// A stall that has just ended.
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

/// The stalls that no planned pause explains, and when each began. A pause recorded only long after
/// the process stood still (because the injector got no time either) does not explain one.
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

/// Records the stalls as faults that began and ended.
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
