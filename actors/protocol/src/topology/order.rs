//! Order of the members, from measured rates, in which gossip waits as little as possible for slow
//! links.

use super::links::{Links, Rates, Score};
use crate::ident::NodeId;
use std::collections::BTreeSet;

/// Maximum number of links that the swaps examine.
const LINKS_MAX: usize = 1 << 19;

/// The order in which one cycle of the exponential graph (one peer a step) waits least: compared
/// first by the slowest link of each turn, summed over the turns, then by the time of all links.
/// The work is bounded; the result is the same on all nodes with the same rates, never worse than
/// `members` in the given order, and begins with the first of them. Without rates, and among
/// equals, the given order stays.
///
/// Nodes of one site are first put in a row: a greedy chain of fastest links. But in a row every
/// turn has a link that leaves a site, and waits for it. So the row is halved again and again, and
/// the halves are interleaved: then only the shortest hops join two sites. The best of these orders
/// is improved by swaps. Number of turns of a cycle that wait for a link between sites, for sites
/// of equal size:
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
/// lowers the number of links between sites.
#[must_use]
pub fn order_by_rate(members: &[NodeId], rates: &Rates) -> Vec<NodeId> {
    let links = Links::new(members, rates);
    // On three members every order has the same links in its turns.
    if members.len() <= 3 || links.known.iter().all(|known| known.is_empty()) {
        return members.to_vec();
    }
    let given: Vec<usize> = (0..members.len()).collect();
    let row = chain(&links);
    let dealt = interleaved(&row);
    // The first of equals wins.
    let best = [given, row, dealt]
        .into_iter()
        .min_by_key(|order| links.score(order));
    let mut order = best.unwrap_or_default();
    improve(&mut order, &links);
    // The graph looks the same from every position.
    let first = order.iter().position(|place| *place == 0).unwrap_or(0);
    order.rotate_left(first);
    order.into_iter().map(|place| members[place]).collect()
}

/// The waiting time of a cycle of the exponential graph over `order`; for comparing orders of the
/// same members.
#[must_use]
pub fn score(order: &[NodeId], rates: &Rates) -> Score {
    let places: Vec<usize> = (0..order.len()).collect();
    Links::new(order, rates).score(&places)
}

/// Greedy chain: starts at the first member with a known link and always goes on to the member that
/// is reached fastest. Members without known links come last.
fn chain(links: &Links) -> Vec<usize> {
    let (unknown, known): (Vec<usize>, Vec<usize>) =
        (0..links.known.len()).partition(|place| links.known[*place].is_empty());
    let mut left = BTreeSet::from_iter(known);
    let mut row = Vec::new();
    let mut next = left.first().copied();
    while let Some(at) = next {
        left.remove(&at);
        row.push(at);
        let known = &links.known[at];
        let measured = known
            .iter()
            .filter(|(to, _)| left.contains(to))
            .map(|(to, time)| (*time, *to));
        let unmeasured = left
            .iter()
            .find(|to| !known.contains_key(to))
            .map(|to| (links.unknown, *to));
        next = measured.chain(unmeasured).min().map(|(_, to)| to);
    }
    row.extend(unknown);
    row
}

/// Cuts the row in two halves, orders each in the same way, and takes one member of each in turn:
/// an even hop stays in its half, a multiple of four in its quarter.
fn interleaved(row: &[usize]) -> Vec<usize> {
    if row.len() <= 2 {
        return row.to_vec();
    }
    let (first, second) = row.split_at(row.len().div_ceil(2));
    let second = interleaved(second);
    let mut order = Vec::with_capacity(row.len());
    for (place, member) in interleaved(first).into_iter().enumerate() {
        order.push(member);
        order.extend(second.get(place));
    }
    order
}

/// Swaps pairs of members while that lowers the score, within bounded work.
fn improve(order: &mut [usize], links: &Links) {
    let size = order.len();
    let links_of_score = size * size.ilog2() as usize;
    let mut tries = LINKS_MAX / links_of_score;
    let mut best = links.score(order);
    let mut improved = true;
    while improved {
        improved = false;
        for first in 0..size {
            for second in first + 1..size {
                if tries == 0 {
                    return;
                }
                tries -= 1;
                order.swap(first, second);
                let score = links.score(order);
                if score < best {
                    best = score;
                    improved = true;
                } else {
                    order.swap(first, second);
                }
            }
        }
    }
}
