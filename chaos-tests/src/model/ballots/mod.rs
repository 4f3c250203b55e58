//! The promise and accept rules alone: one decree among a few acceptors over a network that loses, repeats and reorders.
//!
//! The rules are the product's [`Acceptor`], [`Proposer`], [`Ballots`] and [`View::is_quorum`]; what is written here is only the
//! shell around them that the coordinator is, without its data and its waiting: who may propose waits for nothing, so it does
//! whatever any waiting would lead to.
//!
//! * Messages are a set that only grows: one that is never delivered is lost, one may be delivered again at any later time, and
//!   in any order. (A network that drops messages explicitly reaches no state more: dropping is never delivering.)
//! * The first ballot's owner may propose under it, with all members as voters. Anybody may take over under a ballot of its own,
//!   [`Setup::take_overs`] times in all, and propose once a quorum promised, with any quorum of those that promised as voters:
//!   those that it takes for alive, rightly or not.
//! * A voter accepts a motion of its proposer's own choice at any later time, when it holds the data; an inherited one at once.
//! * [`Setup::crashes`] nodes stop for good, at any time. Their memory is gone; a restarted node is another one.
//!
//! Only the proposer learns of its decision, and takes no part from then on. Another member that learns of it would do the same,
//! and one that takes no part is as one to which nothing is delivered: so those states are explored without the letter.
//!
//! No symmetry is used: ids are ordered, and the order decides who leads and which half is a quorum.

mod properties;

use slowmo_protocol::ballot::{Acceptor, Ballots, Motion, Promise, Proposer, first_ballot};
use slowmo_protocol::ident::{Ballot, Epoch, Incarnation, NodeId};
use slowmo_protocol::view::{Member, View};
use stateright::{Model, Property};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// A rule that the model breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// One promise is enough to propose.
    ProposesWithoutQuorum,
    /// What was accepted before is ignored: every proposer proposes its own choice.
    InheritsNothing,
    /// A proposer goes on counting votes after it promised a higher ballot.
    CountsAfterPromise,
    /// All that take over do so under the same ballot.
    SharesBallot,
    /// An acceptor forgets what it promised.
    ForgetsPromise,
}

/// What is explored, and how far.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Acceptors.
    pub members: u64,
    /// Ballots beside the first one, in all.
    pub take_overs: u8,
    /// Nodes that stop for good, at most.
    pub crashes: u8,
    /// A bug.
    pub planted: Option<Planted>,
}

impl Setup {
    /// So many acceptors and ballots beside the first one.
    #[must_use]
    pub fn new(members: u64, take_overs: u8, crashes: u8) -> Self {
        Self { members, take_overs, crashes, planted: None }
    }

    pub(super) fn short() -> Vec<(&'static str, Self)> {
        vec![("3 acceptors, 2 ballots, 1 crash", Self::new(3, 1, 1))]
    }

    pub(super) fn long() -> Vec<(&'static str, Self)> {
        vec![("4 acceptors, 2 ballots, 1 crash", Self::new(4, 1, 1)), ("3 acceptors, 3 ballots, 1 crash", Self::new(3, 2, 1))]
    }
}

/// A motion; its value is the ballot under which it was somebody's own choice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Choice {
    value: Ballot,
    voters: Vec<NodeId>,
    inherited: bool,
}

impl Motion for Choice {
    fn voters(&self) -> &[NodeId] {
        &self.voters
    }

    fn is_inherited(&self) -> bool {
        self.inherited
    }
}

/// What travels; the receivers follow from it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Letter {
    /// To everybody: asks for promises.
    Prepare(Ballot),
    /// To the ballot's owner.
    Promised(NodeId, Promise<Choice>),
    /// To its voters.
    Proposed(Ballot, Choice),
    /// To the ballot's owner.
    Accepted(NodeId, Ballot),
}

/// What may happen next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A letter arrives; it may arrive again.
    Deliver(NodeId, Letter),
    /// The first ballot's owner proposes under it.
    ProposeFirst,
    /// A node asks for promises under a new ballot.
    TakeOver(NodeId),
    /// A node proposes, with these voters.
    Propose(NodeId, Vec<NodeId>),
    /// A voter holds the data of what is proposed.
    Hold(NodeId),
    /// A node stops for good.
    Crash(NodeId),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    acceptor: Acceptor<Choice>,
    ballots: Ballots,
    leading: Option<Proposer<Choice>>,
    /// What is proposed under the promised ballot and not accepted yet.
    proposal: Option<Choice>,
}

impl Node {
    /// Whether it counted all votes for what it proposed: it goes on to the next decree and takes no part in this one.
    fn has_decided(&self) -> bool {
        self.leading.as_ref().is_some_and(|leading| leading.chosen().is_some())
    }
}

