//! Shards of the flat vector and their holders: a function of the view alone, so every node computes the same map.
//!
//! Owners are placed by rendezvous hashing with a cap: each shard goes to the member that ranks highest for it among those
//! with room left. The cap keeps loads within one shard of even; the hash keeps most shards where they were when one
//! member comes or goes.

use crate::ident::{NodeId, ShardId};
use crate::view::View;
use std::collections::BTreeMap;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;

/// Most shards a vector is cut into.
pub const SHARDS_MAX: usize = 512;
/// Shards of a large vector start at multiples of this many elements (the block of the int8 wire type).
pub const SHARD_ALIGNMENT: usize = 256;
/// Most replicas of a shard beside its owner.
pub const REPLICAS_MAX: usize = 3;

/// How the flat vector is cut: contiguous ranges of elements, ascending, covering all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    elements: usize,
    shard_elements: usize,
}

impl Layout {
    /// Cuts `elements` values into at most [`SHARDS_MAX`] shards, fewer for small vectors (about as many as each has values):
    /// a shard costs some work of its own. Each shard but the last has the same length.
    #[must_use]
    pub fn new(elements: usize) -> Self {
        let even = elements.div_ceil(SHARDS_MAX).max(elements.isqrt()).max(1);
        let shard_elements = if even >= SHARD_ALIGNMENT { even.next_multiple_of(SHARD_ALIGNMENT) } else { even };
        Self { elements, shard_elements }
    }

    /// Elements of the whole vector.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// How many shards; 0 for an empty vector.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.elements.div_ceil(self.shard_elements)
    }

    /// The elements of `shard`; empty if there is no such shard.
    #[must_use]
    pub fn range(&self, shard: ShardId) -> Range<usize> {
        let start = (shard.0 as usize).saturating_mul(self.shard_elements).min(self.elements);
        start..(start + self.shard_elements).min(self.elements)
    }

    /// Every shard in ascending order.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        // At most `SHARDS_MAX` shards, which fits.
        (0..self.shard_count() as u32).map(ShardId)
    }
}

/// Which member owns each shard and which hold its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    /// Per shard: owner first, then replicas.
    holders: Vec<Vec<NodeId>>,
}

impl ShardMap {
    /// Places `layout`'s shards on the members of `view`, each with one owner and `replicas` replicas
    /// (fewer if the view is smaller).
    #[must_use]
    pub fn new(view: &View, layout: &Layout, replicas: usize) -> Self {
        let copies = (replicas.min(REPLICAS_MAX) + 1).min(view.size());
        let mut holders = vec![Vec::with_capacity(copies); layout.shard_count()];
        for copy in 0..copies {
            place(view, &mut holders, copy);
        }
        Self { holders }
    }

    /// Owner first, then replicas; empty if there is no such shard.
    #[must_use]
    pub fn holders(&self, shard: ShardId) -> &[NodeId] {
        self.holders.get(shard.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// The node that averages this shard and takes its slow step.
    #[must_use]
    pub fn owner(&self, shard: ShardId) -> Option<NodeId> {
        self.holders(shard).first().copied()
    }

    /// The shards that `node` owns, ascending.
    pub fn owned_by(&self, node: NodeId) -> impl Iterator<Item = ShardId> + '_ {
        self.matching(move |holders| holders.first() == Some(&node))
    }

    /// The shards that `owner` owns and `node` holds a replica of, ascending.
    pub fn replicated(&self, owner: NodeId, node: NodeId) -> impl Iterator<Item = ShardId> + '_ {
        self.matching(move |holders| holders.split_first().is_some_and(|(first, rest)| *first == owner && rest.contains(&node)))
    }

