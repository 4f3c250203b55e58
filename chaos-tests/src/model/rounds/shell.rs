//! One node: its machine, and of its data plane only what was sent and what arrived.

use super::{GRACE, Planted, ROUND_TIMEOUT, Setup};
use slowmo_protocol::coordinator::{Attempt, Coordinator, In, Origin, Outcome, Plan, Publication, Settings};
use slowmo_protocol::ident::{ClusterId, Incarnation, NodeId, Round};
use slowmo_protocol::machine::Identity;
use slowmo_protocol::policy::{OnMomentumLoss, Quorum};
use slowmo_protocol::time::Instant;
use slowmo_protocol::view::Member;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// All nodes are of one cluster.
pub const CLUSTER: ClusterId = ClusterId(1);
/// The first start of a node, and the one after a crash.
pub const STARTS: [Incarnation; 2] = [Incarnation(1), Incarnation(2)];

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

/// The data of the open attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Movement {
    pub plan: Arc<Plan>,
    pub published: Option<(Arc<Publication>, Option<Arc<Outcome>>)>,
    /// The machine was told that all arrived.
    pub told: bool,
    /// All arrived.
    pub held: bool,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub machine: Coordinator,
    pub member: Member,
    pub alive: bool,
    /// It holds too little of what was decided, and is out.
    pub stranded: bool,
    /// Its training threads have not contributed to the round yet.
    pub waits_to_contribute: bool,
    pub movement: Option<Movement>,
    /// Whom it was told to be dead.
    pub lost: BTreeSet<(NodeId, Incarnation)>,
    /// When a deadline passes next whose passing has an effect; follows from the machine.
    pub tick: Option<Instant>,
    /// The machine as the round began, for a planted bug.
    pub saved: Option<Box<Coordinator>>,
}

impl Node {
    pub fn new(id: NodeId, incarnation: Incarnation, setup: &Setup) -> Self {
        let identity = Identity { cluster: CLUSTER, node: id, incarnation };
        let survivors = setup.planted == Some(Planted::DecidesWithoutQuorum);
        let settings = Settings {
            identity,
            replicas: 1,
            keeps_state: true,
            origin: Origin::default(),
            restores: false,
            copies_buffers: None,
            orders_by_rate: false,
            quorum: if survivors { Quorum::Survivors } else { Quorum::Majority },
            on_momentum_loss: OnMomentumLoss::Reset,
            grace: GRACE,
            round_timeout: ROUND_TIMEOUT,
        };
        Self {
            machine: Coordinator::new(settings),
            member: member(id, incarnation),
            alive: true,
            stranded: false,
            waits_to_contribute: false,
            movement: None,
            lost: BTreeSet::new(),
            tick: None,
            saved: None,
        }
    }

    pub fn id(&self) -> NodeId {
        self.member.id
    }

    pub fn takes_part(&self) -> bool {
        self.alive && !self.stranded
    }

    pub fn has_applied(&self, round: Round) -> bool {
        self.machine.last_outcome().is_some_and(|outcome| outcome.round >= round)
    }

    /// Whether this node's membership tells it about `other`.
    pub fn watches(&self, other: &Self) -> bool {
        let joins = || self.machine.joiners().any(|joiner| joiner == other.id());
        self.machine.view().is_some_and(|view| view.contains(other.id()) || joins())
    }

    /// Which start of `other` this node has in its view; of one that is not in it, the one there is.
    pub fn start_of(&self, other: &Self) -> Incarnation {
        let known = self.machine.view().and_then(|view| view.member(other.id()));
        known.map_or(other.member.incarnation, |member| member.incarnation)
    }

    /// Whether that start is the one there is.
    pub fn knows_start_of(&self, other: &Self) -> bool {
        self.start_of(other) == other.member.incarnation
    }

    /// Whether everything was sent that this node must hold in the open attempt.
    pub fn may_hold(&self, facts: &BTreeMap<(Attempt, NodeId), Fact>) -> bool {
        let Some(Movement { plan, published: Some((publication, _)), .. }) = &self.movement else { return false };
        let fact = |node: NodeId| facts.get(&(plan.attempt, node)).copied().unwrap_or_default();
        let sends_state = |from: NodeId| if publication.renews_anchor { fact(from).reduced } else { fact(from).moved };
        (!plan.owns() || fact(self.id()).reduced)
            && plan.other_owners().into_iter().all(|owner| fact(owner).reduced)
            && publication.moves_to(self.id()).all(|moved| sends_state(moved.from))
    }

    /// Whether this node has all it needs to average its shards.
    pub fn may_reduce(&self, facts: &BTreeMap<(Attempt, NodeId), Fact>) -> bool {
        let Some(Movement { plan, published: Some(_), .. }) = &self.movement else { return false };
        let contributed = |node: &NodeId| facts.get(&(plan.attempt, *node)).is_some_and(|fact| fact.contributed);
        plan.owns() && plan.contributors.iter().all(contributed)
    }

    /// What to tell the machine when all arrived.
    pub fn arrivals(&self) -> Vec<In> {
        let Some(Movement { plan, published: Some((publication, _)), .. }) = &self.movement else { return Vec::new() };
        let attempt = plan.attempt;
        let own = plan.owns().then_some(In::Reduced(attempt));
        let parameters = plan.other_owners().into_iter().map(|owner| In::ParametersHeld(attempt, owner));
        let state = publication.moves_to(self.id()).map(|moved| In::StateHeld(attempt, moved.from));
        own.into_iter().chain(parameters).chain(state).collect()
    }
}

pub fn member(id: NodeId, incarnation: Incarnation) -> Member {
    Member { id, incarnation, address: SocketAddr::from(([127, 0, 0, 1], 1)), devices: 1 }
}
