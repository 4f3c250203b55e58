//! The data movements of one attempt in a simulated node: who has sent what, the sums, the slow step, what a round leaves behind.

use crate::sim::mail::{Content, Contribution, Movement, State, Stream, Values};
use slowmo_protocol::algorithm::OuterOptimizer;
use slowmo_protocol::coordinator::{Attempt, Outcome, Plan, Publication, RoundKind};
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::trace::{Held, digest_values};
use std::collections::BTreeMap;
use std::sync::Arc;

/// `x̄ → (parameters, momentum)`: the slow step on one value.
fn slow_step(optimizer: OuterOptimizer, average: f64, anchor: f64, momentum: f64, gamma: f64) -> (f64, f64) {
    let change = anchor - average;
    match optimizer {
        OuterOptimizer::SlowMo { alpha, beta } => {
            let next = f64::from(beta) * momentum + change / gamma;
            (anchor - f64::from(alpha) * gamma * next, next)
        }
        OuterOptimizer::Nesterov { eta, mu } => {
            let next = f64::from(mu) * momentum + change;
            (anchor - f64::from(eta) * (change + f64::from(mu) * next), next)
        }
        OuterOptimizer::BmufNbm { eta, mu } => {
            let next = f64::from(mu) * momentum + f64::from(eta) * change;
            (anchor - next - f64::from(mu) * next, next)
        }
    }
}

/// The exact average of numerators over push-sum weights, in the order given (algorithm section 3).
#[must_use]
pub fn average(pieces: &[(f64, &[f64])]) -> Vec<f64> {
    let weight: f64 = pieces.iter().map(|(weight, _)| weight).sum();
    let mut sum: Vec<f64> = pieces.first().map(|(_, values)| values.to_vec()).unwrap_or_default();
    for (_, piece) in pieces.iter().skip(1) {
        sum.iter_mut().zip(*piece).for_each(|(sum, value)| *sum += value);
    }
    sum.iter_mut().for_each(|sum| *sum /= weight);
    sum
}

/// Streams that wait until they are wanted, by attempt, kind and sender.
#[derive(Default)]
pub struct Parked(BTreeMap<(Attempt, u8, NodeId), Content>);

impl Parked {
    /// Keeps a stream; a second one of its kind is dropped.
    pub fn put(&mut self, stream: Stream) {
        let kind = match stream.content {
            Content::Contribution(..) => 0,
            Content::Parameters(_) => 1,
            Content::State(_) => 2,
            Content::Buffers(_) => 3,
            Content::Gossip(..) => return,
        };
        let attempt = Attempt::of(&stream.header);
        self.0.entry((attempt, kind, stream.header.sender)).or_insert(stream.content);
    }

