//! Placement of shard copies on slots: one table for every number of slots, the same for
//! all clusters.
//!
//! The table with one more slot is made from the table before it: the new slot takes its even
//! share, shard by shard, from the fullest slot, and no other slot gains anything. So a node in a
//! new slot moves `1/W` of the copies, the least possible. The shards to take are chosen so that no
//! two slots share many more shards than others do; afterwards copies of one shard may swap ranks,
//! which moves nothing, until every slot has equal numbers of shards of each rank.

use super::REPLICAS_MAX;
use std::collections::VecDeque;

/// Maximum number of holders of a shard.
const COPIES_MAX: usize = REPLICAS_MAX + 1;
/// Number of shards of a slot that are examined for the best one to hand over.
const CANDIDATES_MAX: usize = 16;

/// Number of a slot; a view has at most one slot per member, so it fits.
pub type Slot = u16;

/// The holders of every shard, as slots.
pub struct Placement {
    copies: usize,
    /// Number of slots so far.
    slots: usize,
    /// Slot per shard and rank; the owner is rank 0.
    holders: Vec<[Slot; COPIES_MAX]>,
    /// Shards per slot and rank, in no order. At most `SHARDS_MAX` shards, so their numbers fit.
    held: Vec<[Vec<u16>; COPIES_MAX]>,
    /// Number of copies of all ranks, per slot.
    totals: Vec<usize>,
    followers: Followers,
}

impl Placement {
    /// Places `copies` copies (1 to [`COPIES_MAX`], at most one per slot) of `shards` shards on
    /// `slots` slots.
    pub fn new(shards: usize, copies: usize, slots: usize) -> Self {
        let copies = copies.clamp(1, COPIES_MAX).min(slots.max(1));
        // A slot beyond the last copy would take nothing.
        let last = slots.min((shards * copies).max(copies));
        let mut placement = Self {
            copies,
            slots: copies,
            holders: (0..shards).map(|shard| everywhere(shard, copies)).collect(),
            held: vec![Default::default(); last],
            totals: vec![0; last],
            followers: Followers::new(last),
        };
        placement.count();
        while placement.slots < last {
            placement.add_slot();
        }
        placement
    }

    /// The slots that hold each shard, owner first.
    pub fn holders(&self) -> impl Iterator<Item = &[Slot]> {
        self.holders.iter().map(|holders| &holders[..self.copies])
    }

    /// A copy of the table with one more slot.
    #[cfg(test)]
    pub fn with_one_slot_more(&self) -> Self {
        let mut next = Self {
            held: self.held.clone(),
            totals: self.totals.clone(),
            holders: self.holders.clone(),
            followers: self.followers.with_one_slot_more(),
            ..*self
        };
        next.held.push(Default::default());
        next.totals.push(0);
        next.add_slot();
        next
    }

    fn count(&mut self) {
        for (shard, holders) in self.holders.iter().enumerate() {
            for (rank, slot) in holders.iter().enumerate().take(self.copies) {
                self.held[usize::from(*slot)][rank].push(shard as u16);
                self.totals[usize::from(*slot)] += 1;
            }
            self.followers.add(holders, self.copies);
        }
    }

    fn add_slot(&mut self) {
        let new = self.slots;
        self.slots += 1;
        let share = self.holders.len() * self.copies / self.slots;
        // The fullest first; among those the earlier slot.
        let mut level = self.totals[..new].iter().copied().max().unwrap_or(0);
        let mut from = 0;
        for _ in 0..share {
            while self.totals[from] < level {
                (from, level) = if from + 1 < new {
                    (from + 1, level)
                } else {
                    (0, level - 1)
                };
            }
            if let Some((rank, index)) = self.choose(from, new) {
                self.hand_over(from, new, rank, index);
            }
        }
        for slot in 0..self.slots {
            self.balance(slot);
        }
    }

    /// Rank and index of the shard that `from` hands over to `to`: of the rank that `to` lacks
    /// most, the shard that best evens out the pairs of owner and first replica.
    fn choose(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        let mut ranks: [usize; COPIES_MAX] = std::array::from_fn(|rank| rank);
        let held = |slot: usize, rank: usize| self.held[slot][rank].len() as isize;
        ranks[..self.copies].sort_by_key(|rank| held(to, *rank) - held(from, *rank));
        ranks[..self.copies].iter().find_map(|rank| {
            self.choose_of_rank(from, to, *rank)
                .map(|index| (*rank, index))
        })
    }

    fn choose_of_rank(&self, from: usize, to: usize, rank: usize) -> Option<usize> {
        let holders = |shard: &u16| &self.holders[usize::from(*shard)][..self.copies];
        let free = self.held[from][rank]
            .iter()
            .enumerate()
            .filter(|(_, shard)| !holders(shard).contains(&(to as Slot)));
        // Only the owner and the first replica count as followers; of the other ranks any will do.
        let candidates = free.take(if rank < 2 {
            CANDIDATES_MAX + 128 / to
        } else {
            1
        });
        candidates
            .min_by_key(|(_, shard)| self.followers.gain(holders(shard), rank, from, to))
            .map(|(index, _)| index)
    }

