//! The boot id and the clock of the machine, on which all processes of one kernel agree.
//!
//! Leases in the database are judged by the boot-time clock. A time namespace (a container may have
//! one) shifts that clock for its processes. The database stores the clock without the shift, on
//! which all namespaces of one kernel agree.

use super::errors::{out_of_descriptors, refused};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use holdline_kernel::Time;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

/// The offset of this process's boot-time clock from the machine's, in nanoseconds. A process keeps
/// its time namespace for life.
static SHIFT: OnceLock<i128> = OnceLock::new();

/// The file with the clock offsets of this process's time namespace.
const OFFSETS: &str = "/proc/self/timens_offsets";
/// The kernel's own time namespace (its `TIME_NS_INIT_INO`), which has no offsets.
#[cfg(any(target_os = "linux", target_os = "android"))]
const INITIAL: &str = "time:[4026531834]";

/// The current time on the stored clock: boot time without the shift of a time namespace.
pub(super) fn now() -> Time {
    unshifted(clock::now(), SHIFT.get().copied().unwrap_or(0))
}

fn unshifted(now: Time, shift: i128) -> Time {
    let nanos = (i128::from(now.0) - shift).max(0);
    Time(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Reads the shift of this process's clock; must be called before [`now`].
pub(super) fn detect_shift() -> Result<()> {
    if SHIFT.get().is_none() {
        let shift = read_shift().map_err(|error| {
            if out_of_descriptors(&error) {
                return refused("read", Path::new(OFFSETS), error);
            }
            let message = "the time namespace of this process cannot be told, so that its clock \
                           may differ from that of the others who use the lock database; run it in \
                           one namespace, with its own /proc";
            Error::because(ErrorKind::Unsupported, message, error)
        })?;
        let _ = SHIFT.set(shift);
    }
    Ok(())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn read_shift() -> io::Result<i128> {
    let namespace = |name: &str| fs::read_link(format!("/proc/self/ns/{name}"));
    // Nearly always true: then one look suffices.
    if namespace("time").is_ok_and(|own| own == Path::new(INITIAL)) {
        return Ok(0);
    }
    let text = match fs::read_to_string(OFFSETS) {
        Ok(text) => text,
        // A kernel without time namespaces, or without /proc.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    // The file is about the namespace for children, which may differ from the process's own.
    if namespace("time")? != namespace("time_for_children")? {
        return Err(io::Error::other("its children have another time namespace than itself"));
    }
    parse_shift(&text).ok_or_else(|| io::Error::other("timens_offsets has an unknown form"))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn read_shift() -> io::Result<i128> {
    Ok(0)
}

/// Parses the line `boottime SECONDS NANOSECONDS` (older kernels write a number for the clock).
#[cfg(any(target_os = "linux", target_os = "android", test))]
fn parse_shift(text: &str) -> Option<i128> {
    let mut words = text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        matches!(words.next(), Some("boottime" | "7")).then_some(words)
    })?;
    let seconds: i64 = words.next()?.parse().ok()?;
    let nanos: i64 = words.next()?.parse().ok()?;
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
}

/// The boot id. One kernel may show several: a container may have its own mounted over the
/// kernel's.
pub(super) fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifts_are_read() {
        let text = "monotonic           5         1\nboottime       100000         7\n";
        assert_eq!(parse_shift(text), Some(100_000_000_000_007));
        let text = "monotonic  0 0\nboottime  -10 500000000\n";
        assert_eq!(parse_shift(text), Some(-9_500_000_000));
        assert_eq!(parse_shift("1 0 0\n7 3 0\n"), Some(3_000_000_000));
        for text in ["", "boottime", "boottime x 0", "boottime 1", "monotonic 1 1"] {
            assert_eq!(parse_shift(text), None, "{text}");
        }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn the_initial_namespace_has_no_shift() {
        let namespace = |name| fs::read_link(format!("/proc/self/ns/{name}")).ok();
        // The file tells the offsets of the namespace for children.
        if namespace("time_for_children").is_some_and(|it| it == Path::new(INITIAL)) {
            assert_eq!(parse_shift(&fs::read_to_string(OFFSETS).unwrap()), Some(0));
        }
        assert!(read_shift().is_ok());
    }

    #[test]
    fn shifts_are_taken_off() {
        assert_eq!(unshifted(Time(1_000), 400), Time(600));
        assert_eq!(unshifted(Time(1_000), -400), Time(1_400));
        assert_eq!(unshifted(Time(1_000), 4_000), Time(0));
    }
}
