//! The owner's work: sum the contributions to its shards in ascending node id, divide, take the slow step, publish. Chunk by
//! chunk, so that receiving, arithmetic and sending overlap and memory stays within a window of chunks.

use super::messages::DataEvent;
use super::shards::{OwnPart, ShardState};
use super::transfer::open;
use crate::buffers::{Assembled, Buffer, CHUNK_ELEMENTS, Frozen, VALUE_BYTES, chunks};
use crate::context::NodeContext;
use crate::ports::transport::BulkError;
use crate::streams::Arrived;
use bytes::Bytes;
use slowmo_protocol::coordinator::{Plan, Publication, RoundKind};
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::machine::Place;
use slowmo_protocol::mean;
use slowmo_protocol::outer::{OuterStep, Piece};
use slowmo_protocol::wire::{Bulk, Contribution};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// Chunks that may wait for one receiver of published values before the reduction waits for it.
pub const PUBLISH_WINDOW_CHUNKS: usize = 16;

/// Everything the reduction of one round needs.
pub struct Reduction {
    /// The node.
    pub context: Arc<NodeContext>,
    /// The round's movements.
    pub plan: Arc<Plan>,
    /// Who gets what it makes, once that is proposed.
    pub publication: watch::Receiver<Option<Arc<Publication>>>,
    /// How many of the values are parameters.
    pub parameters: usize,
    /// This node's own contribution, if it contributes.
    pub own: Option<(f64, Frozen)>,
    /// The other contributors' streams.
    pub expected: Vec<(NodeId, oneshot::Receiver<Arrived>)>,
    /// The decided state of the own shards, ascending.
    pub states: Vec<(ShardId, ShardState)>,
}

/// One contributor's values, read in step with the others.
enum Source {
    Own(Frozen),
    Stream(NodeId, Arrived),
}

/// What is published to one receiver.
enum Published {
    /// The next chunk.
    Chunk(Bytes),
    /// Nothing more: the stream is complete. Without it the stream is reset, so that nobody takes a part for the whole.
    End,
}

/// Where published chunks go.
struct Outlet {
    shards: Option<BTreeSet<ShardId>>,
    queue: mpsc::Sender<Published>,
}

/// Runs the reduction; the error is what the coordinator must be told instead.
pub async fn run(reduction: Reduction) -> Result<OwnPart, DataEvent> {
    let Reduction { context, plan, mut publication, parameters, own, expected, states } = reduction;
    let (mut sources, weight) = gather(&plan, own, expected).await?;
    // Who receives is usually known by now: the proposal travelled while the contributions did.
    let publication = publication.wait_for(Option::is_some).await.ok().and_then(|publication| publication.clone());
    let Some(publication) = publication else { return Err(DataEvent::Broken(plan.me)) };
    let receivers = publication.receivers.iter().copied().filter(|node| *node != plan.me).map(|node| (node, None));
    let parameter_outlets = publish_to(&context, plan.place, &Bulk::Parameters, receivers);
    let slow = plan.terms.kind == RoundKind::Slow;
    let holders = publication.moves_from(plan.me).filter(|_| slow).map(|moved| (moved.to, Some(moved.shards.iter().copied().collect())));
    let momentum_outlets = publish_to(&context, plan.place, &Bulk::State, holders);
    let mut scratch = context.pool.take(CHUNK_ELEMENTS.min(plan.layout.elements()));
    let mut part = OwnPart::default();
    for (shard, state) in states {
        let mut momentum = Assembled::default();
        for range in chunks(plan.layout.range(shard)) {
            let mut chunk = context.pool.take(range.len());
            sum(&mut sources, &range, &mut chunk, &mut scratch).await?;
            let (numerators, buffers) = chunk.values_mut().split_at_mut(parameters.saturating_sub(range.start).min(range.len()));
            mean::divide(numerators, weight);
            // Buffers carry no push-sum weight: theirs is the plain mean over the contributors.
            mean::divide(buffers, plan.contributors.len() as f64);
            if slow && range.start < parameters {
                let length = parameters.min(range.end) - range.start;
                let values = &mut chunk.values_mut()[..length];
                let next = if publication.lost.contains(&shard) {
                    // Nobody has its anchor: a plain average, and momentum starts again.
                    context.pool.zeros(length).freeze()
                } else {
                    slow_step(&context, &plan, &state, range.start, values)?
                };
                send(&momentum_outlets, shard, &next).await;
                momentum.insert(range.start, next);
            }
            let chunk = chunk.freeze();
            send(&parameter_outlets, shard, &chunk).await;
            part.values.insert(range.start, chunk);
        }
        if slow {
            part.momentum.push((shard, momentum));
        }
    }
    end(&mut sources).await?;
    for outlet in parameter_outlets.iter().chain(&momentum_outlets) {
        // As in `send`.
        _ = outlet.queue.send(Published::End).await;
    }
    Ok(part)
}

