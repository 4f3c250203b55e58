//! Shards of the flat vector and their holders: a function of the view alone, so every node computes the same map.
//!
//! Each copy (owners, first replicas, ...) is placed by rendezvous hashing with a cap: a shard goes to the member that ranks
//! highest for it among those with room left. The cap keeps the loads of each copy within one shard of even; the hash keeps
//! most shards where they were when one member comes or goes. Where the cap leaves a shard without a member, a few earlier
//! shards change hands.

use crate::ident::{NodeId, ShardId};
use crate::view::View;
use std::collections::{BTreeMap, VecDeque};
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
        start..start.saturating_add(self.shard_elements).min(self.elements)
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

    /// Who acts as the shard's owner while only some nodes are alive: its first live holder; `None` if none lives.
    #[must_use]
    pub fn acting_owner(&self, shard: ShardId, alive: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        self.holders(shard).iter().copied().find(|holder| alive(*holder))
    }

    /// Holders of this map that do not hold the shard under `before`, by shard ascending, in rank order; shards without any
    /// are left out. This is what moves when the view changes.
    pub fn gained<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (ShardId, Vec<NodeId>)> + 'a {
        self.holders.iter().enumerate().filter_map(move |(index, holders)| {
            // At most `SHARDS_MAX` shards, which fits.
            let shard = ShardId(index as u32);
            let held = before.holders(shard);
            let new: Vec<NodeId> = holders.iter().copied().filter(|holder| !held.contains(holder)).collect();
            (!new.is_empty()).then_some((shard, new))
        })
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
    for shard in 0..holders.len() {
        let free = || view.ids().filter(|id| !holders[shard].contains(id));
        let with_room = free().filter(|id| room.fits(load[id])).max_by_key(|id| (score(shard, copy, *id), *id));
        // Every free member may be full; this happens only to the last shards of a copy.
        let shift = if with_room.is_none() { Shift::find(view, holders, copy, shard, |id| room.fits(load[&id])) } else { None };
        let least_loaded = free().min_by_key(|id| (load[id], *id));
        let Some(receiver) = with_room.or(shift.as_ref().map(|shift| shift.receiver)).or(least_loaded) else { continue };
        let chosen = shift.map_or(receiver, |shift| shift.apply(holders, copy));
        holders[shard].push(chosen);
        if let Some(load) = load.get_mut(&receiver) {
            room.take(*load);
            *load += 1;
        }
    }
}

/// Earlier shards that change hands, one from each of a chain of full members to the next, so that a full one gets room.
struct Shift {
    /// Gets a shard more; the others of the chain keep their loads.
    receiver: NodeId,
    /// Who takes the shard that the chain is for.
    first: NodeId,
    /// Shards and their new holders.
    moves: Vec<(usize, NodeId)>,
}

