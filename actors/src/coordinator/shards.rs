//! The state of a shard, in chunks; and what a node contributes to a round and keeps after it.

use super::encoding::Encoder;
use crate::buffers::{ChunkedBuffer, Frozen, VALUE_BYTES};
use crate::data::Buffers;
use crate::worker::Basis;
use slowmo_protocol::ident::ShardId;
use slowmo_protocol::node::{Shards, parameters_of};
use slowmo_protocol::shards::Layout;
use std::ops::Range;
use std::sync::Arc;

/// Anchor and slow momentum of one shard, in chunks; immutable, so that a round in progress never
/// changes the decided state.
#[derive(Clone, Debug, Default)]
pub struct ShardState {
    /// The parameters at the start of the outer round.
    pub anchor: ChunkedBuffer,
    /// The slow momentum; empty means zero.
    pub momentum: ChunkedBuffer,
}

/// This node's contribution to a round; kept until the round is decided, for any number of
/// attempts.
#[derive(Debug)]
pub struct Contributed {
    /// Its push-sum weight.
    pub weight: f64,
    /// How many of the values are parameters; a mean of gradients has its own count.
    pub parameters: usize,
    /// The values.
    pub frozen: Frozen,
    /// The base optimizer's buffers, for joining nodes and for a checkpoint.
    pub optimizer_transfer: Option<Frozen>,
    /// The inputs of the contribution, if trace events are recorded.
    pub basis: Basis,
    /// Encoder of the values, once an encoded round is in progress.
    pub encoder: Option<Arc<Encoder>>,
}

/// By-products of reducing this node's own shards, besides values and momentum.
#[derive(Debug, Default)]
pub struct Left {
    /// `Σw`, the sum of the contributors' push-sum weights.
    pub weight: Option<f64>,
    /// If the round is encoded: this node's residual for its own shards if the round is decided.
    pub owed: ChunkedBuffer,
}

/// Total bytes of all held anchors and momenta.
#[must_use]
pub fn bytes(shards: &[(ShardId, ShardState)]) -> usize {
    let bytes = |part: &ChunkedBuffer| {
        part.pieces()
            .map(|(_, chunk)| chunk.values().len() * VALUE_BYTES)
            .sum::<usize>()
    };
    shards
        .iter()
        .map(|(_, state)| bytes(&state.anchor) + bytes(&state.momentum))
        .sum()
}

/// Copies of anchor and momentum of every held shard, with the shard's range of elements.
#[must_use]
pub fn copies(
    shards: &Shards<Buffers>,
    layout: &Layout,
    parameters: usize,
) -> Vec<(Range<usize>, Vec<f32>, Vec<f32>)> {
    let flat = |part: &ChunkedBuffer| {
        part.pieces()
            .flat_map(|(_, chunk)| chunk.values().iter().copied())
            .collect()
    };
    let copy = |(shard, state): (ShardId, &ShardState)| {
        (
            parameters_of(layout, shard, parameters),
            flat(&state.anchor),
            flat(&state.momentum),
        )
    };
    shards.all().map(copy).collect()
}
