//! The owner's part of a round: sums the contributions to its shards in ascending node id, divides,
//! takes the slow step, and publishes. Works chunk by chunk, so that receiving, arithmetic and
//! sending overlap and memory stays within a window of chunks.

use super::keeping::restore;
use super::outlets::Outlets;
use super::signing;
use super::transfer::Broken;
use crate::buffers::{Buffer, CHUNK_ELEMENTS, ChunkedBuffer, Frozen, VALUE_BYTES, chunks};
use crate::context::NodeContext;
use crate::data::{
    Arrived, Buffers, Coding, Encoder, FrozenContribution, Left, ShardState, Sum, Update, check,
};
use bytes::Bytes;
use slowmo_protocol::algorithm::{Base, WireType};
use slowmo_protocol::coordinator::{Plan, Publication, RoundKind};
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::mean;
use slowmo_protocol::node::{Reduced, Reduction};
use slowmo_protocol::outer::{OuterStep, Piece};
use slowmo_protocol::published::{Hasher, SIGNATURE_BYTES};
use slowmo_protocol::sound::{CONTRIBUTION_MAX, Unsound, first_beyond, sum_max};
use slowmo_protocol::wire::{Bulk, ContributionHeader};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Inputs of the reduction of one round.
pub struct Work {
    /// The node's shared state.
    pub context: Arc<NodeContext>,
    /// The contributions to average, and the shards' states.
    pub reduction: Reduction<Buffers>,
    /// How many of the values are parameters.
    pub parameters: usize,
    /// Encoding of the parameters; `None` for float32.
    pub coding: Option<Coding>,
    /// This node's own contribution, if it contributes.
    pub own: Option<OwnContribution>,
}

/// This node's own contribution to a reduction.
pub struct OwnContribution {
    /// Its push-sum weight.
    pub weight: f64,
    /// The values.
    pub frozen: Frozen,
    /// Encoder of the values if the round is encoded, so that this owner sums the same rounded
    /// values that other owners receive.
    pub encoder: Option<Arc<Encoder>>,
}

impl OwnContribution {
    /// Refuses a contribution that is not encoded as its round is.
    pub fn check(own: Option<&Self>, plan: &Plan, coding: Option<&Coding>) -> Result<(), Broken> {
        if own.is_none_or(|own| own.encoder.is_some() == coding.is_some()) {
            return Ok(());
        }
        tracing::error!(
            round = plan.attempt.round.0,
            "this node's contribution is not encoded as its round is"
        );
        Err(Broken::Stream(plan.me))
    }

    /// The part of a contribution that is summed up.
    pub fn of(own: &FrozenContribution) -> Self {
        Self {
            weight: own.weight,
            frozen: own.frozen.clone(),
            encoder: own.encoder.clone(),
        }
    }
}

/// One contributor's values, read in step with the others.
pub enum Source {
    /// This node's contribution.
    Own(OwnContribution),
    /// Another node's contribution.
    Stream(NodeId, Arrived),
    /// The sum of so many contributions of another group, from its relay.
    Sum(NodeId, Arrived, usize),
}

/// State of a reduction that publishes.
struct Publishing {
    context: Arc<NodeContext>,
    plan: Arc<Plan>,
    publication: Arc<Publication>,
    parameters: usize,
    coding: Option<Coding>,
    encoder: Option<Arc<Encoder>>,
    weight: f64,
    /// The participants, which have the reference: they get differences in an encoded round.
    differences: Outlets,
    /// Those that get float32: everybody, or in an encoded round the joining nodes.
    whole: Outlets,
    momenta: Outlets,
}

