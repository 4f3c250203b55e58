//! What must never be, what must be possible, and what of the past is needed to tell.

use super::shell::Node;
use super::state::State;
use super::{Cluster, Setup};
use slowmo_protocol::coordinator::{Attempt, Outcome, Proposal};
use slowmo_protocol::ident::{Ballot, NodeId, Round};
use slowmo_protocol::view::{Member, View};
use slowmo_protocol::wire::{Header, Message};
use stateright::Property;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What must never be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A round has two outcomes.
    TwoOutcomes,
    /// Under one ballot two things were proposed.
    TwoProposals,
    /// Something else was proposed above a ballot that had decided.
    ProposedAnew,
    /// Something was decided that was never proposed under its ballot, or not accepted by all who had to.
    DecidedWithoutVotes,
    /// Those who decided are no quorum of the members of the round before, or not all of them members.
    DecidedWithoutQuorum,
    /// Something was decided whose data is not held by all who had to.
    DecidedWithoutData,
    /// A node applied what it does not hold.
    AppliedWithoutData,
    /// A node applied what nobody decided.
    AppliedUndecided,
    /// A node gave a round up although all expect the same.
    GaveUp,
}

/// What was decided first of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Decision {
    ballot: Ballot,
    inherited: bool,
    outcome: Arc<Outcome>,
}

/// What the checks remember of the past.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Watch {
    decided: BTreeMap<Round, Decision>,
    proposals: BTreeMap<(Round, Ballot), Arc<Proposal>>,
    votes: BTreeMap<(Round, Ballot), BTreeSet<NodeId>>,
}

impl Watch {
    pub fn has_vote(&self, round: Round, ballot: Ballot, voter: NodeId) -> bool {
        // Once the round is decided, further votes only repeat it.
        self.decided.contains_key(&round) || self.votes.get(&(round, ballot)).is_some_and(|votes| votes.contains(&voter))
    }

    pub fn note_vote(&mut self, round: Round, ballot: Ballot, voter: NodeId) {
        self.votes.entry((round, ballot)).or_default().insert(voter);
    }

    /// The view that was decided last.
    pub fn newest_view(&self) -> Option<&View> {
        self.decided.last_key_value().map(|(_, decided)| &decided.outcome.view)
    }

    /// What was proposed under an attempt's ballot.
    pub fn outcome_of(&self, attempt: Attempt) -> Option<Arc<Outcome>> {
        self.proposals.get(&(attempt.round, attempt.ballot)).map(|proposal| Arc::new(proposal.outcome.clone()))
    }
}

impl State {
    pub(super) fn check_sent(&mut self, node: &Node, header: &Header, message: &Message) {
        match message {
            Message::Propose(proposal) | Message::Admit { proposal, .. } => self.check_proposed(header, proposal),
            Message::Decide(outcome) => self.check_decided(node, header, outcome),
            _ => {}
        }
    }

    fn check_proposed(&mut self, header: &Header, proposal: &Proposal) {
        let key = (header.round, header.ballot);
        let decided = self.watch.decided.get(&header.round);
        if decided.is_some_and(|decided| header.ballot > decided.ballot && *decided.outcome != proposal.outcome) {
            self.violate(Violation::ProposedAnew);
        }
        match self.watch.proposals.get(&key) {
            Some(known) if **known != *proposal => self.violate(Violation::TwoProposals),
            Some(_) => {}
            None => self.watch.change(|watch| _ = watch.proposals.insert(key, Arc::new(proposal.clone()))),
        }
    }

    fn check_decided(&mut self, decider: &Node, header: &Header, outcome: &Outcome) {
        let round = outcome.round;
        if let Some(known) = self.watch.decided.get(&round) {
            if *known.outcome != *outcome {
                self.violate(Violation::TwoOutcomes);
            }
            return;
        }
        let proposal = self.watch.proposals.get(&(round, header.ballot)).cloned();
        let Some(proposal) = proposal.filter(|proposal| proposal.outcome == *outcome && header.ballot.node == decider.id()) else {
            return self.violate(Violation::DecidedWithoutVotes);
        };
        let members = &proposal.participants;
        if !self.is_quorum(round, members) {
            self.violate(Violation::DecidedWithoutQuorum);
        }
        let votes = self.watch.votes.get(&(round, header.ballot));
        let holds = |node: &Node| node.movement.as_ref().is_some_and(|movement| movement.held && movement.is_of(outcome));
        // The decider accepts and decides in one step, which nobody sees between.
        let voted =
            |id: &NodeId| votes.is_some_and(|votes| votes.contains(id)) || (*id == decider.id() && (holds(decider) || proposal.inherited));
        if !members.iter().all(voted) {
            self.violate(Violation::DecidedWithoutVotes);
        }
        // One that crashed and started again is another node.
        let safe = |member: &Member| {
            let node = if member.id == decider.id() { Some(decider) } else { self.node(member.id) };
            node.is_none_or(|node| !node.takes_part() || node.member != *member || holds(node))
        };
        // Members that an inherited outcome reached without its data join again; joiners hold it before anybody accepts.
        let view = self.view_of(round);
        let joins = |joiner: &&Member| view.member(joiner.id) != Some(*joiner);
        let joiners_hold = proposal.joiners().filter(joins).all(safe);
        let members_hold = proposal.inherited || members.iter().filter_map(|id| view.member(*id)).all(safe);
        let somebody_holds = members.iter().any(|id| if *id == decider.id() { holds(decider) } else { self.node(*id).is_some_and(holds) });
        if !(joiners_hold && members_hold && somebody_holds) {
            self.violate(Violation::DecidedWithoutData);
        }
        let decision = Decision { ballot: header.ballot, inherited: proposal.inherited, outcome: Arc::new(outcome.clone()) };
        self.watch.change(|watch| {
            watch.decided.insert(round, decision);
            watch.votes.retain(|(of, _), _| *of > round);
            watch.proposals.retain(|(of, _), _| *of >= round);
        });
    }

