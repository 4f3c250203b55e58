//! Whole rounds: the product's coordinators, with the network, the data and the liveness around
//! them explored in every order.
//!
//! The initial state is a set of members that have bootstrapped their history. From there every
//! possible [`Step`] is explored in every order. Each step is one event that a real shell would
//! hand to one machine (or a few events that no other step can tell apart), and every effect is
//! carried out at once, as the shell of the actor does it.
//!
//! # Bounded
//! The number of nodes, of rounds after the bootstrap, of crashes, of wrong verdicts about live
//! nodes and of broken connections, and the counter of terms (states beyond it are not entered);
//! [`Setup`] has each. A node that crashed restarts at most once. A node that is left out does not
//! join again, but continues to vote where it is a voter. No node forks, no round times out, and no
//! member asks again for the outcome of a round. The simulation covers those.
//!
//! # Not bounded
//! Durations: frames of one connection stay in order and may wait for any time, even for ever
//! (which is how those of a dead node are lost), and so may data; verdicts come at any time, and a
//! deadline passes at any time at which it is pending. No symmetry is used, because the order of
//! the ids decides which node leads.
//!
//! # Simplifications that change nothing
//! * **Data arrives at a node all at once.** A machine acts on data only when the last piece that
//!   it waits for has arrived: earlier pieces change none of its answers. So one step
//!   [`Step::Hold`] hands over everything, at any time after all of it was sent.
//! * **An owner averages as soon as it can.** The average shows only in what its receivers hold,
//!   which may come at any later time, or never: so an owner that averages later, or dies before,
//!   leads to no other state.
//! * **A broken connection is re-established at once.** Everything in flight in either direction is
//!   lost: the frames, and perhaps the streams, as their [`Step::Hold`] need never come.
//! * **Time stands still between ticks.** Events are handed over at instant 0, a tick at a pending
//!   deadline. The deadlines' lengths are so far apart that they pass in the order of their kinds:
//!   another node's lead, streams that may be lost, promises, the end of a leaver, the grace,
//!   joiners.
//! * **A deadline passes only when that has an effect.** Whether a deadline has passed is read at
//!   the end of every event. Before there is an effect nothing shows whether it passed, and "it
//!   passes, then the event" ends in the same state as "the event, then it passes".
//! * **Votes go to the leader only**, and nodes believe what it decides. Elsewhere a member that
//!   was told a decision waits for the votes of the others: as if the frame that told it came
//!   later.
//! * **Frames of a round that is over** are dropped as soon as their receiver would neither answer
//!   nor change: rounds only grow, so it never will.
//! * **A node that has applied the last round** gets no verdicts and no ticks. It only answers.
//!   When every node has applied it, the run is over.

mod perform;
mod shell;
mod state;
mod watch;

pub use state::State;
pub use watch::Violation;

use slowmo_models::check::Limit;
use slowmo_protocol::coordinator::{RoundKind, RoundSpec};
use slowmo_protocol::ident::{NodeId, Round, Step as InnerStep};
use slowmo_protocol::time::{Instant, Span};
use stateright::{Model, Property};

/// Time that a round waits for stragglers: longer than all other waits together.
const GRACE: Span = Span::from_millis(3_600_000);
/// Round timeout: later than any tick of the model.
const ROUND_TIMEOUT: Span = Span::from_millis(1_000 * 3_600_000);
/// Deadlines after this never pass.
const TICKS_UNTIL: Instant = Instant(ROUND_TIMEOUT.0 / 4);

/// A rule that the model breaks on purpose.
#[derive(Clone, Copy, Debug)]
pub enum Planted {
    /// A machine is told that it holds data which has not arrived.
    HoldsNothing,
    /// A node restarts with the state that it had when the round began, under the same incarnation.
    ForgetsVotes,
    /// The machine itself breaks a rule: called before every step, on the thread that takes it.
    Machine(fn()),
}

