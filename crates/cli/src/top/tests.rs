//! Tests of the state after looks and keys, and of its screen.

use super::model::{Action, Key, Mode, Model, Question};
use super::seen::{Lock, Party};
use super::view::{self, Title};
use holdline::store::TicketId;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn party(id: u128, who: &str) -> Party {
    Party {
        id: TicketId(id),
        token: Some(1_700_000_000_000_000 + id as u64),
        weight: 1,
        who: who.to_owned(),
        age: Some(SECOND * 60),
        left: Some(SECOND * 10),
    }
}

fn lock(name: &str, holders: &[u128], waiters: &[u128]) -> Lock {
    let parties = |ids: &[u128]| {
        ids.iter().map(|id| party(*id, &format!("pid {id} on host"))).collect::<Vec<_>>()
    };
    Lock {
        name: name.to_owned(),
        capacity: 1,
        holders: parties(holders),
        waiters: parties(waiters),
        evicted: Vec::new(),
    }
}

/// A lock with one holder whose lease has this much time left.
fn with_left(name: &str, holder: u128, left: Duration) -> Lock {
    let mut lock = lock(name, &[holder], &[]);
    lock.holders[0].left = Some(left);
    lock
}

fn screen(model: &Model, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let title = Title { store: "sqlite:/a", time: "12:00:00", prefix: "" };
    terminal.draw(|frame| view::draw(frame, model, &title)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(width));
    let text =
        |row: &[ratatui::buffer::Cell]| row.iter().map(ratatui::buffer::Cell::symbol).collect();
    rows.map(|row| -> String { text(row) }).map(|row| row.trim_end().to_owned()).collect()
}

fn names(model: &Model) -> Vec<&str> {
    model.rows.iter().map(|row| row.lock.name.as_str()).collect()
}

/// Whether the question is asked about the first holder.
fn is_asked(model: &Model) -> bool {
    matches!(&model.mode, Mode::Break(Question { id: TicketId(1), .. }))
}

fn press(model: &mut Model, keys: &str) {
    for key in keys.chars() {
        assert_eq!(model.key(Key::Char(key)), Action::Nothing, "{key}");
    }
}

#[test]
fn holds_are_counted_from_look_to_look() {
    let mut model = Model::new();
    model.update(Duration::ZERO, vec![lock("a", &[1], &[2])], 0);
    assert_eq!(model.rows[0].held, Some(SECOND * 60), "it says so itself");
    assert_eq!(model.rows[0].stats.taken, 0, "it held already");
    model.update(SECOND, vec![lock("a", &[2], &[])], 0);
    model.update(SECOND * 3, vec![lock("a", &[2], &[3])], 0);
    assert_eq!(model.rows[0].held, Some(SECOND * 2));
    model.update(SECOND * 4, vec![lock("a", &[3], &[])], 0);
    let stats = &model.rows[0].stats;
    assert_eq!((stats.taken, stats.lost, stats.most_waiting), (2, 0, 1));
    assert_eq!(stats.mean_hold(), Some(SECOND * 3), "of the one whose begin and end were seen");
    assert!((model.rate() - 0.5).abs() < 1e-9);
    // Free locks are shown for a while, and their counts continue when they are back.
    model.update(SECOND * 5, vec![], 0);
    assert_eq!(names(&model), ["a"]);
    model.update(SECOND * 30, vec![], 7);
    assert_eq!((names(&model).len(), model.unseen), (0, 7));
    model.update(SECOND * 31, vec![lock("a", &[9], &[])], 0);
    assert_eq!(model.rows[0].stats.taken, 3);
}

#[test]
fn losses_are_those_that_were_broken_or_not_renewed() {
    let mut model = Model::new();
    model.update(Duration::ZERO, vec![lock("a", &[1], &[]), lock("b", &[2], &[])], 0);
    let broken = Lock { evicted: vec![TicketId(1)], ..lock("a", &[3], &[]) };
    // The lease of 2 ends at 10 s.
    model.update(SECOND * 6, vec![broken.clone(), with_left("b", 2, SECOND * 4)], 0);
    model.update(SECOND * 11, vec![broken, lock("b", &[], &[])], 0);
    let lost = |name: &str| {
        let row = model.rows.iter().find(|row| row.lock.name == name);
        row.map(|row| row.stats.lost)
    };
    assert_eq!((lost("a"), lost("b")), (Some(1), Some(1)));
    assert_eq!(model.totals().2, 2);
}

