//! Whole rounds: the product's coordinators, with the network, the data and the liveness around them explored in every order.
//!
//! Three members have founded their history; a fourth node may ask to join. From there a step is one of [`Step`], and every order
//! of all possible steps is explored. Each step is one event that a real shell would hand to one machine (or a few that no other
//! step can tell apart), and every effect is carried out at once, as the shell of the actor does it.
//!
//! # What is bounded
//! The nodes, the rounds after the founding, the counter of ballots (states beyond are not entered), crashes, verdicts about nodes
//! that live; [`Setup`] has each. Links never break while both ends live, so no `PeerUp` is told; who is stranded does not come
//! back, and one that crashed at most once; nobody leaves; no stream breaks and no round times out. Those are the simulation's.
//!
//! # What is not bounded
//! How long anything takes: frames of one link stay in order and wait as long as they please, for ever too (which is how those of
//! a node that died are lost), data likewise, verdicts come whenever they like, and a deadline passes at any time at which it is
//! pending. No symmetry is used: the order of the ids decides who leads.
//!
//! # What is left out because it changes nothing
//! * **Data arrives at a node all at once.** A machine acts on data only when the last piece of what it waits for is there: what
//!   came before changes no answer of it. So one step [`Step::Hold`] hands over everything, at any time after all of it was sent.
//! * **An owner averages as soon as it can.** That it did shows only in what its receivers hold, which may come at any later time,
//!   or never: so an owner that averages later, or dies before, leads to no other state.
//! * **Time stands still between ticks.** Frames and verdicts are handed over at instant 0, a tick at the pending deadline. The
//!   deadlines' lengths are chosen so far apart that they pass in the order of their kinds: the lead left to another, promises
//!   waited for, grace, joiners waited for. Other orders differ in nothing: the first two are never both of use to one node (who
//!   asks for promises leads), the grace is of use only once nobody waits for promises, and the joiners' deadline only after a
//!   proposal, before which the grace was over if it had to be. Nobody is waited for where survivors decide (no setup has them), and
//!   no link is given up, as none breaks.
//! * **A deadline passes only when that has an effect.** Only who leads reads what passed, at the end of every event: before there
//!   is an effect nothing tells whether it passed, and "it passes, then the event" ends where "the event, then it passes" does.
//! * **Frames of a round that is over** are dropped as soon as their receiver would neither answer nor change: rounds only grow, so
//!   it never will.
//! * **Who has applied the last round** is told no verdicts and no ticks. It only answers. When everybody has, the run is over.

mod perform;
mod shell;
mod state;
mod watch;

pub use state::State;
pub use watch::Violation;

use slowmo_protocol::coordinator::{RoundKind, Terms};
use slowmo_protocol::ident::{NodeId, Round, Step as InnerStep};
use slowmo_protocol::time::{Instant, Span};
use stateright::{Model, Property};

/// How long a round waits for stragglers: longer than all other waits together.
const GRACE: Span = Span::from_millis(3_600_000);
/// A round is given up later than any tick of the model.
const ROUND_TIMEOUT: Span = Span::from_millis(1_000 * 3_600_000);
/// Deadlines beyond never pass.
const TICKS_UNTIL: Instant = Instant(ROUND_TIMEOUT.0 / 4);

/// A rule that the model breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Any group decides, as if the policy were `survivors`.
    DecidesWithoutQuorum,
    /// A machine is told that it holds data which has not arrived.
    HoldsNothing,
    /// A node restarts with what it knew when the round began, under the same incarnation.
    ForgetsVotes,
}

/// What is explored, and how far.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Founding members; the lowest is node 1.
    pub members: u64,
    /// Whether one more node joins, and when the members know of it.
    pub joins: Option<Announced>,
    /// Whether one member that crashed starts again, under its id, and asks to join.
    pub restarts: bool,
    /// The rounds after the founding.
    pub rounds: Vec<RoundKind>,
    /// Largest counter of a ballot.
    pub counter_max: u64,
    /// Nodes that stop, at most, joiner included.
    pub crashes: u8,
    /// Verdicts on nodes that live, at most; each may be taken back at any time.
    pub wrong_verdicts: u8,
    /// Whether training threads may be late; otherwise each contributes as soon as the round begins.
    pub late: bool,
    /// A bug.
    pub planted: Option<Planted>,
}

