//! Sizes and copies of the shards that a node holds.

use crate::buffers::{ChunkedBuffer, VALUE_BYTES};
use crate::data::{Buffers, ShardState};
use slowmo_protocol::ident::ShardId;
use slowmo_protocol::node::{Shards, parameters_of};
use slowmo_protocol::shards::Layout;
use std::ops::Range;

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
