//! The command line of a test binary without the standard harness.

/// A choice of tests by name, parsed like the standard harness's: words of which a name must
/// contain one, `--exact`, `--skip WORD`, `--list`. Other flags are accepted and ignored.
#[derive(Debug, Default)]
pub struct Choice {
    words: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
}

impl Choice {
    /// Parses the arguments of this process.
    pub fn from_args() -> Self {
        Self::of(std::env::args().skip(1))
    }

    fn of(mut arguments: impl Iterator<Item = String>) -> Self {
        let mut choice = Choice::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => choice.exact = true,
                "--list" => choice.list = true,
                "--skip" => choice.skip.extend(arguments.next()),
                "--test-threads" | "--format" | "--color" => drop(arguments.next()),
                flag if flag.starts_with('-') => {}
                _ => choice.words.push(argument),
            }
        }
        choice
    }

    /// Whether to only print the names.
    pub fn lists(&self) -> bool {
        self.list
    }

    /// Whether to run the test of this name.
    pub fn chooses(&self, name: &str) -> bool {
        let fits = |word: &String| if self.exact { name == word } else { name.contains(word) };
        (self.words.is_empty() || self.words.iter().any(fits)) && !self.skip.iter().any(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::Choice;

    #[test]
    fn names_are_chosen_as_the_standard_harness_does() {
        let choice = |words: &str| Choice::of(words.split_whitespace().map(str::to_owned));
        assert!(choice("").chooses("a::b"));
        assert!(choice("x a:: --nocapture").chooses("a::b"));
        assert!(!choice("a:: --skip b").chooses("a::b"));
        assert!(!choice("--exact a::").chooses("a::b"));
        assert!(choice("--exact a::b --test-threads 1").chooses("a::b"));
        assert!(choice("--list").lists() && !choice("a").lists());
    }
}
