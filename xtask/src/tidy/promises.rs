//! Checks that the documentation says what happens when a future is dropped.

use super::Finding;
use super::source::Source;

/// The heading that every public async method's documentation has.
const HEADING: &str = "# Cancel safety";

/// Every public async method says whether it is safe to cancel.
pub(super) fn check(source: &Source, findings: &mut Vec<Finding>) {
    if source.below("crates/holdline/src/").is_none() {
        return;
    }
    for (number, line) in source.code_before_tests() {
        let line = line.trim_start();
        if line.starts_with("pub async fn ") && !documentation(source, number - 1).contains(HEADING)
        {
            let name: String = line["pub async fn ".len()..]
                .chars()
                .take_while(|c| super::source::is_name(*c))
                .collect();
            let sentence = format!("The documentation of `{name}` has no `{HEADING}`.");
            findings.push(Finding::new(&source.path, number, sentence));
        }
    }
}

/// The comment above a line (from 0), skipping attributes in between.
fn documentation(source: &Source, line: usize) -> String {
    let mut first = line;
    // An item before it ends with a brace or a semicolon; its own attributes end with `]`.
    while first > 0 {
        let above = source.code[first - 1].trim();
        let is_blank_line = source.lines[first - 1].trim().is_empty();
        if is_blank_line || above.ends_with([';', '}', '{']) {
            break;
        }
        first -= 1;
    }
    source.lines[first..line].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check(&Source::new(path, text), &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    const GATE: &str = "crates/holdline/src/gate.rs";

    #[test]
    fn a_public_async_method_without_the_heading_is_found() {
        let text = "impl A {\n\
                    \x20   /// # Cancel safety\n    /// Yes.\n    pub async fn a() {\n    }\n\
                    \n    /// Waits.\n    pub async fn b<T>() {\n    }\n}\n";
        let wanted = format!("{GATE}:8: The documentation of `b` has no `# Cancel safety`.");
        assert_eq!(found(GATE, text), [wanted]);
    }

    #[test]
    fn attributes_may_stand_between() {
        let text = "/// # Cancel safety\n/// Yes; see {x}.\n#[cfg(any(\n    a,\n    b\n))]\n\
                    #[must_use]\npub async fn a() {}\n";
        assert!(found(GATE, text).is_empty());
    }

    #[test]
    fn what_is_not_public_or_not_the_library_is_free() {
        assert!(found(GATE, "pub(crate) async fn a() {}\nasync fn b() {}").is_empty());
        assert!(found("crates/conformance/src/a.rs", "pub async fn a() {}").is_empty());
        assert!(found("testing/bench/src/a.rs", "pub async fn a() {}").is_empty());
        assert_eq!(found(GATE, "pub async fn a() {}").len(), 1);
    }
}
