//! A line that fits the terminal: the important parts first, and as much of the rest as fits.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A part of the line: a head that stays whole, and a text that may be cut.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Part {
    /// A part that is not cut while other parts can be.
    pub(crate) fn whole(head: String) -> Part {
        Part { head, text: String::new() }
    }
}

/// The fewest columns of a text that is cut.
const LEAST: usize = 6;
/// The columns of a text that take precedence over later texts.
const WANTED: usize = 30;

/// The line in this many columns: all heads as far as they fit, and then their texts, those of the
/// first parts first. A narrow line has no prefix.
pub(crate) fn fit(prefix: &str, parts: &[Part], width: usize) -> String {
    let prefix = if width >= 60 { prefix } else { "" };
    let parts: Vec<&Part> =
        parts.iter().filter(|part| !part.head.is_empty() || !part.text.is_empty()).collect();
    let least = |part: &Part| {
        let text = part.text.width();
        part.head.width() + if text > LEAST { LEAST } else { text } + 2
    };
    // The minimum of each part, while there is room; the first part is always shown.
    let (mut used, mut count, mut wanted) = (prefix.width(), 0, 0);
    for (at, part) in parts.iter().enumerate() {
        let before = if part.text.is_empty() { 0 } else { wanted };
        if at > 0 && used + before + least(part) > width + 2 {
            break;
        }
        used += least(part);
        wanted += part.text.width().min(WANTED).saturating_sub(LEAST);
        count = at + 1;
    }
    let mut spare = (width + 2).saturating_sub(used);
    let shown = parts[..count].iter().map(|part| {
        let text = part.text.width();
        let more = text.saturating_sub(LEAST).min(spare);
        spare -= more;
        format!("{}{}", part.head, cut(&part.text, text.min(LEAST) + more))
    });
    cut(&format!("{prefix}{}", shown.collect::<Vec<_>>().join("; ")), width)
}

/// The text in this many columns, with a mark if it was cut.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut columns = 0;
    let fits = |c: &char| {
        columns += c.width().unwrap_or(0);
        columns < width
    };
    let mut short: String = text.chars().take_while(fits).collect();
    if width > 0 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::{Part, cut, fit};
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn what_matters_is_shown_in_any_width() {
        let parts = [
            Part { head: "held for 3m by ".into(), text: "pid 7 on a-host-with-a-name".into() },
            Part::whole("2 wait, place 1 in line".into()),
            Part { head: "waiting for ".into(), text: "lock \"日本\" in sqlite:/a/b".into() },
        ];
        for width in 0..200 {
            let line = fit("holdline: ", &parts, width);
            assert!(line.width() <= width, "{width}: {line}");
            if width >= 50 {
                assert!(line.contains("held for 3m by pid 7"), "{width}: {line}");
                assert!(line.contains("2 wait, place 1 in line"), "{width}: {line}");
            }
        }
        let whole = "holdline: held for 3m by pid 7 on a-host-with-a-name; 2 wait, place 1 in \
                     line; waiting for lock \"日本\" in sqlite:/a/b";
        assert_eq!(fit("holdline: ", &parts, 150), whole);
        assert_eq!(fit("holdline: ", &parts, 16), "held for 3m by …");
        let usual = "holdline: held for 3m by pid 7 on a-host-with-a-name; 2 wait, place 1 in line";
        assert_eq!(fit("holdline: ", &parts, 80), usual, "who holds is not cut for what waits");
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!((cut("abc", 0).as_str(), cut("abc", 1).as_str()), ("", "…"));
    }
}
