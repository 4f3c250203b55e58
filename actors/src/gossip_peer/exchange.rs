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

/// What a gossip brought.
pub struct Mixed {
    /// The senders with their weights, ascending; only those whose whole message came.
    pub arrived: Vec<(NodeId, f64)>,
    /// Out-peers that could not be sent to: their share stayed here.
    pub returned: Vec<NodeId>,
    /// The new numerator.
    pub values: Assembled,
}

/// One in-peer's message while it is mixed.
struct Incoming {
    from: NodeId,
    weight: f64,
    scale: f32,
    arrived: Arrived,
}

/// Sends and mixes. A peer that is gone is done without: its message is not mixed, what was meant for it stays here.
pub async fn run(context: &Arc<NodeContext>, plan: &Plan, frozen: &Frozen, expected: Vec<(NodeId, oneshot::Receiver<Arrived>)>) -> Mixed {
    let sends = plan.out.iter().map(|to| async move { send(context, plan, frozen, *to).await.err().map(|error| broken(*to, &error)) });
    let (returned, (arrived, values)) = join(join_all(sends), receive(context, plan, frozen, expected)).await;
    let returned: Vec<NodeId> = returned.into_iter().flatten().collect();
    let values = if returned.is_empty() { values } else { take_back(context, &values, frozen, plan.split.scale * returned.len() as f32) };
    Mixed { arrived, returned, values }
}

fn broken(node: NodeId, error: &BulkError) -> NodeId {
    tracing::info!(%node, %error, "gossip stream broke");
    node
}

/// Adds `scale` of the frozen numerator to the mixed one: what was meant for a peer that is gone.
fn take_back(context: &NodeContext, values: &Assembled, frozen: &Frozen, scale: f32) -> Assembled {
    let mut with = Assembled::default();
    for (start, chunk) in values.pieces() {
        let mut sum = context.pool.take(chunk.values().len());
        sum.values_mut().copy_from_slice(chunk.values());
        mean::mix(sum.values_mut(), &frozen.values()[start..start + chunk.values().len()], scale);
        with.insert(start, sum.freeze());
    }
    with
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

/// Mixes the in-peers' messages into what is kept. If one breaks off in the middle, none of this gossip's is mixed: what was
/// read of the others is gone with it, and no mass was made.
async fn receive(
    context: &NodeContext,
    plan: &Plan,
    frozen: &Frozen,
    expected: Vec<(NodeId, oneshot::Receiver<Arrived>)>,
) -> (Vec<(NodeId, f64)>, Assembled) {
    let mut incoming = Vec::with_capacity(expected.len());
    for (from, stream) in expected {
        // Given up: the sender is gone or late.
        let Ok(arrived) = stream.await else { continue };
        let Bulk::Gossip { weight, scale, .. } = arrived.content else { continue };
        if weight.is_finite() && weight > 0.0 && scale.is_finite() && arrived.header.round == plan.place.round {
            incoming.push(Incoming { from, weight, scale, arrived });
        }
    }
    match mix(context, plan, frozen, &mut incoming).await {
        Ok(values) => (incoming.iter().map(|message| (message.from, message.weight)).collect(), values),
        Err(error) => {
            tracing::info!(%error, "a gossip's messages broke off and are not mixed");
            let kept = mix(context, plan, frozen, &mut []).await;
            // Nothing is read, so nothing can fail.
            (Vec::new(), kept.unwrap_or_default())
        }
    }
}

async fn mix(context: &NodeContext, plan: &Plan, frozen: &Frozen, incoming: &mut [Incoming]) -> Result<Assembled, BulkError> {
    let mut scratch = context.pool.take(CHUNK_ELEMENTS.min(frozen.values().len()));
    let mut mixed = Assembled::default();
    for range in chunks(0..frozen.values().len()) {
        let mut chunk = context.pool.take(range.len());
        mean::scale(chunk.values_mut(), &frozen.values()[range.clone()], plan.split.kept_scale);
        for message in &mut *incoming {
            let bytes = &mut scratch.bytes_mut()[..range.len() * VALUE_BYTES];
            message.arrived.stream.read_exact(bytes).await?;
            mean::mix(chunk.values_mut(), &scratch.values()[..range.len()], message.scale);
        }
        mixed.insert(range.start, chunk.freeze());
    }
    for message in incoming {
        message.arrived.stream.expect_end().await?;
    }
    Ok(mixed)
}
