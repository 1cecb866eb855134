//! The view of `holdline top`: draws the state on the screen.

use super::model::{Mode, Model, Question, Row};
use crate::duration;
use crate::participant::short_id;
use crate::printer::clean;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table, TableState, Wrap};
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

const KEYS: &str = "? help  q quit  b break  Tab line  jk move  s sort  / filter  p pause";
const HELP: &str = " j k, arrows    move; PgUp PgDn, g G farther
 Tab, Enter     to the line of the lock, and back
 s              sort by waiting, held, taken, lost, name
 /              show only names with this in them; Esc: all
 p, space       pause, and go on
 b              break the lock of who is selected; it asks
 q, Ctrl-C      quit; Ctrl-Z stop, Ctrl-L draw again
 any key        leave this help

 FOR   how long it is held      HOLD  mean time of holds
 WAIT  who wait now, and most   TAKEN acquisitions seen
 LOST  holders that were broken or had not renewed";

/// The smallest usable screen.
const LEAST: (u16, u16) = (20, 6);
/// The smallest height at which the locks and a line are both shown.
const BOTH: u16 = 14;
/// The most characters of a name, or of a participant, in a question.
const WORDS: usize = 80;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// The title above the table.
pub(super) struct Title<'a> {
    pub(super) store: &'a str,
    pub(super) time: &'a str,
    /// The prefix of the names of the shown locks.
    pub(super) prefix: &'a str,
}

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, title: &Title<'_>) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!("no room: make this {} x {} at least; q quits", LEAST.0, LEAST.1);
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), area);
        return;
    }
    let foot = footer(model);
    // Keys may be cut; an error may not.
    let most = if model.notice().is_some() { area.height / 4 } else { 1 };
    let foot_height = lines(&foot.to_string(), area.width).clamp(1, most.max(1));
    let line_height = match (area.height < BOTH, &model.mode) {
        (false, _) => area.height.saturating_sub(3) / 2,
        (true, Mode::Line) => area.height - 2 - foot_height,
        (true, _) => 0,
    };
    let [head, locks, line, end] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Fill(1),
        Constraint::Length(line_height),
        Constraint::Length(foot_height),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(heading(model, title)), head);
    if model.rows.is_empty() {
        let text = Paragraph::new(nothing(model, title)).wrap(Wrap { trim: false });
        frame.render_widget(text, locks);
    } else {
        draw_locks(frame, model, locks);
        draw_line(frame, model, line);
    }
    frame.render_widget(Paragraph::new(foot).wrap(Wrap { trim: false }), end);
    match &model.mode {
        Mode::Help => popup(frame, " help ", HELP, 64),
        Mode::Break(question) => popup(frame, " break ", &ask(question), 70),
        Mode::Reason(question) => popup(frame, " break ", &ask_why(question), 70),
        Mode::Locks | Mode::Line | Mode::Filter => {}
    }
}

/// The number of lines that a text takes in this width, or one more.
fn lines(text: &str, width: u16) -> u16 {
    let width = usize::from(width).max(1);
    let lines: usize = text.lines().map(|line| line.width() / width + 1).sum();
    u16::try_from(lines).unwrap_or(u16::MAX)
}

/// The text shown if there is no lock.
fn nothing(model: &Model, title: &Title<'_>) -> String {
    if !model.filter.is_empty() {
        let filter = clean(&model.filter);
        return format!("\nNo name has \"{filter}\" in it. / and then Esc shows all.");
    }
    let which = match title.prefix {
        "" => String::new(),
        prefix => format!(" whose name begins with \"{}\"", clean(prefix)),
    };
    format!("\nNobody holds a lock{which}, or waits for one. Those that do appear here.")
}

fn clip(text: &str) -> String {
    let text = clean(text);
    match text.char_indices().nth(WORDS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The question, with its answers before the part that a small screen may cut.
fn ask(question: &Question) -> String {
    let Question { name, who, holds, reason, .. } = question;
    let (name, who, reason) = (clip(name), clip(who), clean(reason));
    let (what, then) = if *holds {
        let then = "The next in line is let in at once, and what runs under the lock may go on \
                    for a while.";
        (format!("Take lock \"{name}\" away from {who}?"), then)
    } else {
        (format!("Remove {who} from the line of lock \"{name}\"?"), "It ends with an error.")
    };
    format!("{what}\n[y] yes   any other key: no\n[r] tell another reason than: {reason}\n\n{then}")
}

/// The reason being typed.
fn ask_why(question: &Question) -> String {
    let (who, reason) = (clip(&question.who), clean(&question.reason));
    format!(
        "Why? This is told to {who}.\n> {reason}_\n[Enter] back to the question   [Esc] as it was"
    )
}

fn heading<'a>(model: &Model, title: &Title<'a>) -> Text<'a> {
    let (held, waiting, lost) = model.totals();
    let paused = if model.paused { "PAUSED  " } else { "" };
    let unseen = match model.unseen {
        0 => String::new(),
        n => format!("; {n} more are not looked at"),
    };
    let counts = format!(
        "{} shown, {held} hold, {waiting} wait, {lost} lost, {:.1} taken/s; by {}{unseen}",
        model.rows.len(),
        model.rate(),
        model.sort.word()
    );
    Text::from(vec![
        Line::styled(format!("holdline top  {paused}{}  {}", title.time, title.store), BOLD),
        Line::from(counts),
    ])
}

