//! The plain data movements of a round: sends the frozen contribution to the owners, receives the
//! owners' publications, and moves state to other holders.

use super::opening::open;
use super::outlets::Outlets;
use super::signing::is_signed;
use crate::buffers::{ChunkedBuffer, chunks};
use crate::context::NodeContext;
use crate::data::{Arrived, Buffers, Coding, ReadError, ShardState, check};
use crate::ports::transport::{BulkError, BulkReceiver, BulkSender};
use bytes::Bytes;
use slowmo_protocol::coordinator::{Attempt, Claim, Statement, Voter};
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::machine::Place;
use slowmo_protocol::node::{Moved, parameters_of};
use slowmo_protocol::published::{Hasher, PublicKey, SIGNATURE_BYTES, Signed};
use slowmo_protocol::shards::Layout;
use slowmo_protocol::sound::Unsound;
use slowmo_protocol::wire::Bulk;
use std::ops::Range;

/// Reason why a data movement ended without a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Broken {
    /// The node at the other end of what broke; this node, if it lacks something itself.
    Stream(NodeId),
    /// The node that sent what no correct node sends.
    Unsound(NodeId, Unsound),
    /// The average or its slow step is not finite at this element, though all contributions are
    /// sound.
    Overflowed(usize),
}

impl Broken {
    /// The reason for an error in reading a node's stream, which is logged.
    pub fn reading(node: NodeId, error: &ReadError) -> Self {
        match error {
            ReadError::Stream(error) => {
                tracing::info!(%node, %error, "a round's stream broke");
                Self::Stream(node)
            }
            ReadError::Unsound(what) => Self::Unsound(node, *what),
        }
    }
}

impl From<Broken> for Moved<Buffers> {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Stream(node) => Self::Broken(node),
            Broken::Unsound(node, what) => Self::Unsound(node, what),
            Broken::Overflowed(element) => Self::Overflowed(element),
        }
    }
}

/// Bytes that are read and added to a digest at once: so few that they are still in the cache,
/// where that takes two thirds of the time, and enough for the widest vectors.
const HASHED_BYTES: usize = 32 << 10;
/// Streams ranges of this node's contribution, or its buffers to a joiner, chunk by chunk as `chunk`
/// makes them.
pub async fn send(
    mut stream: Box<dyn BulkSender>,
    ranges: Vec<Range<usize>>,
    chunk: impl Fn(Range<usize>) -> Bytes,
) -> Result<(), BulkError> {
    for range in ranges.into_iter().flat_map(chunks) {
        stream.send(chunk(range)).await?;
    }
    stream.finish().await
}

/// The owner of a publication, and what it signs.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The attempt.
    pub attempt: Attempt,
    /// The owner's incarnation.
    pub start: Voter,
    /// Its key.
    pub key: PublicKey,
}