/// The bounds of the search.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of bootstrap members; the lowest is node 1.
    pub members: u64,
    /// Whether one more node joins, and when the members learn of it.
    pub joins: Option<Announced>,
    /// The member that leaves after it contributed to the first round, and when each node learns of
    /// it.
    pub leaves: Option<(NodeId, Announced)>,
    /// Whether one member that crashed restarts, under its id, and asks to join.
    pub restarts: bool,
    /// Kinds of the rounds after the bootstrap.
    pub rounds: Vec<RoundKind>,
    /// Largest counter of a term.
    pub counter_max: u64,
    /// Maximum number of nodes that stop, joiner included.
    pub crashes: u8,
    /// Whether nodes that stopped are known to have ended; otherwise they are silent.
    pub ends_known: bool,
    /// Maximum number of verdicts on live nodes; each may be taken back at any time.
    pub wrong_verdicts: u8,
    /// Pairs of a node and another that it may be wrong about; empty: all pairs.
    pub doubts: &'static [(NodeId, NodeId)],
    /// Maximum number of connections that break.
    pub breaks: u8,
    /// Whether training threads may be late; otherwise each contributes as soon as the round
    /// begins.
    pub late: bool,
    /// The planted bug, if any.
    pub planted: Option<Planted>,
}

/// The time at which nodes learn of a change that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// When the first round begins.
    AtOnce,
    /// At any time, for each node separately.
    Whenever,
}

impl Setup {
    /// Three members and two terms of each, without faults.
    #[must_use]
    pub fn calm(rounds: &[RoundKind]) -> Self {
        Self {
            members: 3,
            joins: None,
            leaves: None,
            restarts: false,
            rounds: rounds.to_vec(),
            counter_max: 1,
            crashes: 0,
            ends_known: false,
            wrong_verdicts: 0,
            doubts: &[],
            breaks: 0,
            late: false,
            planted: None,
        }
    }

    fn two_members(rounds: &[RoundKind]) -> Self {
        Self {
            members: 2,
            ..Self::calm(rounds)
        }
    }

    pub(super) fn short() -> Vec<(&'static str, Self)> {
        let slow = RoundKind::Slow;
        let average = RoundKind::Average;
        let joins = Some(Announced::AtOnce);
        let two = |rounds: &[RoundKind]| Self::two_members(rounds);
        vec![
            (
                "3 members, 1 round, 1 crash",
                Self {
                    crashes: 1,
                    ..Self::calm(&[slow])
                },
            ),
            ("3 members, 2 rounds", Self::calm(&[average, slow])),
            (
                "3 members, 1 round, 1 join",
                Self {
                    joins,
                    ..Self::calm(&[average])
                },
            ),
            (
                "3 members, 1 round, the leader leaves",
                Self {
                    leaves: Some((NodeId(1), Announced::AtOnce)),
                    ..Self::calm(&[slow])
                },
            ),
            (
                "3 members, 1 round, late threads",
                Self {
                    late: true,
                    ..Self::calm(&[average])
                },
            ),
            (
                "2 members, 1 round, 1 crash, 1 wrong verdict",
                Self {
                    crashes: 1,
                    wrong_verdicts: 1,
                    ..two(&[average])
                },
            ),
            (
                "2 members, 1 round, 1 crash, 1 join",
                Self {
                    crashes: 1,
                    joins,
                    ..two(&[average])
                },
            ),
            (
                "2 members, 1 round, 1 crash that is known, 1 join",
                Self {
                    crashes: 1,
                    ends_known: true,
                    joins,
                    ..two(&[slow])
                },
            ),
            (
                "2 members, 2 rounds, 1 crash, 1 restart",
                Self {
                    crashes: 1,
                    restarts: true,
                    ..two(&[average, slow])
                },
            ),
            (
                "2 members, 1 round, 1 connection breaks, 1 join",
                Self {
                    breaks: 1,
                    joins,
                    ..two(&[average])
                },
            ),
        ]
    }

