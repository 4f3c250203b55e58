//! What the user allows when nodes are lost: pure choices, the same on every node.

use serde::{Deserialize, Serialize};

/// Who may decide a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Quorum {
    /// More than half of the view, or exactly half with its lowest id: two sides of a cut network
    /// never both go on.
    #[default]
    Majority,
    /// Whoever is alive. Two sides of a cut network both go on; on healing one joins the other: see
    /// [`crate::forks`].
    Survivors,
}

/// Whether this process may found a run. Exactly one of those that start together bootstraps; the
/// others wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bootstrap {
    /// If its address is the smallest of those that it knows.
    #[default]
    Auto,
    /// Yes, whatever it was before.
    Yes,
    /// Never.
    No,
}

/// What happens under a majority when the quorum is lost for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnQuorumLoss {
    /// Wait, and say so.
    #[default]
    Wait,
    /// Go on in a history of their own once every missing voter came back as a new start. If voters
    /// that these know nothing of went on meanwhile, there are two histories then.
    Fork,
}

/// What happens when all holders of a shard's slow momentum are lost between two rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnMomentumLoss {
    /// Its momentum restarts at zero, counted and reported.
    #[default]
    Reset,
    /// The run stops with an error.
    Stop,
}

/// What a joiner gets of the base optimizer's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JoinerBuffers {
    /// Nothing: they start at zero.
    #[default]
    Reset,
    /// A copy of the lowest contributor's.
    Copy,
}
