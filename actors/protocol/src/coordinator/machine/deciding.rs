//! The undecided round: this node's vote, its lead, and its knowledge of the others.

use super::data::Data;
use super::reports::Reports;
use super::seen::Seen;
use crate::coordinator::acceptor::{Acceptor, Promise};
use crate::coordinator::outcome::{Outcome, Proposal, RoundSpec};
use crate::ident::{NodeId, Term};
use crate::published::Digest;
use crate::wire::{ContributionNotice, RefusalReason};
use std::collections::{BTreeMap, BTreeSet};

/// This node's phase as the leader of the round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Lead {
    /// Another node leads.
    #[default]
    Follow,
    /// The leader asks the voters for promises.
    Prepare {
        term: Term,
        promises: BTreeMap<NodeId, Promise<Outcome>>,
    },
    /// The term is open: the leader moves data until every receiver holds all that it must. Nobody
    /// has voted under this term.
    Attempt(Attempts),
    /// The leader asked for votes, and proposes nothing else under this term.
    Accept {
        term: Term,
        /// Number of the attempt whose data the outcome has; 0 for an entry of an earlier term.
        attempt: u32,
        outcome: Outcome,
        /// Digest of the outcome.
        digest: Digest,
        /// Nodes that hold the attempt's data, and so know the entry.
        ready: BTreeSet<NodeId>,
        accepted: BTreeSet<NodeId>,
    },
}

/// The attempts of one open term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempts {
    pub term: Term,
    /// Number of the newest attempt.
    pub number: u32,
    /// Nodes that may take part: within a term the participants only become fewer.
    pub within: Option<BTreeSet<NodeId>>,
    /// The newest attempt, unless it was dropped.
    pub proposal: Option<Proposal>,
    /// Nodes that hold all data that they must for the newest attempt, with the digest of the
    /// entry.
    pub ready: BTreeMap<NodeId, Digest>,
    /// Nodes that were asked what they got, and have not answered.
    pub compared: BTreeSet<NodeId>,
}

impl Lead {
    pub fn term(&self) -> Option<Term> {
        match self {
            Self::Follow => None,
            Self::Prepare { term, .. } | Self::Accept { term, .. } => Some(*term),
            Self::Attempt(attempts) => Some(attempts.term),
        }
    }

    pub fn attempts(&self) -> Option<&Attempts> {
        match self {
            Self::Attempt(attempts) => Some(attempts),
            _ => None,
        }
    }
}

/// The newest attempt that was proposed to this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Proposed {
    pub term: Term,
    pub number: u32,
    pub proposal: Proposal,
}

impl Proposed {
    /// Whether its leader contributes, and so expects the round itself.
    pub fn is_of_contributor(&self) -> bool {
        let contributors = &self.proposal.outcome.contributors;
        contributors.binary_search(&self.term.node).is_ok()
    }
}

/// State of the undecided round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Deciding {
    pub acceptor: Acceptor<Outcome>,
    /// The highest term seen.
    pub highest: Term,
    pub lead: Lead,
    /// Voters that acknowledged that this node's term is open; `closed` is set once a quorum's
    /// acknowledgement was announced.
    pub opened: BTreeSet<NodeId>,
    pub closed: bool,
    /// Attempts of terms below this one were closed by their leaders' successor.
    pub closed_below: Term,
    pub proposed: Option<Proposed>,
    pub data: Data,
    /// Known contributors, with their contributions.
    pub contributed: BTreeMap<NodeId, ContributionNotice>,
    /// Nodes that were told of this node's contribution: those that led or seemed to.
    pub told: BTreeSet<NodeId>,
    pub decided: Option<Outcome>,
    /// Whether this node reported that it is ready for an attempt.
    pub was_ready: bool,
    /// Whether the grace has passed since the first contribution.
    pub grace_over: bool,
    /// Whether joiners did not hold the model in time; then this round is made without them.
    pub joiners_over: bool,
    /// Whether survivors have waited long enough for a quorum.
    pub fork_due: bool,
    /// Whether another attempt is due although nobody died.
    pub retry: bool,
    /// Number of attempts ended by broken streams.
    pub broken: u32,
    /// Number of times that this node stood in for a leader that it cannot reach.
    pub stood_in: u32,
    /// Reported pairs of nodes that cannot reach each other.
    pub reports: Reports,
    /// Nodes that are ahead and were asked for the entry; at most as many as a view has members.
    pub asked: BTreeSet<NodeId>,
    /// Votes of the others, and what they say of the decision.
    pub seen: Seen,
    /// Why the run ends once those that remain are not most of the voters.
    pub refusal: Option<RefusalReason>,
}

impl Deciding {
    pub fn new(first: Term) -> Self {
        Self {
            acceptor: Acceptor::new(first),
            highest: first,
            lead: Lead::Follow,
            opened: BTreeSet::new(),
            closed: false,
            closed_below: Term::default(),
            proposed: None,
            data: Data::default(),
            contributed: BTreeMap::new(),
            told: BTreeSet::new(),
            decided: None,
            was_ready: false,
            grace_over: false,
            joiners_over: false,
            fork_due: false,
            retry: false,
            broken: 0,
            stood_in: 0,
            reports: Reports::default(),
            asked: BTreeSet::new(),
            seen: Seen::default(),
            refusal: None,
        }
    }

    /// The round that the contributors expect. Where they differ and this node has not contributed,
    /// which would tell who is wrong, it is what most of them expect.
    pub fn expected(&self) -> Option<RoundSpec> {
        let specs = || {
            self.contributed
                .values()
                .map(|contributed| contributed.spec)
        };
        let votes = |spec: RoundSpec| specs().filter(|other| *other == spec).count();
        let first = specs().next()?;
        if votes(first) == self.contributed.len() {
            return Some(first);
        }
        // Of those that equally many expect, that of the lowest id.
        let better = |best: RoundSpec, spec| {
            if votes(spec) > votes(best) {
                spec
            } else {
                best
            }
        };
        Some(specs().fold(first, better))
    }

    /// The term in force: the highest promised.
    pub fn term(&self) -> Term {
        self.acceptor.promised()
    }

    /// Number of the newest attempt in the term in force; 0 if there is none.
    pub fn number(&self) -> u32 {
        let of_term = |proposed: &&Proposed| proposed.term == self.term();
        self.proposed
            .as_ref()
            .filter(of_term)
            .map_or(0, |proposed| proposed.number)
    }

    /// The outcomes that may be decided, as far as this node knows. Their members may already send
    /// frames of the next round.
    pub fn may_follow(&self) -> impl Iterator<Item = &Outcome> {
        let accepted = self.acceptor.accepted().map(|(_, outcome)| outcome);
        let proposed = self
            .proposed
            .iter()
            .map(|proposed| &proposed.proposal.outcome);
        self.data.outcomes().chain(proposed).chain(accepted)
    }
}
