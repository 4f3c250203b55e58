//! The data movements of one gossip: the frozen numerator goes to every out-peer while the in-peers' messages are mixed,
//! chunk by chunk and in ascending id, into a new one. The frozen numerator stays whole until all of it succeeded.

use crate::buffers::{Assembled, CHUNK_ELEMENTS, Frozen, VALUE_BYTES, chunks};
use crate::context::NodeContext;
use crate::ports::transport::BulkError;
use crate::streams::Arrived;
use futures_util::future::{join, join_all};
use slowmo_protocol::gossip_peer::Plan;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::mean;
use slowmo_protocol::wire::{Bulk, BulkHeader};
use std::sync::Arc;
use tokio::sync::oneshot;

/// What a gossip brought: the senders with their weights, ascending, and the new numerator.
pub type Mixed = (Vec<(NodeId, f64)>, Assembled);

/// One in-peer's message while it is mixed.
struct Incoming {
    from: NodeId,
    weight: f64,
    scale: f32,
    arrived: Arrived,
}

/// Sends and mixes; on failure names the node at the other end.
pub async fn run(
    context: &Arc<NodeContext>,
    plan: &Plan,
    frozen: &Frozen,
    expected: Vec<(NodeId, oneshot::Receiver<Arrived>)>,
) -> Result<Mixed, NodeId> {
    let sends = plan.out.iter().map(|to| async move { send(context, plan, frozen, *to).await.map_err(|error| broken(*to, &error)) });
    let (sent, mixed) = join(join_all(sends), receive(context, plan, frozen, expected)).await;
    sent.into_iter().collect::<Result<Vec<()>, NodeId>>()?;
    mixed
}

fn broken(node: NodeId, error: &BulkError) -> NodeId {
    tracing::warn!(%node, %error, "gossip stream broke");
    node
}

async fn send(context: &NodeContext, plan: &Plan, frozen: &Frozen, to: NodeId) -> Result<(), BulkError> {
    let header = context.settings.identity.header(plan.place);
    let content = Bulk::Gossip { step: plan.step, weight: plan.split.share, scale: plan.split.scale };
    let header = BulkHeader::V1 { header, content }.encode().map_err(|error| BulkError::Broken(error.to_string()))?;
    let mut stream = context.transport.open_bulk(to, header.into()).await?;
    for range in chunks(0..frozen.values().len()) {
        stream.send(frozen.bytes(range)).await?;
    }
    stream.finish().await
}

async fn receive(
    context: &NodeContext,
    plan: &Plan,
    frozen: &Frozen,
    expected: Vec<(NodeId, oneshot::Receiver<Arrived>)>,
) -> Result<Mixed, NodeId> {
    let mut incoming = Vec::with_capacity(expected.len());
    for (from, stream) in expected {
        let arrived = stream.await.map_err(|_| from)?;
        let Bulk::Gossip { weight, scale, .. } = arrived.content else { return Err(from) };
        if !(weight.is_finite() && weight > 0.0 && scale.is_finite()) || arrived.header.round != plan.place.round {
            return Err(from);
        }
        incoming.push(Incoming { from, weight, scale, arrived });
    }
    let mut scratch = context.pool.take(CHUNK_ELEMENTS.min(frozen.values().len()));
    let mut mixed = Assembled::default();
    for range in chunks(0..frozen.values().len()) {
        let mut chunk = context.pool.take(range.len());
        mean::scale(chunk.values_mut(), &frozen.values()[range.clone()], plan.split.kept_scale);
        for message in &mut incoming {
            let bytes = &mut scratch.bytes_mut()[..range.len() * VALUE_BYTES];
            message.arrived.stream.read_exact(bytes).await.map_err(|error| broken(message.from, &error))?;
            mean::mix(chunk.values_mut(), &scratch.values()[..range.len()], message.scale);
        }
        mixed.insert(range.start, chunk.freeze());
    }
    for message in &mut incoming {
        message.arrived.stream.expect_end().await.map_err(|error| broken(message.from, &error))?;
    }
    Ok((incoming.iter().map(|message| (message.from, message.weight)).collect(), mixed))
}
