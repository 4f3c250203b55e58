//! Shards of the flat vector and their holders: a function of the view alone, so every node
//! computes the same map.
//!
//! Two functions make the map. A view gives each member a slot (see [`crate::view`]): a new member
//! takes a free slot or one behind the others, and the member with the last slot fills the slot of
//! one that left. A fixed table (`placement`) says for each number of slots which of them hold
//! which shard. For `S` shards, `R` replicas and `W` nodes (`C = min(R + 1, W)` copies of each
//! shard):
//!
//! - The holders of a shard are distinct. The numbers of shards of each rank (owners, first
//!   replicas, ...) per node are within one of even, and so are the numbers of all shards that a
//!   node holds.
//! - A single joiner gets `⌊S·C / W⌋` copies, and no other node gets any: the least that keeps the
//!   loads even. If one node leaves, at most `⌈2·S·C / W⌉` copies get a new holder: its own, and
//!   those of the node that takes its slot. `W` and `C` are those of the larger view. Replacing one
//!   node by another in the same outcome moves the share of the one that left. While `W ≤ R + 1`
//!   every node holds every shard: a joiner gets them all, and shards of a leaver need no new
//!   holder.
//! - The first replicas of each owner's shards are within two of even over the other nodes, so a
//!   dead owner's work spreads over all. (This one is measured, for all views up to 512 nodes, not
//!   proved; the others hold by construction.)
//! - Holders of a shard may exchange ranks, which moves no data.
//!
//! A map of ids alone cannot move so little: for any function from sets of ids to loads within one
//! of even there are sets where one id more or less moves more than any constant number of shards
//! (the switching cost of memoryless worker–task assignment grows without bound with the number of
//! possible ids). So the view stores the slots.
//!
//! A map of 512 shards takes, measured on one core of a busy two-core machine:
//!
//! | `R` | `W` = 8 | 64 | 512 | 4,096 |
//! |---|---|---|---|---|
//! | 0 | 0.5 ms | 0.7 ms | 1.2 ms | 1.2 ms |
//! | 1 | 0.7 ms | 1.1 ms | 1.8 ms | 3 ms |
//! | 3 | 0.4 ms | 1.1 ms | 2.4 ms | 16 ms |

mod placement;
#[cfg(test)]
mod tests;

use crate::ident::{NodeId, ShardId};
use crate::view::View;
use placement::Placement;
use std::ops::Range;

/// Maximum number of shards of a vector.
pub const SHARDS_MAX: usize = 512;
/// Number of shards below which [`SHARD_ELEMENTS_MIN`] makes no fewer: enough for small clusters to
/// share the work evenly.
pub const SHARDS_MIN: usize = 16;
/// Fewest values of a shard of a vector that has enough.
pub const SHARD_ELEMENTS_MIN: usize = 1_024;
/// Alignment of the shards of a large vector, in elements: they start at multiples of the block of
/// the int8 wire type.
pub const SHARD_ALIGNMENT: usize = 256;
/// Maximum number of replicas of a shard beside its owner.
pub const REPLICAS_MAX: usize = 3;

/// Division of the flat vector into shards: contiguous ranges of elements, ascending, covering all
/// of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    elements: usize,
    shard_elements: usize,
}

impl Layout {
    /// Cuts `elements` values into at most [`SHARDS_MAX`] shards. Each has a fixed cost, so it has
    /// [`SHARD_ELEMENTS_MIN`] values or more, unless there are less than [`SHARDS_MIN`] then; of
    /// even smaller vectors there are about as many shards as each has values. Each shard but the
    /// last has the same length.
    #[must_use]
    pub fn new(elements: usize) -> Self {
        let count = (elements / SHARD_ELEMENTS_MIN).clamp(SHARDS_MIN, SHARDS_MAX);
        let even = elements
            .div_ceil(count)
            .max(elements.isqrt().min(SHARD_ELEMENTS_MIN))
            .max(1);
        let shard_elements = if even >= SHARD_ALIGNMENT {
            even.next_multiple_of(SHARD_ALIGNMENT)
        } else {
            even
        };
        Self {
            elements,
            shard_elements,
        }
    }

