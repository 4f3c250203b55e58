//! One simulated node: its coordinator, its parameters and shards, and the streams of its open round.

use super::oracle::{drift, slow_step};
use super::simulation::{ROUND_TIMEOUT, Scenario};
use crate::coordinator::{Attempt, Coordinator, Founding, Outcome, Plan, RoundError, RoundKind, Terms};
use crate::ident::{ClusterId, Incarnation, Lineage, NodeId, ShardId};
use crate::machine::Identity;
use crate::view::View;
use crate::wire::Header;
use std::collections::BTreeMap;
use std::sync::Arc;

pub const LINEAGE: Lineage = Lineage(77);

/// What a simulated stream carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Contribution,
    Parameters,
    Momentum,
}

#[derive(Clone, Debug)]
pub enum Content {
    Contribution(Terms),
    Parameters,
    Momentum,
}

#[derive(Clone, Debug)]
pub struct Stream {
    pub header: Header,
    pub content: Content,
    pub values: BTreeMap<ShardId, Vec<f64>>,
}

impl Stream {
    pub fn attempt(&self) -> Attempt {
        Attempt { round: self.header.round, ballot: self.header.ballot }
    }

    fn kind(&self) -> Kind {
        match self.content {
            Content::Contribution(_) => Kind::Contribution,
            Content::Parameters => Kind::Parameters,
            Content::Momentum => Kind::Momentum,
        }
    }
}

/// The data of the round under way.
pub struct Movement {
    plan: Arc<Plan>,
    reducing: bool,
    values: BTreeMap<ShardId, Vec<f64>>,
    momentum: BTreeMap<ShardId, Vec<f64>>,
}

pub struct Node {
    pub id: NodeId,
    pub rank: usize,
    pub machine: Coordinator,
    pub applied: Vec<Vec<f64>>,
    pub failed: Option<RoundError>,
    pub movement: Option<Movement>,
    parameters: Vec<f64>,
    frozen: Vec<f64>,
    anchor: Vec<f64>,
    momentum: BTreeMap<ShardId, Vec<f64>>,
    parked: BTreeMap<(Attempt, Kind, NodeId), Stream>,
    identity: Identity,
    last: Option<Arc<Plan>>,
}

impl Node {
    pub fn new(id: NodeId, rank: usize, view: &View, scenario: &Scenario) -> Self {
        let identity = Identity { cluster: ClusterId(1), node: id, incarnation: Incarnation(1) };
        let (replicas, round_timeout) = (scenario.replicas, ROUND_TIMEOUT);
        let machine = Coordinator::new(Founding { identity, view: view.clone(), lineage: LINEAGE, replicas, round_timeout });
        Self {
            id,
            rank,
            machine,
            applied: Vec::new(),
            failed: None,
            movement: None,
            parameters: vec![rank as f64 + 1.0; scenario.elements],
            frozen: Vec::new(),
            anchor: Vec::new(),
            momentum: BTreeMap::new(),
            parked: BTreeMap::new(),
            identity,
            last: None,
        }
    }

    /// Freezes this node's contribution to `round`, after its inner steps.
    pub fn freeze(&mut self, terms: Terms, round: u64) {
        let drift = |index| drift(self.rank, round, index);
        if terms.kind == RoundKind::Gradients {
            self.frozen = (0..terms.elements as usize).map(drift).collect();
            return;
        }
        for (index, value) in self.parameters.iter_mut().enumerate() {
            *value += drift(index);
        }
        self.frozen = self.parameters.clone();
        self.frozen.resize(terms.elements as usize, 0.0);
    }

    fn pieces(&self, plan: &Plan, shards: impl IntoIterator<Item = ShardId>) -> BTreeMap<ShardId, Vec<f64>> {
        shards.into_iter().map(|shard| (shard, self.frozen[plan.layout.range(shard)].to_vec())).collect()
    }

    fn stream(&self, content: Content, values: BTreeMap<ShardId, Vec<f64>>) -> Stream {
        Stream { header: self.identity.header(self.machine.place()), content, values }
    }

    /// Starts a round's movements: returns the contribution streams to the owners.
    pub fn open(&mut self, plan: Arc<Plan>) -> Vec<(NodeId, Stream)> {
        let owners = if plan.contributes() { plan.other_owners() } else { Vec::new() };
        let content = || Content::Contribution(plan.terms);
        let streams = owners.iter().map(|owner| (*owner, self.stream(content(), self.pieces(&plan, plan.map.owned_by(*owner)))));
        let streams = streams.collect();
        let attempt = plan.attempt();
        self.parked.retain(|(parked, ..), _| *parked >= attempt);
        self.movement = Some(Movement { reducing: plan.owns(), values: BTreeMap::new(), momentum: BTreeMap::new(), plan });
        streams
    }

    /// Keeps a stream that is of the current or the next round; refuses others, as the shell does.
    pub fn park(&mut self, stream: Stream) -> bool {
        let admitted = self.machine.admits(&stream.header);
        if admitted {
            let key = (stream.attempt(), stream.kind(), stream.header.sender);
            assert!(self.parked.insert(key, stream).is_none(), "a stream came twice");
        }
        admitted
    }

