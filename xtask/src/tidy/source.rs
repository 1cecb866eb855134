//! A Rust file, and a copy of it without comments and the contents of strings.

/// A source file, prepared for the rules.
pub(super) struct Source {
    /// Its path from the root, with `/`.
    pub(super) path: String,
    /// Its lines.
    pub(super) lines: Vec<String>,
    /// The same lines, with spaces in place of comments and the contents of strings.
    pub(super) code: Vec<String>,
    /// The line (from 0) where the final test module begins, or the number of lines.
    pub(super) tests_from: usize,
}

impl Source {
    /// Reads a file.
    pub(super) fn new(path: &str, text: &str) -> Self {
        let code: Vec<String> = without_comments(text).lines().map(str::to_owned).collect();
        let tests_from = tests_from(&code);
        let lines = text.lines().map(str::to_owned).collect();
        Self { path: path.to_owned(), lines, code, tests_from }
    }

    /// Whether the whole file consists of tests.
    pub(super) fn is_test(&self) -> bool {
        self.path.split('/').any(|part| part == "tests" || part == "tests.rs")
    }

    /// Code that is not tests: line numbers from 1, and lines.
    pub(super) fn code_before_tests(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = if self.is_test() { 0 } else { self.tests_from };
        (1..).zip(self.code[..end].iter().map(String::as_str))
    }

    /// The path from `folder` on, if the file is in it.
    pub(super) fn below(&self, folder: &str) -> Option<&str> {
        self.path.strip_prefix(folder)
    }
}

/// Where `#[cfg(test)]` and `mod x {` begin the file's last item.
fn tests_from(code: &[String]) -> usize {
    let end = code.iter().rposition(|line| !line.trim().is_empty()).unwrap_or(0);
    let begin = code.iter().rposition(|line| line == "#[cfg(test)]");
    let Some(begin) = begin.filter(|_| code.get(end).is_some_and(|line| line == "}")) else {
        return code.len();
    };
    let mut rest = code[begin + 1..].iter().filter(|line| !line.starts_with("#["));
    let is_module = rest.next().is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'));
    // The module must be closed by the last line, and nothing else.
    let closed = code.iter().skip(begin).position(|line| line == "}").map(|at| at + begin);
    if is_module && closed == Some(end) { begin } else { code.len() }
}

/// Replaces comments, and the contents of strings and characters, by spaces; keeps line breaks.
pub(super) fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after_name = out.chars().next_back().is_some_and(is_name);
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = (!after_name).then(|| raw_string(rest)).flatten() {
            length
        } else if first == '"' {
            string(rest)
        } else {
            character(rest).unwrap_or(0)
        };
        if skipped == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            out.extend(rest[..skipped].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[skipped..];
        }
    }
    out
}

/// Whether this may be part of a name.
pub(super) fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first position of `word` in `line` as a whole name.
pub(super) fn find_word(line: &str, word: &str) -> Option<usize> {
    let starts_with_name = word.starts_with(is_name);
    let ends_with_name = word.ends_with(is_name);
    line.match_indices(word).map(|(at, _)| at).find(|at| {
        let before = line[..*at].chars().next_back().is_some_and(is_name);
        let after = line[at + word.len()..].chars().next().is_some_and(is_name);
        !(starts_with_name && before || ends_with_name && after)
    })
}

/// The length of a block comment, which may be nested.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a raw string, `r"..."`, `br#"..."#` and so on, if `text` begins with one.
fn raw_string(text: &str) -> Option<usize> {
    let after_prefix = ["r", "br", "cr"]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix).filter(|rest| rest.starts_with(['"', '#'])))?;
    let hashes = after_prefix.len() - after_prefix.trim_start_matches('#').len();
    let inside = after_prefix[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let begin = text.len() - inside.len();
    Some(inside.find(&end).map_or(text.len(), |at| begin + at + end.len()))
}

/// The length of a plain string.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a character, if this is one and not a lifetime.
fn character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    if let Some(escape) = inside.strip_prefix('\\') {
        // The escaped character may be a quote itself.
        let skip = escape.chars().next()?.len_utf8();
        return escape[skip..].find('\'').map(|at| 2 + skip + at + 1);
    }
    let length = inside.chars().next()?.len_utf8();
    inside[length..].starts_with('\'').then_some(length + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_become_spaces() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("x \" y") g"#, r"f(        ) g"),
            (r##"f(r#"x " y"#) g"##, "f(          ) g"),
            ("for\"x\"", "for   "),
            ("x = '\"'; y = '\\''; z", "x =    ; y =     ; z"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("b\"x\" + br\"y\"", "b    +      "),
            ("'\\u{1F600}' é '🦀'", "            é    "),
            ("\"a\nb\" c", "  \n   c"),
        ];
        for (text, wanted) in cases {
            assert_eq!(without_comments(text), wanted, "{text}");
        }
    }

    #[test]
    fn what_never_ends_is_no_trouble() {
        for text in ["\"abc", "/* abc", "r#\"abc", "'\\", "'", "// abc"] {
            assert_eq!(without_comments(text).len(), text.len());
        }
    }

    #[test]
    fn words_end_where_names_end() {
        assert_eq!(find_word("use rand;", "rand"), Some(4));
        assert_eq!(find_word("operand brand rand_core random", "rand"), None);
        assert_eq!(find_word("x.sleep(1)", "sleep("), Some(2));
        assert_eq!(find_word("x.oversleep(1)", "sleep("), None);
        assert_eq!(find_word("mystd::a std::b", "std::"), Some(9));
    }

    #[test]
    fn tests_at_the_end_are_found() {
        let tests = "fn f() {}\n\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn g() {}\n}\n";
        assert_eq!(Source::new("a.rs", tests).tests_from, 2);
        for other in [
            "fn f() {}\n#[cfg(test)]\nmod tests;\n",
            "#[cfg(test)]\nmod tests {\n}\nfn f() {\n}\n",
            "#[cfg(test)]\nfn f() {\n}\n",
            "",
        ] {
            let source = Source::new("a.rs", other);
            assert_eq!(source.tests_from, source.lines.len(), "{other}");
        }
    }
}
