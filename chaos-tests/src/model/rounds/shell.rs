//! One node: its machine, and of its data plane only what was sent and what arrived.

use super::{GRACE, ROUND_TIMEOUT};
use slowmo_protocol::coordinator::{
    Attempt, Coordinator, In, Outcome, Plan, Publication, Settings, Voter,
};
use slowmo_protocol::ident::{ClusterId, Incarnation, NodeId, Round};
use slowmo_protocol::machine::Identity;
use slowmo_protocol::time::Instant;
use slowmo_protocol::view::Member;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// All nodes are of one cluster.
pub const CLUSTER: ClusterId = ClusterId(1);
/// The first start of a node, and the one after a crash.
pub const STARTS: [Incarnation; 2] = [Incarnation(1), Incarnation(2)];

/// What was sent, by attempt and sender.
pub type Facts = BTreeMap<(Attempt, NodeId), Fact>;

/// What one node sent in one attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fact {
    /// Its contribution, to all owners.
    pub contributed: bool,
    /// The state that moves without a slow step.
    pub moved: bool,
    /// Its averaged shards, and their new state after a slow step.
    pub reduced: bool,
}

/// The data of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Movement {
    pub plan: Arc<Plan>,
    /// Who gets what it makes, with what that is; the latter is unknown where a leader tells
    /// nobody.
    pub published: Option<(Arc<Publication>, Option<Arc<Outcome>>)>,
    /// The machine was told that all arrived.
    pub told: bool,
    /// All arrived.
    pub held: bool,
    /// The machine said so to the attempt's leader.
    pub ready: bool,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub machine: Coordinator,
    pub member: Member,
    pub alive: bool,
    /// It left, and has ended.
    pub drained: bool,
    /// It knows that it leaves.
    pub is_leaving: bool,
    /// The others went on without it: it may vote, and is no member.
    pub is_left_out: bool,
    /// Its training threads have not contributed to the round yet.
    pub waits_to_contribute: bool,
    /// The last round that it applied, in this incarnation.
    pub applied: Round,
    /// The data of the round's attempts, the newest last.
    pub movements: Vec<Movement>,
    /// Whom it was told to be dead.
    pub lost: BTreeSet<(NodeId, Incarnation)>,
    /// When a deadline passes next whose passing has an effect; follows from the machine.
    pub tick: Option<Instant>,
    /// The machine as the round began, for a planted bug.
    pub saved: Option<Box<Coordinator>>,
}

impl Node {
    pub fn new(id: NodeId, incarnation: Incarnation) -> Self {
        let identity = Identity {
            cluster: CLUSTER,
            node: id,
            incarnation,
        };
        let settings = Settings {
            grace: GRACE,
            round_timeout: ROUND_TIMEOUT,
            ask_again: ROUND_TIMEOUT,
            ..Settings::simulated(identity)
        };
        Self {
            machine: Coordinator::new(settings),
            member: member(id, incarnation),
            alive: true,
            drained: false,
            is_leaving: false,
            is_left_out: false,
            waits_to_contribute: false,
            applied: Round::BOOTSTRAP,
            movements: Vec::new(),
            lost: BTreeSet::new(),
            tick: None,
            saved: None,
        }
    }

    pub fn id(&self) -> NodeId {
        self.member.id
    }

    /// Whether its process runs.
    pub fn lives(&self) -> bool {
        self.alive && !self.drained
    }

    /// Whether its process is this start of it.
    pub fn is_start(&self, start: &Voter) -> bool {
        self.lives() && *start == Voter::from(&self.member)
    }

    /// The data of the newest attempt.
    pub fn moving(&self) -> Option<&Movement> {
        self.movements.last()
    }

    pub fn movement(&mut self, attempt: Attempt) -> Option<&mut Movement> {
        self.movements
            .iter_mut()
            .find(|movement| movement.plan.attempt == attempt)
    }

