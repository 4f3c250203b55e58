//! Nodes whose values are small vectors: real sums, and streams that arrive as a whole or not at
//! all. For simulations and tests.

use super::attempt::{GroupSum, Reduced, Reduction};
use super::data::{Arrived, Data};
use super::mail::Moved;
use super::rounds::{RoundsEffect, RoundsPart};
use crate::algorithm::{OuterOptimizer, WireType};
use crate::coordinator::{Attempt, Plan, RoundKind, Way};
use crate::ident::{NodeId, ShardId};
use crate::machine::Identity;
use crate::published::Signed;
use crate::wire::{self, Bulk};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The slow step of the protocol's own tests.
#[cfg(test)]
pub const SLOWMO: OuterOptimizer = OuterOptimizer::SlowMo {
    alpha: 1.0,
    beta: 0.5,
};

/// Values of a model, in float64, so that every node must hold exactly the bits that an oracle
/// computes.
pub type Values = Arc<Vec<f64>>;

/// Values of shards.
pub type Pieces = BTreeMap<ShardId, Vec<f64>>;

/// The kind of values that simulated nodes move.
#[derive(Clone, Copy, Debug)]
pub enum Vectors {}

/// Anchor and slow momentum of one shard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Parameters after the last slow step.
    pub anchor: Vec<f64>,
    /// Slow momentum.
    pub momentum: Vec<f64>,
}

/// A node's contribution to a round.
#[derive(Clone, Debug, Default)]
pub struct Contribution {
    /// The push-sum weight.
    pub weight: f64,
    /// The values.
    pub values: Values,
    /// The base optimizer's buffers, for joining nodes.
    pub buffers: Values,
    /// The positions of the sample stream that the node used since the previous round.
    pub used: Vec<(u64, u64)>,
}

/// The values of a stream.
#[derive(Clone, Debug)]
pub enum Body {
    /// Values of shards: a contribution to them, or the result.
    Pieces(Pieces),
    /// State of shards.
    States(BTreeMap<ShardId, State>),
    /// Base optimizer buffers of an optimizer-state transfer, or a gossip message: the numerators
    /// that go with its weight.
    Values(Values),
}

/// A bulk stream.
pub type Stream = Arrived<Body>;

impl Data for Vectors {
    type Contribution = Contribution;
    type Frozen = Values;
    type Part = Pieces;
    type Values = Values;
    type State = State;
    type Stream = Body;
    type Rest = ();

    fn assemble(parts: Vec<Pieces>, elements: usize) -> Option<Values> {
        let pieces: Pieces = parts.into_iter().flatten().collect();
        let values: Vec<f64> = pieces.into_values().flatten().collect();
        (values.len() == elements).then(|| Arc::new(values))
    }

    fn renew_anchor(state: &mut State, values: &Values, range: Range<usize>) {
        state.momentum.resize(range.len(), 0.0);
        state.anchor = values[range].to_vec();
    }
}

/// `x̄ → (parameters, momentum)`: the slow step on one value.
#[must_use]
pub fn slow_step(
    optimizer: OuterOptimizer,
    average: f64,
    anchor: f64,
    momentum: f64,
    gamma: f64,
) -> (f64, f64) {
    let change = anchor - average;
    match optimizer {
        OuterOptimizer::SlowMo { alpha, beta } => {
            let next = f64::from(beta) * momentum + change / gamma;
            (anchor - f64::from(alpha) * gamma * next, next)
        }
        OuterOptimizer::Nesterov { eta, mu } => {
            let next = f64::from(mu) * momentum + change;
            (
                anchor - f64::from(eta) * (change + f64::from(mu) * next),
                next,
            )
        }
        OuterOptimizer::BmufNbm { eta, mu } => {
            let next = f64::from(mu) * momentum + f64::from(eta) * change;
            (anchor - next - f64::from(mu) * next, next)
        }
    }
}

/// The exact average of numerators over push-sum weights, in the order given.
#[must_use]
pub fn average(pieces: &[(f64, &[f64])]) -> Vec<f64> {
    let weight: f64 = pieces.iter().map(|(weight, _)| weight).sum();
    let mut average = sum(pieces);
    average.iter_mut().for_each(|value| *value /= weight);
    average
}