/// Runs the reduction.
pub async fn run(work: Work) -> Result<Reduced<Buffers>, Broken> {
    let Work {
        context,
        reduction,
        parameters,
        coding,
        own,
    } = work;
    let Reduction {
        plan,
        publication,
        contributions,
        states,
    } = reduction;
    let encoder = own.as_ref().and_then(|own| own.encoder.clone());
    OwnContribution::check(own.as_ref(), &plan, coding.as_ref())?;
    let expected = Expected::of(&context, &plan, coding.as_ref());
    let (sources, weight) = gather(plan.me, own, contributions, &expected, &plan.sources())?;
    let (differences, whole) = outlets(&context, &plan, &publication, coding.as_ref());
    let slow = plan.makes_momentum();
    let mut holders = Vec::new();
    if slow {
        let moves = publication.moves_from(plan.me);
        holders.extend(moves.map(|moved| (moved.to, Some(moved.shards.iter().copied().collect()))));
    }
    let momenta = Outlets::of_shards(&context, plan.place, &Bulk::State, holders.into_iter());
    let mut sources = Sources::new(&context, &plan, coding.as_ref(), sources);
    let work = Publishing {
        context,
        plan,
        publication,
        parameters,
        coding,
        encoder,
        weight,
        differences,
        whole,
        momenta,
    };
    let mut part = ChunkedBuffer::default();
    let mut digest = Hasher::default();
    let mut states_made = Vec::new();
    let mut left = Left {
        weight: Some(weight),
        owed: ChunkedBuffer::default(),
    };
    for (shard, state) in states {
        let mut momentum = ChunkedBuffer::default();
        if work.plan.restores {
            momentum = restore(&work.context, &work.plan, shard, work.parameters).await?;
            for (_, chunk) in momentum.pieces() {
                work.momenta.send_shard(shard, &all(chunk)).await;
            }
        }
        for range in chunks(work.plan.layout.range(shard)) {
            let mut chunk = work.context.pool.take(range.len());
            sources
                .sum(work.coding.as_ref(), &range, &mut chunk)
                .await?;
            work.average(&range, &mut chunk);
            if let Some(next) = work.slow_step(shard, &state, &range, &mut chunk)? {
                work.check(&range, next.values())?;
                work.momenta.send_shard(shard, &all(&next)).await;
                momentum.insert(range.start, next);
            }
            let update = work.encode(&range, &mut chunk, &mut left.owed);
            work.check(&range, chunk.values())?;
            let chunk = chunk.freeze();
            digest.update(bytemuck::cast_slice(chunk.values()));
            if let Some(update) = &update {
                work.differences.send(update).await;
            }
            work.whole.send(&all(&chunk)).await;
            part.insert(range.start, chunk);
        }
        if slow {
            states_made.push((
                shard,
                ShardState {
                    momentum,
                    ..ShardState::default()
                },
            ));
        }
    }
    sources.end().await?;
    let Some(signed) = signing::sign(&work.context, work.plan.attempt, digest.finish()) else {
        tracing::error!(
            round = work.plan.attempt.round.0,
            "this node made other values of the same attempt before"
        );
        return Err(Broken::Stream(work.plan.me));
    };
    let signature = Bytes::copy_from_slice(&<[u8; SIGNATURE_BYTES]>::from(signed.signature));
    work.differences.end(&signature).await;
    work.whole.end(&signature).await;
    work.momenta.end(&Bytes::new()).await;
    Ok(Reduced {
        part,
        signed,
        states: states_made,
        rest: left,
    })
}

impl Publishing {
    /// Turns the sum of a chunk into the exact average.
    fn average(&self, range: &Range<usize>, chunk: &mut Buffer) {
        let (numerators, buffers) = chunk.values_mut().split_at_mut(self.parameters_in(range));
        mean::divide(numerators, self.weight);
        if let Some(coding) = &self.coding {
            mean::add(numerators, &coding.reference(range));
        }
        // Buffers carry no push-sum weight: their mean is the plain mean over the contributors.
        mean::divide(buffers, self.plan.contributors.len() as f64);
    }

    /// Refuses results that are not finite. Gradients may overflow, which their optimizer handles.
    fn check(&self, range: &Range<usize>, results: &[f32]) -> Result<(), Broken> {
        if !self.plan.spec.carries_parameters() {
            return Ok(());
        }
        first_beyond(results, f32::MAX)
            .map_or(Ok(()), |index| Err(Broken::Overflowed(range.start + index)))
    }

    fn parameters_in(&self, range: &Range<usize>) -> usize {
        self.parameters.saturating_sub(range.start).min(range.len())
    }

    /// In a slow round, takes the slow step on the parameters of a chunk, and returns their new
    /// momentum.
    fn slow_step(
        &self,
        shard: ShardId,
        state: &ShardState,
        range: &Range<usize>,
        chunk: &mut Buffer,
    ) -> Result<Option<Frozen>, Broken> {
        let length = self.parameters_in(range);
        if self.plan.spec.kind != RoundKind::Slow || length == 0 {
            return Ok(None);
        }
        if self.publication.lost.contains(&shard) {
            // No node has its anchor: the shard gets a plain average, and its momentum restarts at
            // zero.
            return Ok(Some(self.context.pool.zeros(length).freeze()));
        }
        slow_step(
            &self.context,
            &self.plan,
            state,
            range.start,
            &mut chunk.values_mut()[..length],
        )
        .map(Some)
    }

    /// If the round is encoded, replaces the chunk by the values that every member will have. The
    /// rounding error is added to this node's residual.
    fn encode(
        &self,
        range: &Range<usize>,
        chunk: &mut Buffer,
        owes: &mut ChunkedBuffer,
    ) -> Option<Bytes> {
        let coding = self.coding.as_ref()?;
        let Update { bytes, mut dropped } = coding.update(chunk, range);
        // The residual goes into the next contribution, which is divided by the sum of all weights;
        // and whatever enters a slow step enters every later one again, `gain` times in total.
        let gain = match self.context.settings.algorithm.outer {
            Some(outer) if self.plan.spec.kind == RoundKind::Slow => outer.optimizer.gain(),
            _ => 1.0,
        };
        let owed = coding.owes(self.encoder.as_deref(), range);
        let scale = (self.weight / f64::from(gain)) as f32;
        for (dropped, owed) in dropped.values_mut().iter_mut().zip(owed.values()) {
            *dropped = owed + scale * *dropped;
        }
        owes.insert(range.start, dropped.freeze());
        Some(bytes)
    }
}

