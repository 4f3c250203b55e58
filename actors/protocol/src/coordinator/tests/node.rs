//! One simulated node: the machine, a toy data plane that really averages, a training thread that really waits.

use super::oracle::{GAMMA, mean, slow_step};
use crate::algorithm::BufferStrategy;
use crate::coordinator::{Attempt, Coordinator, Origin, Outcome, Plan, Publication, RoundKind, RoundSpec, Settings, Voter};
use crate::ident::{ClusterId, Epoch, Incarnation, Lineage, NodeId, Round, ShardId, Step};
use crate::machine::Identity;
use crate::policy::{OnMomentumLoss, OnQuorumLoss, Quorum};
use crate::time::Span;
use crate::view::Member;
use crate::wire::Header;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub const CLUSTER: ClusterId = ClusterId(1);
/// What a slow step does to the base optimizer's buffers: rounds with and without a donor alternate.
pub const BUFFERS: BufferStrategy = BufferStrategy::Reset;
/// How long a round waits for a straggler, in simulated microseconds.
pub const GRACE: Span = Span(60_000);
/// How long survivors wait for a quorum.
pub const FORK_AFTER: Span = Span(150_000);

/// What a bulk stream brings.
#[derive(Clone, Debug)]
pub enum Content {
    Contribution(BTreeMap<ShardId, Vec<f64>>),
    Parameters(BTreeMap<ShardId, Vec<f64>>),
    State(BTreeMap<ShardId, State>),
    Buffers(Vec<f64>),
}

#[derive(Clone, Debug)]
pub struct Stream {
    pub header: Header,
    pub content: Content,
}

impl Stream {
    pub fn key(&self) -> (Attempt, u8, NodeId) {
        let kind = match self.content {
            Content::Contribution(_) => 0,
            Content::Parameters(_) => 1,
            Content::State(_) => 2,
            Content::Buffers(_) => 3,
        };
        (Attempt::of(&self.header), kind, self.header.sender)
    }
}

/// Anchor and momentum of one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub anchor: Vec<f64>,
    pub momentum: Vec<f64>,
}

/// What became of a shard, and its new momentum after a slow step.
type Reduced = (Vec<f64>, Option<Vec<f64>>);

/// The data movements of one attempt.
pub struct Movement {
    pub plan: Arc<Plan>,
    pub publication: Option<Arc<Publication>>,
    pub reduced: Option<BTreeMap<ShardId, Reduced>>,
    pub published: bool,
    pub values: BTreeMap<ShardId, Vec<f64>>,
    pub states: BTreeMap<ShardId, State>,
    pub buffers: Option<Vec<f64>>,
}

/// How rounds follow from inner steps: found, then `every` steps a plain average, every `slow` of those a slow step.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub slow_every: u64,
    pub elements: usize,
    /// Whether a mean of so many gradients goes before every exchange; 0: none.
    pub gradients: usize,
    /// Values of the base optimizer's buffers, of which joiners get a copy; 0: none.
    pub buffers: usize,
}

impl Schedule {
    pub fn spec(&self, step: Step) -> RoundSpec {
        let slow = (step.0 + 1).is_multiple_of(self.slow_every);
        let kind = if slow { RoundKind::Slow } else { RoundKind::Average };
        RoundSpec { kind, step, gamma: GAMMA, elements: self.elements as u64 }
    }

    pub fn after(&self, spec: RoundSpec) -> RoundSpec {
        let next = self.spec(spec.next_step());
        if self.gradients > 0 && spec.kind != RoundKind::Gradients {
            return RoundSpec { kind: RoundKind::Gradients, elements: self.gradients as u64, ..next };
        }
        next
    }

    pub fn found(&self) -> RoundSpec {
        RoundSpec { kind: RoundKind::Found, step: Step(0), gamma: 0.0, elements: self.elements as u64 }
    }
}

