//! Gossip messages as streams: sends a node's whole numerators to one peer, or reads them from one.

use crate::buffers::{CHUNK_ELEMENTS, ChunkedBuffer, Pool, chunks};
use crate::context::NodeContext;
use crate::data::{Arrived, Gathered, Payload, ReadError, check};
use crate::ports::transport::{BulkError, BulkSender};
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::gossip_peer::Plan;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::sound::GOSSIP_MAX;
use slowmo_protocol::wire::{Bulk, BulkHeader};
use std::sync::Arc;

/// Sends the numerators to one peer.
pub async fn send(
    context: &NodeContext,
    plan: &Plan,
    (wire, values): (WireType, &Payload),
    to: NodeId,
) -> Result<(), BulkError> {
    let header = context.settings.identity.header(plan.place);
    let content = Bulk::Gossip {
        step: plan.step,
        weight: plan.split.share,
        scale: plan.split.scale,
        wire,
    };
    let header = BulkHeader::V1 {
        header,
        content: content.clone(),
    }
    .encode()
    .map_err(|error| BulkError::Broken(error.to_string()))?;
    let stream = context.transport.open_bulk(to, header.into()).await?;
    let stream = context.metrics.counts_sent(&content, stream);
    let mut stream = Box::new(Gathered::new(stream));
    for chunk in values.bytes() {
        stream.send(chunk).await?;
    }
    stream.finish().await
}

/// Reads numerators of `elements` values into chunks, multiplied by `scale`; fails if any is not
/// finite, or so large that mixed in it would spread to all nodes.
pub async fn read(
    pool: &Arc<Pool>,
    mut arrived: Arrived,
    elements: usize,
    (wire, scale): (WireType, f32),
) -> Result<ChunkedBuffer, ReadError> {
    let mut values = ChunkedBuffer::default();
    let mut encoded = vec![
        0;
        if wire == WireType::Float32 {
            0
        } else {
            wire.encoded_bytes(CHUNK_ELEMENTS.min(elements))
        }
    ];
    for range in chunks(0..elements) {
        let mut chunk = pool.take(range.len());
        if wire == WireType::Float32 {
            arrived.stream.read_exact(chunk.bytes_mut()).await?;
        } else {
            let encoded = &mut encoded[..wire.encoded_bytes(range.len())];
            arrived.stream.read_exact(encoded).await?;
            wire.decode(encoded, chunk.values_mut());
        }
        check(chunk.values(), range.start, GOSSIP_MAX)?;
        // Scaled here, while the chunk is still in the processor's cache.
        chunk
            .values_mut()
            .iter_mut()
            .for_each(|value| *value *= scale);
        values.insert(range.start, chunk.freeze());
    }
    arrived.stream.expect_end().await?;
    Ok(values)
}