    /// Number of elements in the whole vector.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Number of shards; 0 for an empty vector.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.elements.div_ceil(self.shard_elements)
    }

    /// The elements of `shard`; empty if there is no such shard.
    #[must_use]
    pub fn range(&self, shard: ShardId) -> Range<usize> {
        let start = (shard.0 as usize)
            .saturating_mul(self.shard_elements)
            .min(self.elements);
        start..start.saturating_add(self.shard_elements).min(self.elements)
    }

    /// Every shard in ascending order.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        // At most `SHARDS_MAX` shards, which fits.
        (0..self.shard_count() as u32).map(ShardId)
    }
}

/// The owner and the replica holders of each shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    /// Holders per shard: owner first, then replicas.
    holders: Vec<Vec<NodeId>>,
}

impl ShardMap {
    /// Places `layout`'s shards on the members of `view`, each with one owner and `replicas`
    /// replicas (fewer if the view is smaller).
    #[must_use]
    pub fn new(view: &View, layout: &Layout, replicas: usize) -> Self {
        let in_slot_order: Vec<NodeId> = view.in_slot_order().collect();
        let placement = Placement::new(
            layout.shard_count(),
            replicas.min(REPLICAS_MAX) + 1,
            in_slot_order.len(),
        );
        let holders = placement
            .holders()
            .map(|slots| {
                slots
                    .iter()
                    .map(|slot| in_slot_order[usize::from(*slot)])
                    .collect()
            })
            .collect();
        Self { holders }
    }

    /// The holders of a shard: owner first, then replicas; empty if there is no such shard.
    #[must_use]
    pub fn holders(&self, shard: ShardId) -> &[NodeId] {
        self.holders
            .get(shard.0 as usize)
            .map_or(&[], Vec::as_slice)
    }

    /// The first holder of a shard: it averages the shard and takes its slow step, unless it takes
    /// no part in the round (then [`crate::coordinator::Plan`] names another participant).
    #[must_use]
    pub fn owner(&self, shard: ShardId) -> Option<NodeId> {
        self.holders(shard).first().copied()
    }

    /// Holders in this map that do not hold the shard in `before`, by shard ascending, in rank
    /// order; shards without any are left out. This is the data that moves when the view changes.
    pub fn gained<'a>(
        &'a self,
        before: &'a Self,
    ) -> impl Iterator<Item = (ShardId, Vec<NodeId>)> + 'a {
        self.holders
            .iter()
            .enumerate()
            .filter_map(move |(index, holders)| {
                // At most `SHARDS_MAX` shards, which fits.
                let shard = ShardId(index as u32);
                let held = before.holders(shard);
                let new: Vec<NodeId> = holders
                    .iter()
                    .copied()
                    .filter(|holder| !held.contains(holder))
                    .collect();
                (!new.is_empty()).then_some((shard, new))
            })
    }

    /// The shards that `node` owns, ascending.
    pub fn owned_by(&self, node: NodeId) -> impl Iterator<Item = ShardId> + '_ {
        self.matching(move |holders| holders.first() == Some(&node))
    }

    /// The shards that `owner` owns and `node` holds a replica of, ascending.
    pub fn replicated(&self, owner: NodeId, node: NodeId) -> impl Iterator<Item = ShardId> + '_ {
        self.matching(move |holders| {
            holders
                .split_first()
                .is_some_and(|(first, rest)| *first == owner && rest.contains(&node))
        })
    }

    /// The shards whose anchor and momentum `node` holds, as owner or replica, ascending.
    pub fn held_by(&self, node: NodeId) -> impl Iterator<Item = ShardId> + '_ {
        self.matching(move |holders| holders.contains(&node))
    }

    fn matching<'a>(
        &'a self,
        accept: impl Fn(&[NodeId]) -> bool + 'a,
    ) -> impl Iterator<Item = ShardId> + 'a {
        // At most `SHARDS_MAX` shards, which fits.
        let numbered = self.holders.iter().enumerate();
        numbered
            .filter(move |(_, holders)| accept(holders))
            .map(|(index, _)| ShardId(index as u32))
    }
}
