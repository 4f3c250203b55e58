//! Promise and accept: Paxos for one decree a round. Pure arithmetic over votes; the coordinator sends the messages.
//!
//! Every round is a decree of its own among the members of the view that the round before decided. Its lowest ballot,
//! [`first_ballot`], follows from that view alone and belongs to its lowest id. No ballot lies below it, so nothing can
//! have been accepted earlier, and its owner proposes at once: in a stable view a decision costs one round trip. Anybody
//! else, and the lowest id's second attempt, asks a quorum for promises first.
//!
//! ```text
//! proposer                          acceptors
//!    | prepare(b)      ───────────▶    |   skipped for the first ballot
//!    | ◀───────────  Promise { accepted } | Stale
//!    | propose(b, v)   ───────────▶    |   v: the accepted value of the highest ballot, else one's own
//!    | ◀───────────  accepted | Stale  |
//!    | decided once a quorum accepted  |
//! ```

use crate::ident::{Ballot, NodeId};
use crate::view::View;
use std::collections::BTreeSet;

/// Largest counter of a ballot that is looked at; keeps a corrupt one from exhausting the counters.
pub const BALLOT_COUNTER_MAX: u64 = 1 << 48;

/// The lowest ballot of a decree among the members of `view`: counter 0, owned by the lowest id. Needs no promises.
#[must_use]
pub fn first_ballot(view: &View) -> Ballot {
    Ballot { counter: 0, node: view.lowest() }
}

/// A member's memory of one decree: the highest ballot it promised and what it accepted last.
#[derive(Clone, Debug, PartialEq)]
pub struct Acceptor<V> {
    promised: Ballot,
    accepted: Option<(Ballot, V)>,
}

/// A member's answer to a prepare: it accepts nothing below `ballot` any more.
#[derive(Clone, Debug, PartialEq)]
pub struct Promise<V> {
    /// The ballot promised.
    pub ballot: Ballot,
    /// What the member accepted last, with its ballot.
    pub accepted: Option<(Ballot, V)>,
}

/// The ballot is below one already promised. The acceptor is unchanged; try again above `promised`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a higher ballot was promised: {promised}")]
pub struct Stale {
    /// The highest ballot promised.
    pub promised: Ballot,
}

impl<V: Clone> Acceptor<V> {
    /// The memory of a decree among the members of `view`, before any message.
    #[must_use]
    pub fn new(view: &View) -> Self {
        Self { promised: first_ballot(view), accepted: None }
    }

    /// Forgets the decree that was decided and begins the next one, among the members of `view`, the view it decided.
    /// Only for members that know the decision.
    pub fn next_decree(&mut self, view: &View) {
        *self = Self::new(view);
    }

    /// The highest ballot promised.
    #[must_use]
    pub fn promised(&self) -> Ballot {
        self.promised
    }

    /// What was accepted last, with its ballot.
    #[must_use]
    pub fn accepted(&self) -> Option<&(Ballot, V)> {
        self.accepted.as_ref()
    }

    /// Phase 1: promises to accept nothing below `ballot`. Asking twice gives the same answer.
    ///
    /// # Errors
    /// [`Stale`] if a higher ballot was promised; unchanged.
    pub fn prepare(&mut self, ballot: Ballot) -> Result<Promise<V>, Stale> {
        self.raise(ballot)?;
        Ok(Promise { ballot, accepted: self.accepted.clone() })
    }

    /// Phase 2: accepts `value` under `ballot`.
    ///
    /// # Errors
    /// [`Stale`] if a higher ballot was promised; unchanged.
    pub fn accept(&mut self, ballot: Ballot, value: V) -> Result<(), Stale> {
        self.raise(ballot)?;
        self.accepted = Some((ballot, value));
        Ok(())
    }

    fn raise(&mut self, ballot: Ballot) -> Result<(), Stale> {
        if ballot < self.promised {
            return Err(Stale { promised: self.promised });
        }
        self.promised = ballot;
        Ok(())
    }
}