/// The sum of numerators, in the order given.
#[must_use]
pub fn sum(pieces: &[(f64, &[f64])]) -> Vec<f64> {
    let mut sum: Vec<f64> = pieces
        .first()
        .map(|(_, values)| values.to_vec())
        .unwrap_or_default();
    for (_, piece) in pieces.iter().skip(1) {
        sum.iter_mut()
            .zip(*piece)
            .for_each(|(sum, value)| *sum += value);
    }
    sum
}

/// Result of a data movement.
#[derive(Debug)]
pub enum Done {
    /// A stream leaves.
    Stream(NodeId, Stream),
    /// A report of an attempt's data movements, once the work is done.
    Report(Attempt, Moved<Vectors>),
}

/// Executes the data movement of a rounds effect; effects that move nothing return nothing here.
pub fn carry_out(
    part: &mut RoundsPart<Vectors>,
    identity: Identity,
    optimizer: OuterOptimizer,
    effect: RoundsEffect<Vectors>,
) -> Vec<Done> {
    let stream = |plan: &Plan, to, content, body| {
        Done::Stream(
            to,
            Stream {
                header: identity.header(plan.place),
                content,
                stream: body,
            },
        )
    };
    match effect {
        RoundsEffect::Contribute(plan, to, ways) => {
            let Some(own) = part.contribution() else {
                return Vec::new();
            };
            let header = contribution_header(&plan, own.weight);
            let streams = ways.into_iter().map(|way| {
                let content = match way {
                    Way::Owner => Bulk::Contribution(header),
                    Way::Relay => Bulk::Relayed(header),
                };
                let pieces = cut(&plan, &plan.sent_to(to, way), own);
                stream(&plan, to, content, Body::Pieces(pieces))
            });
            streams.collect()
        }
        RoundsEffect::Sum(group) => {
            let GroupSum {
                plan,
                contributions,
            } = &*group;
            let own = part.contribution().map(|own| &*own);
            let shards = plan.sent_to(plan.me, Way::Relay);
            let contributed = gather(plan, &shards, own, contributions);
            let weight = contributed.values().map(|(weight, _)| weight).sum();
            let sum_of = |shard| (shard, sum(&pieces_of(&contributed, shard)));
            plan.sums_for()
                .into_iter()
                .map(|owner| {
                    let sums = plan.owned_by(owner).into_iter().map(sum_of).collect();
                    let content = Bulk::Partial(contribution_header(plan, weight));
                    stream(plan, owner, content, Body::Pieces(sums))
                })
                .collect()
        }
        RoundsEffect::SendState {
            plan, to, states, ..
        } => {
            vec![stream(
                &plan,
                to,
                Bulk::State,
                Body::States(states.into_iter().collect()),
            )]
        }
        RoundsEffect::SendBuffers { plan, to, .. } => {
            let Some(buffers) = part.contribution().map(|own| own.buffers.clone()) else {
                return Vec::new();
            };
            vec![stream(&plan, to, Bulk::Buffers, Body::Values(buffers))]
        }
        RoundsEffect::Reduce(reduction) => {
            let Reduction {
                plan, publication, ..
            } = &*reduction;
            let Some((made, states)) =
                reduce(&reduction, part.contribution().map(|own| &*own), optimizer)
            else {
                return vec![Done::Report(plan.attempt, Moved::Broken(plan.me))];
            };
            let mut done = Vec::new();
            for receiver in plan.publishes_to(&publication.receivers) {
                done.push(stream(
                    plan,
                    receiver,
                    Bulk::Parameters,
                    Body::Pieces(made.clone()),
                ));
            }
            if publication.renews_anchor {
                for moved in publication.moves_from(plan.me) {
                    let state = |shard: &ShardId| Some((*shard, states.get(shard)?.clone()));
                    done.push(stream(
                        plan,
                        moved.to,
                        Bulk::State,
                        Body::States(moved.shards.iter().filter_map(state).collect()),
                    ));
                }
            }
            let reduced = Reduced {
                signed: signed(&made),
                part: made,
                states: states.into_iter().collect(),
                rest: (),
            };
            done.push(Done::Report(plan.attempt, Moved::Reduced(reduced)));
            done
        }
        RoundsEffect::Read {
            plan,
            stream: arrived,
            ..
        } => {
            let from = arrived.header.sender;
            let owner = match arrived.content {
                Bulk::Forwarded { owner, .. } => owner,
                _ => from,
            };
            let mut done = Vec::new();
            let moved = match (arrived.content, arrived.stream) {
                (Bulk::Parameters | Bulk::Forwarded { .. }, Body::Pieces(values)) => {
                    for to in plan.passes_on(owner) {
                        let content = Bulk::Forwarded { owner, wire: None };
                        done.push(stream(&plan, to, content, Body::Pieces(values.clone())));
                    }
                    let signed = signed(&values);
                    Moved::Parameters(owner, values, signed)
                }
                (Bulk::State, Body::States(states)) => {
                    Moved::State(from, states.into_iter().collect())
                }
                (Bulk::Buffers, Body::Values(buffers)) => Moved::Buffers(from, buffers),
                _ => Moved::Broken(from),
            };
            done.push(Done::Report(plan.attempt, moved));
            done
        }
        _ => Vec::new(),
    }
}

