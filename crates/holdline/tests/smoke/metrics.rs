//! Metrics, as a recorder sees them.
#![expect(clippy::float_cmp, reason = "the counts are whole numbers")]

use futures_util::FutureExt;
use holdline::{Client, Mutex, Semaphore, describe_metrics, open};
use holdline_conformance::{Chaos, Fault, Op};
use holdline_testkit::{in_own_process, until};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as Cell};
use std::time::Duration;

/// All values, by name and labels; of a histogram, how many there were.
#[derive(Clone, Default)]
struct Values(Arc<Cell<State>>);

#[derive(Default)]
struct State {
    values: BTreeMap<String, f64>,
    descriptions: BTreeMap<String, String>,
}

struct Value(Values, String);

impl Value {
    fn add(&self, by: f64) {
        *self.0.0.lock().unwrap().values.entry(self.1.clone()).or_default() += by;
    }
}

impl CounterFn for Value {
    fn increment(&self, by: u64) {
        self.add(by as f64);
    }
    fn absolute(&self, _: u64) {
        unreachable!("counters are counted up");
    }
}

impl GaugeFn for Value {
    fn increment(&self, by: f64) {
        self.add(by);
    }
    fn decrement(&self, by: f64) {
        self.add(-by);
    }
    fn set(&self, _: f64) {
        unreachable!("gauges are changed by steps");
    }
}

impl HistogramFn for Value {
    fn record(&self, _: f64) {
        self.add(1.0);
    }
}

impl Values {
    fn value(&self, key: &Key) -> Arc<Value> {
        let labels = key.labels().map(|label| format!("{}={}", label.key(), label.value()));
        let labels = labels.collect::<Vec<_>>().join(",");
        Arc::new(Value(self.clone(), format!("{}{{{labels}}}", key.name())))
    }

    fn of(&self, key: &str) -> f64 {
        self.0.lock().unwrap().values.get(key).copied().unwrap_or_default()
    }

    fn describe(&self, name: &KeyName, text: &SharedString) {
        self.0.lock().unwrap().descriptions.insert(name.as_str().to_owned(), text.to_string());
    }
}

impl Recorder for Values {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.describe(&name, &text);
    }
    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.describe(&name, &text);
    }
    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.describe(&name, &text);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.value(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.value(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.value(key))
    }
}

/// A recorder that panics about everything.
struct Panics;

impl Recorder for Panics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        panic!("a test wants this")
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        panic!("a test wants this")
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        panic!("a test wants this")
    }
}

/// A recorder's panic would keep a lock that has no guard: for a lease after a grant or a drop, for
/// ever after a handoff. And one in a drop during another would end the process.
#[tokio::test(flavor = "current_thread")]
async fn a_recorder_that_panics_changes_nothing() {
    let client = open("memory:").await.expect("memory opens");
    let others = Client::new(client.store().clone());
    let lock = Mutex::new(&client, "x").handoff(3, Duration::from_secs(60));
    let recorder = metrics::set_default_local_recorder(&Panics);
    let first = lock.lock().await.expect("memory works");
    let mut next = Box::pin(lock.lock());
    assert!(next.as_mut().now_or_never().is_none(), "it is held");
    first.unlock().await.expect("it was held");
    let second = next.now_or_never().expect("it was handed over").expect("memory works");
    drop(second);
    client.settle().await;
    drop(recorder);
    let other = Mutex::new(&others, "x").try_lock().await.expect("memory works");
    assert!(other.is_some(), "nobody holds it");
}

