//! An order of the members in which neighbours have fast links, from measured rates.

use crate::ident::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How fast one node's messages reached a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// The peer.
    pub to: NodeId,
    /// In 1,000 bytes a second; 0 counts as 1.
    pub kilobytes: u32,
}

/// Most rates that a node tells: a graph has few edges at a node, and the leader keeps those of everybody.
pub const RATES_MAX: usize = 64;

/// What each node measured.
pub type Rates = BTreeMap<NodeId, Vec<Rate>>;

/// Nanoseconds that a megabyte takes, so that sums are whole numbers and the same everywhere.
type Time = u64;

/// Pairs that the improvement looks at, at most: a full pass over 4,096 members, many over fewer.
const PAIRS_MAX: usize = 1 << 23;

/// Passes of the improvement, at most.
const PASSES_MAX: usize = 32;

/// Puts fast links between neighbours: starting with the first member, a chain to the fastest next one, then 2-opt (a stretch is
/// turned around where that shortens the closed tour), bounded in work. A link is as fast as its slower direction; one that
/// nobody measured takes the mean of the times measured, and of equals the one that `members` has first is
/// next. So without rates the order stays as it is.
///
/// What this makes fast in [`super::BandwidthAware`] are the edges of small hops: nodes of one site stand in a row, so hop 1
/// leaves a site once and enters it once, whatever its size, and hop `h` at most `h` times each. The large hops join the sites.
/// It does not make the fewest edges between sites over a whole cycle: where the number of sites is a power of two, dealing their
/// nodes in turn would, as then only the hops below that number cross (two sites of four: 2 + 4 + 8 edges in a row, 8 + 0 + 0
/// dealt); with three sites it would make every edge cross.
#[must_use]
pub fn order_by_rate(members: &[NodeId], rates: &Rates) -> Vec<NodeId> {
    let links = Links::new(members, rates);
    // Every closed tour of three is the same one.
    if members.len() <= 3 || links.none_known() {
        return members.to_vec();
    }
    let mut tour = chain(&links);
    improve(&mut tour, &links);
    tour.into_iter().map(|rank| members[rank]).collect()
}

/// The sum of the link times between neighbours of `order`, around; to compare orders of the same members by.
#[must_use]
pub fn link_time(order: &[NodeId], rates: &Rates) -> u64 {
    let links = Links::new(order, rates);
    let mut row = links.fresh_row();
    (0..order.len()).map(|rank| links.on_row(&mut row, rank, |row| row[(rank + 1) % order.len()])).fold(0, Time::saturating_add)
}

/// What is known of the links between members, by their places in the list given.
struct Links {
    /// Ascending, each peer once.
    known: Vec<Vec<(usize, Time)>>,
    unknown: Time,
}

impl Links {
    fn new(members: &[NodeId], rates: &Rates) -> Self {
        let places: BTreeMap<_, _> = members.iter().enumerate().map(|(place, id)| (*id, place)).collect();
        let mut known = vec![Vec::new(); members.len()];
        for (from, measured) in rates {
            let Some(from) = places.get(from) else { continue };
            for rate in measured {
                let Some(to) = places.get(&rate.to).filter(|to| *to != from) else { continue };
                let time = 1_000_000_000_000 / Time::from(rate.kilobytes.max(1));
                known[*from].push((*to, time));
                known[*to].push((*from, time));
            }
        }
        for row in &mut known {
            // The slower one of two directions comes first and stays.
            row.sort_unstable_by_key(|(to, time)| (*to, std::cmp::Reverse(*time)));
            row.dedup_by_key(|(to, _)| *to);
        }
        let times = || known.iter().flat_map(|row| row.iter().map(|(_, time)| *time));
        let unknown = times().fold(0, Time::saturating_add) / times().count().max(1) as Time;
        Self { known, unknown }
    }

    fn none_known(&self) -> bool {
        self.known.iter().all(Vec::is_empty)
    }

    /// A row of times as they are where nothing is known.
    fn fresh_row(&self) -> Vec<Time> {
        vec![self.unknown; self.known.len()]
    }

    fn fill(&self, row: &mut [Time], of: usize) {
        for (to, time) in &self.known[of] {
            row[*to] = *time;
        }
    }

