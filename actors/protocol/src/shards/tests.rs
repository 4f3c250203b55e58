//! Properties of every shard map.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::view::tests::view;
use placement::Slot;
use proptest::prelude::*;
use std::collections::BTreeSet;

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
    assert_eq!(
        map.held_by(NodeId(5)).count(),
        Layout::new(23).shard_count()
    );
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
        assert_eq!(
            layout
                .shards()
                .filter(|shard| map.holders(*shard).len() == 2)
                .count(),
            layout.shard_count()
        );
    }
}

/// The shards that `before` and `after` give to each slot, and how many copies are new: `slot_of`
/// names the slot before of the node that sits in a slot after.
fn moved(before: &Placement, after: &Placement, slot_of: impl Fn(Slot) -> Option<Slot>) -> usize {
    let pairs = before.holders().zip(after.holders());
    let new = |old: &[Slot], slot: Slot| slot_of(slot).is_none_or(|slot| !old.contains(&slot));
    pairs
        .map(|(old, now)| now.iter().filter(|slot| new(old, **slot)).count())
        .sum()
}

/// The loads of each rank and in all are within one of even; the holders of a shard differ.
fn assert_even(placement: &Placement, copies: usize, slots: usize) {
    let mut loads = vec![[0; REPLICAS_MAX + 1]; slots];
    for holders in placement.holders() {
        assert_eq!(holders.iter().collect::<BTreeSet<_>>().len(), copies);
        holders
            .iter()
            .enumerate()
            .for_each(|(rank, slot)| loads[usize::from(*slot)][rank] += 1);
    }
    let spread = |load: &dyn Fn(&[usize; REPLICAS_MAX + 1]) -> usize| {
        loads.iter().map(load).max().unwrap() - loads.iter().map(load).min().unwrap()
    };
    for rank in 0..copies {
        assert!(
            spread(&|load| load[rank]) <= 1,
            "rank {rank} of {slots} slots"
        );
    }
    assert!(spread(&|load| load.iter().sum()) <= 1, "{slots} slots");
}

/// How far the first replicas of one owner's shards are from even over the other slots, at most.
fn uneven_followers(placement: &Placement, slots: usize) -> usize {
    let mut counts = vec![vec![0usize; slots]; slots];
    for holders in placement.holders().filter(|holders| holders.len() > 1) {
        counts[usize::from(holders[0])][usize::from(holders[1])] += 1;
    }
    let others = |owner: usize| (0..slots).filter(move |slot| *slot != owner);
    let off = |owner: usize| {
        let even = counts[owner].iter().sum::<usize>() / (slots - 1);
        let rest = counts[owner].iter().sum::<usize>() % (slots - 1);
        let most = |count: usize| {
            count
                .saturating_sub(even + usize::from(rest > 0))
                .max(even.saturating_sub(count))
        };
        others(owner)
            .map(|slot| most(counts[owner][slot]))
            .max()
            .unwrap_or(0)
    };
    if slots > 1 {
        (0..slots).map(off).max().unwrap_or(0)
    } else {
        0
    }
}

#[test]
fn every_table_is_even_and_the_next_one_gives_to_the_new_slot_alone() {
    for replicas in 0..=REPLICAS_MAX {
        let mut before = Placement::new(SHARDS_MAX, replicas + 1, 1);
        // Tables of few slots one by one; above, the one table that grows is looked at after every
        // slot.
        for slots in 2..=512 {
            let copies = (replicas + 1).min(slots);
            let after = if slots <= copies {
                Placement::new(SHARDS_MAX, copies, slots)
            } else {
                before.with_one_slot_more()
            };
            assert_even(&after, copies, slots);
            assert!(
                uneven_followers(&after, slots) <= 2,
                "R={replicas} W={slots}: {}",
                uneven_followers(&after, slots)
            );
            let total = SHARDS_MAX * copies;
            let joins = moved(&before, &after, |slot| {
                (usize::from(slot) + 1 < slots).then_some(slot)
            });
            assert_eq!(joins, total / slots, "R={replicas} W={slots}");
            // The last one moves to the slot of the one that leaves.
            let last = slots as Slot - 1;
            for left in (0..last).step_by(slots / 16 + 1) {
                let leaves = moved(&after, &before, |slot| {
                    Some(if slot == left { last } else { slot })
                });
                assert!(
                    leaves <= (2 * total).div_ceil(slots),
                    "R={replicas} W={slots}: {leaves} of {total}"
                );
            }
            before = after;
        }
        let direct = Placement::new(SHARDS_MAX, replicas + 1, 512);
        assert!(direct.holders().eq(before.holders()));
    }
}

