//! Detection of a ZooKeeper server with data that were never agreed on.
//!
//! A new leader writes a snapshot of all its data, even of data that no majority has. When it later
//! follows another leader, it truncates its log, but starts from that snapshot (ZOOKEEPER-1549,
//! open since 2012). From then on its clients see places that no other server has, under numbers
//! that the others assign again: two can hold, and tokens fall. `docs/faults/zookeeper.md` says
//! what happens to locks then; a run in which it happened says nothing about this library.

use std::path::{Path, PathBuf};

/// The text before the number of the last transaction in a snapshot's name.
const SNAPSHOT: &str = "Snapshotting: 0x";

/// The first server with a snapshot older than an earlier one of its own.
pub(crate) fn went_back(folders: &[PathBuf]) -> Option<String> {
    folders.iter().find_map(|folder| lower(&log(folder)).map(|what| at(folder, &what)))
}

fn log(folder: &Path) -> String {
    let bytes = std::fs::read(folder.join("log")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn at(folder: &Path, what: &str) -> String {
    format!("ZOOKEEPER-1549: {} wrote {what}", folder.display())
}

fn lower(log: &str) -> Option<String> {
    let numbers = log.split(SNAPSHOT).skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        u64::from_str_radix(&rest[..end], 16).ok()
    });
    let mut highest = 0;
    for number in numbers {
        if number < highest {
            return Some(format!("a snapshot of {number:#x} after one of {highest:#x}"));
        }
        highest = number;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::lower;

    #[test]
    fn a_server_that_went_back_is_found() {
        let line = |number: u64| format!("INFO FileTxnSnapLog - Snapshotting: {number:#x} to /d\n");
        let log = |numbers: &[u64]| numbers.iter().copied().map(line).collect::<String>();
        assert_eq!(lower(&log(&[0, 0x1_0000_0026, 0x1_0000_0026, 0x2_0000_0084])), None);
        let found = lower(&log(&[0, 0x2_0000_0084, 0x2_0000_005a, 0x4_0000_00e4]));
        let found = found.expect("it went back");
        assert_eq!(found, "a snapshot of 0x20000005a after one of 0x200000084");
    }
}