pub struct Node {
    pub member: Member,
    pub machine: Coordinator,
    pub alive: bool,
    pub stopped_until: u64,
    /// The round that the training thread works towards.
    pub round: Round,
    pub next: RoundSpec,
    pub waiting: bool,
    pub parameters: Vec<f64>,
    /// What the last round made.
    pub values: Vec<f64>,
    pub frozen: Vec<f64>,
    /// The base optimizer's buffers, which differ from node to node.
    pub buffers: Vec<f64>,
    pub states: BTreeMap<ShardId, State>,
    /// The attempts whose data moves or is kept, the newest last.
    pub movements: Vec<Movement>,
    pub parked: BTreeMap<(Attempt, u8, NodeId), Stream>,
    pub drained: bool,
    pub outside: bool,
    pub draining: bool,
    /// Its training is over: it leaves without another contribution.
    pub silent: bool,
    /// Whom its membership has declared dead, or is about to, and whether as ended.
    pub believed_dead: BTreeMap<Voter, bool>,
    /// Who is ready to join, as far as its membership has said.
    pub candidates: Vec<Member>,
    /// Of whom it was told that they leave.
    pub leavers: BTreeSet<NodeId>,
    /// The view that this start of the node asked to join.
    pub asked: Option<Epoch>,
    pub failed: Option<crate::coordinator::RoundError>,
    pub waits_for: Option<String>,
    pub last: Option<Outcome>,
}

