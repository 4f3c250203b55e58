//! The user's policies for the loss of nodes: plain choices, the same on every node.

use serde::{Deserialize, Serialize};

/// The quorum rule of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Quorum {
    /// More than half of the view, or exactly half including its lowest id: two sides of a
    /// partitioned network never both continue.
    #[default]
    Majority,
    /// All live members, however few. Both sides of a partitioned network continue; when it heals,
    /// one joins the other: see [`crate::forks`].
    Survivors,
}

/// Whether this process may bootstrap a run. Exactly one of the processes that start together
/// bootstraps; the others wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bootstrap {
    /// Only if its address is the smallest of those that it knows.
    #[default]
    Auto,
    /// Yes, regardless of its previous state.
    Yes,
    /// Never.
    No,
}

/// Behaviour with [`Quorum::Majority`] when the quorum is lost for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnQuorumLoss {
    /// Wait, and report it.
    #[default]
    Wait,
    /// The remaining members continue in a history of their own (a fork) once every missing voter
    /// has come back with a new incarnation. If voters unknown to these members continued
    /// meanwhile, there are then two histories.
    Fork,
}

/// Behaviour when all holders of a shard's slow momentum are lost between two rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnMomentumLoss {
    /// Its momentum restarts at zero, counted and reported.
    #[default]
    Reset,
    /// The run stops with an error.
    Stop,
}

/// The base optimizer's buffers that a joiner gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JoinerBuffers {
    /// Nothing: they start at zero.
    Reset,
    /// A copy of those of the contributor with the lowest id.
    #[default]
    Copy,
}