    fn clear(&self, row: &mut [Time], of: usize) {
        for (to, _) in &self.known[of] {
            row[*to] = self.unknown;
        }
    }

    /// What `look` makes of the times from `of` to everybody. `row` is fresh before and after.
    fn on_row<T>(&self, row: &mut [Time], of: usize, look: impl FnOnce(&[Time]) -> T) -> T {
        self.fill(row, of);
        let seen = look(row);
        self.clear(row, of);
        seen
    }
}

/// From the first member to whoever is reached fastest, and on from there.
fn chain(links: &Links) -> Vec<usize> {
    let mut row = links.fresh_row();
    let mut left: Vec<usize> = (1..links.known.len()).collect();
    let (mut tour, mut at) = (vec![0], 0);
    while let Some(next) = links.on_row(&mut row, at, |row| (0..left.len()).min_by_key(|place| row[left[*place]])) {
        // Not `swap_remove`: of equals the first one is next.
        at = left.remove(next);
        tour.push(at);
    }
    tour
}

/// 2-opt: for every edge of the closed tour the best other edge to exchange it with, until a pass finds nothing or the bound is
/// reached. The first member stays first.
fn improve(tour: &mut [usize], links: &Links) {
    let size = tour.len();
    let (mut from_here, mut from_next) = (links.fresh_row(), links.fresh_row());
    let mut edges: Vec<Time> = (0..size).map(|i| links.on_row(&mut from_here, tour[i], |row| row[tour[(i + 1) % size]])).collect();
    let mut pairs = 0;
    for _ in 0..PASSES_MAX {
        let mut improved = false;
        for i in 0..size - 2 {
            pairs += size - i;
            if pairs > PAIRS_MAX + size * 2 {
                return;
            }
            let (here, next) = (tour[i], tour[i + 1]);
            let best = links
                .on_row(&mut from_here, here, |here| links.on_row(&mut from_next, next, |next| best_exchange(tour, &edges, i, here, next)));
            let Some((j, first, last)) = best else { continue };
            tour[i + 1..=j].reverse();
            edges[i + 1..j].reverse();
            (edges[i], edges[j]) = (first, last);
            improved = true;
        }
        if !improved {
            return;
        }
    }
}

