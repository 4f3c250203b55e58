//! Decodes what the network brings and hands each piece to its actor. Every piece holds a credit until it is handled, so a
//! flood stops the reading, not the node. What does not decode is dropped, counted and logged.

use crate::context::{Credit, NodeContext};
use crate::coordinator::CoordinatorMessage;
use crate::gossip_peer::GossipPeerMessage;
use crate::membership::MembershipMessage;
use crate::ports::transport::{BulkReceiver, TransportEvent};
use crate::streams::Arrived;
use bytes::Bytes;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::wire::{Bulk, BulkHeader, Frame, Header, Message};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Routes until the transport ends.
pub async fn route(context: Arc<NodeContext>, mut events: mpsc::Receiver<TransportEvent>) {
    while let Some(event) = events.recv().await {
        let Some(credit) = Credit::acquire(&context.credits).await else { return };
        match event {
            TransportEvent::Control { from, frame } => control(&context, from, &frame, credit),
            TransportEvent::Bulk { from, header, stream } => bulk(&context, from, &header, stream, credit),
            TransportEvent::Datagram { from, .. } => tracing::debug!(%from, "datagram ignored: liveness is not in this release"),
            TransportEvent::PeerUp { node, address, incarnation } => {
                tracing::debug!(%node, %address, "peer up");
                context.actors.tell_membership(MembershipMessage::PeerUp(node, incarnation));
            }
            TransportEvent::PeerDown { node, address, reason } => {
                tracing::info!(%node, %address, %reason, "peer down");
                context.actors.tell_membership(MembershipMessage::PeerDown(node));
            }
            TransportEvent::DialFailed { address, tried_for, error } => {
                let error = error.to_string();
                context.actors.tell_membership(MembershipMessage::DialFailed { address, tried_for, error });
            }
            TransportEvent::Refused { remote, error } => tracing::warn!(%remote, %error, "connection refused"),
        }
    }
}

fn control(context: &NodeContext, from: NodeId, frame: &Bytes, credit: Credit) {
    let Frame::V1 { header, message } = match Frame::decode(frame) {
        Ok(frame) => frame,
        Err(error) => return tracing::warn!(%from, %error, "control frame dropped"),
    };
    if !is_from(context, &header, from) {
        return;
    }
    match message {
        Message::Hello(_) | Message::Found { .. } | Message::Leave => {
            context.actors.tell_membership(MembershipMessage::Frame(header, message, credit));
        }
        Message::GossipMixed { .. } | Message::GossipRefused { .. } => {
            context.actors.tell_gossip_peer(GossipPeerMessage::Frame(header, message, credit));
        }
        _ => context.actors.tell_coordinator(CoordinatorMessage::Frame(header, message, credit)),
    }
}

fn bulk(context: &NodeContext, from: NodeId, header: &Bytes, stream: Box<dyn BulkReceiver>, credit: Credit) {
    let BulkHeader::V1 { header, content } = match BulkHeader::decode(header) {
        Ok(header) => header,
        Err(error) => return tracing::warn!(%from, %error, "stream dropped"),
    };
    if !is_from(context, &header, from) {
        return;
    }
    let gossip = matches!(content, Bulk::Gossip { .. });
    let arrived = Arrived { header, content, stream };
    if gossip {
        context.actors.tell_gossip_peer(GossipPeerMessage::Stream(arrived, credit));
    } else {
        context.actors.tell_coordinator(CoordinatorMessage::Stream(arrived, credit));
    }
}

/// A header must name its authenticated sender and this cluster.
fn is_from(context: &NodeContext, header: &Header, from: NodeId) -> bool {
    let right = header.sender == from && header.cluster == context.settings.identity.cluster;
    if !right {
        tracing::warn!(%from, claimed = %header.sender, "message dropped: its header names another sender or cluster");
    }
    right
}
