//! The decided state of the shards that this node holds, and what a round wants to replace it with.

use crate::buffers::Assembled;
use slowmo_protocol::ident::ShardId;
use slowmo_protocol::shards::Layout;
use std::collections::BTreeMap;
use std::ops::Range;

/// Anchor and slow momentum of one shard, in chunks; immutable, so a round in progress never disturbs what was decided.
#[derive(Clone, Debug, Default)]
pub struct ShardState {
    /// The parameters at the start of the outer round.
    pub anchor: Assembled,
    /// The slow momentum; empty means zero.
    pub momentum: Assembled,
}

/// The decided state of every shard that this node holds, as owner or replica.
#[derive(Clone, Debug, Default)]
pub struct ShardStates {
    states: BTreeMap<ShardId, ShardState>,
}

/// What the reduction of this node's own shards produced: new values and new momentum per shard.
#[derive(Debug, Default)]
pub struct OwnPart {
    /// The new values of the own shards.
    pub values: Assembled,
    /// The new slow momentum of the own shards; empty unless the round took the slow step.
    pub momentum: Vec<(ShardId, Assembled)>,
}

impl ShardStates {
    /// The state of one shard; zero momentum and no anchor if it is not held.
    #[must_use]
    pub fn state(&self, shard: ShardId) -> ShardState {
        self.states.get(&shard).cloned().unwrap_or_default()
    }

    /// Makes a decided round's values the new anchors of the held shards, and `momentum` their momentum
    /// (zero where none is given: the founding).
    pub fn install(
        &mut self,
        held: impl Iterator<Item = ShardId>,
        layout: &Layout,
        parameters: usize,
        values: &Assembled,
        momentum: Vec<(ShardId, Assembled)>,
    ) {
        let mut momentum: BTreeMap<_, _> = momentum.into_iter().collect();
        self.states = held
            .map(|shard| {
                let range = parameters_of(layout, shard, parameters);
                let mut anchor = Assembled::default();
                for (start, chunk) in values.pieces_within(range) {
                    anchor.insert(start, chunk.clone());
                }
                (shard, ShardState { anchor, momentum: momentum.remove(&shard).unwrap_or_default() })
            })
            .collect();
    }
}

/// The elements of a shard that are parameters; averaged buffers, which follow them, have no anchor and no momentum.
#[must_use]
pub fn parameters_of(layout: &Layout, shard: ShardId, parameters: usize) -> Range<usize> {
    let range = layout.range(shard);
    range.start.min(parameters)..range.end.min(parameters)
}