fn wire_of(coding: Option<&Coding>) -> WireType {
    coding.map_or(WireType::Float32, |coding| coding.wire)
}

/// All values of a chunk as they travel in float32.
fn all(chunk: &Frozen) -> Bytes {
    chunk.bytes(0..chunk.values().len())
}

/// The receivers of differences, and those of float32. In an encoded round participants have the
/// reference and get differences; joining nodes get float32.
fn outlets(
    context: &Arc<NodeContext>,
    plan: &Plan,
    publication: &Publication,
    coding: Option<&Coding>,
) -> (Outlets, Outlets) {
    let receivers = plan.publishes_to(&publication.receivers).into_iter();
    let (differences, whole): (Vec<NodeId>, Vec<NodeId>) =
        receivers.partition(|node| coding.is_some() && plan.participants.contains(node));
    let update = Bulk::Update(wire_of(coding));
    (
        Outlets::new(context, plan.place, &update, differences),
        Outlets::new(context, plan.place, &Bulk::Parameters, whole),
    )
}

/// Properties that all contributions of a round have in common.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Encoding of the parameters.
    pub wire: WireType,
    /// Whether every push-sum weight is 1: nobody gossips, or these are gradients.
    pub unit_weights: bool,
}

impl Expected {
    /// What the contributions of a round must have.
    pub fn of(context: &NodeContext, plan: &Plan, coding: Option<&Coding>) -> Self {
        Self {
            wire: wire_of(coding),
            unit_weights: !matches!(context.settings.algorithm.base, Base::Sgp(_))
                || !plan.spec.carries_parameters(),
        }
    }
}

/// All values to sum up, in ascending id of their senders, and the sum of their push-sum weights.
/// `counts` says of how many contributions a relay sends the sum.
pub fn gather(
    me: NodeId,
    own: Option<OwnContribution>,
    others: Vec<Arrived>,
    expected: &Expected,
    counts: &BTreeMap<NodeId, usize>,
) -> Result<(Vec<Source>, f64), Broken> {
    let mut sources = Vec::with_capacity(others.len() + 1);
    for arrived in others {
        let node = arrived.header.sender;
        let (header, is_sum) = match &arrived.content {
            Bulk::Contribution(header) | Bulk::Relayed(header) => (*header, false),
            Bulk::Partial(header) => (*header, true),
            _ => return Err(Broken::Stream(node)),
        };
        let ContributionHeader { weight, wire, .. } = header;
        if wire != expected.wire {
            tracing::warn!(
                %node,
                ?wire,
                expected_wire = ?expected.wire,
                "a contribution is encoded in another way than this round's"
            );
            return Err(Broken::Stream(node));
        }
        let count = counts.get(&node).copied().unwrap_or(1);
        if expected.unit_weights && weight != count as f64 {
            return Err(Broken::Unsound(node, Unsound::Weight(weight)));
        }
        let source = if is_sum {
            Source::Sum(node, arrived, count)
        } else {
            Source::Stream(node, arrived)
        };
        sources.push((node, weight, source));
    }
    if let Some(own) = own {
        sources.push((me, own.weight, Source::Own(own)));
    }
    sources.sort_by_key(|(node, ..)| *node);
    let weight = sources.iter().map(|(_, weight, _)| weight).sum();
    Ok((
        sources.into_iter().map(|(.., source)| source).collect(),
        weight,
    ))
}

/// The contributors' values, and scratch space for the chunk that is being added to the sum.
pub struct Sources {
    sources: Vec<Source>,
    plain: Buffer,
    encoded: Vec<u8>,
    /// Largest magnitude of a contributed value; `None` for gradients, which may overflow.
    most: Option<f32>,
}

impl Sources {
    /// Reads `sources` from here on.
    pub fn new(
        context: &NodeContext,
        plan: &Plan,
        coding: Option<&Coding>,
        sources: Vec<Source>,
    ) -> Self {
        let plain = if coding.is_none() {
            CHUNK_ELEMENTS.min(plan.layout.elements())
        } else {
            0
        };
        Self {
            sources,
            plain: context.pool.take(plain),
            encoded: coding.map(Coding::scratch).unwrap_or_default(),
            most: plan.spec.carries_parameters().then_some(CONTRIBUTION_MAX),
        }
    }

