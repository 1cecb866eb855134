//! Detection of ZooKeeper servers with different data.
//!
//! From 3.6 on, each transaction carries a digest of the leader's data, and a server that gets
//! another one from its own data says so in its log. That happens after elections in which servers
//! crash. Before 3.9.4, a follower can lose what it has confirmed (ZOOKEEPER-3023, 4394, 4643,
//! 4646, 4785). In all versions, a new leader writes a snapshot of all its data, even of data that
//! no majority has; when it later follows another leader, it truncates its log, but starts from
//! that snapshot (ZOOKEEPER-1549, open since 2012). From then on its clients see places that no
//! other server has, under numbers that the others assign again: two can hold, and tokens fall.
//! `docs/faults/zookeeper.md` says what happens to locks then; a run in which it happened says
//! nothing about this library.

use std::path::{Path, PathBuf};

/// The text before the transaction after which a server's data differed from the leader's.
const MISMATCH: &str = "First digest mismatch on txn: ";

/// The first server whose data differed from the leader's.
pub(crate) fn differ(folders: &[PathBuf]) -> Option<String> {
    folders.iter().find_map(|folder| {
        let transaction = mismatch(&log(folder))?;
        Some(format!("{} after transaction {transaction}", folder.display()))
    })
}

fn log(folder: &Path) -> String {
    let bytes = std::fs::read(folder.join("log")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn mismatch(log: &str) -> Option<String> {
    let (_, rest) = log.split_once(MISMATCH)?;
    // Its session, the number in it, its own number, the time and the type.
    let number = rest.split(',').nth(2)?.parse::<u64>().ok()?;
    Some(format!("{number:#x}"))
}

#[cfg(test)]
mod tests {
    use super::mismatch;

    #[test]
    fn a_server_with_other_data_is_found() {
        let log = "INFO DataTree - The digest in the snapshot has digest version of 2\n";
        assert_eq!(mismatch(log), None);
        let log = format!(
            "{log}ERROR DataTree - First digest mismatch on txn: \
             144116837448024064,0,8589934593,1795678361859,-10\n, 5000\n, expected digest is 2,6\n"
        );
        assert_eq!(mismatch(&log).as_deref(), Some("0x200000001"));
    }
}
