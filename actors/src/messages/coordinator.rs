//! Messages to the coordinator.

use super::Told;
use crate::data::Buffers;
use slowmo_protocol::coordinator::{Outcome, Recovery, RecoveryError};
use slowmo_protocol::ident::{Lineage, NodeId};
use slowmo_protocol::node::ToRounds;
use std::ops::Range;
use tokio::sync::oneshot;

/// Messages to the coordinator.
// Nearly all are of the large variant.
#[allow(clippy::large_enum_variant)]
pub enum CoordinatorMessage {
    /// A message to the coordinator's part of the node.
    Told(Told<ToRounds<Buffers>>),
    /// Requests the state that the coordinator holds; it is answered between two steps of its
    /// rounds.
    Inspect(oneshot::Sender<Inspection>),
    /// An operator asks which history would continue without a quorum, or names the history that is
    /// to continue.
    Recover(
        Option<Lineage>,
        oneshot::Sender<Result<Recovery, RecoveryError>>,
    ),
}

/// State that a coordinator holds and expects, for tests that compare it with the arithmetic of a
/// single process.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The outcome that was decided last; `None` before bootstrap, and while the node is no member.
    pub outcome: Option<Outcome>,
    /// Anchor and momentum of each held shard; empty momentum means zero momentum.
    pub states: Vec<(Range<usize>, Vec<f32>, Vec<f32>)>,
    /// Nodes that are ready to be admitted, ascending.
    pub joiners: Vec<NodeId>,
    /// Members that are leaving, ascending.
    pub leaving: Vec<NodeId>,
}
