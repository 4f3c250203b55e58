//! The round that is not decided yet: this node's vote, what it leads, what it knows of the others.

use super::data::Data;
use super::links::Reports;
use crate::coordinator::acceptor::{Acceptor, Promise};
use crate::coordinator::outcome::{Outcome, Proposal};
use crate::ident::{NodeId, Term};
use crate::wire::Contributed;
use std::collections::{BTreeMap, BTreeSet};

/// What this node does for the round as its leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Lead {
    /// Nothing: another node leads.
    #[default]
    Follow,
    /// It asks the voters for promises.
    Prepare {
        term: Term,
        promises: BTreeMap<NodeId, Promise<Outcome>>,
    },
    /// Its term is open: it moves data until everybody holds what it must. Nobody has voted under
    /// this term.
    Attempt(Attempts),
    /// It asked for votes, and proposes nothing else under this term.
    Accept {
        term: Term,
        /// The attempt whose data it is; 0 for an entry of an earlier term.
        attempt: u32,
        outcome: Outcome,
        /// Who holds the attempt's data, and so knows the entry.
        ready: BTreeSet<NodeId>,
        accepted: BTreeSet<NodeId>,
    },
}

/// The attempts of one open term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempts {
    pub term: Term,
    /// The number of the newest.
    pub number: u32,
    /// Who may take part: within a term participants only leave.
    pub within: Option<BTreeSet<NodeId>>,
    /// The newest attempt, unless it was dropped.
    pub proposal: Option<Proposal>,
    /// Who holds all that it must for it.
    pub ready: BTreeSet<NodeId>,
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

/// The round that is not decided yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Deciding {
    pub acceptor: Acceptor<Outcome>,
    /// The highest term seen.
    pub highest: Term,
    pub lead: Lead,
    /// Voters that acknowledged that this node's term is open, and whether a quorum's were told on.
    pub opened: BTreeSet<NodeId>,
    pub closed: bool,
    pub proposed: Option<Proposed>,
    pub data: Data,
    /// Who is known to have contributed what.
    pub contributed: BTreeMap<NodeId, Contributed>,
    /// Who was told of this node's contribution: those that led or seemed to.
    pub told: BTreeSet<NodeId>,
    pub decided: Option<Outcome>,
    /// This node said that it is ready for an attempt.
    pub was_ready: bool,
    /// The grace has passed since the first contribution.
    pub grace_over: bool,
    /// Joiners did not hold the model in time: this round is made without.
    pub joiners_over: bool,
    /// Survivors have waited long enough for a quorum.
    pub fork_due: bool,
    /// Another attempt is due although nobody died.
    pub retry: bool,
    /// Attempts that broken streams ended.
    pub broken: u32,
    /// How often this node stood in for a leader that it cannot reach.
    pub stood_in: u32,
    /// Who cannot reach whom.
    pub reports: Reports,
    /// Nodes that are ahead and were asked for the entry; at most as many as a view has members.
    pub asked: BTreeSet<NodeId>,
}

impl Deciding {
    pub fn new(first: Term) -> Self {
        Self {
            acceptor: Acceptor::new(first),
            highest: first,
            lead: Lead::Follow,
            opened: BTreeSet::new(),
            closed: false,
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
        }
    }

    /// The term in force.
    pub fn term(&self) -> Term {
        self.acceptor.promised()
    }

    /// The number of the newest attempt in it.
    pub fn number(&self) -> u32 {
        let of_term = |proposed: &&Proposed| proposed.term == self.term();
        self.proposed
            .as_ref()
            .filter(of_term)
            .map_or(0, |proposed| proposed.number)
    }

    /// The outcomes that may be decided, as far as this node knows: their members may speak of the
    /// next round already.
    pub fn may_follow(&self) -> impl Iterator<Item = &Outcome> {
        let accepted = self.acceptor.accepted().map(|(_, outcome)| outcome);
        let proposed = self
            .proposed
            .iter()
            .map(|proposed| &proposed.proposal.outcome);
        self.data.outcomes().chain(proposed).chain(accepted)
    }
}
