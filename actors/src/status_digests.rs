//! Asks the other nodes for their status while somebody watches this node's page: about every
//! second, and each answers with one datagram about itself. If nobody watches, nothing is sent. No
//! decision depends on this.

use crate::context::NodeContext;
use crate::status::{MemberState, NodeStatus};
use crate::unix_time::unix_us;
use bytes::Bytes;
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::wire::{
    Content, Datagram, HAPPENED_MAX, Happened, Link, Measure, ORDER_PROOF_BYTES, StatusDigest,
};
use std::sync::Arc;
use std::time::Duration;

/// Number of times that an order to another node is sent, because datagrams may be lost.
pub const ORDERS_SENT: u32 = 5;
/// Interval between these repetitions.
pub const ORDER_INTERVAL: Duration = Duration::from_millis(300);

/// Asks the members for digests, unless it did so just now. Called for as long as somebody watches.
pub fn ask(context: &NodeContext) {
    let own = context.settings.identity.node;
    let status = context.status.read();
    let members = status.members.iter().map(|member| member.id);
    let others: Vec<NodeId> = members.filter(|node| *node != own).collect();
    drop(status);
    let Some(asked) = context.peers.to_ask(&others, context.clock.now()) else {
        return;
    };
    for (node, since_us) in asked {
        send(
            context,
            node,
            &Datagram::V1(Content::AskStatusDigest { since_us }),
        );
    }
}

/// Answers a node that asks for a digest.
pub fn answer(context: &NodeContext, to: NodeId, since_us: u64) {
    if context.peers.may_answer(context.clock.now()) {
        send(context, to, &digest(context, since_us).fitted());
    }
}

/// Stores a member's digest; what others send is ignored.
pub fn receive(context: &NodeContext, from: NodeId, digest: StatusDigest) {
    if member(context, from).is_some() {
        context.peers.store(from, digest, context.clock.now());
    }
}

/// This node's digest, with all events since `since_us`.
#[must_use]
pub fn digest(context: &NodeContext, since_us: u64) -> StatusDigest {
    let status = context.status.read();
    let traffic = context.transport.traffic();
    let measures = status.measures.iter().map(|(name, (step, value))| Measure {
        name: name.clone(),
        step: *step,
        value: *value,
    });
    // A node that asks for the first time gets the newest events.
    let oldest = if since_us == 0 {
        status.events.len().saturating_sub(HAPPENED_MAX)
    } else {
        0
    };
    let happened = status
        .events
        .iter()
        .skip(oldest)
        .filter(|event| event.at_us > since_us);
    StatusDigest {
        incarnation: context.settings.identity.incarnation,
        at_us: unix_us(),
        stands: status.standing,
        lineage: status.lineage,
        epoch: status.epoch,
        round: status.round,
        step: status.training.map_or(status.step, |(step, _)| step),
        measures: measures.collect(),
        disagreement: status.disagreement,
        weight: status.gossip.as_ref().map(|gossip| gossip.weight),
        waits: status.waiting().is_some(),
        http: context.peers.served_at(),
        sent_bytes: traffic.sent_bytes,
        received_bytes: traffic.received_bytes,
        happened: happened
            .map(|event| Happened {
                at_us: event.at_us,
                what: event.what.clone(),
            })
            .collect(),
        links: links(context, &status),
    }
}

/// Passes an operator's order on: the current incarnation of another member is to hand over its
/// state and leave. The order is sent up to [`ORDERS_SENT`] times. Returns whether there is such a
/// member, and this node can prove orders. Must be called inside a tokio runtime.
pub fn order_drain(context: &Arc<NodeContext>, node: NodeId) -> bool {
    let Some(incarnation) = member(context, node) else {
        return false;
    };
    let Some(proof) = context.orders.prove_drain(node, incarnation) else {
        return false;
    };
    let context = Arc::clone(context);
    tokio::spawn(async move {
        for _ in 0..ORDERS_SENT {
            if member(&context, node) != Some(incarnation) {
                return;
            }
            send(
                &context,
                node,
                &Datagram::V1(Content::Drain { incarnation, proof }),
            );
            tokio::time::sleep(ORDER_INTERVAL).await;
        }
    });
    true
}

/// Handles an operator's order to drain that another node passed on. An order without the right
/// proof is reported once, and changes nothing.
pub fn ordered_to_drain(
    context: &NodeContext,
    from: NodeId,
    incarnation: Incarnation,
    proof: &[u8; ORDER_PROOF_BYTES],
) {
    let own = context.settings.identity.node;
    if !context.orders.proves_drain(own, incarnation, proof) {
        if context.peers.is_first_unproved_order(from) {
            tracing::warn!(
                %from,
                "refused an order to drain: it has no proof that an operator gave it; give all \
                 nodes the same http_token_file"
            );
            context
                .status
                .event(format!("refused an unproved order of {from} to drain"));
        }
        return;
    }
    let leaves = matches!(
        context.status.read().standing,
        MemberState::Leaving | MemberState::Left
    );
    if leaves
        || incarnation != context.settings.identity.incarnation
        || member(context, from).is_none()
    {
        return;
    }
    tracing::warn!(%from, "an operator's order, passed on: this node drains");
    context.status.event(format!("told by {from} to drain"));
    context.actors.tell(slowmo_protocol::membership::In::Drain);
}

/// The incarnation of a node that is a member, if one is.
fn member(context: &NodeContext, node: NodeId) -> Option<Incarnation> {
    context
        .status
        .read()
        .members
        .iter()
        .find(|member| member.id == node)
        .map(|member| member.incarnation)
}

fn send(context: &NodeContext, to: NodeId, datagram: &Datagram) {
    let sent = datagram.encode().map_err(|error| error.to_string());
    let sent = sent.and_then(|bytes| {
        context
            .transport
            .send_datagram(to, Bytes::from(bytes))
            .map_err(|error| error.to_string())
    });
    if let Err(error) = sent {
        tracing::trace!(%to, error, "datagram not sent");
    }
}

/// This node's links to the members, the ones with the most sent bytes first.
fn links(context: &NodeContext, status: &NodeStatus) -> Vec<Link> {
    let own = context.settings.identity.node;
    let others = status
        .members
        .iter()
        .map(|member| member.id)
        .filter(|node| *node != own);
    let link = |to| {
        let round_trip = context.transport.round_trip(to).unwrap_or_default();
        let round_trip_us = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX);
        Link {
            to,
            sent_bytes: context.transport.sent_to(to),
            round_trip_us,
        }
    };
    let mut links: Vec<Link> = others.map(link).collect();
    links.sort_by_key(|link| std::cmp::Reverse(link.sent_bytes));
    links
}