/// Looks can be far apart: after a pause, an outage, or with a long interval.
#[test]
fn a_holder_that_was_gone_long_after_the_last_look_may_have_released() {
    let mut model = Model::new();
    model.update(Duration::ZERO, vec![lock("a", &[1], &[])], 0);
    model.update(SECOND * 16, vec![lock("a", &[], &[])], 0);
    assert_eq!(model.totals().2, 0);
}

#[test]
fn keys_sort_filter_move_and_quit() {
    let mut model = Model::new();
    let look = || vec![lock("a", &[1], &[]), lock("b", &[2], &[3, 4]), lock("ab", &[5], &[6])];
    model.update(Duration::ZERO, look(), 0);
    assert_eq!(names(&model), ["b", "ab", "a"], "most waiters first");
    press(&mut model, "j");
    assert_eq!(model.row().unwrap().lock.name, "ab");
    press(&mut model, "ssss");
    assert_eq!(names(&model), ["a", "ab", "b"], "by name");
    assert_eq!(model.selected(), Some(1), "the selection stays with its lock");
    press(&mut model, "G");
    assert_eq!(model.selected(), Some(2));
    press(&mut model, "kkkkk");
    assert_eq!(model.selected(), Some(0));
    press(&mut model, "/B");
    assert_eq!((names(&model), &model.mode), (vec!["ab", "b"], &Mode::Filter));
    press(&mut model, "q");
    assert_eq!(names(&model).len(), 0, "q is a letter here");
    model.key(Key::Escape);
    assert_eq!(names(&model).len(), 3);
    press(&mut model, "p");
    assert!(model.paused);
    press(&mut model, "?");
    assert_eq!(model.mode, Mode::Help);
    press(&mut model, "q");
    assert_eq!(model.mode, Mode::Locks, "any key goes back");
    assert_eq!(model.key(Key::Char('q')), Action::Quit);
    assert_eq!(model.key(Key::Interrupt), Action::Quit);
}

#[test]
fn a_lock_is_broken_only_after_a_yes() {
    let mut model = Model::new();
    model.key(Key::Char('b'));
    assert_eq!(model.notice(), Some("no lock is held or waited for"));
    model.update(Duration::ZERO, vec![lock("a", &[1], &[2, 3])], 0);
    press(&mut model, "b");
    assert!(is_asked(&model), "the holder");
    for no in [Key::Char('n'), Key::Escape, Key::Interrupt, Key::Enter, Key::Down] {
        assert_eq!((model.key(no), &model.mode), (Action::Nothing, &Mode::Locks), "{no:?}");
        assert_eq!(model.notice(), Some("nothing was broken"));
        press(&mut model, "b");
    }
    press(&mut model, "n");
    model.key(Key::Tab);
    press(&mut model, "jjb");
    let action = model.key(Key::Char('y'));
    assert_eq!(action, broken(3, "by hand, in holdline top"), "who is selected");
    // The question stays about the participant that it named, whatever is seen meanwhile.
    press(&mut model, "b");
    model.update(SECOND, vec![lock("a", &[9], &[])], 0);
    assert_eq!(model.key(Key::Char('y')), broken(1, "by hand, in holdline top"));
}

fn broken(id: u128, reason: &str) -> Action {
    Action::Break { name: "a".to_owned(), id: TicketId(id), reason: reason.to_owned() }
}

