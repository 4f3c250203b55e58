//! What the gossip peer is told.

use super::payload::Payload;
use crate::buffers::{Assembled, Frozen};
use crate::context::Credit;
use crate::streams::Arrived;
use slowmo_protocol::gossip_peer::{Key, Mix, Plan, Sent};
use slowmo_protocol::ident::{Lineage, NodeId, Round, Step};
use slowmo_protocol::view::View;
use slowmo_protocol::wire::{Header, Message};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Messages to the gossip peer.
pub enum GossipPeerMessage {
    /// How many values the model has.
    Model(usize),
    /// The view of the next round, where it or the order of its members is another one.
    View {
        /// Its members.
        view: View,
        /// The model history.
        lineage: Lineage,
        /// The next round.
        round: Round,
        /// Its members in the decided order of the gossip graph.
        order: Vec<NodeId>,
    },
    /// A round is decided: the next one, in the same view.
    Round(Round),
    /// The node finished an inner step and gossips.
    Gossip {
        /// The inner step.
        step: Step,
        /// The round it works towards.
        round: Round,
        /// Synchronous: the model as the training thread left it.
        frozen: Option<Frozen>,
    },
    /// The node finished the inner step of an exact average.
    Settle {
        /// The inner step.
        step: Step,
        /// The round it works towards.
        round: Round,
        /// The model, and buffers behind it, as the training thread left them.
        frozen: Frozen,
    },
    /// Overlapped: the training thread mixed.
    Moved {
        /// The inner step.
        step: Step,
        /// The model as the inner step left it.
        before: Assembled,
        /// Nothing must be sent: not all numerators are finite, or (then there is no model) the training thread could not mix.
        withheld: bool,
    },
    /// What the training threads get of a decided round: they go on from there. Told before they are.
    Decided {
        /// The round that follows.
        round: Round,
        /// The parameters, and perhaps buffers behind them.
        values: Assembled,
    },
    /// The numerators after the node's own slow step, of the same push-sum weight.
    Stepped(Assembled),
    /// A control frame about gossip.
    Frame(Header, Box<Message>, Credit),
    /// A gossip stream.
    Stream(Arrived, Credit),
    /// A message was read, or could not be.
    Read(Key, Option<Assembled>),
    /// A message was sent as a whole, or not.
    Sent(Sent, bool),
    /// The message of a plan is ready to be sent.
    Encoded(Arc<Plan>, Payload),
    /// The arithmetic of a mix is done.
    Mixed(Mix, Values),
    /// Who is suspected from now on: it may be dead, and gets no messages.
    Suspects(BTreeSet<NodeId>),
    /// A member is gone.
    MemberLost(NodeId),
    /// A member that was thought gone is alive.
    MemberBack(NodeId),
    /// This node leaves, working towards this round.
    Leave(Round),
    /// A deadline passed.
    Tick,
}

/// What a mix results in.
pub enum Values {
    /// Synchronous: the new numerators.
    Numerators(Assembled),
    /// Overlapped: what is added to this part of the training threads' model.
    Correction(Assembled, f32),
    /// Before an exact average: the node's contribution.
    Contribution(Frozen),
}