fn footer(model: &Model) -> Line<'static> {
    match (&model.mode, model.notice()) {
        (Mode::Filter, _) => Line::from(format!("/{}_", clean(&model.filter))),
        (_, Some(notice)) => Line::styled(clean(notice), BOLD),
        (_, None) if !model.filter.is_empty() => {
            Line::from(format!("filter: {}   {KEYS}", clean(&model.filter)))
        }
        _ => Line::from(KEYS),
    }
}

fn time(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), duration::show)
}

/// The cells of a lock's row after its name.
fn cells(row: &Row) -> [String; 6] {
    let holder = match row.lock.holders.as_slice() {
        [] => "free".to_owned(),
        [one] => one.who.clone(),
        [first, ..] => format!("{} and {} more", first.who, row.lock.holders.len() - 1),
    };
    let waiting = match (row.lock.waiters.len(), row.stats.most_waiting) {
        (0, 0) => "-".to_owned(),
        (now, most) => format!("{now}/{most}"),
    };
    [
        time(row.held),
        waiting,
        time(row.stats.mean_hold()),
        row.stats.taken.to_string(),
        row.stats.lost.to_string(),
        holder,
    ]
}

/// A column: its head, its width, and the smallest screen width at which it is shown.
type Column = (&'static str, Constraint, u16);

/// The columns of a table that are shown in this width, and the table of these cells.
fn table<'a, const N: usize>(
    columns: &[Column; N],
    rows: impl Iterator<Item = [String; N]>,
    width: u16,
) -> Table<'a> {
    let shown: Vec<&Column> = columns.iter().filter(|column| column.2 <= width).collect();
    let cells = |row: [String; N]| {
        let cells = row.into_iter().zip(columns).filter(|(_, column)| column.2 <= width);
        TableRow::new(cells.map(|(cell, _)| Cell::from(cell)))
    };
    let head = TableRow::new(shown.iter().map(|column| column.0)).style(BOLD);
    Table::new(rows.map(cells), shown.iter().map(|column| column.1))
        .header(head)
        .row_highlight_style(SELECTED)
}

const LOCK_COLUMNS: [Column; 7] = [
    ("LOCK", Constraint::Fill(2), 0),
    ("FOR", Constraint::Length(7), 24),
    ("WAIT", Constraint::Length(7), 32),
    ("HOLD", Constraint::Length(7), 72),
    ("TAKEN", Constraint::Length(6), 64),
    ("LOST", Constraint::Length(4), 48),
    ("HELD BY", Constraint::Fill(3), 56),
];

const LINE_COLUMNS: [Column; 7] = [
    ("", Constraint::Length(4), 0),
    ("", Constraint::Length(7), 0),
    ("SINCE", Constraint::Length(7), 44),
    ("LAPSES", Constraint::Length(7), 56),
    ("TOKEN", Constraint::Length(16), 72),
    ("ID", Constraint::Length(12), 100),
    ("WHO", Constraint::Fill(1), 0),
];

fn draw_locks(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let rows = model.rows.iter().map(|row| {
        let [held, waiting, hold, taken, lost, holder] = cells(row);
        [clean(&row.lock.name), held, waiting, hold, taken, lost, holder]
    });
    let table = table(&LOCK_COLUMNS, rows, area.width)
        .highlight_symbol(if model.mode == Mode::Line { "  " } else { "> " });
    let mut state = TableState::new().with_selected(model.selected());
    frame.render_stateful_widget(table, area, &mut state);
}

/// The line of the selected lock, in order.
fn draw_line(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let Some(row) = model.row() else { return };
    let rows = row.lock.parties().enumerate().map(|(at, (holds, party))| {
        let state = if holds { "holds" } else { "waits" };
        let state = match party.weight {
            weight if weight == 1 || weight == row.lock.capacity => state.to_owned(),
            weight => format!("{state} {weight}"),
        };
        [
            (at + 1).to_string(),
            state,
            time(party.age),
            time(party.left),
            party.token.map_or_else(|| "-".to_owned(), |token| token.to_string()),
            short_id(party.id),
            party.who.clone(),
        ]
    });
    let kind = holdline::store::kind_of(row.lock.capacity.max(1));
    let block = Block::new()
        .borders(ratatui::widgets::Borders::TOP)
        .title(format!(" {} ({kind}) ", clean(&row.lock.name)));
    let table = table(&LINE_COLUMNS, rows, area.width).block(block);
    let at = (model.mode == Mode::Line).then_some(model.line_at);
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(at));
}

fn popup(frame: &mut Frame<'_>, title: &str, text: &str, width: u16) {
    let area = frame.area();
    let width = width.min(area.width);
    let height = lines(text, width.saturating_sub(2)).saturating_add(2).min(area.height);
    let area = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, area);
    let text = Paragraph::new(text).wrap(Wrap { trim: false });
    frame.render_widget(text.block(Block::bordered().title(title)), area);
}

/// The same as plain lines, for terminals that cannot redraw.
pub(super) fn plain(model: &Model, title: &Title<'_>) -> String {
    let mut lines: Vec<String> =
        heading(model, title).lines.iter().map(ToString::to_string).collect();
    lines.extend(model.notice().map(clean));
    if model.rows.is_empty() {
        lines.push(nothing(model, title).trim().to_owned());
    }
    for row in &model.rows {
        let [held, waiting, hold, taken, lost, holder] = cells(row);
        lines.push(format!(
            "{}  for {held}  waiting {waiting}  mean hold {hold}  taken {taken}  lost {lost}  \
             {holder}",
            clean(&row.lock.name)
        ));
        for (at, waiter) in row.lock.waiters.iter().enumerate() {
            let (place, age) = (at + 1, time(waiter.age));
            lines.push(format!("  {place} waits {age}  {}  {}", short_id(waiter.id), waiter.who));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}
