//! What a round is expected to be, and what it turned out to be.

use crate::ident::{Lineage, NodeId, Round, Step};
use crate::view::View;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a round does with the contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RoundKind {
    /// The lowest id's parameters become everybody's, and the first anchor.
    Found,
    /// Exact average without momentum.
    Average,
    /// Exact average, then the slow step on the shards.
    Slow,
    /// Exact mean of gradients; changes no state.
    Gradients,
}

/// What a contributor expects a round to be. All contributors of a round must agree on all of it, bit by bit: so a learning
/// rate that is not a number equals itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Terms {
    /// What the round does.
    pub kind: RoundKind,
    /// The contributor's inner step.
    pub step: Step,
    /// `γ`, the inner learning rate when the round closes; used by the slow step only.
    pub gamma: f32,
    /// Values of the contribution: parameters, then averaged buffers.
    pub elements: u64,
}

impl PartialEq for Terms {
    fn eq(&self, other: &Self) -> bool {
        let key = |terms: &Self| (terms.kind, terms.step, terms.gamma.to_bits(), terms.elements);
        key(self) == key(other)
    }
}

impl Eq for Terms {}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, step, gamma, elements } = self;
        write!(f, "{kind:?} round at {step} of {elements} values with learning rate {gamma}")
    }
}

/// The one decided result of a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The model history it belongs to.
    pub lineage: Lineage,
    /// Which round.
    pub round: Round,
    /// What it did, at which step, with which learning rate.
    pub terms: Terms,
    /// Whose contributions were averaged, ascending.
    pub contributors: Vec<NodeId>,
    /// The view of the next round; shard holders follow from it.
    pub view: View,
}