    /// Takes the published parameters and momentum of the open round that have arrived.
    pub fn take_ready(&mut self) -> Vec<Stream> {
        let Some(movement) = &mut self.movement else { return Vec::new() };
        let attempt = movement.plan.attempt();
        let published = |(parked, kind, _): &(Attempt, Kind, NodeId)| *parked == attempt && *kind != Kind::Contribution;
        let keys: Vec<_> = self.parked.keys().copied().filter(published).collect();
        let ready: Vec<_> = keys.iter().filter_map(|key| self.parked.remove(key)).collect();
        for stream in &ready {
            let into = if stream.kind() == Kind::Parameters { &mut movement.values } else { &mut movement.momentum };
            into.extend(stream.values.clone());
        }
        ready
    }

    /// Whether every contribution to this node's shards is there; says so once.
    pub fn may_reduce(&mut self) -> Option<Attempt> {
        let movement = self.movement.as_mut().filter(|movement| movement.reducing)?;
        let (plan, attempt) = (&movement.plan, movement.plan.attempt());
        let there = |node: &NodeId| *node == plan.me || self.parked.contains_key(&(attempt, Kind::Contribution, *node));
        movement.reducing = !plan.contributors.iter().all(there);
        (!movement.reducing).then_some(attempt)
    }

    /// Averages the own shards, takes the slow step, returns what is published; or who expects another round.
    #[expect(clippy::type_complexity)]
    pub fn reduce(&mut self, attempt: Attempt) -> Option<Result<Vec<(NodeId, Stream)>, (NodeId, Terms)>> {
        let plan = Arc::clone(&self.movement.as_ref().filter(|movement| movement.plan.attempt() == attempt)?.plan);
        let mut contributions = Vec::new();
        for node in &plan.contributors {
            if *node == plan.me {
                contributions.push(self.pieces(&plan, plan.own_shards()));
                continue;
            }
            let stream = self.parked.remove(&(attempt, Kind::Contribution, *node))?;
            match stream.content {
                Content::Contribution(terms) if terms != plan.terms => return Some(Err((*node, terms))),
                _ => contributions.push(stream.values),
            }
        }
        let (values, momentum) = self.averaged(&plan, &contributions);
        let mut streams: Vec<_> =
            plan.other_members().into_iter().map(|to| (to, self.stream(Content::Parameters, values.clone()))).collect();
        for (to, shards) in plan.momentum_to() {
            let part = shards.iter().map(|shard| (*shard, momentum[shard].clone())).collect();
            streams.push((to, self.stream(Content::Momentum, part)));
        }
        let movement = self.movement.as_mut()?;
        movement.values.extend(values);
        movement.momentum.extend(momentum);
        Some(Ok(streams))
    }

    fn averaged(
        &self,
        plan: &Plan,
        contributions: &[BTreeMap<ShardId, Vec<f64>>],
    ) -> (BTreeMap<ShardId, Vec<f64>>, BTreeMap<ShardId, Vec<f64>>) {
        let (mut values, mut momentum) = (BTreeMap::new(), BTreeMap::new());
        for shard in plan.own_shards() {
            let pieces: Vec<&[f64]> = contributions.iter().map(|pieces| pieces[&shard].as_slice()).collect();
            let mut average = super::oracle::mean(&pieces);
            if plan.moves_momentum() {
                let range = plan.layout.range(shard);
                let zeros = vec![0.0; range.len()];
                let before = self.momentum.get(&shard).unwrap_or(&zeros);
                let steps = average.iter().zip(&self.anchor[range]).zip(before);
                let steps: Vec<_> = steps.map(|((average, anchor), momentum)| slow_step(*average, *anchor, *momentum)).collect();
                average = steps.iter().map(|(value, _)| *value).collect();
                momentum.insert(shard, steps.iter().map(|(_, next)| *next).collect());
            }
            values.insert(shard, average);
        }
        (values, momentum)
    }

    pub fn apply(&mut self, outcome: &Outcome) {
        let movement = self.movement.take().unwrap();
        assert_eq!(movement.plan.terms, outcome.terms);
        let values: Vec<f64> = movement.values.into_values().flatten().collect();
        if outcome.terms.kind != RoundKind::Gradients {
            self.parameters.clone_from(&values);
        }
        if matches!(outcome.terms.kind, RoundKind::Found | RoundKind::Slow) {
            self.anchor.clone_from(&values);
            self.momentum = movement.momentum;
            self.last = Some(movement.plan);
        }
        self.applied.push(values);
    }

    /// The momentum of every shard that this node must hold is the oracle's.
    pub fn assert_momentum(&self, expected: &[f64]) {
        let Some(plan) = &self.last else { return };
        for shard in plan.map.held_by(self.id) {
            let range = plan.layout.range(shard);
            let zeros = vec![0.0; range.len()];
            assert_eq!(self.momentum.get(&shard).unwrap_or(&zeros), &expected[range], "{} holds other momentum of {shard}", self.id);
        }
    }
}
