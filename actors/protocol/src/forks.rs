//! Ranking of histories: which of two histories of one bootstrap continues when they meet.
//!
//! A history forks where a group continues without a quorum. It is identified by its forks since
//! the bootstrap, each fixed by the fork's first entry. So two nodes that compare two histories at
//! different times agree, and the order has no cycles.
//!
//! ```text
//!   bootstrap ──1──2──3──┬──4──5──▶  kept its quorum: outranks forks of rounds that it decided
//!                        ├──4'──5'─▶ forked at round 4 with two contributors
//!                        └──4"──▶    forked at round 4 with one: outranked
//! ```
//! A node in the history before a fork that has decided no more than the fork began with is only
//! behind: the fork is the continuation of its history.

use crate::ident::{Lineage, Round};
use serde::{Deserialize, Serialize};
use std::cmp::{Ordering, Reverse};

/// Maximum number of forks of a history. After that it forks no more and waits for a quorum.
pub const FORKS_MAX: usize = 256;

/// A fork: where a history split from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fork {
    /// The first round that it decided without a quorum of the previous voters.
    pub round: Round,
    /// Number of nodes that contributed to that round.
    pub contributors: u32,
    /// The lineage from there on.
    pub lineage: Lineage,
}

/// Compares histories of one bootstrap, each given by its forks and the round that it works
/// towards. The greater one continues.
#[must_use]
pub fn rank(one: (&[Fork], Round), other: (&[Fork], Round)) -> Ordering {
    let ours = one.0;
    let theirs = other.0;
    let shared = ours
        .iter()
        .zip(theirs)
        .take_while(|(ours, theirs)| ours == theirs)
        .count();
    match (ours.get(shared), theirs.get(shared)) {
        (None, None) => one.1.cmp(&other.1),
        (None, Some(fork)) => kept_on(one.1, fork),
        (Some(fork), None) => kept_on(other.1, fork).reverse(),
        (Some(ours), Some(theirs)) => {
            let key = |fork: &Fork| (fork.round, fork.contributors, Reverse(fork.lineage));
            key(ours).cmp(&key(theirs))
        }
    }
}

/// Compares a history that works towards `round` with a fork of it: greater if it decided the
/// fork's round itself.
fn kept_on(round: Round, fork: &Fork) -> Ordering {
    if round > fork.round {
        Ordering::Greater
    } else {
        Ordering::Less
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fork(round: u64, contributors: u32, lineage: u128) -> Fork {
        Fork {
            round: Round(round),
            contributors,
            lineage: Lineage(lineage),
        }
    }

    fn best<'a>(histories: &[(&'a [Fork], u64)]) -> (&'a [Fork], u64) {
        let ranked = |one: &&(&[Fork], u64), other: &&(&[Fork], u64)| {
            rank((one.0, Round(one.1)), (other.0, Round(other.1)))
        };
        *histories.iter().max_by(ranked).unwrap_or(&(&[], 0))
    }

    #[test]
    fn a_history_that_decided_the_round_outranks_its_fork_and_one_that_did_not_is_behind_it() {
        let forked = [fork(4, 1, 9)];
        assert_eq!(best(&[(&[], 5), (&forked, 900)]), (&[][..], 5));
        assert_eq!(best(&[(&[], 4), (&forked, 5)]), (&forked[..], 5));
        assert_eq!(best(&[(&forked, 5), (&forked, 7)]), (&forked[..], 7));
    }

    #[test]
    fn of_two_forks_the_later_one_goes_on_then_the_larger_one_and_what_follows_does_not_count() {
        let early = [fork(4, 900, 1)];
        let late = [fork(5, 1, 2)];
        assert_eq!(best(&[(&early, 700), (&late, 6)]).0, late);
        let one = [fork(4, 1, 1)];
        let many = [fork(4, 999, 2)];
        assert_eq!(best(&[(&one, 5_000), (&many, 6)]).0, many);
        let low = [fork(4, 2, 1)];
        let high = [fork(4, 2, 2)];
        assert_eq!(best(&[(&low, 5), (&high, 90)]).0, low);
    }

    /// Every history with up to two forks out of a few, at every round that it can be at.
    fn histories() -> Vec<(Vec<Fork>, u64)> {
        let mut paths = vec![Vec::new()];
        for round in 1..4 {
            for (contributors, lineage) in [(1, 5), (2, 6), (2, 7)] {
                let first = fork(round, contributors, lineage + 10 * u128::from(round));
                paths.push(vec![first]);
                for later in round + 1..5 {
                    paths.push(vec![
                        first,
                        fork(later, 1, 100 * first.lineage.0 + u128::from(later)),
                    ]);
                    paths.push(vec![
                        first,
                        fork(later, 2, 100 * first.lineage.0 + u128::from(later) + 50),
                    ]);
                }
            }
        }
        let at = |path: Vec<Fork>| {
            let from = path.last().map_or(1, |fork: &Fork| fork.round.0 + 1);
            (from..6).map(move |round| (path.clone(), round))
        };
        paths.into_iter().flat_map(at).collect()
    }

    #[test]
    fn the_order_is_total_and_has_no_circles() {
        let all = histories();
        let compare = |one: &(Vec<Fork>, u64), other: &(Vec<Fork>, u64)| {
            rank((&one.0, Round(one.1)), (&other.0, Round(other.1)))
        };
        for one in &all {
            for other in &all {
                assert_eq!(
                    compare(one, other),
                    compare(other, one).reverse(),
                    "{one:?} {other:?}"
                );
                assert_eq!(
                    compare(one, other) == Ordering::Equal,
                    one == other,
                    "{one:?} {other:?}"
                );
                for third in &all {
                    if compare(one, other) == Ordering::Less
                        && compare(other, third) == Ordering::Less
                    {
                        assert_eq!(
                            compare(one, third),
                            Ordering::Less,
                            "{one:?} {other:?} {third:?}"
                        );
                    }
                }
            }
        }
    }
}
