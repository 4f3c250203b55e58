//! What the gossip peer is told.

use crate::buffers::{Assembled, Frozen};
use crate::context::Credit;
use crate::streams::Arrived;
use slowmo_protocol::ident::{Lineage, NodeId, Round, Step};
use slowmo_protocol::view::View;
use slowmo_protocol::wire::{Header, Message};

/// Messages to the gossip peer.
pub enum GossipPeerMessage {
    /// The view of the next round, where it is another one.
    View {
        /// Its members.
        view: View,
        /// The model history.
        lineage: Lineage,
        /// The next round.
        round: Round,
    },
    /// The node finished an inner step and gossips.
    Gossip {
        /// The inner step.
        step: Step,
        /// The round it works towards.
        round: Round,
        /// The node's push-sum weight.
        weight: f64,
        /// The node's numerator.
        frozen: Frozen,
    },
    /// A control frame about gossip.
    Frame(Header, Box<Message>, Credit),
    /// A gossip stream.
    Stream(Arrived, Credit),
    /// The data movements of a gossip are complete.
    Mixed {
        /// The inner step.
        step: Step,
        /// The senders with the weight each sent, ascending.
        arrived: Vec<(NodeId, f64)>,
        /// Out-peers that could not be sent to, whose share stayed here.
        returned: Vec<NodeId>,
        /// The new numerator.
        values: Assembled,
    },
    /// A member is gone.
    MemberLost(NodeId),
    /// A member that was thought gone is alive.
    MemberBack(NodeId),
    /// This node leaves, working towards this round.
    Leave(Round),
    /// A deadline passed.
    Tick,
}
