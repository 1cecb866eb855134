//! Notes on places that were removed by force.

use crate::children::{enter, fresh, name, together};
use holdline::clock;
use holdline::store::{EVICTIONS_KEPT, Enter, Standing, Store};
use holdline::stores::sqlite::File;
use rusqlite::Connection;

fn stored(conn: &Connection) -> u32 {
    conn.query_row("SELECT count(*) FROM eviction", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn the_last_few_of_a_line_are_kept_for_a_while() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let (store, other) = (File::open(&file).unwrap(), File::open(&file).unwrap());
    let (line, bystander) = (name("job"), fresh());
    enter(&store, &name("other"), &bystander, Enter::Queue).await;
    let mut victims = Vec::new();
    for round in 0..EVICTIONS_KEPT + 3 {
        let ticket = fresh();
        let standing = enter(&store, &line, &ticket, Enter::Queue).await;
        assert!(matches!(standing, Standing::Admitted(_)), "{standing:?}");
        let note = format!("{{\"reason\":\"{round}\"}}");
        assert!(other.evict(&line, ticket.id, &note).await.unwrap().is_some());
        // No second note of one that is gone.
        assert_eq!(other.evict(&line, ticket.id, "again").await.unwrap(), None);
        victims.push((ticket.id, note));
    }
    // Nobody stands in the line, and it is not listed.
    let view = store.snapshot(&line).await.unwrap();
    assert!(view.places.is_empty());
    assert_eq!(store.list("").await.unwrap(), [name("other")]);
    let seen: Vec<_> = view.evictions.iter().map(|one| (one.id, one.note.to_string())).collect();
    assert_eq!(seen, victims[3..]);
    assert!(store.snapshot(&name("other")).await.unwrap().evictions.is_empty());
    // After a minute they are not shown, and the next eviction forgets them.
    let conn = Connection::open(&file).unwrap();
    let least: i64 = conn.query_row("SELECT min(until) FROM eviction", [], |r| r.get(0)).unwrap();
    assert!(least.unsigned_abs() > clock::now().0, "it is kept for a minute");
    conn.execute("UPDATE eviction SET until = until - 60000000000", []).unwrap();
    assert!(store.snapshot(&line).await.unwrap().evictions.is_empty());
    assert_eq!(stored(&conn), u32::try_from(EVICTIONS_KEPT).unwrap());
    other.evict(&name("other"), bystander.id, "{}").await.unwrap().unwrap();
    assert_eq!(stored(&conn), 1);
}

#[tokio::test]
async fn all_lines_together_keep_a_bounded_number() {
    let _together = together();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let store = File::open(&file).unwrap();
    for round in 0..1100 {
        let (line, ticket) = (name(&format!("line-{round}")), fresh());
        enter(&store, &line, &ticket, Enter::Queue).await;
        store.evict(&line, ticket.id, "{}").await.unwrap().unwrap();
    }
    assert_eq!(stored(&Connection::open(&file).unwrap()), 1024);
    assert_eq!(store.snapshot(&name("line-1099")).await.unwrap().evictions.len(), 1);
}
