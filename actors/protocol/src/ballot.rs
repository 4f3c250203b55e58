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
//!    | propose(b, v)   ───────────▶    |   v: what an earlier ballot may have chosen, else one's own
//!    | ◀───────────  accepted | Stale  |
//!    | decided once all voters of v accepted: a quorum
//! ```

use crate::ident::{Ballot, NodeId};
use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};

/// Largest counter of a ballot that is looked at; keeps a corrupt one from exhausting the counters.
pub const BALLOT_COUNTER_MAX: u64 = 1 << 48;

/// The lowest ballot of a decree among the members of `view`: counter 0, owned by the lowest id. Needs no promises.
#[must_use]
pub fn first_ballot(view: &View) -> Ballot {
    Ballot { counter: 0, node: view.lowest() }
}

/// A member's memory of one decree: the highest ballot it promised and what it accepted last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acceptor<V> {
    promised: Ballot,
    accepted: Option<(Ballot, V)>,
    refuted: Ballot,
}

/// A member's answer to a prepare: it accepts nothing below `ballot` any more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Promise<V> {
    /// The ballot promised.
    pub ballot: Ballot,
    /// What the member accepted last, with its ballot.
    pub accepted: Option<(Ballot, V)>,
    /// Nothing was chosen under any ballot below this one, and nothing can be.
    pub refuted: Ballot,
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
        Self { promised: first_ballot(view), accepted: None, refuted: first_ballot(view) }
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
        Ok(Promise { ballot, accepted: self.accepted.clone(), refuted: self.refuted })
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

    /// Notes that nothing was chosen below `ballot`: a motion of its proposer's own choice, with a quorum of voters, was received under
    /// it. Members that have not heard of that one may carry on with what was refuted.
    pub fn refute(&mut self, ballot: Ballot) {
        self.refuted = self.refuted.max(ballot);
    }

    /// Forgets what was accepted below `ballot`, under which a motion of its proposer's own choice was received. For a member that no
    /// longer holds what its acceptance stands for.
    pub fn release(&mut self, ballot: Ballot) {
        self.accepted.take_if(|(accepted, _)| *accepted < ballot);
    }

    fn raise(&mut self, ballot: Ballot) -> Result<(), Stale> {
        if ballot < self.promised {
            return Err(Stale { promised: self.promised });
        }
        self.promised = ballot;
        Ok(())
    }
}

/// A value under vote.
pub trait Motion: Clone {
    /// The acceptors that must all accept it before it is chosen; a quorum.
    fn voters(&self) -> &[NodeId];
    /// Whether an earlier ballot may have chosen it, so that its proposer had no choice.
    fn is_inherited(&self) -> bool;
}

/// One attempt to decide: the votes gathered under one ballot.
///
/// A motion is chosen when all its voters accepted it: whoever accepts holds data that the others rely on. So a voter that
/// promises without having accepted proves that the motion was not chosen. So does its proposer with its promise: only it learns
/// that its motion is chosen, goes on to the next decree then, and otherwise gives the attempt up. A proposer is bound only where
/// nobody proves that: to the motion of the highest ballot that was reported, if all its voters that promised accepted it, or if
/// that motion was itself inherited (an earlier ballot may have chosen it, with other voters). What was accepted below a ballot under
/// which a quorum's proposer was free binds nobody, although somebody who has not heard of that one may have inherited it since: those
/// who have heard of it need not hold its data any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proposer<M> {
    ballot: Ballot,
    refuted: Ballot,
    promised: BTreeMap<NodeId, Option<(Ballot, M)>>,
    proposal: Option<M>,
    accepted: BTreeSet<NodeId>,
}

impl<M: Motion> Proposer<M> {
    /// An attempt under `ballot`.
    #[must_use]
    pub fn new(ballot: Ballot) -> Self {
        Self { ballot, refuted: Ballot::default(), promised: BTreeMap::new(), proposal: None, accepted: BTreeSet::new() }
    }

    /// The ballot of this attempt.
    #[must_use]
    pub fn ballot(&self) -> Ballot {
        self.ballot
    }

    /// Counts a member's promise. One of another ballot, and a second one, change nothing.
    pub fn promise(&mut self, from: NodeId, promise: Promise<M>) {
        if promise.ballot == self.ballot {
            self.refuted = self.refuted.max(promise.refuted.min(self.ballot));
            self.promised.entry(from).or_insert(promise.accepted);
        }
    }

    /// Who promised, ascending.
    pub fn promised(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.promised.keys().copied()
    }

    /// What a member that promised had accepted last.
    #[must_use]
    pub fn report_of(&self, node: NodeId) -> Option<&M> {
        self.promised.get(&node)?.as_ref().map(|(_, motion)| motion)
    }

    /// The motion that this attempt must propose, as far as the promises tell; complete once a quorum promised.
    #[must_use]
    pub fn bound_to(&self) -> Option<&M> {
        let (highest, motion) = self.reports().max_by_key(|(ballot, _)| *ballot)?;
        let accepted = |voter: &NodeId| match self.promised.get(voter) {
            Some(report) => report.as_ref().is_some_and(|(ballot, _)| ballot == highest),
            None => true,
        };
        let given_up = self.promised.contains_key(&highest.node);
        (motion.is_inherited() || (!given_up && motion.voters().iter().all(accepted))).then_some(motion)
    }

    /// Whether somebody accepted another motion, under a lower ballot, than the one that [`Self::bound_to`] judges. Where every
    /// proposer asked a quorum, that one was refuted before the higher one was proposed.
    #[must_use]
    pub fn overshadows(&self) -> bool {
        let ballots = || self.reports().map(|(ballot, _)| *ballot);
        ballots().min() != ballots().max()
    }

    /// What those that promised had accepted last and was not refuted since.
    fn reports(&self) -> impl Iterator<Item = &(Ballot, M)> {
        self.promised.values().flatten().filter(|(ballot, _)| *ballot >= self.refuted)
    }

    /// Fixes what is proposed; the first call counts.
    pub fn propose(&mut self, motion: M) -> &M {
        self.proposal.get_or_insert(motion)
    }

    /// What was proposed.
    #[must_use]
    pub fn proposal(&self) -> Option<&M> {
        self.proposal.as_ref()
    }

    /// Counts a voter's acceptance.
    pub fn accept(&mut self, from: NodeId) {
        if self.proposal.as_ref().is_some_and(|motion| motion.voters().contains(&from)) {
            self.accepted.insert(from);
        }
    }

    /// Voters that have not accepted yet, ascending.
    pub fn missing(&self) -> impl Iterator<Item = NodeId> + '_ {
        let voters = self.proposal.iter().flat_map(|motion| motion.voters().iter().copied());
        voters.filter(|voter| !self.accepted.contains(voter))
    }

    /// The chosen motion, once all its voters accepted it.
    #[must_use]
    pub fn chosen(&self) -> Option<&M> {
        self.proposal.as_ref().filter(|motion| motion.voters().iter().all(|voter| self.accepted.contains(voter)))
    }
}

/// Hands out one node's ballots: each above all it has seen, none twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// The highest ballot seen so far.
    #[must_use]
    pub fn highest(&self) -> Ballot {
        self.highest
    }

    /// The next ballot of this node. Never [`first_ballot`]: that one is used at the start, by its owner only.
    pub fn advance(&mut self) -> Ballot {
        self.highest = self.highest.next_of(self.node);
        self.highest
    }
}

#[cfg(test)]
mod tests;
