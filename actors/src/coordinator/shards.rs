//! The state of a shard, in chunks, and what a node brings to a round and keeps of it.

use super::encoding::Encoder;
use crate::buffers::{ChunkedBuffer, Frozen, VALUE_BYTES};
use crate::data::Buffers;
use crate::worker::Basis;
use slowmo_protocol::ident::ShardId;
use slowmo_protocol::node::{Shards, parameters_of};
use slowmo_protocol::shards::Layout;
use std::ops::Range;
use std::sync::Arc;

/// Anchor and slow momentum of one shard, in chunks; immutable, so a round in progress never
/// disturbs what was decided.
#[derive(Clone, Debug, Default)]
pub struct ShardState {
    /// The parameters at the start of the outer round.
    pub anchor: ChunkedBuffer,
    /// The slow momentum; empty means zero.
    pub momentum: ChunkedBuffer,
}

/// What this node brings to a round; kept until the round is decided, for any number of attempts.
#[derive(Debug)]
pub struct Contributed {
    /// Its push-sum weight.
    pub weight: f64,
    /// How many of the values are parameters; a mean of gradients has its own count.
    pub parameters: usize,
    /// The values.
    pub frozen: Frozen,
    /// The base optimizer's buffers, for whoever joins and for a checkpoint.
    pub optimizer_transfer: Option<Frozen>,
    /// What it was made from, where that is recorded.
    pub basis: Basis,
    /// Who encodes it, once an encoded round is under way.
    pub encoder: Option<Arc<Encoder>>,
}

/// What the reduction of this node's own shards leaves beside values and momentum.
#[derive(Debug, Default)]
pub struct Left {
    /// `Σw` of the contributors.
    pub weight: Option<f64>,
    /// Where the round is encoded: what this node owes for the own shards if the round is decided.
    pub owed: ChunkedBuffer,
}

/// Bytes of all held anchors and momenta.
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

/// Copies of anchor and momentum of every held shard, with its elements.
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
