//! The others' votes in a round, and their words on its decision, as a node saw them.

use super::history::PlacedOutcome;
use crate::coordinator::outcome::Outcome;
use crate::coordinator::voters::Voter;
use crate::ident::{NodeId, Term};
use crate::published::{Digest, Signed};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of different entries that others say are decided, and of nodes that say that
/// later rounds are, whose entries are kept. One honest node more than lie is enough.
pub const TOLD_MAX: usize = 8;

/// The votes of one node in a round: its first and its newest one. A node that votes again does not
/// take its first vote back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CastVotes {
    pub first: (Term, Digest),
    pub newest: (Term, Digest),
}

impl CastVotes {
    fn has(&self, vote: (Term, Digest)) -> bool {
        self.first == vote || self.newest == vote
    }
}

/// The others' votes in the round, and their words on its decision, as this node saw them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    /// The votes of each voter; at most [`MEMBERS_MAX`](crate::view::MEMBERS_MAX).
    pub votes: BTreeMap<NodeId, CastVotes>,
    /// The entry for which the leader of the highest term asked votes, with its sound signature.
    pub asked: Option<(Term, Signed)>,
    /// Incarnations of nodes that say that the round is decided, with the entry's digest; at most
    /// [`MEMBERS_MAX`](crate::view::MEMBERS_MAX). One that joins is no voter, although its node may
    /// be.
    pub tellers: BTreeMap<Voter, Digest>,
    /// The entries that they name; at most [`TOLD_MAX`].
    pub entries: BTreeMap<Digest, Outcome>,
    /// Nodes that say that a later round is decided, with its entry; at most [`TOLD_MAX`].
    pub ahead: BTreeMap<NodeId, PlacedOutcome>,
    /// Voters that said, since they were asked, that they know of no decision; at most
    /// [`MEMBERS_MAX`](crate::view::MEMBERS_MAX).
    pub undecided: BTreeSet<NodeId>,
    /// Terms whose leaders are proved to have asked for votes for two entries; at most
    /// [`TOLD_MAX`], the highest.
    pub of_two: BTreeSet<Term>,
    /// Whether everybody was asked.
    pub asks: bool,
    /// Whether the wait for votes is over.
    pub over: bool,
}

impl Seen {
    /// The entry for which votes were asked under a term.
    pub fn asked_under(&self, term: Term) -> Option<Signed> {
        let asked = self.asked.filter(|(of, _)| *of == term);
        asked.map(|(_, signed)| signed)
    }

    /// Records what a leader asks votes for, with its sound signature. Of this node's own the shell
    /// has the signature.
    pub fn asks(&mut self, term: Term, signed: Signed) {
        self.asked = Some((term, signed));
    }

    /// Records that the leader of a term asked for votes for two entries.
    pub fn has_two(&mut self, term: Term) {
        self.of_two.insert(term);
        if self.of_two.len() > TOLD_MAX {
            self.of_two.pop_first();
        }
    }

    /// Records a vote.
    pub fn votes(&mut self, node: NodeId, vote: (Term, Digest)) {
        let first = CastVotes {
            first: vote,
            newest: vote,
        };
        self.votes.entry(node).or_insert(first).newest = vote;
    }

    /// Nodes that voted for an entry under a term.
    pub fn voters_of(&self, vote: (Term, Digest)) -> impl Iterator<Item = NodeId> + '_ {
        let voted = self.votes.iter().filter(move |(_, votes)| votes.has(vote));
        voted.map(|(node, _)| *node)
    }

    /// Whether a voter voted for an entry, or says that it is decided.
    pub fn says(&self, voter: Voter, digest: Digest) -> bool {
        let votes = self.votes.get(&voter.node);
        let voted = votes.is_some_and(|votes| votes.newest.1 == digest);
        voted || self.tellers.get(&voter) == Some(&digest)
    }
}
