//! Gossip messages as streams: a node's whole numerators to one peer, or from one.

use crate::buffers::{Assembled, Pool, chunks};
use crate::context::NodeContext;
use crate::ports::transport::BulkError;
use crate::streams::Arrived;
use slowmo_protocol::gossip_peer::Plan;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::wire::{Bulk, BulkHeader};
use std::sync::Arc;

/// Sends the numerators to one peer.
pub async fn send(context: &NodeContext, plan: &Plan, values: &Assembled, to: NodeId) -> Result<(), BulkError> {
    let header = context.settings.identity.header(plan.place);
    let content = Bulk::Gossip { step: plan.step, weight: plan.split.share, scale: plan.split.scale };
    let header = BulkHeader::V1 { header, content }.encode().map_err(|error| BulkError::Broken(error.to_string()))?;
    let mut stream = context.transport.open_bulk(to, header.into()).await?;
    for (_, piece) in values.pieces() {
        for range in chunks(0..piece.values().len()) {
            stream.send(piece.bytes(range)).await?;
        }
    }
    stream.finish().await
}

/// Reads numerators of `elements` values into chunks.
pub async fn read(pool: &Arc<Pool>, mut arrived: Arrived, elements: usize) -> Result<Assembled, BulkError> {
    let mut values = Assembled::default();
    for range in chunks(0..elements) {
        let mut chunk = pool.take(range.len());
        arrived.stream.read_exact(chunk.bytes_mut()).await?;
        values.insert(range.start, chunk.freeze());
    }
    arrived.stream.expect_end().await?;
    Ok(values)
}