/// One decree at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: Vec<Option<Node>>,
    letters: BTreeSet<Letter>,
    take_overs: u8,
    /// What was decided, with its ballot: its proposer counted all votes.
    decided: BTreeSet<(Ballot, Choice)>,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Decree {
    setup: Setup,
    view: View,
}

impl Decree {
    /// A decree among `setup.members` members.
    ///
    /// # Panics
    /// Never: at least one member is made, all with different ids.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let member = |id| Member { id: NodeId(id), incarnation: Incarnation(1), address, devices: 1 };
        #[allow(clippy::expect_used)]
        let view = View::new(Epoch::FOUNDING, (1..=setup.members.max(1)).map(member).collect()).expect("ascending ids");
        Self { setup, view }
    }

    fn plants(&self, bug: Planted) -> bool {
        self.setup.planted == Some(bug)
    }

    fn is_quorum(&self, group: &[NodeId]) -> bool {
        self.plants(Planted::ProposesWithoutQuorum) || self.view.is_quorum(group.iter().copied())
    }

    fn crashed(state: &State) -> usize {
        state.nodes.iter().filter(|node| node.is_none()).count()
    }

    fn deliver(&self, state: &mut State, to: NodeId, letter: Letter) {
        let Some(Some(node)) = self.view.rank(to).and_then(|rank| state.nodes.get_mut(rank)) else { return };
        if node.has_decided() {
            return;
        }
        let sent = match letter {
            Letter::Prepare(ballot) => self.prepare(node, to, ballot),
            Letter::Proposed(ballot, choice) => self.take_proposal(node, to, ballot, choice),
            Letter::Promised(from, promise) => {
                // Once a motion is fixed, promises change nothing; told apart they would only multiply states.
                if let Some(leading) = node.leading.as_mut().filter(|leading| leading.proposal().is_none()) {
                    leading.promise(from, promise);
                }
                None
            }
            Letter::Accepted(from, ballot) => {
                if let Some(leading) = node.leading.as_mut().filter(|leading| leading.ballot() == ballot) {
                    leading.accept(from);
                }
                None
            }
        };
        state.letters.extend(sent);
    }

    /// Goes over to a higher ballot.
    fn follow(&self, node: &mut Node, ballot: Ballot) {
        node.ballots.observe(ballot);
        if !self.plants(Planted::CountsAfterPromise) {
            node.leading.take_if(|leading| leading.ballot() < ballot);
        }
        node.proposal = None;
    }

    fn forget(&self, node: &mut Node) {
        if self.plants(Planted::ForgetsPromise) && node.acceptor.accepted().is_none() {
            node.acceptor = Acceptor::new(&self.view);
        }
    }

    fn prepare(&self, node: &mut Node, me: NodeId, ballot: Ballot) -> Option<Letter> {
        let raised = ballot > node.acceptor.promised();
        let promise = node.acceptor.prepare(ballot).ok()?;
        if raised {
            self.follow(node, ballot);
        }
        self.forget(node);
        Some(Letter::Promised(me, promise))
    }

    fn take_proposal(&self, node: &mut Node, me: NodeId, ballot: Ballot, choice: Choice) -> Option<Letter> {
        let raised = ballot > node.acceptor.promised();
        node.acceptor.prepare(ballot).ok()?;
        if raised {
            self.follow(node, ballot);
        }
        if node.acceptor.accepted().is_some_and(|(accepted, _)| *accepted == ballot) {
            return None;
        }
        if choice.inherited {
            return self.accept(node, me, ballot, choice);
        }
        // It throws the data away of what it accepted before.
        node.acceptor.release(ballot);
        node.acceptor.refute(ballot);
        node.proposal = Some(choice);
        None
    }

    fn accept(&self, node: &mut Node, me: NodeId, ballot: Ballot, choice: Choice) -> Option<Letter> {
        node.acceptor.accept(ballot, choice).ok()?;
        match node.leading.as_mut().filter(|leading| leading.ballot() == ballot) {
            Some(leading) => {
                leading.accept(me);
                None
            }
            None => Some(Letter::Accepted(me, ballot)),
        }
    }

    fn hold(&self, state: &mut State, me: NodeId) {
        let Some(Some(node)) = self.view.rank(me).and_then(|rank| state.nodes.get_mut(rank)) else { return };
        let (Some(choice), ballot) = (node.proposal.take(), node.acceptor.promised()) else { return };
        let sent = self.accept(node, me, ballot, choice);
        state.letters.extend(sent);
    }

    fn take_over(&self, state: &mut State, me: NodeId) {
        let Some(Some(node)) = self.view.rank(me).and_then(|rank| state.nodes.get_mut(rank)) else { return };
        let mut ballot = node.ballots.advance();
        if self.plants(Planted::SharesBallot) {
            ballot.node = self.view.lowest();
        }
        let Ok(promise) = node.acceptor.prepare(ballot) else { return };
        self.follow(node, ballot);
        let mut leading = Proposer::new(ballot);
        leading.promise(me, promise);
        node.leading = Some(leading);
        state.take_overs += 1;
        state.letters.insert(Letter::Prepare(ballot));
    }

    fn propose(&self, state: &mut State, me: NodeId, voters: Vec<NodeId>) {
        let Some(Some(node)) = self.view.rank(me).and_then(|rank| state.nodes.get_mut(rank)) else { return };
        let Some(leading) = node.leading.as_mut() else { return };
        let ballot = leading.ballot();
        let bound = leading.bound_to().filter(|_| !self.plants(Planted::InheritsNothing)).map(|bound| bound.value);
        // Under a ballot that two share, each has a choice of its own.
        let own = if self.plants(Planted::SharesBallot) { Ballot { node: me, ..ballot } } else { ballot };
        let choice = Choice { value: bound.unwrap_or(own), voters, inherited: bound.is_some() };
        leading.propose(choice.clone());
        let _ = self.take_proposal(node, me, ballot, choice.clone());
        state.letters.insert(Letter::Proposed(ballot, choice));
    }

    /// Notes what its proposer knows to be decided.
    fn note_decided(state: &mut State) {
        let chosen = |node: &Node| {
            let leading = node.leading.as_ref()?;
            leading.chosen().map(|choice| (leading.ballot(), choice.clone()))
        };
        let decided: Vec<_> = state.nodes.iter().flatten().filter_map(chosen).collect();
        state.decided.extend(decided);
    }

    /// Whom a letter is for.
    fn receivers(&self, letter: &Letter) -> Vec<NodeId> {
        match letter {
            Letter::Prepare(ballot) => self.view.ids().filter(|id| *id != ballot.node).collect(),
            Letter::Proposed(ballot, choice) => choice.voters.iter().copied().filter(|id| *id != ballot.node).collect(),
            Letter::Promised(from, Promise { ballot, .. }) | Letter::Accepted(from, ballot) => {
                let shares = |id: &NodeId| *id == ballot.node || (self.plants(Planted::SharesBallot) && id != from);
                self.view.ids().filter(shares).collect()
            }
        }
    }

    fn steps_of(&self, state: &State, id: NodeId, node: &Node, steps: &mut Vec<Step>) {
        if node.has_decided() {
            return;
        }
        let first = first_ballot(&self.view);
        if id == first.node && node.leading.is_none() && node.ballots.highest() == first && node.acceptor.promised() == first {
            steps.push(Step::ProposeFirst);
        }
        if state.take_overs < self.setup.take_overs {
            steps.push(Step::TakeOver(id));
        }
        if node.proposal.is_some() {
            steps.push(Step::Hold(id));
        }
        if let Some(leading) = node.leading.as_ref().filter(|leading| leading.proposal().is_none()) {
            let promised: Vec<NodeId> = leading.promised().filter(|other| *other != id).collect();
            for mask in 0u32..1 << promised.len() {
                let others = promised.iter().enumerate().filter(|(index, _)| mask >> index & 1 == 1).map(|(_, other)| *other);
                let voters: BTreeSet<NodeId> = others.chain([id]).collect();
                let voters: Vec<NodeId> = voters.into_iter().collect();
                if self.is_quorum(&voters) {
                    steps.push(Step::Propose(id, voters));
                }
            }
        }
        if Self::crashed(state) < usize::from(self.setup.crashes) {
            steps.push(Step::Crash(id));
        }
    }
}

