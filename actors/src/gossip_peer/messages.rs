//! What the gossip peer is told.

use super::payload::Payload;
use crate::buffers::{Assembled, Frozen};
use crate::data::{Buffers, Told};
use slowmo_protocol::gossip_peer::{Mix, Plan};
use slowmo_protocol::node::ToGossip;
use std::sync::Arc;

/// Messages to the gossip peer.
pub enum GossipPeerMessage {
    /// For its part of the node.
    Told(Told<ToGossip<Buffers>>),
    /// The message of a plan is ready to be sent.
    Encoded(Arc<Plan>, Payload),
    /// The arithmetic of a mix is done.
    Mixed(Mix, Values),
}

impl From<ToGossip<Buffers>> for GossipPeerMessage {
    fn from(message: ToGossip<Buffers>) -> Self {
        Self::Told(Told { message, credit: None })
    }
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
