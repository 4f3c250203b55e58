//! Order of the members, from measured rates, in which gossip waits as little as possible for slow
//! links.

use super::hops;
use super::links::{Links, Rates, Time};
use super::objective::{Placement, Score};
use crate::ident::NodeId;

/// Maximum number of pairs that the improvement of the chain examines: a full pass over 4,096
/// members, many over fewer.
const PAIRS_MAX: usize = 1 << 23;

/// Maximum number of passes of that improvement.
const PASSES_MAX: usize = 32;

/// Every number of stretches up to this one is tried, above it only powers of two.
const STRETCHES_MAX: usize = 16;

/// Maximum number of links that the swaps examine.
const LINKS_MAX: usize = 1 << 19;

/// The order in which one cycle of the exponential graph (one peer a step) waits least: compared
/// first by the slowest link of each turn, summed over the turns, then by the time of all links.
/// The work is bounded; the result is the same on all nodes with the same rates, never worse than
/// `members` in the given order, and begins with the first of them. Without rates, and among
/// equals, the given order stays.
///
/// Nodes of one site are first put in a row (a chain of fastest links, improved by 2-opt). But in a
/// row every turn has a link that leaves a site, and waits for it. So the row is cut into equal
/// stretches that are dealt in turn. This pays if the stretches are sites, or sites fill whole
/// stretches: with `s` of them, only hops not divisible by `s` join two stretches. The best of all
/// these orders is improved by swaps. Number of turns of a cycle that wait for a link between
/// sites, for sites of equal size:
///
/// | members | sites | in a row | as ordered here |
/// |---|---|---|---|
/// | 6 | 2 | 3 of 3 | 1 |
/// | 8 | 2 | 3 of 3 | 1 |
/// | 8 | 4 | 3 of 3 | 2 |
/// | 12 | 2 | 4 of 4 | 1 |
/// | 12 | 3 | 4 of 4 | 4: no hop keeps inside three sites |
/// | 12 | 4 | 4 of 4 | 2 |
/// | 16 | 2 | 4 of 4 | 1 |
/// | 16 | 4 | 4 of 4 | 2 |
///
/// If every turn has to wait, as with three sites or with sites of different sizes, the order
/// minimizes the number of links between sites.
#[must_use]
pub fn order_by_rate(members: &[NodeId], rates: &Rates) -> Vec<NodeId> {
    let links = Links::new(members, rates);
    // On three members every order has the same links in its turns.
    if members.len() <= 3 || links.none_known() {
        return members.to_vec();
    }
    let hops = hops(members.len(), 1);
    let mut best = Placement::new(&links, (0..members.len()).collect(), &hops);
    for order in candidates(row_of_sites(&links)) {
        let other = Placement::new(&links, order, &hops);
        if other.score() < best.score() {
            best = other;
        }
    }
    best.improve(LINKS_MAX);
    let mut order = best.into_order();
    // The graph looks the same from every position.
    let first = order.iter().position(|place| *place == 0).unwrap_or(0);
    order.rotate_left(first);
    order.into_iter().map(|place| members[place]).collect()
}

/// The waiting time of a cycle of the exponential graph over `order`; for comparing orders of the
/// same members.
#[must_use]
pub fn score(order: &[NodeId], rates: &Rates) -> Score {
    let links = Links::new(order, rates);
    Placement::new(&links, (0..order.len()).collect(), &hops(order.len(), 1)).score()
}

/// A closed tour of fast links, cut at its slowest link; members without known links come after the
/// others.
fn row_of_sites(links: &Links) -> Vec<usize> {
    let mut tour = chain(links);
    improve(&mut tour, links);
    let size = tour.len();
    let edge = |place: &usize| links.time(tour[*place], tour[(place + 1) % size]);
    // The last one of equals, so that a tour whose closing link is among the slowest stays
    // unchanged.
    let slowest = (0..size).max_by_key(edge).unwrap_or(0);
    tour.rotate_left((slowest + 1).checked_rem(size).unwrap_or(0));
    tour.extend((0..links.size()).filter(|place| links.is_unknown(*place)));
    tour
}

