//! The order of the next view, as a leader proposes it.

use super::{Rates, order_by_rate, score};
use crate::ident::NodeId;
use std::collections::BTreeSet;

/// The order for the ascending `members` of the next view, given the previously decided one; empty
/// for ascending ids.
///
/// The order stays, without members that left and with new ones at the end, unless another one is
/// clearly better: gossip waits a fifth less, or no more while all links together take a fifth
/// less. So noise in the rates does not shuffle the graph each round. The previously decided order
/// is the only state, so any leader with the same rates proposes the same.
#[must_use]
pub fn next_order(before: &[NodeId], members: &[NodeId], rates: &Rates) -> Vec<NodeId> {
    let kept = carried_over(before, members);
    let new = order_by_rate(&kept, rates);
    let order = if score(&new, rates).is_clearly_below(score(&kept, rates)) {
        new
    } else {
        kept
    };
    if order == members { Vec::new() } else { order }
}

/// The previous order of the nodes that are members, followed by the other members.
pub(super) fn carried_over(before: &[NodeId], members: &[NodeId]) -> Vec<NodeId> {
    let mut placed = BTreeSet::new();
    let is_member = |id: &NodeId| members.binary_search(id).is_ok();
    // Also for an empty previous order: members that are not in it follow by ascending id.
    before
        .iter()
        .copied()
        .filter(is_member)
        .chain(members.iter().copied())
        .filter(|id| placed.insert(*id))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Rate;

    fn ids<const N: usize>(ids: [u64; N]) -> Vec<NodeId> {
        ids.map(NodeId).into()
    }

    /// Two sites: ids up to 3, and those above; `slow` kilobytes per second between them.
    fn sites(members: &[NodeId], slow: u32) -> Rates {
        let rate = |from: &NodeId, to: &NodeId| Rate {
            to: *to,
            kilobytes: if (from.0 <= 3) == (to.0 <= 3) {
                1_000_000
            } else {
                slow
            },
        };
        members
            .iter()
            .map(|from| (*from, members.iter().map(|to| rate(from, to)).collect()))
            .collect()
    }

    #[test]
    fn a_clearly_better_order_replaces_the_one_before_and_then_stays() {
        let members = ids([1, 2, 3, 4, 5, 6]);
        let rates = sites(&members, 1000);
        let order = next_order(&[], &members, &rates);
        assert_eq!(order, ids([1, 4, 3, 6, 2, 5]));
        assert_eq!(next_order(&order, &members, &rates), order);
        // An order that is as good, and no known rates.
        let other = ids([5, 3, 4, 1, 6, 2]);
        assert_eq!(next_order(&other, &members, &rates), other);
        assert_eq!(next_order(&other, &members, &Rates::new()), other);
        // A little better is not clearly better.
        assert_eq!(next_order(&[], &members, &sites(&members, 950_000)), []);
        assert_eq!(
            next_order(&members, &members, &sites(&members, 950_000)),
            []
        );
    }

    #[test]
    fn who_left_is_left_out_and_who_is_new_is_last() {
        let rates = sites(&ids([1, 2, 3, 4, 5, 6]), 1000);
        let before = ids([1, 4, 2, 5, 3, 6]);
        assert_eq!(
            next_order(&before, &ids([1, 2, 4, 5, 6]), &rates),
            ids([1, 4, 2, 5, 6])
        );
        assert_eq!(
            next_order(&before, &ids([0, 1, 2, 3, 4, 5, 6]), &rates),
            ids([1, 4, 2, 5, 3, 6, 0])
        );
        // Members without a rate are placed so that the others' links stay fast.
        let members = ids([0, 1, 2, 3, 4, 5, 6, 7]);
        let order = next_order(&[], &members, &rates);
        assert!(
            score(&order, &rates).slowest < score(&members, &rates).slowest,
            "{order:?}"
        );
    }

    #[test]
    fn whatever_was_before_the_order_names_every_member_once() {
        let members = ids([1, 2, 3, 4, 5, 6]);
        for before in [
            ids([]),
            ids([9, 9, 8]),
            ids([6, 6, 6, 6]),
            ids([7, 3, 3, 1]),
            ids([6, 5, 4, 3, 2, 1, 1]),
        ] {
            for rates in [Rates::new(), sites(&members, 1000)] {
                let mut order = next_order(&before, &members, &rates);
                order.sort_unstable();
                assert!(order.is_empty() || order == members, "{before:?}");
            }
        }
        assert_eq!(next_order(&members, &[], &sites(&members, 1)), []);
    }
}
