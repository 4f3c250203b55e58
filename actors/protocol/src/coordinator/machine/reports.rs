//! Reports of broken links between members, kept by the leader of a round.

use crate::coordinator::plan::Attempt;
use crate::ident::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of pairs of which reports are kept.
pub const PAIRS_REPORTED_MAX: usize = 4096;
/// Number of attempts of a round under which a pair must be reported before the round is made
/// without one of the two.
pub const REPORTS_TO_PART: u32 = 2;

/// Broken links that were reported to a leader in one round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Reports {
    /// By pair, the lower id first: the number of attempts under which it was reported, and the
    /// last of them. At most [`PAIRS_REPORTED_MAX`].
    pairs: BTreeMap<(NodeId, NodeId), (u32, Attempt)>,
    /// Nodes that are excluded from this round.
    pub(super) left_out: BTreeSet<NodeId>,
}

impl Reports {
    /// Records a report; `true` once the pair was reported under [`REPORTS_TO_PART`] attempts. A
    /// node may report itself: it fails by itself.
    pub(super) fn note(&mut self, (one, other): (NodeId, NodeId), attempt: Attempt) -> bool {
        let pair = (one.min(other), one.max(other));
        if self.pairs.len() >= PAIRS_REPORTED_MAX && !self.pairs.contains_key(&pair) {
            return false;
        }
        match self.pairs.get_mut(&pair) {
            None => _ = self.pairs.insert(pair, (1, attempt)),
            Some((times, last)) if *last != attempt => (*times, *last) = (*times + 1, attempt),
            Some(_) => {}
        }
        self.pairs
            .get(&pair)
            .is_some_and(|(times, _)| *times >= REPORTS_TO_PART)
    }

    /// Number of reported pairs that contain a node.
    pub(super) fn pairs_of(&self, node: NodeId) -> usize {
        self.pairs
            .keys()
            .filter(|(one, other)| *one == node || *other == node)
            .count()
    }
}