/// When the members know of the node that joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// When the first round begins.
    AtOnce,
    /// Each at any time of its own.
    Whenever,
}

impl Setup {
    /// Three members and two ballots of each, nothing happens to them.
    #[must_use]
    pub fn calm(rounds: &[RoundKind]) -> Self {
        Self {
            members: 3,
            joins: None,
            restarts: false,
            rounds: rounds.to_vec(),
            counter_max: 1,
            crashes: 0,
            wrong_verdicts: 0,
            late: false,
            planted: None,
        }
    }

    pub(super) fn short() -> Vec<(&'static str, Self)> {
        let (slow, average) = (RoundKind::Slow, RoundKind::Average);
        let joins = Some(Announced::AtOnce);
        vec![
            ("3 members, 2 rounds, 1 crash", Self { crashes: 1, ..Self::calm(&[slow, average]) }),
            ("3 members, 1 round, 1 crash, 1 join", Self { crashes: 1, joins, ..Self::calm(&[average]) }),
            ("3 members, 1 round, 1 wrong verdict", Self { wrong_verdicts: 1, ..Self::calm(&[average]) }),
            ("3 members, 1 round, 1 crash, 3 ballots of each", Self { crashes: 1, counter_max: 2, ..Self::calm(&[slow]) }),
        ]
    }

    pub(super) fn long() -> Vec<(&'static str, Self)> {
        let (slow, average) = (RoundKind::Slow, RoundKind::Average);
        let (joins, joins_whenever) = (Some(Announced::AtOnce), Some(Announced::Whenever));
        vec![
            ("3 members, 1 round, 1 crash, 1 join, 3 ballots of each", Self { crashes: 1, joins, counter_max: 2, ..Self::calm(&[slow]) }),
            ("3 members, 1 round, 1 crash, 1 restart", Self { crashes: 1, restarts: true, ..Self::calm(&[average]) }),
            ("3 members, 1 round, 1 wrong verdict, 1 join", Self { wrong_verdicts: 1, joins, ..Self::calm(&[average]) }),
            ("3 members, 1 round, 1 crash, a join whenever", Self { crashes: 1, joins: joins_whenever, ..Self::calm(&[average]) }),
            ("3 members, 2 rounds, a join whenever", Self { joins: joins_whenever, ..Self::calm(&[average, slow]) }),
            ("3 members, 1 round, 1 crash, 1 wrong verdict", Self { crashes: 1, wrong_verdicts: 1, ..Self::calm(&[average]) }),
            ("3 members, 1 round, 1 wrong verdict, late threads", Self { wrong_verdicts: 1, late: true, ..Self::calm(&[average]) }),
            ("3 members, 2 rounds, 1 crash, 1 join", Self { crashes: 1, joins, ..Self::calm(&[average, slow]) }),
            ("4 members, 1 round, 1 crash", Self { members: 4, crashes: 1, ..Self::calm(&[average]) }),
        ]
    }

    /// What all expect of a round.
    fn terms(&self, round: Round) -> Terms {
        let kinds = std::iter::once(RoundKind::Found).chain(self.rounds.iter().copied());
        let kind = kinds.clone().nth(round.0 as usize).unwrap_or(RoundKind::Average);
        Terms { kind, step: InnerStep(round.0.saturating_sub(1)), gamma: 0.125, elements: self.members }
    }

    /// The last round that is explored.
    fn last_round(&self) -> Round {
        Round(self.rounds.len() as u64)
    }
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The oldest frame from the first node to the second arrives.
    Deliver(NodeId, NodeId),
    /// All that a node must hold has arrived.
    Hold(NodeId),
    /// A node's training threads contribute.
    Contribute(NodeId),
    /// A node's next deadline passes, of those whose passing changes what it does.
    Tick(NodeId),
    /// The first node is told that the second one is dead, rightly or not.
    Lost(NodeId, NodeId),
    /// The first node is told that the second one lives after all.
    Back(NodeId, NodeId),
    /// A member learns that the others went on without it.
    Resign(NodeId),
    /// A member learns that the joiner is ready.
    Announce(NodeId),
    /// A node stops; for good, unless it starts again.
    Crash(NodeId),
    /// A node that crashed starts again, knowing nothing.
    Restart(NodeId),
    /// Planted: a node is what it was when its round began.
    Forget(NodeId),
}