    pub(super) fn long() -> Vec<(&'static str, Self)> {
        const DOUBT: [(NodeId, NodeId); 1] = [(NodeId(2), NodeId(1))];
        let slow = RoundKind::Slow;
        let average = RoundKind::Average;
        let joins = Some(Announced::AtOnce);
        let joins_whenever = Some(Announced::Whenever);
        let leaves = Some((NodeId(3), Announced::Whenever));
        let two = |rounds: &[RoundKind]| Self::two_members(rounds);
        vec![
            (
                "2 members, 1 round, 1 wrong verdict, 1 join",
                Self {
                    wrong_verdicts: 1,
                    joins,
                    ..two(&[average])
                },
            ),
            (
                "2 members, 2 rounds, a join whenever",
                Self {
                    joins: joins_whenever,
                    ..two(&[average, slow])
                },
            ),
            (
                "3 members, 1 round, 1 connection breaks",
                Self {
                    breaks: 1,
                    ..Self::calm(&[average])
                },
            ),
            (
                "3 members, 1 round, 1 wrong verdict on the leader",
                Self {
                    wrong_verdicts: 1,
                    doubts: &DOUBT,
                    ..Self::calm(&[average])
                },
            ),
            (
                "3 members, 1 round, 1 wrong verdict",
                Self {
                    wrong_verdicts: 1,
                    ..Self::calm(&[average])
                },
            ),
            (
                "3 members, 1 round, 1 crash, 3 terms of each",
                Self {
                    crashes: 1,
                    counter_max: 2,
                    ..Self::calm(&[slow])
                },
            ),
            (
                "3 members, 2 rounds, 1 crash",
                Self {
                    crashes: 1,
                    ..Self::calm(&[slow, average])
                },
            ),
            (
                "3 members, 1 round, 1 crash, 1 join",
                Self {
                    crashes: 1,
                    joins,
                    ..Self::calm(&[average])
                },
            ),
            (
                "3 members, 2 rounds, 1 crash, 1 restart",
                Self {
                    crashes: 1,
                    restarts: true,
                    ..Self::calm(&[average, slow])
                },
            ),
            (
                "3 members, 1 round, 1 crash, one leaves",
                Self {
                    crashes: 1,
                    leaves,
                    ..Self::calm(&[average])
                },
            ),
            (
                "3 members, 1 round, 1 crash, late threads",
                Self {
                    crashes: 1,
                    late: true,
                    ..Self::calm(&[average])
                },
            ),
            (
                "4 members, 1 round, 1 crash",
                Self {
                    members: 4,
                    crashes: 1,
                    ..Self::calm(&[average])
                },
            ),
        ]
    }

    /// The parameters of a round, on which all nodes agree.
    fn spec(&self, round: Round) -> RoundSpec {
        let mut kinds = std::iter::once(RoundKind::Bootstrap).chain(self.rounds.iter().copied());
        let kind = kinds.nth(round.0 as usize).unwrap_or(RoundKind::Average);
        RoundSpec {
            kind,
            step: InnerStep(round.0.saturating_sub(1)),
            gamma: 0.125,
            elements: self.members,
        }
    }

    /// The last round that is explored.
    fn last_round(&self) -> Round {
        Round(self.rounds.len() as u64)
    }
}

/// One step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The oldest frame from the first node to the second arrives.
    Deliver(NodeId, NodeId),
    /// All data that a node must hold has arrived.
    Hold(NodeId),
    /// A node's training threads contribute.
    Contribute(NodeId),
    /// The next deadline of a node passes, of those whose passing has an effect.
    Tick(NodeId),
    /// The first node is told that the second one is dead, correctly or not.
    Lost(NodeId, NodeId),
    /// The first node is told that the second one is alive after all.
    Back(NodeId, NodeId),
    /// A member learns that the others continued without it.
    Resign(NodeId),
    /// A member learns that the joiner is ready.
    Announce(NodeId),
    /// A node learns which node leaves.
    Leave(NodeId),
    /// The connection of two nodes breaks and is re-established.
    Break(NodeId, NodeId),
    /// A node stops; for good, unless it restarts.
    Crash(NodeId),
    /// A node that crashed restarts with empty memory.
    Restart(NodeId),
    /// Planted: a node returns to the state that it had when its round began.
    Forget(NodeId),
}

/// The model.
#[derive(Clone, Debug)]
pub struct Cluster {
    setup: Setup,
    bootstrapped: State,
    limit: Option<Limit>,
}