/// Receives the new values of consecutive element ranges from an owner's publication, encoded as
/// `coding` says, or as float32 without it, and the owner's signature behind them. All must be
/// finite, unless they are gradients. What comes is passed on to `passed_on` as it comes, the
/// signature only if it is the owner's.
pub async fn receive_parameters(
    context: &NodeContext,
    mut arrived: Arrived,
    ranges: &[Range<usize>],
    (coding, most): (Option<&Coding>, Option<f32>),
    owner: Option<Owner>,
    passed_on: &Outlets,
) -> Result<(ChunkedBuffer, Signed), ReadError> {
    let wire = coding.map(|coding| coding.wire);
    let expected = match arrived.content {
        Bulk::Forwarded { owner, .. } => Bulk::Forwarded { owner, wire },
        _ => wire.map_or(Bulk::Parameters, Bulk::Update),
    };
    if arrived.content != expected {
        let what = format!("{:?} came where {expected:?} was expected", arrived.content);
        return Err(BulkError::Broken(what).into());
    }
    let mut scratch = coding.map(Coding::scratch).unwrap_or_default();
    let Some(owner) = owner else {
        return Err(BulkError::Broken("the view has no such owner".to_owned()).into());
    };
    let mut values = ChunkedBuffer::default();
    let mut digest = Hasher::default();
    for range in ranges.iter().cloned() {
        let Some(coding) = coding else {
            for range in chunks(range) {
                let start = range.start;
                let read = (most, Some(&mut digest));
                read_chunks(context, &mut *arrived.stream, range, read, &mut values).await?;
                if let Some(chunk) = values.piece(start) {
                    passed_on.send(&chunk.bytes(0..chunk.values().len())).await;
                }
            }
            continue;
        };
        for range in chunks(range) {
            let (chunk, bytes) = coding
                .read_update(&mut *arrived.stream, &range, &mut scratch)
                .await?;
            check(chunk.values(), range.start, f32::MAX)?;
            // Nothing is passed on for which the receiver would blame this node.
            if !passed_on.is_empty() {
                passed_on.send(&Bytes::copy_from_slice(bytes)).await;
            }
            digest.update(bytemuck::cast_slice(chunk.values()));
            values.insert(range.start, chunk);
        }
    }
    let mut signature = [0; SIGNATURE_BYTES];
    arrived.stream.read_exact(&mut signature).await?;
    arrived.stream.expect_end().await?;
    let signed = Signed {
        digest: digest.finish(),
        signature: signature.into(),
    };
    let claim = Claim {
        signer: owner.start,
        key: owner.key,
        signed,
        of: Statement::Values(owner.attempt),
    };
    if is_signed(context, &claim) {
        passed_on.end(&Bytes::copy_from_slice(&signature)).await;
        Ok((values, signed))
    } else {
        Err(ReadError::Unsound(Unsound::Signature))
    }
}

/// Receives the values of consecutive element ranges into chunks. All must be finite.
pub async fn receive(
    context: &NodeContext,
    mut arrived: Arrived,
    ranges: &[Range<usize>],
) -> Result<ChunkedBuffer, ReadError> {
    let mut values = ChunkedBuffer::default();
    for range in ranges.iter().cloned() {
        let read = (Some(f32::MAX), None);
        read_chunks(context, &mut *arrived.stream, range, read, &mut values).await?;
    }
    arrived.stream.expect_end().await?;
    Ok(values)
}

/// Reads values, none of which may be beyond `most`; without it they are not checked. Adds them to
/// a digest, if there is one.
async fn read_chunks(
    context: &NodeContext,
    stream: &mut dyn BulkReceiver,
    range: Range<usize>,
    (most, mut digest): (Option<f32>, Option<&mut Hasher>),
    into: &mut ChunkedBuffer,
) -> Result<(), ReadError> {
    for range in chunks(range) {
        let mut chunk = context.pool.take(range.len());
        match &mut digest {
            Some(digest) => {
                for piece in chunk.bytes_mut().chunks_mut(HASHED_BYTES) {
                    stream.read_exact(piece).await?;
                    digest.update(piece);
                }
            }
            None => stream.read_exact(chunk.bytes_mut()).await?,
        }
        if let Some(most) = most {
            check(chunk.values(), range.start, most)?;
        }
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

/// Receives the state of `shards`. All of it must be finite.
pub async fn receive_state(
    context: &NodeContext,
    mut arrived: Arrived,
    shards: &[ShardId],
    cut: StateCut,
) -> Result<Vec<(ShardId, ShardState)>, ReadError> {
    let most = Some(f32::MAX);
    let mut states = Vec::with_capacity(shards.len());
    for shard in shards {
        let range = parameters_of(&cut.layout, *shard, cut.parameters);
        let mut state = ShardState::default();
        if cut.anchor {
            read_chunks(
                context,
                &mut *arrived.stream,
                range.clone(),
                (most, None),
                &mut state.anchor,
            )
            .await?;
        }
        read_chunks(
            context,
            &mut *arrived.stream,
            range,
            (most, None),
            &mut state.momentum,
        )
        .await?;
        states.push((*shard, state));
    }
    arrived.stream.expect_end().await?;
    Ok(states)
}
