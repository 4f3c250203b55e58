//! The owner's part of a round: sums the contributions to its shards in ascending node id, divides,
//! takes the slow step, and publishes. Works chunk by chunk, so that receiving, arithmetic and
//! sending overlap and memory stays within a window of chunks.

use super::keeping::restore;
use super::signing;
use super::transfer::{Broken, open};
use crate::buffers::{Buffer, CHUNK_ELEMENTS, ChunkedBuffer, Frozen, VALUE_BYTES, chunks};
use crate::context::NodeContext;
use crate::data::{Arrived, Buffers, Coding, Encoder, Left, ShardState, Sum, Update, check};
use crate::ports::transport::BulkError;
use bytes::Bytes;
use slowmo_protocol::algorithm::{Base, WireType};
use slowmo_protocol::coordinator::{Plan, Publication, RoundKind};
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::machine::Place;
use slowmo_protocol::mean;
use slowmo_protocol::node::{Reduced, Reduction};
use slowmo_protocol::outer::{OuterStep, Piece};
use slowmo_protocol::published::{Hasher, SIGNATURE_BYTES};
use slowmo_protocol::sound::{CONTRIBUTION_MAX, Unsound, first_beyond};
use slowmo_protocol::wire::{Bulk, ContributionHeader};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Most chunks that may wait for one receiver of published values before the reduction waits for
/// it.
pub const PUBLISH_WINDOW_CHUNKS: usize = 16;

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

/// One contributor's values, read in step with the others.
pub enum Source {
    /// This node's contribution.
    Own(OwnContribution),
    /// Another node's contribution.
    Stream(NodeId, Arrived),
}

/// Item published to one receiver.
enum Published {
    /// The next chunk.
    Chunk(Bytes),
    /// The stream is complete with these bytes: the signature of parameters. If the queue ends
    /// without this item, the stream is reset, so that the receiver does not mistake a part for the
    /// whole.
    End(Bytes),
}

