//! The plain movements of a round: sending the frozen contribution to the owners, receiving what owners publish.

use crate::buffers::{Assembled, Frozen, chunks};
use crate::context::NodeContext;
use crate::ports::transport::{BulkError, BulkSender};
use crate::streams::Arrived;
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::machine::Place;
use slowmo_protocol::shards::Layout;
use slowmo_protocol::wire::{Bulk, BulkHeader};
use std::ops::Range;
use tokio::sync::oneshot;

use super::shards::parameters_of;

/// Opens a bulk stream of the round.
pub async fn open(context: &NodeContext, place: Place, to: NodeId, content: Bulk) -> Result<Box<dyn BulkSender>, BulkError> {
    let header = context.settings.identity.header(place);
    let header = BulkHeader::V1 { header, content }.encode().map_err(|error| BulkError::Broken(error.to_string()))?;
    context.transport.open_bulk(to, header.into()).await
}

/// Streams this node's frozen values of `shards` to their owner.
pub async fn contribute(
    context: &NodeContext,
    place: Place,
    to: NodeId,
    content: Bulk,
    shards: &[Range<usize>],
    frozen: &Frozen,
) -> Result<(), BulkError> {
    let mut stream = open(context, place, to, content).await?;
    for range in shards.iter().cloned().flat_map(chunks) {
        stream.send(frozen.bytes(range)).await?;
    }
    stream.finish().await
}

/// Receives the values of consecutive element ranges into chunks.
pub async fn receive(context: &NodeContext, stream: oneshot::Receiver<Arrived>, ranges: &[Range<usize>]) -> Result<Assembled, BulkError> {
    let mut arrived = stream.await.map_err(|_| BulkError::Reset)?;
    let mut values = Assembled::default();
    for range in ranges.iter().cloned().flat_map(chunks) {
        let mut chunk = context.pool.take(range.len());
        arrived.stream.read_exact(chunk.bytes_mut()).await?;
        values.insert(range.start, chunk.freeze());
    }
    arrived.stream.expect_end().await?;
    Ok(values)
}

/// Receives the momentum of `shards`, each in chunks.
pub async fn receive_momentum(
    context: &NodeContext,
    stream: oneshot::Receiver<Arrived>,
    shards: &[ShardId],
    layout: Layout,
    parameters: usize,
) -> Result<Vec<(ShardId, Assembled)>, BulkError> {
    let mut arrived = stream.await.map_err(|_| BulkError::Reset)?;
    let mut momentum = Vec::with_capacity(shards.len());
    for shard in shards {
        let mut values = Assembled::default();
        for range in chunks(parameters_of(&layout, *shard, parameters)) {
            let mut chunk = context.pool.take(range.len());
            arrived.stream.read_exact(chunk.bytes_mut()).await?;
            values.insert(range.start, chunk.freeze());
        }
        momentum.push((*shard, values));
    }
    arrived.stream.expect_end().await?;
    Ok(momentum)
}
