//! The round that is not decided yet: votes, contributions, the attempt under way, and until when what is waited for.

use super::apart::Apart;
use super::open::Open;
use crate::ballot::{Acceptor, Ballots, Proposer};
use crate::coordinator::outcome::{Outcome, Proposal};
use crate::coordinator::plan::Attempt;
use crate::ident::{Ballot, NodeId};
use crate::time::Instant;
use crate::view::View;
use crate::wire::Contributed;
use std::collections::{BTreeMap, BTreeSet};

/// The round that is not decided yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Current {
    pub acceptor: Acceptor<Proposal>,
    pub ballots: Ballots,
    /// What is proposed under the promised ballot.
    pub proposal: Option<Proposal>,
    /// The ballot under which this node's acceptance was told.
    pub voted: Option<Ballot>,
    /// When it did.
    pub accepted_at: Option<Instant>,
    pub open: Option<Open>,
    /// Who is known to have contributed what.
    pub contributed: BTreeMap<NodeId, Contributed>,
    /// Who was told of this node's contribution: those that led or seemed to.
    pub told: BTreeSet<NodeId>,
    pub leading: Option<Proposer<Proposal>>,
    /// Who promised, and holds the data of what it accepted before.
    pub holders: BTreeSet<NodeId>,
    /// Joiners that hold all they must hold, as far as this leader knows.
    pub prepared: BTreeSet<NodeId>,
    /// All joiners of the proposal hold all they must hold.
    pub joiners_hold: bool,
    pub decided: Option<Outcome>,
    /// When the first contribution became known here.
    pub begun: Option<Instant>,
    /// When this node's own contribution is given up.
    pub give_up: Option<Instant>,
    /// Until when the lead is left to the node whose ballot was promised.
    pub follow_until: Option<Instant>,
    /// Until when living members' promises are waited for.
    pub promise_by: Option<Instant>,
    /// Until when living members are waited for that are needed for a quorum.
    pub silent_by: Option<Instant>,
    /// They were waited for so long.
    pub silent_over: bool,
    /// The grace has passed since the first contribution.
    pub grace_over: bool,
    /// Until when joiners are waited for.
    pub joiners_by: Option<Instant>,
    /// Joiners did not hold the model by then: this round is made without.
    pub joiners_over: bool,
    /// Another attempt is due although nobody died.
    pub retry: bool,
    /// Attempts that broken streams ended.
    pub broken: u32,
    /// When the next attempt after such a one may begin.
    pub retry_at: Option<Instant>,
    /// How often this node stood in for a leader that it cannot reach, and when it may again.
    pub stood_in: u32,
    pub stand_in_at: Option<Instant>,
    /// Who cannot reach whom.
    pub apart: Apart,
    /// Members that are ahead and were asked for their outcome.
    pub asked: BTreeSet<NodeId>,
}

impl Current {
    pub fn new(node: NodeId, view: &View) -> Self {
        Self {
            acceptor: Acceptor::new(view),
            ballots: Ballots::new(node, view),
            proposal: None,
            voted: None,
            accepted_at: None,
            open: None,
            contributed: BTreeMap::new(),
            told: BTreeSet::new(),
            leading: None,
            holders: BTreeSet::new(),
            prepared: BTreeSet::new(),
            joiners_hold: false,
            decided: None,
            begun: None,
            give_up: None,
            follow_until: None,
            promise_by: None,
            silent_by: None,
            silent_over: false,
            grace_over: false,
            joiners_by: None,
            joiners_over: false,
            retry: false,
            broken: 0,
            retry_at: None,
            stood_in: 0,
            stand_in_at: None,
            apart: Apart::default(),
            asked: BTreeSet::new(),
        }
    }

    pub fn ballot(&self) -> Ballot {
        self.acceptor.promised()
    }

    /// Whether this node holds the data of what it accepted: not of an inherited proposal that others hold.
    pub fn holds_what_it_accepted(&self) -> bool {
        let held = self.open.as_ref().and_then(Open::held);
        let accepted = self.acceptor.accepted().map(|(_, proposal)| &proposal.outcome);
        held.zip(accepted).is_some_and(|(held, accepted)| held.has_the_data_of(accepted))
    }

    /// The views that may follow: of what is proposed, and of what was accepted, which may be decided under a higher ballot too.
    pub fn may_follow(&self) -> impl Iterator<Item = &View> {
        let accepted = self.acceptor.accepted().map(|(_, proposal)| proposal);
        self.proposal.iter().chain(accepted).map(|proposal| &proposal.outcome.view)
    }

    /// The open attempt, if `attempt` is the one: what an earlier attempt's movements still report is of no interest.
    pub fn open_at(&mut self, attempt: Attempt) -> Option<&mut Open> {
        self.open.as_mut().filter(|open| open.plan.attempt == attempt)
    }
}