/// Queue of published chunks to one receiver; `shards` limits it to these shards.
struct Outlet {
    shards: Option<BTreeSet<ShardId>>,
    /// Whether chunks are sent as differences, to a receiver that has the reference.
    encoded: bool,
    queue: mpsc::Sender<Published>,
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
    parameter_outlets: Vec<Outlet>,
    momentum_outlets: Vec<Outlet>,
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
    if own.is_some() && encoder.is_some() != coding.is_some() {
        tracing::error!(
            round = plan.attempt.round.0,
            "this node's contribution is not encoded as its round is"
        );
        return Err(Broken::Stream(plan.me));
    }
    let expected = Expected {
        wire: wire_of(coding.as_ref()),
        unit_weights: !matches!(context.settings.algorithm.base, Base::Sgp(_))
            || !plan.spec.carries_parameters(),
    };
    let (sources, weight) = gather(plan.me, own, contributions, expected)?;
    let parameter_outlets = parameter_outlets(&context, &plan, &publication, coding.as_ref());
    let slow = plan.makes_momentum();
    let mut holders = Vec::new();
    if slow {
        let moves = publication.moves_from(plan.me);
        holders.extend(moves.map(|moved| (moved.to, Some(moved.shards.iter().copied().collect()))));
    }
    let momentum_outlets = publish_to(&context, plan.place, &Bulk::State, holders.into_iter());
    let mut sources = Sources::new(&context, &plan, coding.as_ref(), sources);
    let work = Publishing {
        context,
        plan,
        publication,
        parameters,
        coding,
        encoder,
        weight,
        parameter_outlets,
        momentum_outlets,
    };
    let mut part = ChunkedBuffer::default();
    let mut digest = Hasher::default();
    let mut momenta = Vec::new();
    let mut left = Left {
        weight: Some(weight),
        owed: ChunkedBuffer::default(),
    };
    for (shard, state) in states {
        let mut momentum = ChunkedBuffer::default();
        if work.plan.restores {
            momentum = restore(&work.context, &work.plan, shard, work.parameters).await?;
            for (_, chunk) in momentum.pieces() {
                send(&work.momentum_outlets, shard, chunk, None).await;
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
                send(&work.momentum_outlets, shard, &next, None).await;
                momentum.insert(range.start, next);
            }
            let update = work.encode(&range, &mut chunk, &mut left.owed);
            work.check(&range, chunk.values())?;
            let chunk = chunk.freeze();
            digest.update(bytemuck::cast_slice(chunk.values()));
            send(&work.parameter_outlets, shard, &chunk, update.as_ref()).await;
            part.insert(range.start, chunk);
        }
        if slow {
            momenta.push((
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
    let parameters = work
        .parameter_outlets
        .iter()
        .map(|outlet| (outlet, signature.clone()));
    let momenta_of = work
        .momentum_outlets
        .iter()
        .map(|outlet| (outlet, Bytes::new()));
    for (outlet, end) in parameters.chain(momenta_of) {
        // As in `send`, a receiver may be gone.
        _ = outlet.queue.send(Published::End(end)).await;
    }
    Ok(Reduced {
        part,
        signed,
        states: momenta,
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

/// Participants have the reference and get differences; joining nodes get float32.
fn parameter_outlets(
    context: &Arc<NodeContext>,
    plan: &Plan,
    publication: &Publication,
    coding: Option<&Coding>,
) -> Vec<Outlet> {
    let receivers = publication
        .receivers
        .iter()
        .copied()
        .filter(|node| *node != plan.me);
    let (differences, whole): (Vec<NodeId>, Vec<NodeId>) =
        receivers.partition(|node| coding.is_some() && plan.participants.contains(node));
    let update = Bulk::Update(wire_of(coding));
    let mut outlets = publish_to(
        context,
        plan.place,
        &update,
        differences.into_iter().map(|node| (node, None)),
    );
    outlets.iter_mut().for_each(|outlet| outlet.encoded = true);
    outlets.extend(publish_to(
        context,
        plan.place,
        &Bulk::Parameters,
        whole.into_iter().map(|node| (node, None)),
    ));
    outlets
}

/// Properties that all contributions of a round have in common.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Encoding of the parameters.
    pub wire: WireType,
    /// Whether every push-sum weight is 1: nobody gossips, or these are gradients.
    pub unit_weights: bool,
}

/// All contributions in ascending node id, and the sum of their push-sum weights.
pub fn gather(
    me: NodeId,
    own: Option<OwnContribution>,
    others: Vec<Arrived>,
    expected: Expected,
) -> Result<(Vec<Source>, f64), Broken> {
    let mut sources = Vec::with_capacity(others.len() + 1);
    for arrived in others {
        let node = arrived.header.sender;
        let Bulk::Contribution(ContributionHeader { weight, wire, .. }) = arrived.content else {
            return Err(Broken::Stream(node));
        };
        if wire != expected.wire {
            let expected_wire = expected.wire;
            tracing::warn!(
                %node,
                ?wire,
                ?expected_wire,
                "a contribution is encoded in another way than this round's"
            );
            return Err(Broken::Stream(node));
        }
        if expected.unit_weights && weight != 1.0 {
            return Err(Broken::Unsound(node, Unsound::Weight(weight)));
        }
        sources.push((node, weight, Source::Stream(node, arrived)));
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
struct Sources {
    sources: Vec<Source>,
    plain: Buffer,
    encoded: Vec<u8>,
    /// Largest magnitude of a contributed value; `None` for gradients, which may overflow.
    most: Option<f32>,
}

impl Sources {
    fn new(
        context: &NodeContext,
        plan: &Plan,
        coding: Option<&Coding>,
        sources: Vec<Source>,
    ) -> Self {
        let plain = if coding.is_some() {
            0
        } else {
            CHUNK_ELEMENTS.min(plan.layout.elements())
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
    async fn sum(
        &mut self,
        coding: Option<&Coding>,
        range: &Range<usize>,
        chunk: &mut Buffer,
    ) -> Result<(), Broken> {
        for (index, source) in self.sources.iter_mut().enumerate() {
            match coding {
                Some(coding) => {
                    let sum = Sum {
                        values: chunk.values_mut(),
                        first: index == 0,
                    };
                    add_difference(source, coding, range, sum, &mut self.encoded).await?;
                }
                None => {
                    let sum = Sum {
                        values: chunk.values_mut(),
                        first: index == 0,
                    };
                    add(source, range, sum, (&mut self.plain, self.most)).await?;
                }
            }
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<(), Broken> {
        for source in &mut self.sources {
            if let Source::Stream(node, arrived) = source {
                let ended = arrived.stream.expect_end().await;
                ended.map_err(|error| Broken::reading(*node, &error.into()))?;
            }
        }
        Ok(())
    }
}

/// Adds a source's values of `range` to the sum, and refuses them in the same pass if one is not
/// finite or beyond `most`.
async fn add(
    source: &mut Source,
    range: &Range<usize>,
    Sum { values, first }: Sum<'_>,
    (scratch, most): (&mut Buffer, Option<f32>),
) -> Result<(), Broken> {
    match source {
        Source::Own(own) if first => values.copy_from_slice(&own.frozen.values()[range.clone()]),
        Source::Own(own) => mean::add(values, &own.frozen.values()[range.clone()]),
        Source::Stream(node, arrived) if first => {
            read(*node, arrived, bytemuck::cast_slice_mut(values)).await?;
            if let Some(most) = most {
                check(values, range.start, most).map_err(|error| Broken::reading(*node, &error))?;
            }
        }
        Source::Stream(node, arrived) => {
            let bytes = &mut scratch.bytes_mut()[..range.len() * VALUE_BYTES];
            read(*node, arrived, bytes).await?;
            let read = &scratch.values()[..range.len()];
            let Some(most) = most else {
                mean::add(values, read);
                return Ok(());
            };
            if !mean::add_within(values, read, most) {
                let found = check(read, range.start, most);
                found.map_err(|error| Broken::reading(*node, &error))?;
            }
        }
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
    match source {
        Source::Own(OwnContribution {
            encoder: Some(encoder),
            ..
        }) => coding.own_difference(encoder, range, sum),
        // `run` starts no encoded round without an encoder.
        Source::Own(_) => {}
        Source::Stream(node, arrived) => {
            let read = coding
                .read_difference(&mut *arrived.stream, range, sum, scratch)
                .await;
            read.map_err(|error| Broken::reading(*node, &error))?;
        }
    }
    Ok(())
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

/// Opens a stream and a bounded queue to each receiver; the tasks end when their queue is dropped
/// and drained.
fn publish_to(
    context: &Arc<NodeContext>,
    place: Place,
    content: &Bulk,
    receivers: impl Iterator<Item = (NodeId, Option<BTreeSet<ShardId>>)>,
) -> Vec<Outlet> {
    receivers
        .map(|(node, shards)| {
            let (outlet, queue) = mpsc::channel(PUBLISH_WINDOW_CHUNKS);
            let context = Arc::clone(context);
            let content = content.clone();
            tokio::spawn(async move {
                if let Err(error) = publish(&context, place, node, content, queue).await {
                    // The receiver reports what it misses; a receiver that is gone is handled by
                    // the liveness layer.
                    tracing::debug!(%node, %error, "publication ended early");
                }
            });
            Outlet {
                shards,
                encoded: false,
                queue: outlet,
            }
        })
        .collect()
}

async fn publish(
    context: &NodeContext,
    place: Place,
    to: NodeId,
    content: Bulk,
    mut queue: mpsc::Receiver<Published>,
) -> Result<(), BulkError> {
    let mut stream = open(context, place, to, content).await?;
    loop {
        match queue.recv().await {
            Some(Published::Chunk(chunk)) => stream.send(chunk).await?,
            Some(Published::End(end)) => {
                if !end.is_empty() {
                    stream.send(end).await?;
                }
                return stream.finish().await;
            }
            None => {
                stream.reset();
                return Err(BulkError::Reset);
            }
        }
    }
}

async fn send(outlets: &[Outlet], shard: ShardId, chunk: &Frozen, encoded: Option<&Bytes>) {
    for outlet in outlets.iter().filter(|outlet| {
        outlet
            .shards
            .as_ref()
            .is_none_or(|shards| shards.contains(&shard))
    }) {
        let bytes = match encoded {
            Some(encoded) if outlet.encoded => encoded.clone(),
            _ => chunk.bytes(0..chunk.values().len()),
        };
        // The publication to a receiver that is gone has ended and logged why.
        _ = outlet.queue.send(Published::Chunk(bytes)).await;
    }
}