#[tokio::test(flavor = "current_thread")]
async fn what_happens_is_counted_by_store_and_recipe() {
    if !in_own_process("metrics::what_happens_is_counted_by_store_and_recipe") {
        return;
    }
    // The client is made before the recorder is there.
    let client = open("memory:").await.expect("memory opens");
    let values = Values::default();
    metrics::set_global_recorder(values.clone()).map_err(|_| ()).expect("the only one");
    let mutex = |name: &str| format!("{name}{{store=memory,recipe=mutex}}");

    let guard = Mutex::new(&client, "x").lock().await.expect("works");
    assert_eq!(values.of(&mutex("holdline_held")), 1.0);
    let waiter = tokio::spawn({
        let mutex = Mutex::new(&client, "x");
        async move { mutex.lock().await }
    });
    tokio::task::yield_now().await;
    assert_eq!(values.of(&mutex("holdline_waiting")), 1.0);
    guard.unlock().await.expect("held");
    let guard = waiter.await.expect("no panic").expect("works");
    assert_eq!(values.of(&mutex("holdline_waiting")), 0.0);
    assert_eq!(values.of(&mutex("holdline_acquire_seconds")), 2.0);
    client.force_unlock("x", guard.ticket(), "").await.expect("works").expect("it was there");
    guard.lost().await;
    // The holder is told first.
    let counted = async || values.of(&mutex("holdline_losses_total")) == 1.0;
    until("the loss is counted", counted).await;
    let not_held = async || values.of(&mutex("holdline_held")) == 0.0;
    until("a lost lock is not held", not_held).await;
    drop(guard);
    assert_eq!(values.of(&mutex("holdline_hold_seconds")), 2.0);

    let lease = Duration::from_millis(400);
    let guard = Semaphore::new(&client, "s", 2).lease(lease).acquire(1).await.expect("works");
    let renewed = "holdline_renewals_total{store=memory,recipe=semaphore,outcome=ok}";
    while values.of(renewed) == 0.0 {
        assert!(guard.is_valid(), "it is renewed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(guard);

    let named = client.clone().named_metrics();
    drop(Mutex::new(&named, "jobs/7").lock().await.expect("works"));
    assert_eq!(values.of("holdline_held{store=memory,recipe=mutex,name=jobs/7}"), 0.0);
    let state = values.0.lock().unwrap();
    let with_name = state.values.keys().filter(|key| key.contains("name=")).count();
    assert_eq!(with_name, 5, "waiting, held, acquire(d), hold: {:?}", state.values);
}

/// Otherwise a lock that nobody gets looks as good as one that nobody wants.
#[tokio::test(flavor = "current_thread")]
async fn acquisitions_are_counted_by_how_they_end() {
    if !in_own_process("metrics::acquisitions_are_counted_by_how_they_end") {
        return;
    }
    let values = Values::default();
    metrics::set_global_recorder(values.clone()).map_err(|_| ()).expect("the only one");
    let chaos = Chaos::new(Arc::clone(open("memory:").await.expect("memory opens").store()));
    let (holder, client) = (chaos.client(), chaos.client());
    let lock = Mutex::new(&client, "x");
    let held = Mutex::new(&holder, "x").lock().await.expect("works");
    assert!(lock.try_lock().await.expect("works").is_none());
    assert!(lock.lock_within(Duration::from_millis(20)).await.expect("works").is_none());
    assert!(lock.lock().now_or_never().is_none());
    chaos.always(Op::Enter, Fault::FailBefore);
    lock.try_lock().await.expect_err("the store fails");
    for outcome in ["acquired", "busy", "timeout", "cancelled", "error"] {
        let key =
            format!("holdline_acquisitions_total{{store=memory,recipe=mutex,outcome={outcome}}}");
        assert_eq!(values.of(&key), 1.0, "{outcome}");
    }
    assert_eq!(values.of("holdline_acquire_seconds{store=memory,recipe=mutex}"), 1.0);
    drop(held);
}

#[tokio::test(flavor = "current_thread")]
async fn errors_and_silence_are_counted_by_store() {
    if !in_own_process("metrics::errors_and_silence_are_counted_by_store") {
        return;
    }
    let values = Values::default();
    metrics::set_global_recorder(values.clone()).map_err(|_| ()).expect("the only one");
    let chaos = Chaos::new(Arc::clone(open("memory:").await.expect("memory opens").store()));
    let client = Client::new(Arc::new(chaos.clone())).response_timeout(Duration::from_millis(50));
    chaos.calls(Op::Snapshot, 0, 1, Fault::FailBefore);
    client.inspect("x").await.expect_err("the store fails");
    assert_eq!(values.of("holdline_errors_total{store=memory,kind=unavailable}"), 1.0);
    chaos.calls(Op::Snapshot, 0, 1, Fault::HangBefore);
    client.inspect("x").await.expect_err("the store is silent");
    assert_eq!(values.of("holdline_timeouts_total{store=memory}"), 1.0);
    client.inspect("x").await.expect("the store answers");
    assert_eq!(values.of("holdline_errors_total{store=memory,kind=unavailable}"), 1.0);
}

/// It was broken, and its holder was not told before it released it.
#[tokio::test(flavor = "current_thread")]
async fn a_loss_that_only_the_release_finds_is_counted() {
    if !in_own_process("metrics::a_loss_that_only_the_release_finds_is_counted") {
        return;
    }
    let values = Values::default();
    metrics::set_global_recorder(values.clone()).map_err(|_| ()).expect("the only one");
    let chaos = Chaos::new(Arc::clone(open("memory:").await.expect("memory opens").store()));
    let client = chaos.client();
    let of = |name: &str| values.of(&format!("{name}{{store=memory,recipe=mutex}}"));
    for (broken, losses) in [(false, 0.0), (true, 1.0)] {
        let guard = Mutex::new(&client, "x").lock().await.expect("works");
        chaos.always(Op::Enter, Fault::HangBefore);
        if broken {
            client.force_unlock("x", guard.ticket(), "").await.expect("works").expect("there");
        }
        assert_eq!(guard.unlock().await.is_err(), broken);
        chaos.heal();
        assert_eq!((of("holdline_losses_total"), of("holdline_held")), (losses, 0.0));
    }
    assert_eq!(of("holdline_hold_seconds"), 2.0);
}

#[test]
fn each_metric_has_a_description_and_a_row_in_the_documentation() {
    let values = Values::default();
    metrics::with_local_recorder(&values, describe_metrics);
    let described = std::mem::take(&mut values.0.lock().unwrap().descriptions);
    let page = include_str!("../../src/lib.rs");
    let dashboard = include_str!("../../../../packaging/prometheus/dashboard.json");
    assert_eq!(described.len(), 11);
    for (name, text) in &described {
        assert!(!text.is_empty());
        assert!(page.contains(&format!("| `{name}` |")), "{name} is not documented");
        assert!(dashboard.contains(name.as_str()), "{name} is on no dashboard");
    }
    // What dashboard and alerts ask for is there.
    let alerts = include_str!("../../../../packaging/prometheus/alerts.yml");
    for text in [dashboard, alerts] {
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let name = word.trim_end_matches("_bucket").trim_end_matches("_sum");
            let name = name.trim_end_matches("_count");
            let known = !name.starts_with("holdline_") || described.contains_key(name);
            assert!(known, "{word} is no metric");
        }
    }
}
