//! The decided state of the shards that this node holds, and what a round wants to replace it with.

use crate::buffers::{Assembled, VALUE_BYTES};
use slowmo_protocol::coordinator::Publication;
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
    /// `Σw` of the contributors.
    pub weight: f64,
    /// The new values of the own shards.
    pub values: Assembled,
    /// The new slow momentum of the own shards; empty unless the round took the slow step.
    pub momentum: Vec<(ShardId, Assembled)>,
    /// Where the round is encoded: what this node owes for the own shards if the round is decided.
    pub owed: Assembled,
}

impl ShardStates {
    /// The state of one shard; zero momentum and no anchor if it is not held.
    #[must_use]
    pub fn state(&self, shard: ShardId) -> ShardState {
        self.states.get(&shard).cloned().unwrap_or_default()
    }

    /// Installs what a decided round made: `values` become the anchor of the held shards where the round renews it, and
    /// `moved` holds what was received or made here. Shards that are not held any more are dropped.
    pub fn install(&mut self, publication: &Publication, parameters: usize, values: &Assembled, mut moved: BTreeMap<ShardId, ShardState>) {
        let mut before = std::mem::take(&mut self.states);
        for shard in &publication.holds {
            let mut state = moved.remove(shard).or_else(|| before.remove(shard).filter(|_| !publication.renews_anchor)).unwrap_or_default();
            if publication.renews_anchor {
                let range = parameters_of(&publication.state_layout, *shard, parameters);
                state.anchor = Assembled::default();
                values.pieces_within(range).for_each(|(start, chunk)| state.anchor.insert(start, chunk.clone()));
            }
            self.states.insert(*shard, state);
        }
    }

    /// Every held shard, ascending.
    pub fn all(&self) -> impl Iterator<Item = (ShardId, &ShardState)> {
        self.states.iter().map(|(shard, state)| (*shard, state))
    }

    /// Bytes of all held anchors and momenta.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let bytes = |part: &Assembled| part.pieces().map(|(_, chunk)| chunk.values().len() * VALUE_BYTES).sum::<usize>();
        self.states.values().map(|state| bytes(&state.anchor) + bytes(&state.momentum)).sum()
    }

    /// Copies of anchor and momentum of every held shard, with its elements.
    #[must_use]
    pub fn copies(&self, layout: &Layout, parameters: usize) -> Vec<(Range<usize>, Vec<f32>, Vec<f32>)> {
        let flat = |part: &Assembled| part.pieces().flat_map(|(_, chunk)| chunk.values().iter().copied()).collect();
        let copy = |(shard, state): (&ShardId, &ShardState)| {
            (parameters_of(layout, *shard, parameters), flat(&state.anchor), flat(&state.momentum))
        };
        self.states.iter().map(copy).collect()
    }

    /// Forgets everything: the node belongs to no view any more.
    pub fn clear(&mut self) {
        self.states.clear();
    }
}

/// The elements of a shard that are parameters; averaged buffers, which follow them, have no anchor and no momentum.
#[must_use]
pub fn parameters_of(layout: &Layout, shard: ShardId, parameters: usize) -> Range<usize> {
    let range = layout.range(shard);
    range.start.min(parameters)..range.end.min(parameters)
}
