//! The decided state of the shards that a node holds.

use super::data::Data;
use crate::coordinator::{Plan, Publication, RoundKind};
use crate::ident::ShardId;
use crate::shards::Layout;
use std::collections::BTreeMap;
use std::ops::Range;

/// Anchor and slow momentum of every shard that a node holds, as owner or replica. They stay
/// unchanged until a decided round replaces them: a node that has resigned may still have to apply
/// a round for which it declared itself ready.
#[derive(Debug)]
pub struct Shards<D: Data> {
    states: BTreeMap<ShardId, D::State>,
}

impl<D: Data> Default for Shards<D> {
    fn default() -> Self {
        Self {
            states: BTreeMap::new(),
        }
    }
}

impl<D: Data> Shards<D> {
    /// The state of one shard; no anchor and momentum zero if it is not held.
    #[must_use]
    pub fn state(&self, shard: ShardId) -> D::State {
        self.states.get(&shard).cloned().unwrap_or_default()
    }

    /// Every held shard with its state, ascending.
    pub fn all(&self) -> impl Iterator<Item = (ShardId, &D::State)> {
        self.states.iter().map(|(shard, state)| (*shard, state))
    }

    /// Installs the results of a decided round: `moved` was received or made here, and `values`
    /// become the anchor of the held shards if the round renews it. State that this node held stays
    /// only if it took part; that of a joining node is outdated.
    pub(super) fn install(
        &mut self,
        plan: &Plan,
        publication: &Publication,
        parameters: usize,
        values: &D::Values,
        mut moved: BTreeMap<ShardId, D::State>,
    ) {
        let mut before = std::mem::take(&mut self.states);
        if publication.renews_anchor || !plan.participants.contains(&plan.me) {
            before.clear();
        }
        for shard in &publication.holds {
            let mut state = moved.remove(shard).or_else(|| before.remove(shard));
            if plan.spec.kind == RoundKind::Bootstrap {
                state.get_or_insert_default();
            }
            // No node has the state of a lost shard until the next slow step.
            let Some(mut state) = state else { continue };
            if publication.renews_anchor {
                D::renew_anchor(
                    &mut state,
                    values,
                    parameters_of(&publication.state_layout, *shard, parameters),
                );
            }
            self.states.insert(*shard, state);
        }
    }
}

/// The elements of a shard that are parameters; averaged buffers, which follow them, have no anchor
/// and no momentum.
#[must_use]
pub fn parameters_of(layout: &Layout, shard: ShardId, parameters: usize) -> Range<usize> {
    let range = layout.range(shard);
    range.start.min(parameters)..range.end.min(parameters)
}