#[test]
fn few_shards_are_even_too() {
    for shards in [0, 1, 2, 3, 5, 7, 12, 23, 64, 100, 317] {
        for (replicas, slots) in
            (0..=REPLICAS_MAX).flat_map(|replicas| (1..40).map(move |slots| (replicas, slots)))
        {
            let placement = Placement::new(shards, replicas + 1, slots);
            assert_even(&placement, (replicas + 1).min(slots), slots);
            assert!(
                uneven_followers(&placement, slots) <= 2,
                "S={shards} R={replicas} W={slots}"
            );
        }
    }
}

#[test]
fn what_moves_and_who_acts() {
    let layout = Layout::new(10_000);
    let before = view(&[3, 5, 8, 9]);
    let stay: Vec<_> = before
        .members()
        .iter()
        .filter(|member| member.id != NodeId(5))
        .cloned()
        .collect();
    let after = before.succeeded_by(before.epoch(), stay).unwrap();
    let before = ShardMap::new(&before, &layout, 1);
    let after = ShardMap::new(&after, &layout, 1);
    let mut acts = std::collections::BTreeMap::from([(3, 0), (8, 0), (9, 0)]);
    for shard in before.owned_by(NodeId(5)) {
        let acting = before.holders(shard)[1];
        *acts.get_mut(&acting.0).unwrap() += 1;
    }
    assert!(
        acts.values().max().unwrap() - acts.values().min().unwrap() <= 3,
        "{acts:?}"
    );
    let gained: Vec<_> = after.gained(&before).collect();
    assert!(gained.windows(2).all(|pair| pair[0].0 < pair[1].0));
    for shard in layout.shards() {
        let new = gained
            .iter()
            .find(|(of, _)| *of == shard)
            .map_or(&[][..], |(_, new)| new);
        assert!(
            after
                .holders(shard)
                .iter()
                .all(|id| new.contains(id) != before.holders(shard).contains(id))
        );
    }
    assert_eq!(after.gained(&after).count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn holders_are_a_function_of_the_ids_distinct_and_even(
        ids in proptest::collection::btree_set(any::<u64>(), 1..40),
        elements in 0usize..300_000,
        replicas in 0usize..6,
    ) {
        let ids: Vec<u64> = ids.into_iter().collect();
        let members = view(&ids);
        let layout = Layout::new(elements);
        let map = ShardMap::new(&members, &layout, replicas);
        let reversed: Vec<u64> = ids.iter().rev().copied().collect();
        prop_assert_eq!(&ShardMap::new(&view(&reversed), &layout, replicas), &map);
        let copies = (replicas.min(REPLICAS_MAX) + 1).min(ids.len());
        for shard in layout.shards() {
            let distinct: BTreeSet<_> = map.holders(shard).iter().collect();
            prop_assert_eq!(distinct.len(), copies);
            prop_assert_eq!(map.holders(shard).len(), copies);
            prop_assert!(map.holders(shard).iter().all(|id| members.contains(*id)));
        }
        let even = layout.shard_count() / ids.len();
        for copy in 0..copies {
            let load = |id| layout.shards().filter(|shard| map.holders(*shard)[copy] == id).count();
            let loads: Vec<usize> = members.ids().map(load).collect();
            let least = *loads.iter().min().unwrap();
            let most = *loads.iter().max().unwrap();
            prop_assert!(
                least >= even && most <= even + 1,
                "copy {} of {}: {}..{}",
                copy,
                layout.shard_count(),
                least,
                most
            );
        }
    }

    #[test]
    fn a_history_of_joins_and_leaves_moves_little_at_each(
        ids in proptest::collection::btree_set(any::<u64>(), 2..30),
        events in proptest::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..12),
        elements in prop::sample::select(vec![3usize, 600, 40_000, 1_000_000]),
        replicas in 0usize..=REPLICAS_MAX,
    ) {
        let ids: Vec<u64> = ids.into_iter().collect();
        let everybody = view(&ids);
        let layout = Layout::new(elements);
        let mut now = view(&ids[..ids.len().div_ceil(2)]);
        let mut map = ShardMap::new(&now, &layout, replicas);
        for (joins, index) in events {
            let all = everybody.members().iter().cloned();
            let (mut members, out): (Vec<_>, Vec<_>) =
                all.partition(|member| now.contains(member.id));
            if joins && !out.is_empty() {
                members.push(index.get(&out).clone());
            } else if members.len() > 1 {
                members.remove(index.index(members.len()));
            }
            let next = now.succeeded_by(now.epoch(), members).unwrap();
            let new = ShardMap::new(&next, &layout, replicas);
            let larger = now.size().max(next.size());
            let copies = layout.shard_count() * (replicas + 1).min(larger);
            let gained: usize = new.gained(&map).map(|(_, holders)| holders.len()).sum();
            prop_assert!(
                gained <= (2 * copies).div_ceil(larger),
                "{} of {} for {}",
                gained,
                copies,
                larger
            );
            if next.size() > now.size() {
                prop_assert_eq!(gained, copies / larger);
            }
            now = next;
            map = new;
        }
    }
}
