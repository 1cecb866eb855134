//! The keyboard input of `holdline top`.

use super::model::Key;
use super::screen::unusable;
use crate::exit::Failure;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc::{Receiver, channel};

/// The most keys that wait to be handled.
const MOST: usize = 64;

/// The pressed keys, read by a thread; `None` for a change of the size.
pub(super) fn read() -> Result<Receiver<Option<Key>>, Failure> {
    let (send, keys) = channel(MOST);
    let read = move || {
        while let Ok(event) = event::read() {
            let key = match event {
                Event::Key(event) => match key(event) {
                    Some(key) => Some(key),
                    None => continue,
                },
                Event::Resize(..) => None,
                _ => continue,
            };
            if send.blocking_send(key).is_err() {
                break;
            }
        }
    };
    let thread = std::thread::Builder::new().name("keys".to_owned()).spawn(read);
    thread.map_err(|error| unusable(&error))?;
    Ok(keys)
}

/// The meaning of a key; `None` for most keys pressed together with Control or Alt.
fn key(event: KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    if event.modifiers.contains(KeyModifiers::CONTROL) {
        return match event.code {
            KeyCode::Char('c' | 'd') => Some(Key::Interrupt),
            KeyCode::Char('l') => Some(Key::Redraw),
            KeyCode::Char('z') => Some(Key::Stop),
            _ => None,
        };
    }
    Some(match event.code {
        KeyCode::Char(_) if event.modifiers.contains(KeyModifiers::ALT) => return None,
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Tab | KeyCode::BackTab => Key::Tab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}