impl Node {
    pub fn new(id: NodeId, incarnation: u64, schedule: Schedule, replicas: usize, quorum: (Quorum, OnQuorumLoss)) -> Self {
        let identity = Identity { cluster: CLUSTER, node: id, incarnation: Incarnation(incarnation) };
        let settings = Settings {
            identity,
            replicas,
            keeps_state: true,
            origin: Origin::default(),
            restores: false,
            copies_buffers: Some(BUFFERS),
            orders_by_rate: true,
            quorum: quorum.0,
            on_quorum_loss: quorum.1,
            fork_after: FORK_AFTER,
            on_momentum_loss: OnMomentumLoss::Reset,
            grace: GRACE,
            round_timeout: Span(3_000_000),
        };
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 7000));
        let parameters = (0..schedule.elements).map(|index| id.0 as f64 + index as f64 / 8.0).collect();
        Self {
            member: Member { id, incarnation: Incarnation(incarnation), address, devices: 1 },
            machine: Coordinator::new(settings),
            alive: true,
            stopped_until: 0,
            round: Round::FOUNDING,
            next: schedule.found(),
            waiting: false,
            parameters,
            values: Vec::new(),
            frozen: Vec::new(),
            buffers: vec![0.0; schedule.buffers],
            states: BTreeMap::new(),
            movements: Vec::new(),
            parked: BTreeMap::new(),
            drained: false,
            outside: true,
            draining: false,
            silent: false,
            believed_dead: BTreeMap::new(),
            candidates: Vec::new(),
            leavers: BTreeSet::new(),
            asked: None,
            failed: None,
            waits_for: None,
            last: None,
        }
    }

    pub fn start(&self) -> Voter {
        Voter::from(&self.member)
    }

    /// Is no member any more; its membership forgets what it knew of the others. Its state stays until it holds newer state.
    pub fn leave(&mut self) {
        self.outside = true;
        self.believed_dead.clear();
        self.candidates.clear();
        self.leavers.clear();
        self.asked = None;
    }

    fn header(&self, plan: &Plan) -> Header {
        Identity { cluster: CLUSTER, node: self.member.id, incarnation: self.member.incarnation }.header(plan.place)
    }

    /// Inner steps: every node drifts in its own way.
    pub fn train(&mut self) {
        let (id, step) = (self.member.id.0, self.next.step.0);
        let drift = |index: usize| ((id * 7 + step * 3 + index as u64) % 11) as f64 / 16.0 - 0.25;
        self.frozen = self.parameters.iter().enumerate().map(|(index, value)| value + drift(index)).collect();
        self.frozen.truncate(self.next.elements as usize);
        self.buffers.iter_mut().for_each(|value| *value = *value / 2.0 + drift(step as usize));
        self.waiting = true;
    }

    pub fn open(&mut self, plan: Arc<Plan>) -> Vec<(NodeId, Stream)> {
        let mut streams = Vec::new();
        if plan.contributes() {
            for owner in plan.other_owners() {
                let part = plan.owned_by(owner).into_iter().map(|shard| (shard, self.frozen[plan.layout.range(shard)].to_vec()));
                streams.push((owner, Stream { header: self.header(&plan), content: Content::Contribution(part.collect()) }));
            }
        }
        self.parked.retain(|(attempt, ..), _| *attempt >= plan.attempt);
        let (values, states) = (BTreeMap::new(), BTreeMap::new());
        self.movements.push(Movement { plan, publication: None, reduced: None, published: false, values, states, buffers: None });
        streams
    }

    /// Starts the state moves of rounds without a slow step.
    pub fn publish(&mut self, publication: Arc<Publication>) -> Vec<(NodeId, Stream)> {
        let mut streams = Vec::new();
        let Some(header) = self.movements.last().map(|movement| self.header(&movement.plan)) else { return streams };
        if publication.moves_anchor {
            for moved in publication.moves_from(self.member.id) {
                let part = moved.shards.iter().map(|shard| (*shard, self.states[shard].clone())).collect();
                streams.push((moved.to, Stream { header, content: Content::State(part) }));
            }
        }
        if let Some(donation) = publication.donation.as_ref().filter(|donation| donation.donor == self.member.id) {
            assert_eq!(donation.values as usize, self.buffers.len());
            let copy = |to: &NodeId| (*to, Stream { header, content: Content::Buffers(self.buffers.clone()) });
            streams.extend(donation.joiners.iter().map(copy));
        }
        if let Some(movement) = self.movements.last_mut() {
            assert_eq!(movement.plan.attempt, publication.attempt);
            movement.publication = Some(publication);
        }
        streams
    }

    /// Averages the own shards once every contribution is there.
    pub fn reduce(&mut self) {
        let Some(movement) = self.movements.last_mut().filter(|movement| movement.reduced.is_none() && movement.plan.owns()) else {
            return;
        };
        let plan = Arc::clone(&movement.plan);
        let there = |node: &NodeId| *node == plan.me || self.parked.contains_key(&(plan.attempt, 0, *node));
        // A slow step must know which shards nobody had.
        if !plan.contributors.iter().all(there) || movement.publication.is_none() {
            return;
        }
        let lost = movement.publication.as_ref().map(|publication| publication.lost.clone()).unwrap_or_default();
        let mut reduced = BTreeMap::new();
        for shard in plan.owned_by(plan.me) {
            let pieces: Vec<&[f64]> = plan.contributors.iter().map(|node| piece(&self.parked, &self.frozen, &plan, *node, shard)).collect();
            let mut values = mean(&pieces);
            let mut momentum = None;
            if plan.spec.kind == RoundKind::Slow {
                let state = (!lost.contains(&shard)).then(|| self.states[&shard].clone());
                let mut next = vec![0.0; values.len()];
                if let Some(state) = state {
                    for (index, value) in values.iter_mut().enumerate() {
                        (*value, next[index]) = slow_step(*value, state.anchor[index], state.momentum[index]);
                    }
                }
                momentum = Some(next);
            }
            reduced.insert(shard, (values, momentum));
        }
        movement.reduced = Some(reduced);
    }

    /// Publishes what was averaged, once; returns the streams if it did so now.
    pub fn publish_reduced(&mut self) -> Option<(Attempt, Vec<(NodeId, Stream)>)> {
        let header = self.header(&Arc::clone(&self.movements.last()?.plan));
        let movement = self.movements.last_mut().filter(|movement| !movement.published)?;
        let (reduced, publication) = (movement.reduced.as_ref()?, movement.publication.as_ref()?);
        let values: BTreeMap<_, _> = reduced.iter().map(|(shard, (values, _))| (*shard, values.clone())).collect();
        let me = movement.plan.me;
        let receivers = publication.receivers.iter().filter(|receiver| **receiver != me);
        let mut streams: Vec<_> =
            receivers.map(|receiver| (*receiver, Stream { header, content: Content::Parameters(values.clone()) })).collect();
        let state = |shard: &ShardId| {
            let (values, momentum) = &reduced[shard];
            momentum.clone().map(|momentum| (*shard, State { anchor: values.clone(), momentum }))
        };
        if publication.renews_anchor {
            for moved in publication.moves_from(me) {
                streams.push((moved.to, Stream { header, content: Content::State(moved.shards.iter().filter_map(state).collect()) }));
            }
        }
        let own: Vec<_> = reduced.keys().filter_map(state).collect();
        movement.values.extend(values);
        movement.states.extend(own);
        movement.published = true;
        Some((movement.plan.attempt, streams))
    }

    /// Takes the streams of the open attempt that have arrived; returns what to tell the machine.
    pub fn take_arrived(&mut self) -> Vec<crate::coordinator::In> {
        use crate::coordinator::In;
        let Some(movement) = self.movements.last_mut() else { return Vec::new() };
        let attempt = movement.plan.attempt;
        let keys: Vec<_> = self.parked.keys().copied().filter(|(of, kind, _)| *of == attempt && *kind > 0).collect();
        let mut told = Vec::new();
        for key in keys {
            match self.parked.remove(&key).unwrap().content {
                Content::Parameters(values) => {
                    movement.values.extend(values);
                    told.push(In::ParametersHeld(attempt, key.2));
                }
                Content::State(states) => {
                    movement.states.extend(states);
                    told.push(In::StateHeld(attempt, key.2));
                }
                Content::Buffers(buffers) => {
                    movement.buffers = Some(buffers);
                    told.push(In::BuffersHeld(attempt, key.2));
                }
                Content::Contribution(_) => {}
            }
        }
        told
    }

    /// Whether this node holds all that an outcome made for it.
    pub fn holds(&self, outcome: &Outcome) -> bool {
        let made = |movement: &&Movement| movement.publication.is_some() && movement.plan.contributors == outcome.contributors;
        let values = |movement: &Movement| movement.values.values().map(Vec::len).sum::<usize>() == outcome.spec.elements as usize;
        let arrived = |movement: &Movement| {
            let publication = movement.publication.as_ref().unwrap();
            let moved = publication.moves_to(self.member.id).flat_map(|moved| &moved.shards);
            values(movement) && { moved }.all(|shard| movement.states.contains_key(shard))
        };
        self.movements.iter().filter(made).any(arrived)
    }

    /// Installs a decided outcome.
    pub fn apply(&mut self, attempt: Attempt, outcome: &Outcome, began_in: Lineage, schedule: Schedule) -> Vec<ShardId> {
        let moved = std::mem::take(&mut self.movements).into_iter().find(|movement| movement.plan.attempt == attempt);
        let movement = moved.unwrap();
        let publication = movement.publication.unwrap();
        match publication.donor_to(self.member.id) {
            Some(_) => self.buffers = movement.buffers.unwrap(),
            None if BUFFERS == BufferStrategy::Reset && outcome.spec.kind == RoundKind::Slow => self.buffers.fill(0.0),
            // Whoever joins has the buffers that a member has.
            None => assert!(self.buffers.is_empty() || !self.outside, "{} joined without buffers", self.member.id),
        }
        let values: Vec<f64> = movement.values.into_values().flatten().collect();
        assert_eq!(values.len(), outcome.spec.elements as usize, "an incomplete model was applied");
        if outcome.spec.carries_parameters() {
            self.parameters.clone_from(&values);
        }
        // What it held when it was left out is of no use any more.
        let follows = self.last.as_ref().is_some_and(|last| (last.lineage, last.round.next()) == (began_in, outcome.round));
        let mut states = BTreeMap::new();
        for shard in &publication.holds {
            let range = publication.state_layout.range(*shard);
            let received = movement.states.get(shard).or_else(|| self.states.get(shard).filter(|_| follows && !publication.renews_anchor));
            match received {
                Some(state) => _ = states.insert(*shard, state.clone()),
                None if outcome.spec.kind == RoundKind::Found => {
                    let momentum = vec![0.0; range.len()];
                    states.insert(*shard, State { anchor: values[range].to_vec(), momentum });
                }
                None => assert!(outcome.absent.contains(shard), "{} lacks the state of {shard}", self.member.id),
            }
        }
        self.states = states;
        self.values = values;
        (self.round, self.next) = (outcome.round.next(), schedule.after(outcome.spec));
        (self.waiting, self.outside) = (false, false);
        let voters = outcome.voters();
        let watched = |start: &Voter| voters.contains(*start) || outcome.view.members().iter().any(|member| Voter::from(member) == *start);
        self.believed_dead.retain(|start, _| watched(start));
        self.leavers.retain(|id| outcome.view.contains(*id));
        self.last = Some(outcome.clone());
        publication.lost.clone()
    }
}

fn piece<'a>(
    parked: &'a BTreeMap<(Attempt, u8, NodeId), Stream>,
    frozen: &'a [f64],
    plan: &Plan,
    node: NodeId,
    shard: ShardId,
) -> &'a [f64] {
    if node == plan.me {
        return &frozen[plan.layout.range(shard)];
    }
    match &parked[&(plan.attempt, 0, node)].content {
        Content::Contribution(pieces) => &pieces[&shard],
        _ => panic!("a contribution is no contribution"),
    }
}