fn contribution_header(plan: &Plan, weight: f64) -> wire::ContributionHeader {
    wire::ContributionHeader {
        spec: plan.spec,
        weight,
        wire: WireType::Float32,
    }
}

/// The weights and values that arrived, and this node's own for the shards, by their senders.
fn gather(
    plan: &Plan,
    shards: &[ShardId],
    own: Option<&Contribution>,
    others: &[Stream],
) -> BTreeMap<NodeId, (f64, Pieces)> {
    let mut contributed = BTreeMap::new();
    if let Some(own) = own
        && plan.contributes()
    {
        contributed.insert(plan.me, (own.weight, cut(plan, shards, own)));
    }
    for stream in others {
        if let (
            Bulk::Contribution(header) | Bulk::Relayed(header) | Bulk::Partial(header),
            Body::Pieces(pieces),
        ) = (&stream.content, &stream.stream)
        {
            contributed.insert(stream.header.sender, (header.weight, pieces.clone()));
        }
    }
    contributed
}

/// The weights and values of a shard, in the order of their senders.
fn pieces_of(contributed: &BTreeMap<NodeId, (f64, Pieces)>, shard: ShardId) -> Vec<(f64, &[f64])> {
    contributed
        .values()
        .filter_map(|(weight, pieces)| Some((*weight, pieces.get(&shard)?.as_slice())))
        .collect()
}

/// Signs like an owner that publishes these values.
fn signed(pieces: &Pieces) -> Signed {
    let values = pieces.values().flatten();
    let bytes: Vec<u8> = values
        .flat_map(|value| value.to_bits().to_le_bytes())
        .collect();
    Signed::simulated(&bytes)
}

/// The part of a contribution that belongs to these shards.
fn cut(plan: &Plan, shards: &[ShardId], own: &Contribution) -> Pieces {
    shards
        .iter()
        .map(|shard| (*shard, own.values[plan.layout.range(*shard)].to_vec()))
        .collect()
}

/// Averages the own shards, and computes their state if a slow step makes it; `None` if the state
/// of one is missing.
fn reduce(
    reduction: &Reduction<Vectors>,
    own: Option<&Contribution>,
    optimizer: OuterOptimizer,
) -> Option<(Pieces, BTreeMap<ShardId, State>)> {
    let Reduction {
        plan,
        publication,
        contributions,
        states,
    } = reduction;
    let contributed = gather(plan, &plan.owned_by(plan.me), own, contributions);
    let mut made = Pieces::new();
    let mut next_states = BTreeMap::new();
    for (shard, before) in states {
        let mut values = average(&pieces_of(&contributed, *shard));
        if plan.spec.kind == RoundKind::Slow {
            let mut momentum = vec![0.0; values.len()];
            if !publication.lost.contains(shard) {
                if before.anchor.len() != values.len() {
                    return None;
                }
                for (index, value) in values.iter_mut().enumerate() {
                    let gamma = f64::from(plan.spec.gamma);
                    (*value, momentum[index]) = slow_step(
                        optimizer,
                        *value,
                        before.anchor[index],
                        before.momentum[index],
                        gamma,
                    );
                }
            }
            next_states.insert(
                *shard,
                State {
                    anchor: values.clone(),
                    momentum,
                },
            );
        }
        made.insert(*shard, values);
    }
    Some((made, next_states))
}
