//! What the coordinator is told.

use super::shards::OwnPart;
use crate::buffers::{Assembled, Frozen};
use crate::context::Credit;
use crate::streams::Arrived;
use slowmo_protocol::coordinator::{Attempt, Terms};
use slowmo_protocol::ident::{Lineage, NodeId, ShardId};
use slowmo_protocol::membership::FoundingError;
use slowmo_protocol::view::View;
use slowmo_protocol::wire::{Header, Message};

/// Messages to the coordinator.
pub enum CoordinatorMessage {
    /// The founding view is formed.
    Formed {
        /// Its members.
        view: View,
        /// The model history.
        lineage: Lineage,
    },
    /// The founding view did not form.
    FoundingFailed(FoundingError),
    /// The node froze its contribution.
    Contribute {
        /// What it expects the round to be.
        terms: Terms,
        /// The node's push-sum weight.
        weight: f64,
        /// How many of the contribution's values are parameters.
        parameters: usize,
        /// The values.
        frozen: Frozen,
    },
    /// A control frame about rounds.
    Frame(Header, Message, Credit),
    /// A round's stream.
    Stream(Arrived, Credit),
    /// Something happened to the data movements of an attempt.
    Data(Attempt, DataEvent),
    /// A member is gone.
    MemberLost(NodeId),
    /// A deadline passed.
    Tick,
}

/// What the data movements of a round report.
pub enum DataEvent {
    /// The own shards are averaged and handed to publication.
    Reduced(OwnPart),
    /// All parameters of an owner arrived.
    Parameters(NodeId, Assembled),
    /// All momentum of an owner that this node replicates arrived, per shard.
    Momentum(NodeId, Vec<(ShardId, Assembled)>),
    /// A contributor expects another round.
    TermsDiffer(NodeId, Terms),
    /// A stream to or from a node failed.
    Broken(NodeId),
}
