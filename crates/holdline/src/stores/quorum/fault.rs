//! The errors of invalid quorums, and of rounds without a majority.

use super::Quorum;
use super::node::Node;
use crate::error::{Error, ErrorKind, Result};
use crate::names::Name;

impl Quorum {
    /// The error of a round without a majority. It is retryable, unless so many nodes fail
    /// permanently that the others are not enough.
    pub(super) fn unavailable<'a>(
        &self,
        line: &Name,
        failures: impl Iterator<Item = Option<&'a Error>>,
    ) -> Error {
        let failures = self.nodes.iter().zip(failures);
        let failures: Vec<(&Node, &Error)> =
            failures.filter_map(|(node, failure)| Some((node, failure?))).collect();
        let spare = self.nodes.len() - self.tally().majority() as usize;
        let mut hopeless = failures.iter().filter(|(_, failure)| !failure.retryable());
        let kind = hopeless.nth(spare).map_or(ErrorKind::Unavailable, |(_, error)| error.kind());
        let mut each: Vec<String> = failures
            .iter()
            .map(|(node, failure)| format!("{}: {failure:#}", node.store.address()))
            .collect();
        if each.is_empty() {
            each.push("all answered, too late".to_owned());
        }
        let message = format!(
            "too few of the {} nodes answered in time about lock \"{line}\": {}",
            self.nodes.len(),
            each.join("; ")
        );
        Error::new(kind, message)
    }
}

/// Checks that there are at least three nodes.
pub(crate) fn enough(nodes: usize) -> Result<()> {
    if nodes >= 3 {
        return Ok(());
    }
    let message = format!(
        "a quorum of {nodes} makes no sense: it takes three nodes to survive the loss of one; \
         write quorum:URL,URL,URL"
    );
    Err(Error::new(ErrorKind::Invalid, message))
}

/// The error for two nodes that are the same store, by these addresses.
pub(crate) fn twice(one: &str, other: &str) -> Error {
    let message = if one == other {
        format!("{one} is given twice as a node of the quorum")
    } else {
        format!("{one} and {other} are the same store, given twice as a node of the quorum")
    };
    let message = format!("{message}; each node must be another server, independent of the others");
    Error::new(ErrorKind::Invalid, message)
}

/// The error for a node that does not fit beside nodes with tokens.
pub(crate) fn unfit(address: &str, fencing_tokens: bool) -> Error {
    let message = if fencing_tokens {
        format!(
            "{address} cannot be a node of a quorum, because its tokens cannot be raised; use \
             Redis, file or memory stores, or this store alone: it survives the loss of a minority \
             of its servers by itself"
        )
    } else {
        format!(
            "{address} gives no tokens, but other nodes of the quorum do; use nodes of one kind: \
             all with ?scheme=string, for locks without tokens, or none"
        )
    };
    Error::new(ErrorKind::Unsupported, message)
}

/// The error of a node that is no longer waited for.
pub(super) fn late() -> Error {
    Error::new(ErrorKind::Unavailable, "it did not answer in time")
}
