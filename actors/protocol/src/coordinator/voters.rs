//! Voters of a round. Each entry names the members and the voters of the next round; usually they
//! are the same.
//!
//! - An excluded member stops being a voter too, so that a cluster which loses host after host
//!   continues. If fewer than [`VOTERS_KEPT`] voters would be left, excluded
//!   members that may still live stay voters. A vote needs no data.
//! - Voters are incarnations of nodes: a restarted process is not a voter until an entry makes it a
//!   member.
//! - An entry admits no more new voters than there are continuing ones, so the continuing ones,
//!   which include the tie-breaker, are a quorum of the next voters. Further joiners are members at
//!   once and vote one entry later.
//!
//! Two tests fail if a vote counts twice: `a_vote_counts_once` here, and
//! `a_vote_counts_once_and_only_under_its_term` in `coordinator/tests/promises.rs`.

use crate::ident::{Incarnation, NodeId};
use crate::view::{Member, View};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// While there are no more voters than this, an excluded member stays a voter unless its process is
/// known to have ended.
pub const VOTERS_KEPT: usize = 3;

/// A voting incarnation of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Voter {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

impl From<&Member> for Voter {
    fn from(member: &Member) -> Self {
        Self {
            node: member.id,
            incarnation: member.incarnation,
        }
    }
}

/// The voters of a round, ascending by node, each node once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Voters {
    voters: Vec<Voter>,
    tie_breaker: Option<NodeId>,
}

impl Voters {
    /// The given voters; half of them are a quorum if they include `tie_breaker`.
    #[must_use]
    pub fn new(mut voters: Vec<Voter>, tie_breaker: impl Into<Option<NodeId>>) -> Self {
        voters.sort_unstable();
        voters.dedup_by_key(|voter| voter.node);
        Self {
            voters,
            tie_breaker: tie_breaker.into(),
        }
    }

    /// The bootstrap members: more than half of them must vote for round 0. Half would decide a
    /// bootstrap that the other half calls void.
    #[must_use]
    pub fn of_bootstrap(view: &View) -> Self {
        Self {
            voters: view.members().iter().map(Voter::from).collect(),
            tie_breaker: None,
        }
    }

    /// Each voter, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &Voter> + Clone {
        self.voters.iter()
    }

    /// The ids, ascending.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.voters.iter().map(|voter| voter.node)
    }

    /// Number of voters.
    #[must_use]
    pub fn count(&self) -> usize {
        self.voters.len()
    }

    /// The voter with which half of the voters are a quorum, if there is one.
    #[must_use]
    pub fn tie_breaker(&self) -> Option<NodeId> {
        self.tie_breaker
    }

    /// The voting incarnation of `node`.
    #[must_use]
    pub fn of(&self, node: NodeId) -> Option<&Voter> {
        self.voters
            .binary_search_by_key(&node, |voter| voter.node)
            .ok()
            .map(|index| &self.voters[index])
    }

    /// Whether this incarnation of a node votes.
    #[must_use]
    pub fn contains(&self, voter: Voter) -> bool {
        self.of(voter.node) == Some(&voter)
    }

    /// Whether the voters in `group` may decide: more than half of all, or half with the
    /// tie-breaker. A voter that is named twice counts once.
    #[must_use]
    pub fn is_quorum(&self, group: impl IntoIterator<Item = NodeId>) -> bool {
        let voting: BTreeSet<NodeId> = group
            .into_iter()
            .filter(|node| self.of(*node).is_some())
            .collect();
        let twice = 2 * voting.len();
        let breaks_tie = self.tie_breaker.is_some_and(|node| voting.contains(&node));
        twice > self.voters.len() || (twice == self.voters.len() && breaks_tie)
    }
}

/// Votes that decided a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Votes {
    /// Nodes that voted for the outcome, ascending.
    pub accepted: Vec<NodeId>,
    /// The voters of the round.
    pub voters: Voters,
}

/// Difference between the voters and the members of the next round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NextVoters {
    /// Members that vote one entry later, ascending.
    pub waiting: Vec<NodeId>,
    /// Voters that are not members, ascending.
    pub retained: Vec<Voter>,
    /// Default leader of the next round, which also breaks ties: a member that votes.
    pub leader: NodeId,
}

