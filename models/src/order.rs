//! Which of two histories of one bootstrap wins where they meet: the order in isolation, over all
//! small histories.

use std::cmp::Reverse;

/// A fork: its first round, the contributors to that round, and the id of the history from there
/// on.
pub type Fork = (u8, u8, u8);

/// A history: its forks since the bootstrap, and the round that it works on.
pub type Path = (Vec<Fork>, u8);

/// Whether `one` wins: it kept the quorum where they diverge, otherwise it forked later, otherwise
/// it had more contributors, otherwise it has the lower id. A history that continued without
/// forking and has not decided the fork's first round is only behind.
#[must_use]
pub fn goes_on(one: &Path, other: &Path) -> bool {
    let shared = one
        .0
        .iter()
        .zip(&other.0)
        .take_while(|(ours, theirs)| ours == theirs)
        .count();
    match (one.0.get(shared), other.0.get(shared)) {
        (None, None) => one.1 > other.1,
        (None, Some(fork)) => one.1 > fork.0,
        (Some(fork), None) => other.1 <= fork.0,
        (Some(ours), Some(theirs)) => {
            (ours.0, ours.1, Reverse(ours.2)) > (theirs.0, theirs.1, Reverse(theirs.2))
        }
    }
}

/// Broken order: the history with the fewest forks wins, then the one with more contributors,
/// unless it is only behind.
#[must_use]
pub fn fewest_forks_first(one: &Path, other: &Path) -> bool {
    if one.0.starts_with(&other.0) || other.0.starts_with(&one.0) {
        return goes_on(one, other);
    }
    let key = |path: &Path| {
        (
            Reverse(path.0.len()),
            path.0.last().map(|fork| (fork.1, Reverse(fork.2))),
        )
    };
    key(one) > key(other)
}

/// All histories with up to two forks out of a few, at every round that they can be at.
#[must_use]
pub fn paths() -> Vec<Path> {
    let mut forks: Vec<Vec<Fork>> = vec![Vec::new()];
    for round in 1..4 {
        for contributors in 1..3 {
            let first = (round, contributors, 10 * round + contributors);
            forks.push(vec![first]);
            forks.extend((round + 1..5).map(|later| vec![first, (later, 1, 4 * first.2 + later)]));
        }
    }
    let at = |path: Vec<Fork>| {
        let from = path.last().map_or(1, |fork| fork.0 + 1);
        (from..6).map(move |round| (path.clone(), round))
    };
    forks.into_iter().flat_map(at).collect()
}

/// Two histories that an order does not distinguish, or three that win over each other in a circle.
#[must_use]
pub fn circle(order: impl Fn(&Path, &Path) -> bool) -> Option<Vec<Path>> {
    let all = paths();
    for one in &all {
        for other in all.iter().filter(|other| *other != one) {
            if order(one, other) == order(other, one) {
                return Some(vec![one.clone(), other.clone()]);
            }
            let closes =
                |third: &&Path| order(one, other) && order(other, third) && order(third, one);
            if let Some(third) = all.iter().find(closes) {
                return Some(vec![one.clone(), other.clone(), third.clone()]);
            }
        }
    }
    None
}