/// The edge `j` that is best exchanged with edge `i`, with the times of the two edges that take their places, if that is shorter.
fn best_exchange(tour: &[usize], edges: &[Time], i: usize, here: &[Time], next: &[Time]) -> Option<(usize, Time, Time)> {
    let exchanged = |j: usize| (j, here[tour[j]], next[tour[(j + 1) % tour.len()]]);
    let gain = |(j, first, last): (usize, Time, Time)| (edges[i] + edges[j]).saturating_sub(first + last);
    // Of equals the last one wins in `max_by_key`: going down, that is the nearest.
    (i + 2..tour.len()).rev().map(exchanged).max_by_key(|exchange| gain(*exchange)).filter(|exchange| gain(*exchange) > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::topology::hops;

    fn ids(ids: impl IntoIterator<Item = u64>) -> Vec<NodeId> {
        ids.into_iter().map(NodeId).collect()
    }

    /// Rates between all members: fast within a site, slow between sites.
    fn sites(members: &[NodeId], site: impl Fn(NodeId) -> u64) -> Rates {
        let rate = |from: NodeId, to: NodeId| if site(from) == site(to) { 1_000_000 } else { 10_000 };
        let measured =
            |from: NodeId| members.iter().filter(|to| **to != from).map(|to| Rate { to: *to, kilobytes: rate(from, *to) }).collect();
        members.iter().map(|from| (*from, measured(*from))).collect()
    }

    /// Directed edges of a hop that cross between sites.
    fn crossings(order: &[NodeId], hop: usize, site: impl Fn(NodeId) -> u64) -> usize {
        (0..order.len()).filter(|i| site(order[*i]) != site(order[(i + hop) % order.len()])).count()
    }

    #[test]
    fn sites_stand_in_a_row() {
        // Members, sites (they are dealt in turn, so that ascending ids are the worst order).
        for (members, number) in [(8, 2), (12, 3), (9, 3), (16, 4), (64, 2)] {
            let members = ids(0..members);
            let site = |id: NodeId| id.0 % number;
            let order = order_by_rate(&members, &sites(&members, site));
            assert_eq!(crossings(&members, 1, site), members.len());
            assert_eq!(crossings(&order, 1, site) as u64, number, "{order:?}");
            assert_eq!(order[0], members[0]);
            for hop in hops(members.len(), 1) {
                assert!(crossings(&order, hop, site) as u64 <= number * hop as u64, "hop {hop} of {order:?}");
            }
        }
    }

    #[test]
    fn two_sites_of_four() {
        let members = ids(1..=8);
        let site = |id: NodeId| id.0 % 2;
        let order = order_by_rate(&members, &sites(&members, site));
        assert_eq!(order, ids([1, 3, 5, 7, 2, 4, 6, 8]));
        let crossing: Vec<_> = hops(8, 1).into_iter().map(|hop| crossings(&order, hop, site)).collect();
        assert_eq!(crossing, [2, 4, 8]);
        let dealt: Vec<_> = hops(8, 1).into_iter().map(|hop| crossings(&members, hop, site)).collect();
        assert_eq!(dealt, [8, 0, 0]);
    }

    #[test]
    fn without_rates_the_order_stays() {
        let members = ids([4, 9, 1, 7, 3]);
        assert_eq!(order_by_rate(&members, &Rates::new()), members);
        let stranger = Rates::from([(NodeId(77), vec![Rate { to: NodeId(4), kilobytes: 5 }])]);
        assert_eq!(order_by_rate(&members, &stranger), members);
        let to_itself = Rates::from([(NodeId(4), vec![Rate { to: NodeId(4), kilobytes: 5 }])]);
        assert_eq!(order_by_rate(&members, &to_itself), members);
        assert_eq!(order_by_rate(&[], &Rates::new()), []);
    }

    #[test]
    fn equal_rates_change_nothing_and_one_slow_link_is_avoided() {
        let members = ids(0..7);
        let mut rates = sites(&members, |_| 0);
        assert_eq!(order_by_rate(&members, &rates), members);
        // Only 2 → 3 is slow, which makes the link slow.
        rates.get_mut(&NodeId(2)).into_iter().flatten().filter(|rate| rate.to == NodeId(3)).for_each(|rate| rate.kilobytes = 0);
        let order = order_by_rate(&members, &rates);
        let apart = |a: u64, b: u64| (0..7).all(|i| ![[a, b], [b, a]].contains(&[order[i].0, order[(i + 1) % 7].0]));
        assert!(apart(2, 3), "{order:?}");
    }

    #[test]
    fn few_known_links_are_enough_to_join_a_site() {
        // Only the edges of the exponential graph over ascending ids were measured; sites are even and odd ids.
        let members = ids(0..16);
        let site = |id: NodeId| id.0 % 2;
        let mut rates = sites(&members, site);
        for (from, measured) in &mut rates {
            measured.retain(|rate| [1, 2, 4, 8].contains(&((rate.to.0 + 16 - from.0) % 16)));
        }
        assert_eq!(crossings(&order_by_rate(&members, &rates), 1, site), 2);
    }

    #[test]
    fn it_is_a_permutation_never_worse_and_the_same_each_time() {
        let mut random = Random(7);
        for size in 0..40u64 {
            let members = ids((0..size).map(|i| i * 3 + 1));
            let rates: Rates = members
                .iter()
                .map(|from| (*from, members.iter().map(|to| Rate { to: *to, kilobytes: random.below(9_000) as u32 }).collect()))
                .collect();
            let order = order_by_rate(&members, &rates);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, members);
            assert!(link_time(&order, &rates) <= link_time(&members, &rates), "W={size}");
            assert_eq!(order, order_by_rate(&members, &rates));
        }
    }

    #[test]
    fn four_thousand_members_take_bounded_work() {
        let members = ids(0..crate::view::MEMBERS_MAX as u64);
        let size = members.len() as u64;
        let mut random = Random(3);
        let rates: Rates = members
            .iter()
            .map(|from| (*from, (0..12).map(|_| Rate { to: NodeId(random.below(size)), kilobytes: random.below(99_999) as u32 }).collect()))
            .collect();
        let order = order_by_rate(&members, &rates);
        assert!(link_time(&order, &rates) < link_time(&members, &rates));
    }
}
