//! What the coordinator is told.

use super::shards::{OwnPart, ShardState};
use crate::buffers::{Assembled, Frozen};
use crate::context::Credit;
use crate::streams::Arrived;
use crate::worker::Basis;
use slowmo_protocol::coordinator::{Attempt, GivesUp, Outcome, RoundSpec};
use slowmo_protocol::ident::{Epoch, Incarnation, Lineage, NodeId, Round, ShardId};
use slowmo_protocol::membership::FoundingError;
use slowmo_protocol::model::ModelSize;
use slowmo_protocol::sampler::Progress;
use slowmo_protocol::view::{Member, View};
use slowmo_protocol::wire::{Header, Message};
use std::collections::BTreeSet;
use std::ops::Range;
use tokio::sync::oneshot;

/// Messages to the coordinator.
pub enum CoordinatorMessage {
    /// The founding view is formed.
    Formed {
        /// Its members.
        view: View,
        /// The model history.
        lineage: Lineage,
    },
    /// This node got into no view.
    FoundingFailed(FoundingError),
    /// The node froze its contribution.
    Contribute(ContributeMessage),
    /// A control frame about rounds.
    Frame(Header, Box<Message>, Credit),
    /// A round's stream.
    Stream(Arrived, Credit),
    /// Something happened to the data movements of an attempt.
    Data(Attempt, DataEvent),
    /// A node is dead.
    Lost {
        /// Who.
        node: NodeId,
        /// Which start of it.
        incarnation: Incarnation,
        /// Whether its process is known to have ended.
        ended: bool,
    },
    /// A node that was thought dead is alive.
    Back(NodeId),
    /// A node can be sent to.
    PeerUp(NodeId),
    /// The connections to a node are gone.
    PeerDown(NodeId),
    /// All that live and are heard by others only.
    Unheard(BTreeSet<NodeId>),
    /// The nodes that are ready to join the view with this epoch.
    Joiners {
        /// Which view they can reach.
        epoch: Epoch,
        /// Who.
        members: Vec<Member>,
    },
    /// A member leaves, perhaps this node.
    Leaving {
        /// Who.
        node: NodeId,
        /// Which start of it.
        incarnation: Incarnation,
        /// Whether its workers still contribute to the next round.
        contributes: bool,
    },
    /// The others went on without this node.
    Resign(GivesUp),
    /// Takes its place again where it stood, if it can.
    Return,
    /// Somebody wants to see what the coordinator holds; the answer comes between two of its rounds' steps.
    Inspect(oneshot::Sender<Inspection>),
    /// A deadline passed.
    Tick,
}

/// What a node contributes to a round.
pub struct ContributeMessage {
    /// The round that the node's workers work towards.
    pub round: Round,
    /// What it expects the round to be.
    pub spec: RoundSpec,
    /// The node's push-sum weight.
    pub weight: f64,
    /// What the node trains: the parameters come first among the values.
    pub model: ModelSize,
    /// The values.
    pub frozen: Frozen,
    /// The base optimizer's buffers, for whoever joins and for a checkpoint.
    pub donation: Option<Frozen>,
    /// Which samples were left when the round began.
    pub samples: Option<Progress>,
    /// What it was made from, where that is recorded.
    pub basis: Basis,
}

/// What a coordinator holds and expects: for tests, which compare it with one process's arithmetic.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The outcome that was decided last; `None` before the founding, and while the node is no member.
    pub outcome: Option<Outcome>,
    /// Anchor and momentum of each held shard; no momentum is zero momentum.
    pub states: Vec<(Range<usize>, Vec<f32>, Vec<f32>)>,
    /// Nodes that are ready to be admitted, ascending.
    pub joiners: Vec<NodeId>,
    /// Members that leave, ascending.
    pub leaving: Vec<NodeId>,
}

/// What the data movements of a round report.
pub enum DataEvent {
    /// The own shards are averaged and handed to publication.
    Reduced(OwnPart),
    /// All parameters of an owner arrived.
    Parameters(NodeId, Assembled),
    /// All state that a node moves to this one arrived, per shard.
    State(NodeId, Vec<(ShardId, ShardState)>),
    /// A member's buffers of the base optimizer arrived.
    Buffers(NodeId, Assembled),
    /// A contributor expects another round.
    SpecsDiffer(NodeId, RoundSpec),
    /// A stream to or from a node failed.
    Broken(NodeId),
}
