//! The cost of an operation does not grow with the line.

use crate::children::{alone, fresh, name, note};
use holdline::store::{Enter, Standing, Store, Ticket};
use holdline::stores::sqlite::File;
use std::time::{Duration, Instant};

const RW: u32 = 1 << 30;

/// The shortest times of: entering at the back, keeping a place at the back, leaving from the back,
/// and the holder's leaving at the front.
async fn times(store: &File, places: usize, weight: u32) -> [Duration; 4] {
    let (line, note) = (name(&format!("line-{places}-{weight}")), note());
    let ticket = || Ticket { weight, capacity: RW, ..fresh() };
    let mut front = Vec::new();
    for _ in 0..places {
        let ticket = ticket();
        store.enter(&line, &ticket, &note, Enter::Queue).await.unwrap();
        front.push(ticket.id);
    }
    let mut times: [Vec<Duration>; 4] = Default::default();
    for first in front.iter().take(places.min(100)) {
        let ticket = ticket();
        let start = Instant::now();
        let standing = store.enter(&line, &ticket, &note, Enter::Queue).await.unwrap();
        times[0].push(start.elapsed());
        let (Standing::Admitted(seq) | Standing::Waiting { seq: Some(seq), .. }) = standing else {
            panic!("{standing:?}")
        };
        let start = Instant::now();
        store.enter(&line, &ticket, &note, Enter::Keep(seq)).await.unwrap();
        times[1].push(start.elapsed());
        let start = Instant::now();
        assert!(store.leave(&line, ticket.id).await.unwrap());
        times[2].push(start.elapsed());
        let start = Instant::now();
        assert!(store.leave(&line, *first).await.unwrap());
        times[3].push(start.elapsed());
        // As many as before.
        store.enter(&line, &Ticket { id: *first, ..ticket }, &note, Enter::Queue).await.unwrap();
    }
    times.map(|times| times.into_iter().min().unwrap())
}

#[tokio::test]
async fn cost_grows_neither_with_waiters_nor_with_readers() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let store = File::open(folder.path().join("locks.db")).unwrap();
    for (weight, what) in [(RW, "waiters"), (1, "readers")] {
        let mut small = None;
        for places in [10, 100, 1000, 10_000] {
            let times = times(&store, places, weight).await;
            println!("{places} {what}: enter, keep, leave, hand over take {times:?}");
            let small = small.get_or_insert(times);
            for (now, then) in times.iter().zip(*small) {
                // A line a thousand times as long: only the trees are a little deeper. The shortest
                // of a hundred times does not depend on what else the machine does.
                let most = 6 * then + Duration::from_micros(300);
                assert!(*now < most, "{places} {what}: {now:?}, and {then:?} with 10");
            }
        }
    }
}
