//! Wrong wall clocks, for programs that a test starts.

use crate::{Folder, Program};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// A C compiler.
pub(crate) const CC: Program = Program::new("cc", "gcc", "install any C compiler");

/// The source of the library that shifts a wall clock.
pub(crate) const SOURCE: &str = include_str!("wallshift.c");

/// A library that is preloaded into programs, and shifts their wall clocks. It is removed on drop.
#[derive(Debug)]
pub struct WallClock(Folder);

impl WallClock {
    /// Compiles the library; `None` if there is no C compiler, which is noted by
    /// [`crate::missing()`].
    ///
    /// # Panics
    ///
    /// If it cannot be written or compiled.
    pub fn new() -> Option<Self> {
        let compiler = match CC.find() {
            Ok(found) => found.binary,
            Err(why) => {
                crate::missing(why.trim_end_matches('.'));
                return None;
            }
        };
        let clock = Self(Folder::new("wallclock").unwrap_or_else(|why| panic!("{why}")));
        std::fs::write(clock.path("wallshift.c"), SOURCE).expect("there is room");
        let args = ["-shared", "-fPIC", "-O1", "-o", "wallshift.so", "wallshift.c"];
        let done = Command::new(compiler).args(args).current_dir(clock.0.path()).status();
        assert!(done.is_ok_and(|status| status.success()), "the clock does not compile");
        Some(clock)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The environment of programs whose wall clock is this many seconds ahead, or behind. Another
    /// call for a clock of the same name shifts that of running programs.
    ///
    /// # Panics
    ///
    /// If there is no room for a small file.
    pub fn environment(&self, name: &str, seconds: i64) -> Vec<(String, String)> {
        let shift = self.path(name);
        // Written in place, because programs have mapped the file.
        let file = std::fs::File::options().write(true).create(true).truncate(false).open(&shift);
        let micros = (seconds * 1_000_000).to_ne_bytes();
        file.and_then(|mut file| file.write_all(&micros)).expect("there is room");
        let text = |path: PathBuf| path.display().to_string();
        vec![
            ("LD_PRELOAD".to_owned(), text(self.path("wallshift.so"))),
            ("WALLSHIFT".to_owned(), text(shift)),
        ]
    }
}
