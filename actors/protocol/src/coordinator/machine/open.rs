//! The bookkeeping of the open round: what this node must still hold before it tells the leader. Pure.

use crate::coordinator::plan::Plan;
use crate::ident::NodeId;
use crate::time::Instant;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A round that this node has contributed to (or receives) and that is not applied yet.
#[derive(Clone, Debug)]
pub(super) struct Open {
    /// Its data movements.
    pub plan: Arc<Plan>,
    /// When it is given up.
    pub deadline: Instant,
    /// The other end of the first stream that broke, and until when that may be explained.
    pub broken: Option<(NodeId, Instant)>,
    /// The own shards are not averaged yet.
    pub reducing: bool,
    /// Owners whose parameters have not arrived yet.
    pub parameters_from: BTreeSet<NodeId>,
    /// Owners whose momentum has not arrived yet.
    pub momentum_from: BTreeSet<NodeId>,
    /// The leader knows that this node accepted.
    pub told_leader: bool,
}

impl Open {
    pub fn new(plan: Arc<Plan>, deadline: Instant) -> Self {
        let parameters_from = plan.other_owners().into_iter().collect();
        let momentum_from = plan.momentum_from().into_iter().map(|(owner, _)| owner).collect();
        Self { deadline, broken: None, reducing: plan.owns(), parameters_from, momentum_from, told_leader: false, plan }
    }

    pub fn next_deadline(&self) -> Instant {
        self.broken.map_or(self.deadline, |(_, explained_by)| explained_by.min(self.deadline))
    }

    /// Whether this node holds all that the round wants it to hold.
    pub fn holds_all(&self) -> bool {
        !self.reducing && self.parameters_from.is_empty() && self.momentum_from.is_empty()
    }

    /// Whether the round cannot go on here without `node`: its data is still missing.
    pub fn needs(&self, node: NodeId) -> bool {
        let contribution = self.reducing && self.plan.contributors.contains(&node);
        contribution || self.parameters_from.contains(&node) || self.momentum_from.contains(&node)
    }

    /// Whose data is missing, as far as is known: the owners that have not published, else the contributors.
    pub fn missing(&self) -> BTreeSet<NodeId> {
        let owners: BTreeSet<_> = self.parameters_from.union(&self.momentum_from).copied().collect();
        if owners.is_empty() && self.reducing {
            return self.plan.contributors.iter().copied().filter(|node| *node != self.plan.me).collect();
        }
        owners
    }
}
