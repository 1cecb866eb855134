//! Wall clocks that are wrong, for programs that a test starts.

use crate::{Folder, Program};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// A C compiler.
pub(crate) const CC: Program = Program::new("cc", "gcc", "install any C compiler");

/// The text of the library that moves a wall clock.
pub(crate) const SOURCE: &str = include_str!("wallshift.c");

/// A library that is preloaded into programs, and moves their wall clocks. It is removed when this
/// is dropped.
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

    /// The environment of programs whose wall clock is so many seconds ahead, or behind. Said again
    /// of a clock of the same name, it moves that of programs that run.
    ///
    /// # Panics
    ///
    /// If there is no room for a small file.
    pub fn environment(&self, name: &str, seconds: i64) -> Vec<(String, String)> {
        let shift = self.path(name);
        // Written in place: programs have mapped it.
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