/// Waits for every contributor's stream and adds up the push-sum weights in ascending id.
async fn gather(
    plan: &Plan,
    own: Option<(f64, Frozen)>,
    expected: Vec<(NodeId, oneshot::Receiver<Arrived>)>,
) -> Result<(Vec<Source>, f64), DataEvent> {
    let mut sources = Vec::with_capacity(expected.len() + 1);
    for (node, stream) in expected {
        let arrived = stream.await.map_err(|_| DataEvent::Broken(node))?;
        let Bulk::Contribution(Contribution { terms, weight }) = arrived.content else { return Err(DataEvent::Broken(node)) };
        if terms != plan.terms {
            return Err(DataEvent::TermsDiffer(node, terms));
        }
        if !(weight.is_finite() && weight > 0.0) {
            return Err(DataEvent::Broken(node));
        }
        sources.push((node, weight, Source::Stream(node, arrived)));
    }
    if let Some((weight, frozen)) = own {
        sources.push((plan.me, weight, Source::Own(frozen)));
    }
    sources.sort_by_key(|(node, ..)| *node);
    let weight = sources.iter().map(|(_, weight, _)| weight).sum();
    Ok((sources.into_iter().map(|(.., source)| source).collect(), weight))
}

/// `chunk = Σ` of the sources' values of `range`, in the order of `sources`.
async fn sum(sources: &mut [Source], range: &Range<usize>, chunk: &mut Buffer, scratch: &mut Buffer) -> Result<(), DataEvent> {
    for (index, source) in sources.iter_mut().enumerate() {
        match source {
            Source::Own(frozen) if index == 0 => chunk.values_mut().copy_from_slice(&frozen.values()[range.clone()]),
            Source::Own(frozen) => mean::add(chunk.values_mut(), &frozen.values()[range.clone()]),
            Source::Stream(node, arrived) if index == 0 => read(*node, arrived, chunk.bytes_mut()).await?,
            Source::Stream(node, arrived) => {
                read(*node, arrived, &mut scratch.bytes_mut()[..range.len() * VALUE_BYTES]).await?;
                mean::add(chunk.values_mut(), &scratch.values()[..range.len()]);
            }
        }
    }
    Ok(())
}

async fn read(node: NodeId, arrived: &mut Arrived, into: &mut [u8]) -> Result<(), DataEvent> {
    arrived.stream.read_exact(into).await.map_err(|error| broken(node, &error))
}

async fn end(sources: &mut [Source]) -> Result<(), DataEvent> {
    for source in sources {
        if let Source::Stream(node, arrived) = source {
            arrived.stream.expect_end().await.map_err(|error| broken(*node, &error))?;
        }
    }
    Ok(())
}

fn broken(node: NodeId, error: &BulkError) -> DataEvent {
    tracing::info!(%node, %error, "a round's stream broke");
    DataEvent::Broken(node)
}

/// Takes the slow step on the parameters of the chunk that starts at `start` and returns the new momentum.
fn slow_step(context: &NodeContext, plan: &Plan, state: &ShardState, start: usize, values: &mut [f32]) -> Result<Frozen, DataEvent> {
    let length = values.len();
    let decided = context.settings.algorithm.outer.zip(state.anchor.piece(start));
    let Some((outer, anchor)) = decided else {
        // The founding gave every holder its anchors; without them no slow step can be right.
        tracing::error!(round = plan.attempt.round.0, start, "the anchor of an owned shard is missing");
        return Err(DataEvent::Broken(plan.me));
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
    let (anchor, momentum) = (&anchor.values()[..length], &momentum[..length]);
    outer.optimizer.step(Piece { values, anchor, momentum, next_momentum: next.values_mut() }, plan.terms.gamma);
    Ok(next.freeze())
}

/// Opens a stream and a bounded queue to each receiver; their tasks end when the queue is dropped and drained.
fn publish_to(
    context: &Arc<NodeContext>,
    place: Place,
    content: &Bulk,
    receivers: impl Iterator<Item = (NodeId, Option<BTreeSet<ShardId>>)>,
) -> Vec<Outlet> {
    receivers
        .map(|(node, shards)| {
            let (outlet, queue) = mpsc::channel(PUBLISH_WINDOW_CHUNKS);
            let (context, content) = (Arc::clone(context), content.clone());
            tokio::spawn(async move {
                if let Err(error) = publish(&context, place, node, content, queue).await {
                    // The receiver reports what it misses; a receiver that is gone is the liveness layer's business.
                    tracing::debug!(%node, %error, "publication ended early");
                }
            });
            Outlet { shards, queue: outlet }
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
            Some(Published::End) => return stream.finish().await,
            None => {
                stream.reset();
                return Err(BulkError::Reset);
            }
        }
    }
}

async fn send(outlets: &[Outlet], shard: ShardId, chunk: &Frozen) {
    for outlet in outlets.iter().filter(|outlet| outlet.shards.as_ref().is_none_or(|shards| shards.contains(&shard))) {
        // The publication of a receiver that is gone has ended and logged why.
        _ = outlet.queue.send(Published::Chunk(chunk.bytes(0..chunk.values().len()))).await;
    }
}
