//! Records of which nodes run, are disturbed and may be hit, as far as the plan knows.

use super::super::scenario::{Scenario, Who, WhoWord};
use crate::random::Random;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::time::{Instant, Span};
use std::collections::BTreeMap;

/// Time after its start when a node counts as settled: by then it has joined, unless something is
/// wrong.
const SETTLES: Span = Span::from_millis(5_000);

/// The planner's records.
pub(super) struct Books {
    now: Instant,
    nodes: BTreeMap<NodeId, Node>,
    spared: Vec<NodeId>,
    at_least: usize,
    /// The node that was chosen last when nodes are chosen one after the other.
    turn: NodeId,
}

#[derive(Clone, Copy, Default)]
struct Node {
    runs: bool,
    /// Time at which the node will be restarted, if it does not run.
    back: Option<Instant>,
    settled: Instant,
    disturbed_until: Instant,
}

impl Books {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let node = |id: usize| {
            (
                NodeId(id as u64),
                Node {
                    runs: id <= scenario.nodes,
                    ..Node::default()
                },
            )
        };
        Self {
            now: Instant(0),
            nodes: (1..=scenario.ids_max()).map(node).collect(),
            spared: scenario.spared.iter().map(|id| NodeId(*id)).collect(),
            at_least: scenario.untouched_min(),
            turn: NodeId(0),
        }
    }

    /// Advances to a time: nodes that were to be started by then run.
    pub(super) fn advance(&mut self, to: Instant) {
        self.now = to;
        let back: Vec<(NodeId, Instant)> = self
            .nodes
            .iter()
            .filter_map(|(id, node)| Some((*id, node.back?)))
            .collect();
        for (id, at) in back.into_iter().filter(|(_, at)| *at <= to) {
            self.start(id, at);
        }
    }

    pub(super) fn start(&mut self, id: NodeId, at: Instant) {
        self.nodes.insert(
            id,
            Node {
                runs: true,
                back: None,
                settled: at.after(SETTLES),
                disturbed_until: at,
            },
        );
    }

    pub(super) fn stop(&mut self, id: NodeId, back: Option<Instant>) {
        self.nodes.insert(
            id,
            Node {
                back,
                ..Node::default()
            },
        );
    }

    pub(super) fn disturb(&mut self, id: NodeId, until: Instant) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.disturbed_until = node.disturbed_until.max(until);
            node.settled = node.settled.max(until.after(SETTLES));
        }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied()
    }

    /// Nodes that neither run nor have a planned restart, ascending.
    pub(super) fn free(&self) -> impl Iterator<Item = NodeId> {
        self.nodes
            .iter()
            .filter(|(_, node)| !node.runs && node.back.is_none())
            .map(|(id, _)| *id)
    }

    /// Whether the node is the lowest that runs.
    pub(super) fn leads(&self, node: NodeId) -> bool {
        self.nodes
            .iter()
            .find(|(_, node)| node.runs)
            .is_some_and(|(id, _)| *id == node)
    }

    /// Nodes that may be hit now, ascending. A scripted action may hit any node that runs and is
    /// not disturbed.
    pub(super) fn candidates(&self, scripted: bool) -> Vec<NodeId> {
        let settled = self
            .nodes
            .values()
            .filter(|node| node.runs && node.settled <= self.now)
            .count();
        let may_be_hit = |(id, node): &(&NodeId, &Node)| {
            let leaves = settled - usize::from(node.settled <= self.now && node.runs);
            let allowed = !self.spared.contains(id) && leaves >= self.at_least;
            node.runs && node.disturbed_until <= self.now && (scripted || allowed)
        };
        self.nodes
            .iter()
            .filter(may_be_hit)
            .map(|(id, _)| *id)
            .collect()
    }

    pub(super) fn choose(
        &mut self,
        who: &Who,
        candidates: &[NodeId],
        random: &mut Random,
    ) -> Option<NodeId> {
        let after = |turn: NodeId| candidates.iter().copied().find(|id| *id > turn);
        match *who {
            Who::Id(id) => candidates
                .iter()
                .copied()
                .find(|candidate| *candidate == NodeId(id)),
            Who::Word(WhoWord::Any) => random.pick(candidates).copied(),
            Who::Word(WhoWord::Leader) => {
                candidates.first().copied().filter(|node| self.leads(*node))
            }
            Who::Word(WhoWord::Last) => candidates.last().copied(),
            Who::Word(WhoWord::Next) => {
                let next = after(self.turn).or_else(|| candidates.first().copied());
                self.turn = next.unwrap_or(self.turn);
                next
            }
        }
    }
}