    fn hand_over(&mut self, from: usize, to: usize, rank: usize, index: usize) {
        let shard = self.held[from][rank].swap_remove(index);
        let holders = &mut self.holders[usize::from(shard)];
        self.followers.remove(holders, self.copies);
        holders[rank] = to as Slot;
        self.followers.add(holders, self.copies);
        self.held[to][rank].push(shard);
        self.totals[from] -= 1;
        self.totals[to] += 1;
    }

    /// Swaps ranks until the numbers of shards of each rank on `slot` differ by at most one. The
    /// counts of every other slot stay or become more even.
    fn balance(&mut self, slot: usize) {
        loop {
            let count = |rank: &usize| self.held[slot][*rank].len();
            let most = (0..self.copies).max_by_key(count);
            let least = (0..self.copies).min_by_key(count);
            let (Some(most), Some(least)) = (most, least) else {
                return;
            };
            if self.held[slot][most].len() < self.held[slot][least].len() + 2
                || !self.swap_along(slot, most, least)
            {
                return;
            }
        }
    }

    /// Swaps two ranks along the shortest chain of shards from `slot` to a slot that has too few of
    /// rank `most`. There is one: the slots that the chains reach hold at least as many shards of
    /// rank `least` as of rank `most`, and `slot` holds fewer.
    fn swap_along(&mut self, slot: usize, most: usize, least: usize) -> bool {
        let mut came: Vec<Option<u16>> = vec![None; self.slots];
        let mut queue = VecDeque::from([slot]);
        while let Some(current) = queue.pop_front() {
            for shard in &self.held[current][most] {
                let next = usize::from(self.holders[usize::from(*shard)][least]);
                if next == slot || came[next].is_some() {
                    continue;
                }
                came[next] = Some(*shard);
                if self.held[next][least].len() > self.held[next][most].len() {
                    self.swap_back(&came, next, most, least);
                    return true;
                }
                queue.push_back(next);
            }
        }
        false
    }

    fn swap_back(&mut self, came: &[Option<u16>], end: usize, most: usize, least: usize) {
        let mut slot = end;
        while let Some(shard) = came[slot] {
            let holders = &mut self.holders[usize::from(shard)];
            let previous = usize::from(holders[most]);
            self.followers.remove(holders, self.copies);
            holders.swap(most, least);
            self.followers.add(holders, self.copies);
            self.shift(previous, shard, most, least);
            self.shift(slot, shard, least, most);
            slot = previous;
        }
    }

    fn shift(&mut self, slot: usize, shard: u16, from: usize, to: usize) {
        let held = &mut self.held[slot];
        held[from].retain(|other| *other != shard);
        held[to].push(shard);
    }
}

/// Holders of `shard` if every slot holds every shard: the orders of the slots one after the other,
/// so that each slot has each rank equally often.
fn everywhere(shard: usize, slots: usize) -> [Slot; COPIES_MAX] {
    let mut rest: Vec<Slot> = (1..slots as Slot).collect();
    let mut number = shard / slots;
    let mut order = vec![0];
    while !rest.is_empty() {
        order.push(rest.remove(number % rest.len()));
        number /= rest.len() + 1;
    }
    order.rotate_left(shard % slots);
    order.resize(COPIES_MAX, 0);
    std::array::from_fn(|rank| order[rank])
}

/// Number of shards of each owner that have each slot as their first replica, which acts for the
/// owner if it dies.
struct Followers {
    slots: usize,
    counts: Vec<u16>,
}

impl Followers {
    fn new(slots: usize) -> Self {
        Self {
            slots,
            counts: vec![0; slots * slots],
        }
    }

    #[cfg(test)]
    fn with_one_slot_more(&self) -> Self {
        let mut next = Self::new(self.slots + 1);
        for owner in 0..self.slots {
            let row = owner * self.slots;
            let next_row = owner * next.slots;
            next.counts[next_row..next_row + self.slots]
                .copy_from_slice(&self.counts[row..row + self.slots]);
        }
        next
    }

    fn add(&mut self, holders: &[Slot; COPIES_MAX], copies: usize) {
        if copies > 1 {
            self.counts[usize::from(holders[0]) * self.slots + usize::from(holders[1])] += 1;
        }
    }

    fn remove(&mut self, holders: &[Slot; COPIES_MAX], copies: usize) {
        if copies > 1 {
            self.counts[usize::from(holders[0]) * self.slots + usize::from(holders[1])] -= 1;
        }
    }

    fn count(&self, owner: usize, follower: usize) -> i32 {
        i32::from(self.counts[owner * self.slots + follower])
    }

    /// Count of the owner-replica pair that `to` would form in place of `from`, minus the count of
    /// the pair it breaks; the less the better.
    fn gain(&self, holders: &[Slot], rank: usize, from: usize, to: usize) -> i32 {
        match (rank, holders) {
            (0, [_, follower, ..]) => {
                self.count(to, usize::from(*follower)) - self.count(from, usize::from(*follower))
            }
            (1, [owner, ..]) => {
                self.count(usize::from(*owner), to) - self.count(usize::from(*owner), from)
            }
            _ => 0,
        }
    }
}
