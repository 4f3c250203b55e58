//! What the coordinator is told.

use crate::data::{Buffers, Told};
use slowmo_protocol::coordinator::{Outcome, Recovery, RecoveryError};
use slowmo_protocol::ident::{Lineage, NodeId};
use slowmo_protocol::node::ToRounds;
use std::ops::Range;
use tokio::sync::oneshot;

/// Messages to the coordinator.
pub enum CoordinatorMessage {
    /// For its part of the node.
    Told(Told<ToRounds<Buffers>>),
    /// Somebody wants to see what the coordinator holds; the answer comes between two of its
    /// rounds' steps.
    Inspect(oneshot::Sender<Inspection>),
    /// An operator asks what would go on without a quorum, or names the history that does.
    Recover(
        Option<Lineage>,
        oneshot::Sender<Result<Recovery, RecoveryError>>,
    ),
}

/// What a coordinator holds and expects: for tests, which compare it with one process's arithmetic.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The outcome that was decided last; `None` before the founding, and while the node is no
    /// member.
    pub outcome: Option<Outcome>,
    /// Anchor and momentum of each held shard; no momentum is zero momentum.
    pub states: Vec<(Range<usize>, Vec<f32>, Vec<f32>)>,
    /// Nodes that are ready to be admitted, ascending.
    pub joiners: Vec<NodeId>,
    /// Members that leave, ascending.
    pub leaving: Vec<NodeId>,
}