/// The voters after an entry with the members of `next`. `ended` says whether an incarnation is
/// known to be over, or wants to be.
#[must_use]
pub fn next_voters(now: &Voters, next: &View, ended: impl Fn(&Voter) -> bool) -> NextVoters {
    let votes_now = |member: &&Member| now.contains(Voter::from(*member));
    let continuing = next.members().iter().filter(votes_now).count();
    let new: Vec<NodeId> = next
        .members()
        .iter()
        .filter(|member| !votes_now(member))
        .map(|member| member.id)
        .collect();
    // A new incarnation of a node proves that the earlier one is over.
    let left_out = |voter: &&Voter| !next.contains(voter.node) && !ended(voter);
    let kept = VOTERS_KEPT.saturating_sub(continuing + new.len().min(continuing));
    let retained: Vec<Voter> = now.iter().filter(left_out).take(kept).copied().collect();
    let remaining = continuing + retained.len();
    // If the last voters leave, the members that do not vote yet take over.
    let admitted = if remaining == 0 {
        new.len()
    } else {
        new.len().min(remaining)
    };
    let waiting = new.get(admitted..).unwrap_or_default().to_vec();
    let lowest_voter = next
        .ids()
        .find(|id| !waiting.contains(id))
        .unwrap_or_else(|| next.lowest());
    let leader = next
        .members()
        .iter()
        .find(votes_now)
        .map_or(lowest_voter, |member| member.id);
    NextVoters {
        waiting,
        retained,
        leader,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;

    fn voters(ids: &[u64]) -> Voters {
        Voters::new(
            view(ids).members().iter().map(Voter::from).collect(),
            view(ids).lowest(),
        )
    }

    fn after(now: &[u64], next: &[u64], ended: &[u64]) -> (Vec<u64>, Vec<u64>, u64) {
        let ended = |voter: &Voter| ended.contains(&voter.node.0);
        let NextVoters {
            waiting,
            retained,
            leader,
        } = next_voters(&voters(now), &view(next), ended);
        let waiting = waiting.iter().map(|node| node.0).collect();
        (
            waiting,
            retained.iter().map(|voter| voter.node.0).collect(),
            leader.0,
        )
    }

    #[test]
    fn a_vote_counts_once() {
        let three = voters(&[1, 2, 3]);
        assert!(!three.is_quorum([2, 2, 2].map(NodeId)));
        assert!(three.is_quorum([2, 3, 2].map(NodeId)));
    }

    #[test]
    fn half_of_the_voters_are_a_quorum_with_the_tie_breaker_only() {
        let four = voters(&[1, 2, 3, 4]);
        let quorum = |ids: &[u64]| four.is_quorum(ids.iter().copied().map(NodeId));
        assert!(quorum(&[1, 3]) && quorum(&[2, 3, 4]) && !quorum(&[2, 3]) && !quorum(&[2, 9, 8]));
    }

    #[test]
    fn more_than_half_of_the_founders_must_vote() {
        let founders = Voters::of_bootstrap(&view(&[1, 2, 3, 4]));
        assert!(
            !founders.is_quorum([1, 2].map(NodeId)) && founders.is_quorum([1, 2, 4].map(NodeId))
        );
    }

    #[test]
    fn down_to_three_voters_silence_is_enough_and_below_it_is_not() {
        assert_eq!(
            after(&[1, 2, 3, 4, 5], &[1, 2, 3], &[]),
            (vec![], vec![], 1)
        );
        assert_eq!(after(&[1, 2, 3, 4], &[1, 2], &[]), (vec![], vec![3], 1));
        assert_eq!(after(&[1, 2, 3], &[1, 3], &[]), (vec![], vec![2], 1));
        assert_eq!(after(&[1, 2, 3], &[1, 3], &[2]), (vec![], vec![], 1));
        assert_eq!(after(&[1, 2], &[1], &[]), (vec![], vec![2], 1));
    }

    #[test]
    fn who_stays_is_a_quorum_of_the_next_voters() {
        assert_eq!(after(&[2], &[1, 2, 3], &[]), (vec![NodeId(3).0], vec![], 2));
        assert_eq!(after(&[1, 2], &[1, 2, 3, 4, 5], &[]), (vec![5], vec![], 1));
        for (now, next) in [
            (vec![3, 4], vec![1, 2, 3, 4]),
            (vec![2], vec![1, 2]),
            (vec![1, 2, 3], vec![2, 4, 5, 6]),
        ] {
            let NextVoters {
                waiting,
                retained,
                leader,
            } = next_voters(&voters(&now), &view(&next), |_| false);
            let mut all: Vec<Voter> = view(&next).members().iter().map(Voter::from).collect();
            all.retain(|voter| !waiting.contains(&voter.node));
            all.extend(&retained);
            let next_voters = Voters::new(all, leader);
            let continuing: Vec<NodeId> =
                next_voters.ids().filter(|id| now.contains(&id.0)).collect();
            assert!(next_voters.is_quorum(continuing), "{now:?} {next:?}");
        }
    }

    #[test]
    fn where_all_voters_leave_those_that_come_vote() {
        assert_eq!(after(&[1], &[2, 3], &[1]), (vec![], vec![], 2));
    }
}