    /// Drops what is of earlier attempts.
    pub fn forget_below(&mut self, attempt: Attempt) {
        self.0 = self.0.split_off(&(attempt, 0, NodeId(0)));
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// The decided state of the shards that a node holds.
#[derive(Default)]
pub struct Shards(BTreeMap<ShardId, State>);

impl Shards {
    /// The state and the buffers that `me` sends where a publication says so, but for what a slow step makes.
    pub fn moved(&self, publication: &Publication, me: NodeId, buffers: Option<&Values>) -> Vec<(NodeId, Content)> {
        let mut streams = Vec::new();
        if publication.moves_anchor {
            for moved in publication.moves_from(me) {
                let part = moved.shards.iter().filter_map(|shard| Some((*shard, self.0.get(shard)?.clone()))).collect();
                streams.push((moved.to, Content::State(part)));
            }
        }
        if let (Some(donation), Some(buffers)) = (publication.donation.as_ref().filter(|donation| donation.donor == me), buffers) {
            streams.extend(donation.joiners.iter().map(|to| (*to, Content::Buffers(buffers.clone()))));
        }
        streams
    }

    /// What is held, for the trace.
    pub fn held(&self) -> Vec<Held> {
        let held = |(shard, state): (&ShardId, &State)| {
            let digest = digest_values(&state.anchor).rotate_left(1) ^ digest_values(&state.momentum);
            Held { shard: *shard, digest, anchor: state.anchor.clone(), momentum: state.momentum.clone() }
        };
        self.0.iter().map(held).collect()
    }
}

/// New values of a shard, and its momentum after a slow step.
type Reduced = (Vec<f64>, Option<Vec<f64>>);

/// The attempt under way.
pub struct Moving {
    /// Its reduction.
    pub plan: Arc<Plan>,
    /// Who gets what it makes, once that is known.
    pub publication: Option<Arc<Publication>>,
    reduced: Option<BTreeMap<ShardId, Reduced>>,
    values: BTreeMap<ShardId, Vec<f64>>,
    states: BTreeMap<ShardId, State>,
    buffers: Option<Values>,
}

/// What a decided attempt brought.
pub struct Applied {
    /// The values of the round.
    pub values: Values,
    /// A donor's buffers.
    pub donated: Option<Values>,
}

impl Moving {
    /// An attempt that begins.
    pub fn new(plan: Arc<Plan>) -> Self {
        Self { plan, publication: None, reduced: None, values: BTreeMap::new(), states: BTreeMap::new(), buffers: None }
    }

    /// What a contributor sends an owner.
    pub fn contribution(plan: &Plan, owner: NodeId, own: &Contribution) -> Content {
        let part = plan.owned_by(owner).into_iter().map(|shard| (shard, own.values[plan.layout.range(shard)].to_vec()));
        Content::Contribution(own.weight, own.spec, part.collect())
    }

    /// Averages the own shards once every contribution is there and it is known which shards nobody had; whether it did so now.
    pub fn reduce(&mut self, parked: &Parked, own: Option<&Contribution>, shards: &Shards, optimizer: OuterOptimizer) -> bool {
        let plan = Arc::clone(&self.plan);
        let Some(publication) = self.publication.as_ref().filter(|_| self.reduced.is_none() && plan.owns()) else { return false };
        let mut reduced = BTreeMap::new();
        for shard in plan.owned_by(plan.me) {
            let pieces: Option<Vec<(f64, &[f64])>> = plan.contributors.iter().map(|node| piece(parked, own, &plan, *node, shard)).collect();
            let Some(pieces) = pieces else { return false };
            let mut values = average(&pieces);
            let mut momentum = None;
            if plan.spec.kind == RoundKind::Slow {
                let state = if publication.lost.contains(&shard) { None } else { shards.0.get(&shard) };
                let mut next = vec![0.0; values.len()];
                if let Some(state) = state {
                    for (index, value) in values.iter_mut().enumerate() {
                        let gamma = f64::from(plan.spec.gamma);
                        (*value, next[index]) = slow_step(optimizer, *value, state.anchor[index], state.momentum[index], gamma);
                    }
                }
                momentum = Some(next);
            }
            reduced.insert(shard, (values, momentum));
        }
        self.reduced = Some(reduced);
        true
    }

    /// What `me` publishes of what it averaged.
    pub fn published(&mut self, me: NodeId) -> Vec<(NodeId, Content)> {
        let (Some(reduced), Some(publication)) = (&self.reduced, &self.publication) else { return Vec::new() };
        let values: BTreeMap<_, _> = reduced.iter().map(|(shard, (values, _))| (*shard, values.clone())).collect();
        let receivers = publication.receivers.iter().filter(|receiver| **receiver != me);
        let mut streams: Vec<_> = receivers.map(|receiver| (*receiver, Content::Parameters(values.clone()))).collect();
        let state = |shard: &ShardId| {
            let (values, momentum) = reduced.get(shard)?;
            momentum.clone().map(|momentum| (*shard, State { anchor: values.clone(), momentum }))
        };
        if publication.renews_anchor {
            let moves = publication.moves_from(me);
            streams.extend(moves.map(|moved| (moved.to, Content::State(moved.shards.iter().filter_map(state).collect()))));
        }
        self.states.extend(reduced.keys().filter_map(state));
        self.values.extend(values);
        streams
    }

    /// Takes in the streams of this attempt that have arrived.
    pub fn take_in(&mut self, parked: &mut Parked) -> Vec<(NodeId, Movement)> {
        let attempt = self.plan.attempt;
        let keys: Vec<_> = parked.0.keys().copied().filter(|(of, kind, _)| *of == attempt && *kind > 0).collect();
        let mut taken = Vec::new();
        for key in keys {
            match parked.0.remove(&key) {
                Some(Content::Parameters(values)) => {
                    self.values.extend(values);
                    taken.push((key.2, Movement::Parameters));
                }
                Some(Content::State(states)) => {
                    self.states.extend(states);
                    taken.push((key.2, Movement::State));
                }
                Some(Content::Buffers(buffers)) => {
                    self.buffers = Some(buffers);
                    taken.push((key.2, Movement::Buffers));
                }
                _ => {}
            }
        }
        taken
    }

    /// Installs the decided outcome.
    pub fn finish(self, outcome: &Outcome, shards: &mut Shards, me: NodeId) -> Applied {
        let Some(publication) = self.publication else { return Applied { values: Values::default(), donated: None } };
        let values: Vec<f64> = self.values.into_values().flatten().collect();
        let mut next = BTreeMap::new();
        for shard in &publication.holds {
            let range = publication.state_layout.range(*shard);
            let kept = || shards.0.get(shard).filter(|_| !publication.renews_anchor);
            let state = self.states.get(shard).or_else(kept).cloned();
            let founded = || {
                let anchor = values.get(range.clone())?.to_vec();
                (outcome.spec.kind == RoundKind::Found).then(|| State { momentum: vec![0.0; anchor.len()], anchor })
            };
            // What is missing here is found by the invariant that compares holders with what was decided.
            if let Some(state) = state.or_else(founded) {
                next.insert(*shard, state);
            }
        }
        shards.0 = next;
        let donated = publication.donor_to(me).and(self.buffers);
        Applied { values: Arc::new(values), donated }
    }
}

fn piece<'a>(parked: &'a Parked, own: Option<&'a Contribution>, plan: &Plan, node: NodeId, shard: ShardId) -> Option<(f64, &'a [f64])> {
    if node == plan.me {
        return own.map(|own| (own.weight, &own.values[plan.layout.range(shard)]));
    }
    match parked.0.get(&(plan.attempt, 0, node))? {
        Content::Contribution(weight, spec, pieces) if *spec == plan.spec => Some((*weight, pieces.get(&shard)?.as_slice())),
        _ => None,
    }
}
