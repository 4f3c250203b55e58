//! One node: its machine, and of its data plane only the facts of what was sent and what arrived.

use super::{GRACE, ROUND_TIMEOUT};
use slowmo_protocol::coordinator::{
    Attempt, Coordinator, In, Outcome, Plan, Publication, Settings, Voter,
};
use slowmo_protocol::ident::{ClusterId, GroupId, Incarnation, NodeId, Round};
use slowmo_protocol::machine::Identity;
use slowmo_protocol::published::{PublicKey, Signed};
use slowmo_protocol::time::Instant;
use slowmo_protocol::view::Member;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// The cluster id of all nodes.
pub const CLUSTER: ClusterId = ClusterId(1);
/// The first incarnation of a node, and the one after a crash.
pub const STARTS: [Incarnation; 2] = [Incarnation(1), Incarnation(2)];

/// The data that was sent, by attempt and sender.
pub type Facts = BTreeMap<(Attempt, NodeId), Fact>;

/// The data that one node sent in one attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fact {
    /// The node sent its contribution to all owners.
    pub contributed: bool,
    /// The node sent the state that moves without a slow step.
    pub moved: bool,
    /// The node sent its averaged shards, and their new state after a slow step.
    pub reduced: bool,
}

/// The data of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Movement {
    pub plan: Arc<Plan>,
    /// The receivers of the attempt's data, and its outcome; the latter is unknown if a leader
    /// tells it to no other node.
    pub published: Option<(Arc<Publication>, Option<Arc<Outcome>>)>,
    /// The machine was told that all data arrived.
    pub told: bool,
    /// All data arrived.
    pub held: bool,
    /// The machine told the attempt's leader that it is ready.
    pub ready: bool,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub machine: Coordinator,
    pub member: Member,
    pub alive: bool,
    /// The node left, and has ended.
    pub drained: bool,
    /// The node knows that it leaves.
    pub is_leaving: bool,
    /// The others continued without the node: it may vote, and is not a member.
    pub is_left_out: bool,
    /// The training threads have not contributed to the round yet.
    pub waits_to_contribute: bool,
    /// The last round that the node applied, in this incarnation.
    pub applied: Round,
    /// The data of the round's attempts, the newest last.
    pub movements: Vec<Movement>,
    /// The nodes that it was told are dead.
    pub lost: BTreeSet<(NodeId, Incarnation)>,
    /// The next deadline whose passing has an effect; derived from the machine.
    pub tick: Option<Instant>,
    /// The machine as it was when the round began, for a planted bug.
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

    /// Whether the node's process runs.
    pub fn lives(&self) -> bool {
        self.alive && !self.drained
    }

    /// Whether the node's process is this incarnation.
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

    /// The incarnation of `other` that this node has in its view or among its voters; if `other` is
    /// in neither, its current incarnation.
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

    /// Whether that incarnation is the current one.
    pub fn knows_start_of(&self, other: &Self) -> bool {
        self.start_of(other) == other.member.incarnation
    }

    /// Whether all data that this node must hold in the newest attempt was sent.
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

    /// Whether this node has all data that it needs to average its shards of the newest attempt.
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

    /// The events to hand to the machine when all data arrived.
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
        let own = plan
            .owns()
            .then_some(In::Reduced(attempt, Signed::default()));
        let parameters = plan
            .other_owners()
            .into_iter()
            .map(|owner| In::ParametersHeld(attempt, owner, Signed::default()));
        let state = publication
            .moves_to(self.id())
            .map(|moved| In::StateHeld(attempt, moved.from));
        own.into_iter().chain(parameters).chain(state).collect()
    }

    /// Whether this incarnation of a node is a member of an outcome's view, but does not hold the
    /// data that a member must hold.
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
    /// Whether the movement makes the data of an outcome.
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
        group: GroupId::default(),
        key: PublicKey::default(),
    }
}
