//! Decodes network events and routes each to its actor. Every event holds a credit until it is
//! handled, so that a flood stops the reading, not the node. Events that do not decode are dropped,
//! counted and logged.

use crate::context::NodeContext;
use crate::data::Arrived;
use crate::messages::Credit;
use crate::ports::transport::{BulkReceiver, DialError, TransportEvent};
use crate::status_digests;
use bytes::Bytes;
use slowmo_protocol::coordinator;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::liveness;
use slowmo_protocol::membership::{DialFault, In};
use slowmo_protocol::node;
use slowmo_protocol::sound::Unsound;
use slowmo_protocol::wire::{BulkHeader, Content, Datagram, Frame, Header};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Routes events until the transport ends.
pub async fn route(context: Arc<NodeContext>, mut events: mpsc::Receiver<TransportEvent>) {
    let mut dropped = Dropped::default();
    while let Some(event) = events.recv().await {
        let Some(credit) = Credit::acquire(&context.credits).await else {
            return;
        };
        match event {
            TransportEvent::Control { from, frame, share } => {
                control(&context, from, &frame, credit.with(share), &mut dropped)
            }
            TransportEvent::Bulk {
                from,
                header,
                stream,
                share,
            } => {
                let credit = credit.with(share);
                bulk(&context, (from, &header, stream), credit, &mut dropped);
            }
            TransportEvent::Datagram {
                from,
                datagram: bytes,
                share,
            } => datagram(&context, from, bytes, credit.with(share)),
            TransportEvent::PeerUp {
                node,
                address,
                incarnation,
            } => {
                tracing::debug!(%node, %address, "peer up");
                context.actors.tell(In::PeerUp(node, incarnation));
            }
            TransportEvent::PeerDown {
                node,
                address,
                reason,
            } => {
                tracing::info!(%node, %address, %reason, "peer down");
                context.actors.tell(In::PeerDown {
                    node,
                    departed: reason.is_departure(),
                });
            }
            TransportEvent::PortRefused { node } => {
                context.actors.tell(liveness::In::PortRefused(node))
            }
            TransportEvent::DialFailed {
                address,
                tried_for,
                error,
            } => {
                let tried_for = NodeContext::span(tried_for);
                let fault = fault_of(&error);
                let error = error.to_string();
                context.actors.tell(In::DialFailed {
                    address,
                    tried_for,
                    fault,
                    error,
                });
            }
            TransportEvent::Refused { remote, error } => {
                if fault_of(&error) == DialFault::Stranger {
                    context.actors.tell(In::StrangerDialed(remote));
                }
                if context.status.refused(remote, &error.to_string()) {
                    tracing::warn!(%remote, %error, "connection refused");
                }
            }
        }
    }
}

fn fault_of(error: &DialError) -> DialFault {
    match error {
        DialError::NoAnswer | DialError::Other(_) => DialFault::Silent,
        DialError::SameId(_) | DialError::DuplicateId(_) => DialFault::IdTaken,
        DialError::WrongClusterKey(_)
        | DialError::ProtocolVersion { .. }
        | DialError::BadPreface(_)
        | DialError::RefusedThere(_) => DialFault::Stranger,
    }
}

fn control(
    context: &NodeContext,
    from: NodeId,
    frame: &Bytes,
    credit: Credit,
    dropped: &mut Dropped,
) {
    let Frame::V1 { header, message } = match Frame::decode(frame) {
        Ok(frame) => frame,
        Err(error) => {
            refuse(context, from);
            return dropped.one(from, &format!("a control frame: {error}"));
        }
    };
    if !is_from(context, &header, from, dropped) {
        return;
    }
    context
        .actors
        .tell_holding(node::route(header, message), Some(credit));
}

/// Handles datagrams about a node's status here; sends liveness datagrams, and those that do not
/// decode, to the membership.
fn datagram(context: &NodeContext, from: NodeId, bytes: Bytes, credit: Credit) {
    match Datagram::decode(&bytes) {
        Ok(Datagram::V1(Content::AskStatusDigest { since_us })) => {
            status_digests::answer(context, from, since_us)
        }
        Ok(Datagram::V1(Content::StatusDigest(brief))) => {
            status_digests::receive(context, from, *brief)
        }
        Ok(Datagram::V1(Content::Drain { incarnation, proof })) => {
            status_digests::ordered_to_drain(context, from, incarnation, &proof)
        }
        _ => context.actors.tell_holding(
            liveness::In::Datagram {
                from,
                bytes: bytes.to_vec(),
            }
            .into(),
            Some(credit),
        ),
    }
}

fn bulk(
    context: &NodeContext,
    (from, header, stream): (NodeId, &Bytes, Box<dyn BulkReceiver>),
    credit: Credit,
    dropped: &mut Dropped,
) {
    let BulkHeader::V1 { header, content } = match BulkHeader::decode(header) {
        Ok(header) => header,
        Err(error) => {
            refuse(context, from);
            return dropped.one(from, &format!("a stream: {error}"));
        }
    };
    if !is_from(context, &header, from, dropped) {
        return;
    }
    let stream = context.metrics.counts_received(&content, stream);
    context.actors.tell_holding(
        Arrived {
            header,
            content,
            stream,
        }
        .into(),
        Some(credit),
    );
}

/// Names a peer that sent what no correct node sends, and goes on without it. Frames and streams
/// reach this node as they were sent, by the peer that the session authenticated, which runs the
/// same protocol version.
fn refuse(context: &NodeContext, from: NodeId) {
    context.accuse(from, &Unsound::Header);
    context.actors.tell(coordinator::In::Distrust(from));
}

/// A header must name its authenticated sender, this cluster, and a place that a run can reach.
fn is_from(context: &NodeContext, header: &Header, from: NodeId, dropped: &mut Dropped) -> bool {
    let right = header.sender == from
        && header.cluster == context.settings.identity.cluster
        && header.is_possible();
    if !right {
        refuse(context, from);
        let sender = header.sender;
        dropped.one(
            from,
            &format!("a header that names {sender}, another cluster or an impossible place"),
        );
    }
    right
}

/// Counts dropped events. Logs only when the count is a power of two, so that a flood of invalid
/// events does not flood the log.
#[derive(Debug, Default)]
struct Dropped {
    count: u64,
}

impl Dropped {
    fn one(&mut self, from: NodeId, what: &str) {
        if self.count_one() {
            tracing::warn!(%from, dropped = self.count, "dropped {what}");
        }
    }

    /// Counts one event, and returns whether it is logged.
    fn count_one(&mut self) -> bool {
        self.count = self.count.saturating_add(1);
        self.count.is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_nonsense_is_logged_rarely() {
        let mut dropped = Dropped::default();
        let logged = (0..1_000_000).filter(|_| dropped.count_one()).count();
        assert_eq!(logged, 20);
    }
}