    /// Who may decide a round, as the round before decided.
    fn view_of(&self, round: Round) -> &View {
        let before = round.0.checked_sub(1).and_then(|before| self.watch.decided.get(&Round(before)));
        before.map_or(&*self.founding, |decided| &decided.outcome.view)
    }

    fn is_quorum(&self, round: Round, group: &[NodeId]) -> bool {
        let view = self.view_of(round);
        group.iter().all(|id| view.contains(*id)) && view.is_quorum(group.iter().copied())
    }

    pub(super) fn check_applied(&mut self, id: NodeId, outcome: &Outcome, held: bool) {
        if !self.watch.decided.contains_key(&outcome.round) && self.is_quorum(outcome.round, &[id]) {
            // Who is a quorum alone tells nobody.
            let decision = Decision { ballot: Ballot::default(), inherited: false, outcome: Arc::new(outcome.clone()) };
            self.watch.change(|watch| _ = watch.decided.insert(outcome.round, decision));
        }
        match self.watch.decided.get(&outcome.round) {
            None => self.violate(Violation::AppliedUndecided),
            Some(decided) if *decided.outcome != *outcome => self.violate(Violation::TwoOutcomes),
            Some(_) if !held => self.violate(Violation::AppliedWithoutData),
            Some(_) => {}
        }
    }
}

impl super::shell::Movement {
    fn is_of(&self, outcome: &Outcome) -> bool {
        self.published.as_ref().and_then(|(_, of)| of.as_deref()) == Some(outcome)
    }
}

/// What must never be, one property a violation.
pub(super) fn invariants() -> Vec<Property<Cluster>> {
    macro_rules! never {
        ($($name:literal: $violation:ident),* $(,)?) => {
            vec![$(Property::always($name, |_, state: &State| state.violation != Some(Violation::$violation))),*]
        };
    }
    never![
        "a round has one outcome": TwoOutcomes,
        "a ballot has one proposal": TwoProposals,
        "what is proposed above a decided ballot is what was decided": ProposedAnew,
        "all who must accepted what is decided": DecidedWithoutVotes,
        "a quorum of the members of the round before decides, and no joiner": DecidedWithoutQuorum,
        "all who must hold what is decided": DecidedWithoutData,
        "who applies holds all it must": AppliedWithoutData,
        "what is applied was decided": AppliedUndecided,
        "nobody gives up": GaveUp,
    ]
}

fn crashed(state: &State) -> impl Iterator<Item = NodeId> + '_ {
    state.nodes.iter().filter(|node| !node.alive).map(|node| node.id())
}

/// What must be possible.
pub(super) fn possibilities(setup: &Setup) -> Vec<Property<Cluster>> {
    let mut all: Vec<Property<Cluster>> = vec![
        Property::sometimes("decided under the first ballot", |_, state: &State| {
            state.watch.decided.values().any(|decided| decided.ballot.counter == 0)
        }),
        Property::sometimes("all rounds are decided", |model: &Cluster, state: &State| {
            let last = model.setup.last_round();
            state.nodes.iter().filter(|node| node.alive).all(|node| node.has_applied(last))
        }),
    ];
    if setup.crashes > 0 {
        all.push(Property::sometimes("decided by another leader", |_, state: &State| {
            state.watch.decided.values().any(|decided| decided.ballot.node != NodeId(1))
        }));
        all.push(Property::sometimes("inherited and decided", |_, state: &State| {
            state.watch.decided.values().any(|decided| decided.inherited)
        }));
        all.push(Property::sometimes("a node that crashed is in the view no more", |_, state: &State| {
            let without = |id: NodeId| state.watch.decided.values().any(|decided| !decided.outcome.view.contains(id));
            crashed(state).any(without)
        }));
        all.push(Property::sometimes("all rounds are decided in spite of a crash", |model: &Cluster, state: &State| {
            crashed(state).next().is_some() && model.is_over(state)
        }));
    }
    if setup.joins.is_some() || setup.restarts {
        all.push(Property::sometimes("the joiner is a member", |_, state: &State| {
            let joined = |joiner: &Member| {
                state.node(joiner.id).is_some_and(|node| node.machine.view().is_some_and(|view| view.member(joiner.id) == Some(joiner)))
            };
            state.joiner.as_ref().is_some_and(joined)
        }));
    }
    if setup.wrong_verdicts > 0 {
        all.push(Property::sometimes("a living node is left out", |_, state: &State| {
            let left =
                |node: &Node| node.takes_part() && state.watch.decided.values().any(|decided| !decided.outcome.view.contains(node.id()));
            state.nodes.iter().any(|node| left(node))
        }));
    }
    all
}
