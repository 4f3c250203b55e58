//! Placement of shard copies on slots (`seats`): one table for every number of slots, the same for
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
pub type Seat = u16;

/// The holders of every shard, as slots.
pub struct Placement {
    copies: usize,
    /// Number of slots so far.
    seats: usize,
    /// Slot per shard and rank; the owner is rank 0.
    holders: Vec<[Seat; COPIES_MAX]>,
    /// Shards per slot and rank, in no order. At most `SHARDS_MAX` shards, so their numbers fit.
    held: Vec<[Vec<u16>; COPIES_MAX]>,
    /// Number of copies of all ranks, per slot.
    totals: Vec<usize>,
    followers: Followers,
}

impl Placement {
    /// Places `copies` copies (1 to [`COPIES_MAX`], at most one per slot) of `shards` shards on
    /// `seats` slots.
    pub fn new(shards: usize, copies: usize, seats: usize) -> Self {
        let copies = copies.clamp(1, COPIES_MAX).min(seats.max(1));
        // A slot beyond the last copy would take nothing.
        let last = seats.min((shards * copies).max(copies));
        let mut placement = Self {
            copies,
            seats: copies,
            holders: (0..shards).map(|shard| everywhere(shard, copies)).collect(),
            held: vec![Default::default(); last],
            totals: vec![0; last],
            followers: Followers::new(last),
        };
        placement.count();
        while placement.seats < last {
            placement.add_seat();
        }
        placement
    }

    /// The slots that hold each shard, owner first.
    pub fn holders(&self) -> impl Iterator<Item = &[Seat]> {
        self.holders.iter().map(|holders| &holders[..self.copies])
    }

    /// A copy of the table with one more slot.
    #[cfg(test)]
    pub fn with_one_seat_more(&self) -> Self {
        let mut next = Self {
            held: self.held.clone(),
            totals: self.totals.clone(),
            holders: self.holders.clone(),
            followers: self.followers.with_one_seat_more(),
            ..*self
        };
        next.held.push(Default::default());
        next.totals.push(0);
        next.add_seat();
        next
    }

    fn count(&mut self) {
        for (shard, holders) in self.holders.iter().enumerate() {
            for (rank, seat) in holders.iter().enumerate().take(self.copies) {
                self.held[usize::from(*seat)][rank].push(shard as u16);
                self.totals[usize::from(*seat)] += 1;
            }
            self.followers.add(holders, self.copies);
        }
    }

    fn add_seat(&mut self) {
        let new = self.seats;
        self.seats += 1;
        let share = self.holders.len() * self.copies / self.seats;
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
        for seat in 0..self.seats {
            self.balance(seat);
        }
    }

    /// Rank and index of the shard that `from` hands over to `to`: of the rank that `to` lacks
    /// most, the shard that best evens out the pairs of owner and first replica.
    fn choose(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        let mut ranks: [usize; COPIES_MAX] = std::array::from_fn(|rank| rank);
        let held = |seat: usize, rank: usize| self.held[seat][rank].len() as isize;
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
            .filter(|(_, shard)| !holders(shard).contains(&(to as Seat)));
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
        holders[rank] = to as Seat;
        self.followers.add(holders, self.copies);
        self.held[to][rank].push(shard);
        self.totals[from] -= 1;
        self.totals[to] += 1;
    }

    /// Swaps ranks until the numbers of shards of each rank on `seat` differ by at most one. The
    /// counts of every other slot stay or become more even.
    fn balance(&mut self, seat: usize) {
        loop {
            let count = |rank: &usize| self.held[seat][*rank].len();
            let most = (0..self.copies).max_by_key(count);
            let least = (0..self.copies).min_by_key(count);
            let (Some(most), Some(least)) = (most, least) else {
                return;
            };
            if self.held[seat][most].len() < self.held[seat][least].len() + 2
                || !self.swap_along(seat, most, least)
            {
                return;
            }
        }
    }

    /// Swaps two ranks along the shortest chain of shards from `seat` to a slot that has too few of
    /// rank `most`. There is one: the slots that the chains reach hold at least as many shards of
    /// rank `least` as of rank `most`, and `seat` holds fewer.
    fn swap_along(&mut self, seat: usize, most: usize, least: usize) -> bool {
        let mut came: Vec<Option<u16>> = vec![None; self.seats];
        let mut queue = VecDeque::from([seat]);
        while let Some(current) = queue.pop_front() {
            for shard in &self.held[current][most] {
                let next = usize::from(self.holders[usize::from(*shard)][least]);
                if next == seat || came[next].is_some() {
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
        let mut seat = end;
        while let Some(shard) = came[seat] {
            let holders = &mut self.holders[usize::from(shard)];
            let previous = usize::from(holders[most]);
            self.followers.remove(holders, self.copies);
            holders.swap(most, least);
            self.followers.add(holders, self.copies);
            self.shift(previous, shard, most, least);
            self.shift(seat, shard, least, most);
            seat = previous;
        }
    }

    fn shift(&mut self, seat: usize, shard: u16, from: usize, to: usize) {
        let held = &mut self.held[seat];
        held[from].retain(|other| *other != shard);
        held[to].push(shard);
    }
}

/// Holders of `shard` if every slot holds every shard: the orders of the slots one after the other,
/// so that each slot has each rank equally often.
fn everywhere(shard: usize, seats: usize) -> [Seat; COPIES_MAX] {
    let mut rest: Vec<Seat> = (1..seats as Seat).collect();
    let mut number = shard / seats;
    let mut order = vec![0];
    while !rest.is_empty() {
        order.push(rest.remove(number % rest.len()));
        number /= rest.len() + 1;
    }
    order.rotate_left(shard % seats);
    order.resize(COPIES_MAX, 0);
    std::array::from_fn(|rank| order[rank])
}

/// Number of shards of each owner that have each slot as their first replica, which acts for the
/// owner if it dies.
struct Followers {
    seats: usize,
    counts: Vec<u16>,
}

impl Followers {
    fn new(seats: usize) -> Self {
        Self {
            seats,
            counts: vec![0; seats * seats],
        }
    }

    #[cfg(test)]
    fn with_one_seat_more(&self) -> Self {
        let mut next = Self::new(self.seats + 1);
        for owner in 0..self.seats {
            let row = owner * self.seats;
            let next_row = owner * next.seats;
            next.counts[next_row..next_row + self.seats]
                .copy_from_slice(&self.counts[row..row + self.seats]);
        }
        next
    }

    fn add(&mut self, holders: &[Seat; COPIES_MAX], copies: usize) {
        if copies > 1 {
            self.counts[usize::from(holders[0]) * self.seats + usize::from(holders[1])] += 1;
        }
    }

    fn remove(&mut self, holders: &[Seat; COPIES_MAX], copies: usize) {
        if copies > 1 {
            self.counts[usize::from(holders[0]) * self.seats + usize::from(holders[1])] -= 1;
        }
    }

    fn count(&self, owner: usize, follower: usize) -> i32 {
        i32::from(self.counts[owner * self.seats + follower])
    }

    /// Count of the owner-replica pair that `to` would form in place of `from`, minus the count of
    /// the pair it breaks; the less the better.
    fn gain(&self, holders: &[Seat], rank: usize, from: usize, to: usize) -> i32 {
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