#[test]
fn a_reason_is_written_or_left_as_it_was() {
    let mut model = Model::new();
    model.update(Duration::ZERO, vec![lock("a", &[1], &[2])], 0);
    press(&mut model, "bry, stuckx");
    assert!(screen(&model, 80, 24).join("\n").contains("> y, stuckx_"), "y is a letter here");
    model.key(Key::Backspace);
    model.key(Key::Enter);
    assert!(is_asked(&model), "it is asked again");
    assert!(screen(&model, 80, 24).join("\n").contains("another reason than: y, stuck"));
    assert_eq!(model.key(Key::Char('y')), broken(1, "y, stuck"));
    for back in [Key::Escape, Key::Enter] {
        press(&mut model, "br");
        model.key(back);
        assert_eq!(model.key(Key::Char('y')), broken(1, "by hand, in holdline top"));
    }
    press(&mut model, "brx");
    assert_eq!((model.key(Key::Interrupt), &model.mode), (Action::Nothing, &Mode::Locks));
}

#[test]
fn the_selection_stays_with_its_lock_and_party_or_with_their_place() {
    let mut model = Model::new();
    press(&mut model, "sssjk");
    let look =
        |names: &[&str]| names.iter().map(|name| lock(name, &[1], &[2, 3, 4])).collect::<Vec<_>>();
    model.update(Duration::ZERO, look(&["b", "c", "d"]), 0);
    press(&mut model, "sjj");
    let name = |model: &Model| model.row().map(|row| row.lock.name.clone()).unwrap_or_default();
    assert_eq!(name(&model), "d");
    press(&mut model, "k");
    model.update(SECOND, look(&["a", "b", "c", "d"]), 0);
    assert_eq!((name(&model).as_str(), model.selected()), ("c", Some(2)), "one came before it");
    // In its line, the second waiter is next, and then holds.
    model.key(Key::Tab);
    press(&mut model, "jj");
    model.update(SECOND, vec![lock("c", &[2], &[3, 4])], 0);
    assert_eq!(model.line_at, 1);
    model.update(SECOND, vec![lock("c", &[3], &[4])], 0);
    assert_eq!(model.line_at, 0);
    model.update(SECOND, vec![lock("c", &[4], &[])], 0);
    assert_eq!((model.line_at, &model.mode), (0, &Mode::Line), "it has left");
    // Free locks are shown for 5 s. Then the lock in the place of this one is selected.
    model.update(SECOND * 3, look(&["b", "d"]), 0);
    assert_eq!((name(&model).as_str(), &model.mode), ("c", &Mode::Line));
    model.update(SECOND * 9, look(&["b", "d"]), 0);
    assert_eq!((name(&model).as_str(), &model.mode), ("d", &Mode::Locks));
    model.update(SECOND * 20, vec![], 0);
    assert_eq!((model.selected(), name(&model).as_str()), (None, ""));
    press(&mut model, "jkG");
    model.update(SECOND * 21, look(&["e"]), 0);
    assert_eq!(name(&model), "e");
}

#[test]
fn it_fits_a_small_screen() {
    let mut model = Model::new();
    let many: Vec<u128> = (100..140).collect();
    let mut locks = vec![lock("nightly-report", &[1], &[2, 3]), lock("busy", &[50], &many)];
    locks.extend((0..40).map(|n| lock(&format!("lock-{n:02}"), &[1000 + n], &[])));
    model.update(Duration::ZERO, locks, 0);
    let shown = screen(&model, 80, 24);
    assert_eq!(shown[0], "holdline top  12:00:00  sqlite:/a");
    assert_eq!(shown[1], "42 shown, 42 hold, 42 wait, 0 lost, 0.0 taken/s; by waiting");
    assert!(shown[2].starts_with("  LOCK") && shown[2].contains("HELD BY"), "{shown:#?}");
    assert!(shown[3].starts_with("> busy") && shown[3].contains("40/40"), "{shown:#?}");
    assert!(shown[4].starts_with("  nightly-report"), "{shown:#?}");
    assert!(shown[4].contains("1m00s") && shown[4].contains("pid 1 on host"), "{shown:#?}");
    assert!(shown.iter().any(|line| line.contains("busy (a mutex)")), "{shown:#?}");
    let waits = shown.iter().filter(|line| line.contains("waits") && line.contains("on host"));
    assert!(waits.count() >= 5, "{shown:#?}");
    assert!(shown[23].starts_with("? help") && shown[23].ends_with("p pause"), "{shown:#?}");
    for (width, height) in [(1, 1), (20, 6), (40, 10), (300, 100)] {
        for keys in ["", "?", "qb"] {
            let mut model = Model::new();
            model.update(SECOND, vec![lock("日本", &[1], &[2])], 0);
            keys.chars().for_each(|key| drop(model.key(Key::Char(key))));
            assert_eq!(screen(&model, width, height).len(), usize::from(height));
        }
    }
}