    /// Whether this node's membership tells it about `other`.
    pub fn watches(&self, other: &Self) -> bool {
        let in_view = |id: NodeId| self.machine.view().is_some_and(|view| view.contains(id));
        let votes = |id: NodeId| {
            self.machine
                .voters()
                .is_some_and(|voters| voters.of(id).is_some())
        };
        let joins = |id: NodeId| self.machine.joiners().any(|joiner| joiner == id);
        in_view(self.id()) && (in_view(other.id()) || votes(other.id()) || joins(other.id()))
    }

    /// Which start of `other` this node has in its view, or among its voters; of one that is in
    /// neither, the one there is.
    pub fn start_of(&self, other: &Self) -> Incarnation {
        let member = self
            .machine
            .view()
            .and_then(|view| view.member(other.id()))
            .map(|member| member.incarnation);
        let voter = self
            .machine
            .voters()
            .and_then(|voters| voters.of(other.id()))
            .map(|voter| voter.incarnation);
        member.or(voter).unwrap_or(other.member.incarnation)
    }

    /// Whether that start is the one there is.
    pub fn knows_start_of(&self, other: &Self) -> bool {
        self.start_of(other) == other.member.incarnation
    }

    /// Whether everything was sent that this node must hold in the newest attempt.
    pub fn may_hold(&self, facts: &Facts) -> bool {
        let Some(Movement {
            plan,
            published: Some((publication, _)),
            ..
        }) = self.moving()
        else {
            return false;
        };
        let fact = |node: NodeId| {
            facts
                .get(&(plan.attempt, node))
                .copied()
                .unwrap_or_default()
        };
        let sends_state = |from: NodeId| {
            if publication.renews_anchor {
                fact(from).reduced
            } else {
                fact(from).moved
            }
        };
        (!plan.owns() || fact(self.id()).reduced)
            && plan
                .other_owners()
                .into_iter()
                .all(|owner| fact(owner).reduced)
            && publication
                .moves_to(self.id())
                .all(|moved| sends_state(moved.from))
    }

    /// Whether this node has all it needs to average its shards of the newest attempt.
    pub fn may_reduce(&self, facts: &Facts) -> bool {
        let Some(Movement {
            plan,
            published: Some(_),
            ..
        }) = self.moving()
        else {
            return false;
        };
        let contributed = |node: &NodeId| {
            facts
                .get(&(plan.attempt, *node))
                .is_some_and(|fact| fact.contributed)
        };
        plan.owns() && plan.contributors.iter().all(contributed)
    }

    /// What to tell the machine when all arrived.
    pub fn arrivals(&self) -> Vec<In> {
        let Some(Movement {
            plan,
            published: Some((publication, _)),
            ..
        }) = self.moving()
        else {
            return Vec::new();
        };
        let attempt = plan.attempt;
        let own = plan.owns().then_some(In::Reduced(attempt));
        let parameters = plan
            .other_owners()
            .into_iter()
            .map(|owner| In::ParametersHeld(attempt, owner));
        let state = publication
            .moves_to(self.id())
            .map(|moved| In::StateHeld(attempt, moved.from));
        own.into_iter().chain(parameters).chain(state).collect()
    }

    /// Whether this start of a node is a member of an outcome's view, and does not hold what makes
    /// it one.
    pub fn lacks(&self, outcome: &Outcome) -> bool {
        let holds = |movement: &Movement| movement.held && movement.makes(outcome);
        let is_member = outcome.view.member(self.id()) == Some(&self.member);
        self.lives()
            && is_member
            && self.applied < outcome.round
            && !self.movements.iter().any(holds)
    }
}

impl Movement {
    /// Whether it makes the data of an outcome.
    pub fn makes(&self, outcome: &Outcome) -> bool {
        let of = self.published.as_ref().and_then(|(_, of)| of.as_deref());
        of.is_some_and(|of| of.has_the_data_of(outcome))
    }
}

pub fn member(id: NodeId, incarnation: Incarnation) -> Member {
    Member {
        id,
        incarnation,
        address: SocketAddr::from(([127, 0, 0, 1], 1)),
        devices: 1,
    }
}
