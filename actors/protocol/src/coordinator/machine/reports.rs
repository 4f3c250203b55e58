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
    /// By pair, the lower id first. At most [`PAIRS_REPORTED_MAX`].
    pairs: BTreeMap<(NodeId, NodeId), Report>,
    /// Nodes that are excluded from this round.
    pub(super) left_out: BTreeSet<NodeId>,
}

/// The reports about a pair.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Report {
    /// Number of attempts under which it was reported, and the last of them.
    times: u32,
    last: Attempt,
    /// The nodes of the pair that reported it: one or both.
    by: BTreeSet<NodeId>,
}

impl Reports {
    /// Records a report; `true` once the pair was reported under [`REPORTS_TO_PART`] attempts. A
    /// node may report itself: it fails by itself.
    pub(super) fn note(&mut self, (reporter, other): (NodeId, NodeId), attempt: Attempt) -> bool {
        let pair = pair(reporter, other);
        if self.pairs.len() >= PAIRS_REPORTED_MAX && !self.pairs.contains_key(&pair) {
            return false;
        }
        let report = self.pairs.entry(pair).or_insert_with(|| Report {
            times: 0,
            last: attempt,
            by: BTreeSet::new(),
        });
        if report.times == 0 || report.last != attempt {
            report.times += 1;
            report.last = attempt;
        }
        report.by.insert(reporter);
        report.times >= REPORTS_TO_PART
    }

    /// Records that the other end of a reported pair reports it too, of an attempt that is over.
    pub(super) fn confirm(&mut self, reporter: NodeId, other: NodeId) {
        if let Some(report) = self.pairs.get_mut(&pair(reporter, other)) {
            report.by.insert(reporter);
        }
    }

    /// Whether only this node of the pair says that they cannot reach each other.
    pub(super) fn is_alone(&self, node: NodeId, other: NodeId) -> bool {
        self.pairs
            .get(&pair(node, other))
            .is_some_and(|report| report.by.len() == 1 && report.by.contains(&node))
    }

    /// Number of reported pairs that contain a node.
    pub(super) fn pairs_of(&self, node: NodeId) -> usize {
        self.pairs
            .keys()
            .filter(|(one, other)| *one == node || *other == node)
            .count()
    }
}

fn pair(one: NodeId, other: NodeId) -> (NodeId, NodeId) {
    (one.min(other), one.max(other))
}