impl Cluster {
    /// A cluster that has decided its bootstrap and begins the first round.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let bootstrapped = perform::bootstrapped(&setup);
        Self {
            setup,
            bootstrapped,
            limit: None,
        }
    }

    /// The same, searched until a limit.
    #[must_use]
    pub fn until(self, limit: Limit) -> Self {
        Self {
            limit: Some(limit),
            ..self
        }
    }

    fn steps_of(&self, state: &State, node: &shell::Node, steps: &mut Vec<Step>) {
        let id = node.id();
        let setup = &self.setup;
        if state.crashes < setup.crashes {
            steps.push(Step::Crash(id));
        }
        if perform::may_hold(setup, state, node) {
            steps.push(Step::Hold(id));
        }
        if state.breaks < setup.breaks {
            let others = state
                .nodes
                .iter()
                .filter(|other| other.lives() && other.id() > id);
            steps.extend(others.map(|other| Step::Break(id, other.id())));
        }
        if node.applied >= setup.last_round() {
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
        if state.unaware.contains(&id) {
            steps.push(Step::Leave(id));
        }
        if matches!(setup.planted, Some(Planted::ForgetsVotes))
            && !state.forgot
            && node.machine.accepted().is_some()
        {
            steps.push(Step::Forget(id));
        }
        self.verdicts(state, node, steps);
    }

    fn verdicts(&self, state: &State, node: &shell::Node, steps: &mut Vec<Step>) {
        let id = node.id();
        for other in state
            .nodes
            .iter()
            .filter(|other| other.id() != id && node.watches(other))
        {
            let told = node.lost.contains(&(other.id(), node.start_of(other)));
            let lives = node.knows_start_of(other) && other.lives();
            let doubted =
                self.setup.doubts.is_empty() || self.setup.doubts.contains(&(id, other.id()));
            let may_be_wrong = doubted && state.wrong_verdicts < self.setup.wrong_verdicts;
            if !told && (!lives || may_be_wrong) {
                steps.push(Step::Lost(id, other.id()));
            }
            if told && lives {
                steps.push(Step::Back(id, other.id()));
            }
        }
    }

    /// Whether a live node has applied a round that leaves `node` out, so that the membership of
    /// `node` learns of it.
    fn went_on_without(&self, state: &State, node: &shell::Node) -> bool {
        let round = node.machine.place().round;
        let without = |other: &shell::Node| {
            let last = other.machine.last_outcome();
            last.is_some_and(|outcome| {
                outcome.round >= round && outcome.view.member(node.id()) != Some(&node.member)
            })
        };
        node.machine.view().is_some()
            && state
                .nodes
                .iter()
                .any(|other| other.lives() && without(other))
    }

    /// Whether every live member has applied the last round and the leaver is gone.
    #[must_use]
    pub fn is_over(&self, state: &State) -> bool {
        let members = state
            .nodes
            .iter()
            .filter(|node| node.lives() && node.machine.view().is_some());
        let pending = state.nodes.iter().any(|node| {
            node.lives() && node.is_leaving && !node.is_left_out && node.machine.view().is_none()
        });
        !pending
            && members
                .into_iter()
                .all(|node| node.applied >= self.setup.last_round())
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.bootstrapped.clone()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.violation.is_some() || self.is_over(state) {
            return;
        }
        steps.extend(
            state
                .links
                .keys()
                .map(|(from, to)| Step::Deliver(*from, *to)),
        );
        for node in state.nodes.iter().filter(|node| node.lives()) {
            self.steps_of(state, node, steps);
        }
        if self.setup.restarts && state.restarted.is_none() {
            steps.extend(
                state
                    .nodes
                    .iter()
                    .filter(|node| !node.alive)
                    .map(|node| Step::Restart(node.id())),
            );
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        if let Some(Planted::Machine(plant)) = self.setup.planted {
            plant();
        }
        let next = perform::perform(&self.setup, last, step);
        (next != *last).then_some(next)
    }

    fn within_boundary(&self, state: &State) -> bool {
        self.limit.as_ref().is_none_or(Limit::allows)
            && state
                .nodes
                .iter()
                .all(|node| node.machine.place().term.counter <= self.setup.counter_max)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = watch::invariants();
        properties.push(Property::always(
            "nothing ends in a standstill",
            |model: &Self, state: &State| {
                let mut steps = Vec::new();
                if state.links.is_empty() {
                    model.actions(state, &mut steps);
                }
                !state.links.is_empty()
                    || !steps.is_empty()
                    || state.violation.is_some()
                    || model.is_over(state)
                    || !state.has_quorum()
            },
        ));
        properties.extend(watch::possibilities(&self.setup));
        properties
    }
}