    /// The shards whose anchor and momentum `node` holds, as owner or replica, ascending.
    pub fn held_by(&self, node: NodeId) -> impl Iterator<Item = ShardId> + '_ {
        self.matching(move |holders| holders.contains(&node))
    }

    fn matching<'a>(&'a self, accept: impl Fn(&[NodeId]) -> bool + 'a) -> impl Iterator<Item = ShardId> + 'a {
        // At most `SHARDS_MAX` shards, which fits.
        let numbered = self.holders.iter().enumerate();
        numbered.filter(move |(_, holders)| accept(holders)).map(|(index, _)| ShardId(index as u32))
    }
}

/// Gives every shard its holder number `copy`: the member that ranks highest among those with room that do not hold it yet.
fn place(view: &View, holders: &mut [Vec<NodeId>], copy: usize) {
    let mut room = Room::new(holders.len(), view.size());
    let mut load: BTreeMap<NodeId, usize> = view.ids().map(|id| (id, 0)).collect();
    for (shard, held) in holders.iter_mut().enumerate() {
        let free = view.ids().filter(|id| !held.contains(id));
        // Where every free member is full the least loaded takes it: this happens only to the last shards of a copy.
        let key = |id: &NodeId| {
            let load = load[id];
            let fits = room.fits(load);
            (fits, if fits { 0 } else { usize::MAX - load }, score(shard, copy, *id), *id)
        };
        let Some(chosen) = free.max_by_key(key) else { continue };
        held.push(chosen);
        if let Some(load) = load.get_mut(&chosen) {
            room.take(*load);
            *load += 1;
        }
    }
}

/// How many members may still be given one shard more than the even share.
struct Room {
    even: usize,
    larger: usize,
}

impl Room {
    fn new(shards: usize, members: usize) -> Self {
        Self { even: shards / members, larger: shards % members }
    }

    fn fits(&self, load: usize) -> bool {
        load < self.even || (load == self.even && self.larger > 0)
    }

    fn take(&mut self, load: usize) {
        if load == self.even {
            self.larger = self.larger.saturating_sub(1);
        }
    }
}

fn score(shard: usize, copy: usize, node: NodeId) -> u64 {
    let mut bytes = [0u8; 24];
    bytes[..8].copy_from_slice(&(shard as u64).to_le_bytes());
    bytes[8..16].copy_from_slice(&(copy as u64).to_le_bytes());
    bytes[16..].copy_from_slice(&node.0.to_le_bytes());
    xxh3_64(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;

    #[test]
    fn ranges_cover_the_vector_in_order() {
        for elements in [0, 1, 2, 23, 511, 512, 513, 100_000, 1_048_577, 25_000_000] {
            let layout = Layout::new(elements);
            assert!(layout.shard_count() <= SHARDS_MAX);
            let mut next = 0;
            for shard in layout.shards() {
                let range = layout.range(shard);
                assert_eq!(range.start, next);
                assert!(!range.is_empty());
                next = range.end;
            }
            assert_eq!(next, elements);
            assert!(layout.range(ShardId(u32::MAX)).is_empty());
        }
    }

    #[test]
    fn owners_are_within_one_shard_of_even_and_holders_differ() {
        for members in 1..=17u64 {
            let ids: Vec<u64> = (0..members).map(|i| i * 1000 + 17).collect();
            let view = view(&ids);
            for elements in [1, 23, 10_000, 1_000_000] {
                let layout = Layout::new(elements);
                let map = ShardMap::new(&view, &layout, 1);
                let even = layout.shard_count() / members as usize;
                for id in view.ids() {
                    let owned = map.owned_by(id).count();
                    assert!(owned == even || owned == even + 1, "{owned} of {even}");
                }
                for shard in layout.shards() {
                    let holders = map.holders(shard);
                    assert_eq!(holders.len(), 2.min(members as usize));
                    assert!(holders.len() < 2 || holders[0] != holders[1]);
                }
            }
        }
    }

    #[test]
    fn replicas_are_bounded_by_the_view() {
        let map = ShardMap::new(&view(&[5]), &Layout::new(23), 3);
        assert_eq!(map.holders(ShardId(0)), [NodeId(5)]);
        assert_eq!(map.held_by(NodeId(5)).count(), Layout::new(23).shard_count());
    }
}