/// One attempt to decide: the votes gathered under one ballot.
#[derive(Clone, Debug)]
pub struct Proposer<V> {
    ballot: Ballot,
    view: View,
    promised: BTreeSet<NodeId>,
    strongest: Option<(Ballot, V)>,
    proposal: Option<V>,
    accepted: BTreeSet<NodeId>,
}

impl<V: Clone> Proposer<V> {
    /// An attempt under `ballot` among the members of `view`.
    #[must_use]
    pub fn new(ballot: Ballot, view: &View) -> Self {
        let (promised, accepted) = (BTreeSet::new(), BTreeSet::new());
        Self { ballot, view: view.clone(), promised, strongest: None, proposal: None, accepted }
    }

    /// The ballot of this attempt.
    #[must_use]
    pub fn ballot(&self) -> Ballot {
        self.ballot
    }

    /// Counts a promise. Those of other ballots, of strangers, and second ones change nothing.
    pub fn promise(&mut self, from: NodeId, promise: Promise<V>) {
        if promise.ballot != self.ballot || !self.view.contains(from) || !self.promised.insert(from) {
            return;
        }
        let known = self.strongest.as_ref().map(|(ballot, _)| *ballot);
        if promise.accepted.as_ref().map(|(ballot, _)| *ballot) > known {
            self.strongest = promise.accepted;
        }
    }

    /// Whether a value may be proposed: a quorum promised, or nobody needs to.
    #[must_use]
    pub fn may_propose(&self) -> bool {
        self.ballot == first_ballot(&self.view) || self.view.is_quorum(self.promised.iter().copied())
    }

    /// The value that a promise obliges this attempt to propose, as far as is known.
    #[must_use]
    pub fn bound_to(&self) -> Option<&V> {
        self.strongest.as_ref().map(|(_, value)| value)
    }

    /// The value to propose, fixed by the first call that returns one: what was accepted under the highest ballot, else
    /// `own`. `None` while a quorum of promises is missing.
    pub fn propose(&mut self, own: impl FnOnce() -> V) -> Option<&V> {
        if self.proposal.is_none() && self.may_propose() {
            self.proposal = Some(self.bound_to().cloned().unwrap_or_else(own));
        }
        self.proposal.as_ref()
    }

    /// Counts a member's acceptance under `ballot`. Those of other ballots and of strangers change nothing.
    pub fn accept(&mut self, from: NodeId, ballot: Ballot) {
        if ballot == self.ballot && self.view.contains(from) {
            self.accepted.insert(from);
        }
    }

    /// The decided value, once a quorum accepted the proposal.
    #[must_use]
    pub fn decided(&self) -> Option<&V> {
        let quorum = self.view.is_quorum(self.accepted.iter().copied());
        self.proposal.as_ref().filter(|_| quorum)
    }

    /// Members that have not accepted yet, ascending.
    pub fn missing(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.view.ids().filter(|id| !self.accepted.contains(id))
    }
}

/// Hands out one node's ballots: each above all it has seen, none twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ballots {
    node: NodeId,
    highest: Ballot,
}

impl Ballots {
    /// The ballots of `node` in a decree among the members of `view`.
    #[must_use]
    pub fn new(node: NodeId, view: &View) -> Self {
        Self { node, highest: first_ballot(view) }
    }

    /// Takes note of a ballot in a received message, so that the next one lies above it.
    pub fn observe(&mut self, ballot: Ballot) {
        if ballot.counter <= BALLOT_COUNTER_MAX {
            self.highest = self.highest.max(ballot);
        }
    }

    /// The next ballot of this node. Never [`first_ballot`]: that one is used at the start, by its owner only.
    pub fn advance(&mut self) -> Ballot {
        self.highest = self.highest.next_of(self.node);
        self.highest
    }
}

#[cfg(test)]
mod tests;
