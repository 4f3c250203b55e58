//! The plain data movements of a round: sends the frozen contribution to the owners, receives the
//! owners' publications, and moves state to other holders.

use crate::buffers::{ChunkedBuffer, chunks};
use crate::context::NodeContext;
use crate::data::{Arrived, Coding, ShardState};
use crate::ports::transport::{BulkError, BulkReceiver, BulkSender};
use bytes::Bytes;
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::machine::Place;
use slowmo_protocol::node::parameters_of;
use slowmo_protocol::shards::Layout;
use slowmo_protocol::wire::{Bulk, BulkHeader};
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;

/// The node at the other end of what broke; this node, if it lacks something itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub NodeId);

/// Longest time that a stream waits for a connection: two nodes that join in one round dial each
/// other only when they hear of it.
pub const CONNECT_WAIT_MAX: Duration = Duration::from_secs(2);
/// Interval at which a waiting stream checks for the connection.
const CONNECT_LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Opens a bulk stream of the round.
pub async fn open(
    context: &NodeContext,
    place: Place,
    to: NodeId,
    content: Bulk,
) -> Result<Box<dyn BulkSender>, BulkError> {
    let header = context.settings.identity.header(place);
    let header = BulkHeader::V1 {
        header,
        content: content.clone(),
    }
    .encode()
    .map_err(|error| BulkError::Broken(error.to_string()))?;
    let header = Bytes::from(header);
    let give_up = Instant::now() + CONNECT_WAIT_MAX;
    loop {
        match context.transport.open_bulk(to, header.clone()).await {
            Err(BulkError::NotConnected(_)) if Instant::now() < give_up => {
                tokio::time::sleep(CONNECT_LOOK_INTERVAL).await
            }
            opened => return opened.map(|stream| context.metrics.counts_sent(&content, stream)),
        }
    }
}

/// Streams `shards` of this node's contribution to their owner, or its buffers to a joiner, chunk
/// by chunk as `chunk` makes them.
pub async fn contribute(
    context: &NodeContext,
    place: Place,
    to: NodeId,
    content: Bulk,
    shards: &[Range<usize>],
    chunk: impl Fn(Range<usize>) -> Bytes + Send,
) -> Result<(), BulkError> {
    let mut stream = open(context, place, to, content).await?;
    for range in shards.iter().cloned().flat_map(chunks) {
        stream.send(chunk(range)).await?;
    }
    stream.finish().await
}

/// Receives the new values of consecutive element ranges from an owner's publication, encoded as
/// `coding` says, or as float32 without it.
pub async fn receive_parameters(
    context: &NodeContext,
    mut arrived: Arrived,
    ranges: &[Range<usize>],
    coding: Option<&Coding>,
) -> Result<ChunkedBuffer, BulkError> {
    let expected = coding.map_or(Bulk::Parameters, |coding| Bulk::Update(coding.wire));
    if arrived.content != expected {
        return Err(BulkError::Broken(format!(
            "{:?} came where {expected:?} was expected",
            arrived.content
        )));
    }
    let mut scratch = coding.map(Coding::scratch).unwrap_or_default();
    let mut values = ChunkedBuffer::default();
    for range in ranges.iter().cloned() {
        let Some(coding) = coding else {
            read_chunks(context, &mut *arrived.stream, range, &mut values).await?;
            continue;
        };
        for range in chunks(range) {
            values.insert(
                range.start,
                coding
                    .read_update(&mut *arrived.stream, &range, &mut scratch)
                    .await?,
            );
        }
    }
    arrived.stream.expect_end().await?;
    Ok(values)
}

/// Receives the values of consecutive element ranges into chunks.
pub async fn receive(
    context: &NodeContext,
    mut arrived: Arrived,
    ranges: &[Range<usize>],
) -> Result<ChunkedBuffer, BulkError> {
    let mut values = ChunkedBuffer::default();
    for range in ranges.iter().cloned() {
        read_chunks(context, &mut *arrived.stream, range, &mut values).await?;
    }
    arrived.stream.expect_end().await?;
    Ok(values)
}

async fn read_chunks(
    context: &NodeContext,
    stream: &mut dyn BulkReceiver,
    range: Range<usize>,
    into: &mut ChunkedBuffer,
) -> Result<(), BulkError> {
    for range in chunks(range) {
        let mut chunk = context.pool.take(range.len());
        stream.read_exact(chunk.bytes_mut()).await?;
        into.insert(range.start, chunk.freeze());
    }
    Ok(())
}

/// Layout of the state that moves. If anchors move too, each shard's anchor travels before its
/// momentum.
#[derive(Clone, Copy, Debug)]
pub struct StateCut {
    /// Shards of the state.
    pub layout: Layout,
    /// How many of the layout's values are parameters.
    pub parameters: usize,
    /// Whether anchors move too.
    pub anchor: bool,
}

/// Streams the decided state of shards to one of their new holders.
pub async fn send_state(
    context: &NodeContext,
    place: Place,
    to: NodeId,
    shards: &[(ShardId, ShardState)],
    cut: StateCut,
) -> Result<(), BulkError> {
    let mut stream = open(context, place, to, Bulk::State).await?;
    for (shard, state) in shards {
        let range = parameters_of(&cut.layout, *shard, cut.parameters);
        send_pieces(context, &mut *stream, &state.anchor, range.clone()).await?;
        send_pieces(context, &mut *stream, &state.momentum, range).await?;
    }
    stream.finish().await
}

/// Sends the values of `range`; missing values are sent as zeros.
async fn send_pieces(
    context: &NodeContext,
    stream: &mut dyn BulkSender,
    values: &ChunkedBuffer,
    range: Range<usize>,
) -> Result<(), BulkError> {
    for range in chunks(range) {
        let piece = values.piece(range.start).cloned();
        let piece = piece.unwrap_or_else(|| context.pool.zeros(range.len()).freeze());
        stream.send(piece.bytes(0..range.len())).await?;
    }
    Ok(())
}

/// Receives the state of `shards`.
pub async fn receive_state(
    context: &NodeContext,
    mut arrived: Arrived,
    shards: &[ShardId],
    cut: StateCut,
) -> Result<Vec<(ShardId, ShardState)>, BulkError> {
    let mut states = Vec::with_capacity(shards.len());
    for shard in shards {
        let range = parameters_of(&cut.layout, *shard, cut.parameters);
        let mut state = ShardState::default();
        if cut.anchor {
            read_chunks(
                context,
                &mut *arrived.stream,
                range.clone(),
                &mut state.anchor,
            )
            .await?;
        }
        read_chunks(context, &mut *arrived.stream, range, &mut state.momentum).await?;
        states.push((*shard, state));
    }
    arrived.stream.expect_end().await?;
    Ok(states)
}
