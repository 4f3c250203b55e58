//! The bookkeeping of the attempt under way: what this node must still hold before it accepts. Pure.

use crate::coordinator::outcome::Outcome;
use crate::coordinator::plan::{Plan, Publication};
use crate::ident::NodeId;
use crate::time::Instant;
use std::collections::BTreeSet;
use std::sync::Arc;

/// An attempt whose data moves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Open {
    /// Its reduction.
    pub plan: Arc<Plan>,
    /// What it makes, and for whom, once a leader proposed that.
    pub published: Option<(Outcome, Arc<Publication>)>,
    /// The other end of the first stream that broke, and until when that may be explained.
    pub broken: Option<(NodeId, Instant)>,
    /// Until when streams that may be lost with a connection are waited for.
    pub lost_by: Option<Instant>,
    /// The own shards are not averaged and published yet.
    pub reducing: bool,
    /// Owners whose parameters have not arrived yet.
    pub parameters_from: BTreeSet<NodeId>,
    /// Nodes whose state has not arrived yet.
    pub state_from: BTreeSet<NodeId>,
    /// Nodes whose state arrived before it was known that they send some.
    state_early: BTreeSet<NodeId>,
    /// The node whose buffers of the base optimizer have not arrived yet.
    pub buffers_from: Option<NodeId>,
    /// The same as `state_early`, of buffers.
    buffers_early: bool,
}

impl Open {
    pub fn new(plan: Arc<Plan>) -> Self {
        let parameters_from = plan.other_owners().into_iter().collect();
        let (reducing, state_from, state_early) = (plan.owns(), BTreeSet::new(), BTreeSet::new());
        let (published, broken, lost_by, buffers_from, buffers_early) = (None, None, None, None, false);
        Self { plan, published, broken, lost_by, reducing, parameters_from, state_from, state_early, buffers_from, buffers_early }
    }

    pub fn publish(&mut self, outcome: Outcome, publication: Arc<Publication>) {
        let from = publication.moves_to(self.plan.me).map(|moved| moved.from);
        self.state_from = from.filter(|from| !self.state_early.contains(from)).collect();
        self.buffers_from = publication.donor_to(self.plan.me).filter(|_| !self.buffers_early);
        self.published = Some((outcome, publication));
    }

    pub fn take_state(&mut self, from: NodeId) {
        self.state_from.remove(&from);
        if self.published.is_none() {
            self.state_early.insert(from);
        }
    }

    pub fn take_buffers(&mut self, from: NodeId) {
        self.buffers_from.take_if(|donor| *donor == from);
        self.buffers_early |= self.published.is_none();
    }

    /// Whether something of a node may still have to come.
    pub fn waits_for(&self, node: NodeId) -> bool {
        let published = self.parameters_from.contains(&node) || self.state_from.contains(&node) || self.buffers_from == Some(node);
        published || (self.reducing && self.plan.contributors.contains(&node))
    }

    /// The outcome all of whose data this node holds.
    pub fn held(&self) -> Option<&Outcome> {
        let all = !self.reducing && self.parameters_from.is_empty() && self.state_from.is_empty() && self.buffers_from.is_none();
        self.published.as_ref().filter(|_| all).map(|(outcome, _)| outcome)
    }

    /// Whose data is missing, as far as is known: the owners that have not published, else the contributors.
    pub fn missing(&self) -> BTreeSet<NodeId> {
        let owners: BTreeSet<_> = self.parameters_from.union(&self.state_from).copied().chain(self.buffers_from).collect();
        if owners.is_empty() && self.reducing {
            return self.plan.contributors.iter().copied().filter(|node| *node != self.plan.me).collect();
        }
        owners
    }
}