    /// Sets `chunk` to `Σ` of the sources' values of `range`, in their order; in an encoded round,
    /// of their differences.
    pub async fn sum(
        &mut self,
        coding: Option<&Coding>,
        range: &Range<usize>,
        chunk: &mut Buffer,
    ) -> Result<(), Broken> {
        for (index, source) in self.sources.iter_mut().enumerate() {
            let sum = Sum {
                values: chunk.values_mut(),
                first: index == 0,
            };
            match coding {
                Some(coding) => {
                    add_difference(source, coding, range, sum, &mut self.encoded).await?;
                }
                None => add(source, range, sum, (&mut self.plain, self.most)).await?,
            }
        }
        Ok(())
    }

    /// Checks that no stream has further values.
    pub async fn end(&mut self) -> Result<(), Broken> {
        for source in &mut self.sources {
            if let Source::Stream(node, arrived) | Source::Sum(node, arrived, _) = source {
                let ended = arrived.stream.expect_end().await;
                ended.map_err(|error| Broken::reading(*node, &error.into()))?;
            }
        }
        Ok(())
    }
}

/// Adds a source's values of `range` to the sum, and refuses them in the same pass if one is not
/// finite or beyond `most`, the bound of one contribution.
async fn add(
    source: &mut Source,
    range: &Range<usize>,
    Sum { values, first }: Sum<'_>,
    (scratch, most): (&mut Buffer, Option<f32>),
) -> Result<(), Broken> {
    let (node, arrived, most) = match source {
        Source::Own(own) if first => {
            values.copy_from_slice(&own.frozen.values()[range.clone()]);
            return Ok(());
        }
        Source::Own(own) => {
            mean::add(values, &own.frozen.values()[range.clone()]);
            return Ok(());
        }
        Source::Stream(node, arrived) => (*node, arrived, most),
        Source::Sum(node, arrived, contributions) => {
            (*node, arrived, most.map(|_| sum_max(*contributions)))
        }
    };
    if first {
        read(node, arrived, bytemuck::cast_slice_mut(values)).await?;
        if let Some(most) = most {
            check(values, range.start, most).map_err(|error| Broken::reading(node, &error))?;
        }
        return Ok(());
    }
    let bytes = &mut scratch.bytes_mut()[..range.len() * VALUE_BYTES];
    read(node, arrived, bytes).await?;
    let read = &scratch.values()[..range.len()];
    let Some(most) = most else {
        mean::add(values, read);
        return Ok(());
    };
    if !mean::add_within(values, read, most) {
        let found = check(read, range.start, most);
        found.map_err(|error| Broken::reading(node, &error))?;
    }
    Ok(())
}

async fn add_difference(
    source: &mut Source,
    coding: &Coding,
    range: &Range<usize>,
    sum: Sum<'_>,
    scratch: &mut [u8],
) -> Result<(), Broken> {
    let (node, arrived, most) = match source {
        Source::Own(own) => {
            // One without an encoder was refused.
            if let Some(encoder) = &own.encoder {
                coding.own_difference(encoder, range, sum);
            }
            return Ok(());
        }
        Source::Stream(node, arrived) => (*node, arrived, CONTRIBUTION_MAX),
        Source::Sum(node, arrived, contributions) => (*node, arrived, sum_max(*contributions)),
    };
    let read = coding
        .read_difference(&mut *arrived.stream, range, sum, scratch, most)
        .await;
    read.map_err(|error| Broken::reading(node, &error))
}

async fn read(node: NodeId, arrived: &mut Arrived, into: &mut [u8]) -> Result<(), Broken> {
    let read = arrived.stream.read_exact(into).await;
    read.map_err(|error| Broken::reading(node, &error.into()))
}

/// Takes the slow step on the parameters of the chunk that starts at `start`, and returns the new
/// momentum.
fn slow_step(
    context: &NodeContext,
    plan: &Plan,
    state: &ShardState,
    start: usize,
    values: &mut [f32],
) -> Result<Frozen, Broken> {
    let length = values.len();
    let decided = context
        .settings
        .algorithm
        .outer
        .zip(state.anchor.piece(start));
    let Some((outer, anchor)) = decided else {
        // Bootstrap gave every holder its anchors; without them no slow step can be correct.
        tracing::error!(
            round = plan.attempt.round.0,
            start,
            "the anchor of an owned shard is missing"
        );
        return Err(Broken::Stream(plan.me));
    };
    let zeros;
    let momentum = match state.momentum.piece(start) {
        Some(momentum) => momentum.values(),
        None => {
            zeros = context.pool.zeros(length);
            zeros.values()
        }
    };
    let mut next = context.pool.take(length);
    let anchor = &anchor.values()[..length];
    let momentum = &momentum[..length];
    outer.optimizer.step(
        Piece {
            values,
            anchor,
            momentum,
            next_momentum: next.values_mut(),
        },
        plan.spec.gamma,
    );
    Ok(next.freeze())
}