#[test]
fn on_little_room_names_and_answers_are_what_stays() {
    let mut model = Model::new();
    model.update(SECOND, vec![lock("nightly-report", &[1], &[2, 3])], 0);
    let shown = screen(&model, 40, 10);
    assert!(shown[3].starts_with("> nightly-report") && shown[3].ends_with("2/2"), "{shown:#?}");
    assert!(shown[9].starts_with("? help  q quit"), "{shown:#?}");
    model.key(Key::Tab);
    let shown = screen(&model, 40, 10);
    assert!(shown[2].contains("nightly-report (a mutex)"), "{shown:#?}");
    assert!(shown[5].contains("waits") && shown[5].contains("pid 2 on host"), "{shown:#?}");
    press(&mut model, "b");
    let shown = screen(&model, 40, 10).join("\n");
    assert!(shown.contains("[y] yes") && shown.contains("[r] tell another reason"), "{shown}");
    press(&mut model, "n");
    assert!(screen(&model, 15, 4).join(" ").contains("no room"));
    // An error is wrapped, not cut.
    model.fail(SECOND * 20, "the store at sqlite:/a could not be asked, for it is away".to_owned());
    assert!(screen(&model, 40, 10)[9].contains("is away"));
}

#[test]
fn an_empty_table_says_why() {
    let mut model = Model::new();
    model.update(Duration::ZERO, vec![], 0);
    let shown = |model: &Model| screen(model, 80, 24).join("\n");
    assert!(shown(&model).contains("Nobody holds a lock, or waits for one."));
    model.update(SECOND, vec![lock("a", &[1], &[])], 0);
    press(&mut model, "/b");
    assert!(shown(&model).contains("No name has \"b\" in it."));
    let title = Title { store: "sqlite:/a", time: "now", prefix: "job/" };
    let text = view::plain(&Model::new(), &title);
    assert!(text.contains("a lock whose name begins with \"job/\""), "{text}");
}

#[test]
fn the_question_and_the_help_are_readable() {
    let mut model = Model::new();
    model.update(Duration::ZERO, vec![lock("a\u{1b}[2J\u{202e}", &[7], &[])], 0);
    press(&mut model, "b");
    let shown = screen(&model, 80, 24).join("\n");
    assert!(shown.contains("Take lock") && shown.contains("away from pid 7 on host?"), "{shown}");
    assert!(!shown.contains(['\u{1b}', '\u{202e}']), "a name cannot drive the terminal");
    press(&mut model, "n?");
    let shown = screen(&model, 80, 24).join("\n");
    for word in ["quit", "sort by waiting", "all", "break the lock", "LOST"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
}

#[test]
fn what_was_done_is_shown_for_a_while_and_a_failure_until_it_is_over() {
    let mut model = Model::new();
    model.say("broken");
    model.update(SECOND * 4, vec![], 0);
    assert_eq!(model.notice(), Some("broken"), "a look does not hide it");
    model.fail(SECOND * 6, "no answer".to_owned());
    assert_eq!(model.notice(), Some("no answer"));
    assert!(screen(&model, 80, 24)[23].contains("no answer"));
    model.update(SECOND * 7, vec![], 0);
    assert_eq!(model.notice(), None);
}

#[test]
fn it_can_be_printed() {
    let mut model = Model::new();
    model.update(Duration::ZERO, vec![lock("a", &[1], &[2])], 0);
    let text = view::plain(&model, &Title { store: "sqlite:/a", time: "now", prefix: "" });
    assert!(text.contains("a  for 1m00s  waiting 1/1") && text.contains("1 waits 1m00s"), "{text}");
}