impl Shift {
    /// The shortest chain that ends at a member with room; `None` if there is none.
    fn find(view: &View, holders: &[Vec<NodeId>], copy: usize, shard: usize, fits: impl Fn(NodeId) -> bool) -> Option<Self> {
        let mut queue: VecDeque<NodeId> = view.ids().filter(|id| !holders[shard].contains(id)).collect();
        let mut came: BTreeMap<NodeId, Option<(usize, NodeId)>> = queue.iter().map(|id| (*id, None)).collect();
        while let Some(full) = queue.pop_front() {
            let given = holders[..shard].iter().enumerate().filter(|(_, held)| held.get(copy) == Some(&full));
            for (other, held) in given {
                for next in view.ids().filter(|id| !held.contains(id)) {
                    if came.contains_key(&next) {
                        continue;
                    }
                    came.insert(next, Some((other, full)));
                    if fits(next) {
                        return Some(Self::along(&came, next));
                    }
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// Walks back from the receiver to the member that takes the shard in question.
    fn along(came: &BTreeMap<NodeId, Option<(usize, NodeId)>>, receiver: NodeId) -> Self {
        let (mut first, mut moves) = (receiver, Vec::new());
        while let Some(Some((shard, from))) = came.get(&first) {
            moves.push((*shard, first));
            first = *from;
        }
        Self { receiver, first, moves }
    }

    fn apply(self, holders: &mut [Vec<NodeId>], copy: usize) -> NodeId {
        for (shard, holder) in self.moves {
            holders[shard][copy] = holder;
        }
        self.first
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::view::tests::view;
    use proptest::prelude::*;

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

    #[test]
    fn any_number_of_values_is_cut_without_overflow() {
        for elements in [usize::MAX, usize::MAX - 1, usize::MAX / 2, 1 << 60] {
            let layout = Layout::new(elements);
            assert!(layout.shard_count() <= SHARDS_MAX);
            let last = layout.shards().last().unwrap();
            assert_eq!(layout.range(last).end, elements);
            assert!(layout.range(ShardId(u32::MAX)).is_empty());
            let map = ShardMap::new(&view(&[1, 2, 3]), &layout, 1);
            assert_eq!(layout.shards().filter(|shard| map.holders(*shard).len() == 2).count(), layout.shard_count());
        }
    }

    /// The fractions of owners and of holders that a join of `ids[0]` (or its leaving) moves.
    fn moved(ids: &[u64], layout: &Layout, replicas: usize) -> (f64, f64) {
        let (without, with) = (view(&ids[1..]), view(ids));
        let (before, after) = (ShardMap::new(&without, layout, replicas), ShardMap::new(&with, layout, replicas));
        let owners = layout.shards().filter(|shard| before.owner(*shard) != after.owner(*shard)).count();
        let is_new = |shard: ShardId, id: &NodeId| !before.holders(shard).contains(id);
        let new = layout.shards().map(|shard| after.holders(shard).iter().filter(|id| is_new(shard, id)).count());
        let holders: usize = layout.shards().map(|shard| after.holders(shard).len()).sum();
        (owners as f64 / layout.shard_count() as f64, new.sum::<usize>() as f64 / holders as f64)
    }

    #[test]
    fn one_node_more_or_less_moves_at_most_two_in_w_of_the_holders() {
        for before in 2..=16u64 {
            let bound = 2.0 / (before + 1) as f64;
            for (seed, replicas) in (0..12u64).flat_map(|seed| (0..=REPLICAS_MAX).map(move |replicas| (seed, replicas))) {
                // A view smaller than the copies gains a copy of everything with the node that joins.
                if before as usize > replicas {
                    let ids: Vec<u64> = (0..=before).map(|i| xxh3_64(&(seed * 100 + i).to_le_bytes())).collect();
                    let (owners, holders) = moved(&ids, &Layout::new(1_000_000), replicas);
                    assert!(owners <= bound && holders <= bound, "W={before}+1 R={replicas}: {owners:.3} {holders:.3} of {bound:.3}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn holders_are_a_function_of_the_ids_distinct_and_even(
            ids in proptest::collection::btree_set(any::<u64>(), 1..40),
            elements in 0usize..300_000,
            replicas in 0usize..6,
        ) {
            let ids: Vec<u64> = ids.into_iter().collect();
            let (members, layout) = (view(&ids), Layout::new(elements));
            let map = ShardMap::new(&members, &layout, replicas);
            let reversed: Vec<u64> = ids.iter().rev().copied().collect();
            prop_assert_eq!(&ShardMap::new(&view(&reversed), &layout, replicas), &map);
            let copies = (replicas.min(REPLICAS_MAX) + 1).min(ids.len());
            for shard in layout.shards() {
                let distinct: std::collections::BTreeSet<_> = map.holders(shard).iter().collect();
                prop_assert_eq!(distinct.len(), copies);
                prop_assert_eq!(map.holders(shard).len(), copies);
                prop_assert!(map.holders(shard).iter().all(|id| members.contains(*id)));
            }
            let even = layout.shard_count() / ids.len();
            // Where everybody holds every shard the last copy has no choice left.
            for copy in (0..copies).filter(|copy| copy + 1 < ids.len()) {
                let loads: Vec<usize> = members.ids().map(|id| layout.shards().filter(|shard| map.holders(*shard)[copy] == id).count()).collect();
                let (least, most) = (*loads.iter().min().unwrap(), *loads.iter().max().unwrap());
                prop_assert!(least >= even && most <= even + 1, "copy {} of {}: {}..{}", copy, layout.shard_count(), least, most);
            }
        }
    }
}