/// Candidate orders: the row itself, and its stretches dealt in turn.
fn candidates(row: Vec<usize>) -> impl Iterator<Item = Vec<usize>> {
    let size = row.len();
    let numbers =
        (2..=size).filter(|stretches| *stretches <= STRETCHES_MAX || stretches.is_power_of_two());
    // Sites of sites: stretches that are adjacent in the row belong together, so the small hops
    // should lead away from them.
    let turned = numbers
        .clone()
        .filter(|stretches| stretches.is_power_of_two() && *stretches > 2);
    let turned = turned.map(|stretches| {
        (0..stretches)
            .map(|stretch| bits_reversed(stretch, stretches))
            .collect::<Vec<_>>()
    });
    let sequences = numbers
        .map(|stretches| (0..stretches).collect())
        .chain(turned);
    let dealt: Vec<_> = sequences.map(|sequence| dealt(&row, &sequence)).collect();
    std::iter::once(row).chain(dealt)
}

/// Cuts the row into as many stretches as `sequence` has entries, as equal as possible, and takes
/// one member of each in that sequence, repeatedly until all are taken.
fn dealt(row: &[usize], sequence: &[usize]) -> Vec<usize> {
    let stretches = sequence.len();
    let start = |stretch: usize| stretch * row.len() / stretches;
    let longest = row.len().div_ceil(stretches);
    let nth = |nth: usize| {
        sequence
            .iter()
            .filter_map(move |stretch| row[start(*stretch)..start(stretch + 1)].get(nth))
    };
    (0..longest).flat_map(nth).copied().collect()
}

/// Reverses the bits of `number` below `size`, a power of two.
fn bits_reversed(number: usize, size: usize) -> usize {
    number.reverse_bits() >> (size.leading_zeros() + 1)
}

/// Greedy chain: starts at the first member with a known link and always goes on to the member that
/// is reached fastest.
fn chain(links: &Links) -> Vec<usize> {
    let mut row = links.fresh_row();
    let mut left: Vec<usize> = (0..links.size())
        .filter(|place| !links.is_unknown(*place))
        .collect();
    if left.is_empty() {
        return left;
    }
    let mut at = left.remove(0);
    let mut tour = vec![at];
    while let Some(next) = links.on_row(&mut row, at, |row| {
        (0..left.len()).min_by_key(|place| row[left[*place]])
    }) {
        // Not `swap_remove`: among equals the first one is next.
        at = left.remove(next);
        tour.push(at);
    }
    tour
}

/// 2-opt: exchanges every edge of the closed tour with the best other edge, until a pass finds no
/// improvement or the bound is reached. The first member stays first.
fn improve(tour: &mut [usize], links: &Links) {
    let size = tour.len();
    let mut from_here = links.fresh_row();
    let mut from_next = links.fresh_row();
    let mut edges: Vec<Time> = (0..size)
        .map(|i| links.on_row(&mut from_here, tour[i], |row| row[tour[(i + 1) % size]]))
        .collect();
    let mut pairs = 0;
    for _ in 0..PASSES_MAX {
        let mut improved = false;
        for i in 0..size.saturating_sub(2) {
            pairs += size - i;
            if pairs > PAIRS_MAX + size * 2 {
                return;
            }
            let here = tour[i];
            let next = tour[i + 1];
            let best = links.on_row(&mut from_here, here, |here| {
                links.on_row(&mut from_next, next, |next| {
                    best_exchange(tour, &edges, i, here, next)
                })
            });
            let Some((j, first, last)) = best else {
                continue;
            };
            tour[i + 1..=j].reverse();
            edges[i + 1..j].reverse();
            edges[i] = first;
            edges[j] = last;
            improved = true;
        }
        if !improved {
            return;
        }
    }
}

/// The edge `j` whose exchange with edge `i` gains most, with the times of the two edges that
/// replace them; `None` if no exchange is shorter.
fn best_exchange(
    tour: &[usize],
    edges: &[Time],
    i: usize,
    here: &[Time],
    next: &[Time],
) -> Option<(usize, Time, Time)> {
    let exchanged = |j: usize| (j, here[tour[j]], next[tour[(j + 1) % tour.len()]]);
    let gain =
        |(j, first, last): (usize, Time, Time)| (edges[i] + edges[j]).saturating_sub(first + last);
    // The last one of equals wins in `max_by_key`: in descending order, that is the nearest.
    (i + 2..tour.len())
        .rev()
        .map(exchanged)
        .max_by_key(|exchange| gain(*exchange))
        .filter(|exchange| gain(*exchange) > 0)
}
