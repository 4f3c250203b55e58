//! Messages to the gossip peer.

use super::Told;
use crate::data::{Buffers, Payload};
use slowmo_protocol::gossip_peer::Plan;
use slowmo_protocol::node::ToGossip;
use std::sync::Arc;

/// Messages to the gossip peer.
pub enum GossipPeerMessage {
    /// A message to the gossip peer's part of the node.
    Told(Told<ToGossip<Buffers>>),
    /// The message of a plan is ready to be sent.
    Encoded(Arc<Plan>, Payload),
}

impl From<ToGossip<Buffers>> for GossipPeerMessage {
    fn from(message: ToGossip<Buffers>) -> Self {
        Self::Told(Told {
            message,
            credit: None,
        })
    }
}