impl Model for Decree {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let node = |id| Node { acceptor: Acceptor::new(&self.view), ballots: Ballots::new(id, &self.view), leading: None, proposal: None };
        let nodes = self.view.ids().map(|id| Some(node(id))).collect();
        vec![State { nodes, letters: BTreeSet::new(), take_overs: 0, decided: BTreeSet::new() }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (id, node) in self.view.ids().zip(&state.nodes) {
            if let Some(node) = node {
                self.steps_of(state, id, node, steps);
            }
        }
        for letter in &state.letters {
            steps.extend(self.receivers(letter).into_iter().map(|to| Step::Deliver(to, letter.clone())));
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Deliver(to, letter) => self.deliver(&mut state, to, letter),
            Step::ProposeFirst => {
                let (first, all) = (first_ballot(&self.view), self.view.ids().collect());
                if let Some(Some(node)) = state.nodes.first_mut() {
                    node.leading = Some(Proposer::new(first));
                }
                self.propose(&mut state, first.node, all);
            }
            Step::TakeOver(id) => self.take_over(&mut state, id),
            Step::Propose(id, voters) => self.propose(&mut state, id, voters),
            Step::Hold(id) => self.hold(&mut state, id),
            Step::Crash(id) => *state.nodes.get_mut(self.view.rank(id)?)? = None,
        }
        Self::note_decided(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = properties::invariants();
        properties.extend(properties::possibilities());
        properties
    }
}