/// The model.
#[derive(Clone, Debug)]
pub struct Cluster {
    setup: Setup,
    founded: State,
}

impl Cluster {
    /// A cluster that has decided its founding and begins the first round.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let founded = perform::founded(&setup);
        Self { setup, founded }
    }

    fn steps_of(&self, state: &State, node: &shell::Node, steps: &mut Vec<Step>) {
        let (id, setup) = (node.id(), &self.setup);
        if state.crashes < setup.crashes {
            steps.push(Step::Crash(id));
        }
        if perform::may_hold(setup, state, node) {
            steps.push(Step::Hold(id));
        }
        if node.has_applied(setup.last_round()) {
            return;
        }
        if node.waits_to_contribute {
            steps.push(Step::Contribute(id));
        }
        if node.tick.is_some() {
            steps.push(Step::Tick(id));
        }
        if self.went_on_without(state, node) {
            steps.push(Step::Resign(id));
        }
        if state.unannounced.contains(&id) {
            steps.push(Step::Announce(id));
        }
        if setup.planted == Some(Planted::ForgetsVotes) && !state.forgot && node.machine.accepted().is_some() {
            steps.push(Step::Forget(id));
        }
        for other in state.nodes.iter().filter(|other| other.id() != id && node.watches(other)) {
            let told = node.lost.contains(&(other.id(), node.start_of(other)));
            if !told && (!node.knows_start_of(other) || !other.takes_part() || state.wrong_verdicts < setup.wrong_verdicts) {
                steps.push(Step::Lost(id, other.id()));
            }
            if told && node.knows_start_of(other) && other.takes_part() {
                steps.push(Step::Back(id, other.id()));
            }
        }
    }

    /// Whether a node that lives has applied a round which leaves `node` out; its membership learns of that.
    fn went_on_without(&self, state: &State, node: &shell::Node) -> bool {
        let round = node.machine.place().round;
        let without = |other: &shell::Node| {
            other
                .machine
                .last_outcome()
                .is_some_and(|outcome| outcome.round >= round && outcome.view.member(node.id()) != Some(&node.member))
        };
        node.machine.view().is_some() && state.nodes.iter().any(|other| other.takes_part() && without(other))
    }

    /// Whether every node that takes part has applied the last round.
    fn is_over(&self, state: &State) -> bool {
        let members = || state.nodes.iter().filter(|node| node.takes_part() && node.machine.view().is_some());
        members().all(|node| node.has_applied(self.setup.last_round()))
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.founded.clone()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.violation.is_some() || self.is_over(state) {
            return;
        }
        steps.extend(state.links.keys().map(|(from, to)| Step::Deliver(*from, *to)));
        for node in state.nodes.iter().filter(|node| node.takes_part()) {
            self.steps_of(state, node, steps);
        }
        if self.setup.restarts && state.restarted.is_none() {
            steps.extend(state.nodes.iter().filter(|node| !node.alive).map(|node| Step::Restart(node.id())));
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let next = perform::perform(&self.setup, last, step);
        (next != *last).then_some(next)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.nodes.iter().all(|node| node.machine.place().ballot.counter <= self.setup.counter_max)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = watch::invariants();
        properties.push(Property::always("nothing ends in a standstill", |model: &Self, state: &State| {
            let mut steps = Vec::new();
            if state.links.is_empty() {
                model.actions(state, &mut steps);
            }
            !state.links.is_empty() || !steps.is_empty() || state.violation.is_some() || model.is_over(state) || !state.has_quorum()
        }));
        properties.extend(watch::possibilities(&self.setup));
        properties
    }
}
