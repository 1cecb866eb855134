//! How `holdline top` looks: from the state to the screen.

use super::model::{Mode, Model, Row};
use crate::duration;
use crate::participant::short_id;
use crate::printer::clean;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table, TableState, Wrap};
use std::time::Duration;

const KEYS: &str = "q quit  jk move  Tab line  s sort  / filter  p pause  b break  ? help";
const HELP: &str = " j k, arrows    move; PgUp PgDn, g G farther
 Tab, Enter     to the line of the lock, and back
 s              sort by waiting, held, taken, lost, name
 /              show only names with this in them; Esc: all
 p, space       pause, and go on
 b              break the lock of who is selected; it asks
 ?              this; any key goes back
 q, Ctrl-C      quit

 FOR   how long it is held      HOLD  mean time of holds
 WAIT  who wait now, and most   TAKEN acquisitions seen
 LOST  holders that were broken or had not renewed";

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// What stands above the table.
pub(super) struct Title<'a> {
    pub(super) store: &'a str,
    pub(super) time: &'a str,
}

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, title: &Title<'_>) {
    let area = frame.area();
    let half = area.height.saturating_sub(3) / 2;
    let [head, locks, line, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(3),
        Constraint::Length(half),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(heading(model, title)), head);
    draw_locks(frame, model, locks);
    draw_line(frame, model, line);
    frame.render_widget(Paragraph::new(footer(model)), foot);
    match &model.mode {
        Mode::Help => popup(frame, " help ", HELP, 60),
        Mode::Break { name, who, .. } => {
            let question = format!(
                "Take lock \"{}\" away from {who}?\n\nThe next in line is let in at once, and what \
                 it runs may go on for a while.\n\n[y] yes   any other key: no",
                clean(name)
            );
            popup(frame, " break ", &question, 70);
        }
        Mode::Locks | Mode::Line | Mode::Filter => {}
    }
}

fn heading<'a>(model: &Model, title: &Title<'a>) -> Text<'a> {
    let (held, waiting, lost) = model.totals();
    let paused = if model.paused { "PAUSED  " } else { "" };
    let unseen = match model.unseen {
        0 => String::new(),
        n => format!("; {n} more are not looked at"),
    };
    let counts = format!(
        "{} shown, {held} hold, {waiting} wait, {:.1} taken/s, {lost} lost; by {}{unseen}",
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

/// The cells of a lock, after its name.
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

fn draw_locks(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let rows = model.rows.iter().map(|row| {
        let name = Cell::from(clean(&row.lock.name));
        TableRow::new([name].into_iter().chain(cells(row).map(Cell::from)))
    });
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(4),
        Constraint::Fill(3),
    ];
    let head = ["LOCK", "FOR", "WAIT", "HOLD", "TAKEN", "LOST", "HELD BY"];
    let table = Table::new(rows, widths)
        .header(TableRow::new(head).style(BOLD))
        .row_highlight_style(SELECTED)
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
        TableRow::new([
            (at + 1).to_string(),
            state,
            time(party.age),
            time(party.left),
            party.token.map_or_else(|| "-".to_owned(), |token| token.to_string()),
            short_id(party.id),
            party.who.clone(),
        ])
    });
    let widths = [
        Constraint::Length(4),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(16),
        Constraint::Length(12),
        Constraint::Fill(1),
    ];
    let kind = crate::lock_kind::kind(row.lock.capacity.max(1));
    let block = Block::new()
        .borders(ratatui::widgets::Borders::TOP)
        .title(format!(" {} ({kind}) ", clean(&row.lock.name)));
    let head = ["", "", "SINCE", "LAPSES", "TOKEN", "ID", "WHO"];
    let table = Table::new(rows, widths)
        .header(TableRow::new(head).style(BOLD))
        .row_highlight_style(SELECTED)
        .block(block);
    let at = (model.mode == Mode::Line).then_some(model.line_at);
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(at));
}

fn popup(frame: &mut Frame<'_>, title: &str, text: &str, width: u16) {
    let area = frame.area();
    let width = width.min(area.width);
    let inner = usize::from(width.saturating_sub(2)).max(1);
    let lines: usize = text.lines().map(|line| line.chars().count() / inner + 1).sum();
    let height = u16::try_from(lines + 2).unwrap_or(u16::MAX).min(area.height);
    let area = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, area);
    let text = Paragraph::new(text).wrap(Wrap { trim: false });
    frame.render_widget(text.block(Block::bordered().title(title)), area);
}

/// The same as lines, for terminals that cannot show it in its place.
pub(super) fn plain(model: &Model, title: &Title<'_>) -> String {
    let mut lines: Vec<String> =
        heading(model, title).lines.iter().map(ToString::to_string).collect();
    lines.extend(model.notice().map(clean));
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
