//! Writes this node's part of a decided round to the store, and restores stored state at bootstrap.

use super::transfer::Broken;
use crate::buffers::{ChunkedBuffer, Frozen, chunks};
use crate::compute::compute;
use crate::context::NodeContext;
use crate::data::Buffers;
use crate::ports::store::Snapshot;
use slowmo_protocol::checkpoint::{is_due, written_by};
use slowmo_protocol::coordinator::{Outcome, Plan};
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::node::{Shards, parameters_of};
use slowmo_protocol::shards::Layout;
use slowmo_protocol::view::Member;
use std::ops::Range;
use std::sync::Arc;

/// A decided round as this node applies it.
pub struct AppliedRound<'a> {
    /// The decided outcome.
    pub outcome: &'a Outcome,
    /// The members of the view in which the round began.
    pub members: &'a Arc<[Member]>,
    /// The values that the round produced.
    pub values: &'a ChunkedBuffer,
    /// How many of the values are parameters.
    pub parameters: usize,
    /// The base optimizer's buffers, as they were passed to the round.
    pub optimizer: Option<&'a Frozen>,
}

/// This node's part of a round's result.
pub struct Part {
    /// The shards that this node writes, ascending; none if it leaves with this round.
    pub shards: Vec<ShardId>,
    /// Whether it is written now; otherwise only if the node ends in order before the next one.
    is_due: bool,
}

impl AppliedRound<'_> {
    /// This node's part; `None` if the result cannot be stored or this node writes none of it.
    #[must_use]
    pub fn part(&self, context: &NodeContext) -> Option<Part> {
        let settings = &context.settings;
        let spec = &self.outcome.spec;
        let changed = &self.outcome.changed;
        let algorithm = changed.values.applied_to(settings.algorithm);
        let every = changed.values.checkpoint_every(settings.checkpoint_every);
        // An entry that changes the schedule says itself whether it is checkpointed.
        let scheduled =
            |every| !changed.are_by(self.outcome.round) && is_due(&algorithm, every, spec);
        let asked = self.outcome.checkpoint;
        if !context.store.keeps() || every == 0 || !(asked || scheduled(1)) {
            return None;
        }
        let elements = usize::try_from(spec.elements).unwrap_or(usize::MAX);
        let shards = written_by(
            settings.identity.node,
            &self.outcome.view,
            elements,
            settings.replicas,
        );
        let is_due = asked || scheduled(every);
        if shards.is_empty() && !(is_due && self.leaves_with_it(settings.identity.node)) {
            return None;
        }
        Some(Part { shards, is_due })
    }

    /// Whether a node leaves with this round: it owns no shard any more, but nobody else has the
    /// buffers of its base optimizer, nor its cursor.
    fn leaves_with_it(&self, node: NodeId) -> bool {
        let was_member = self.members.iter().any(|member| member.id == node);
        was_member && self.outcome.view.member(node).is_none()
    }

    /// Hands this node's part to the store; calls `momentum` with each shard and the range of its
    /// parameters.
    pub fn keep(
        &self,
        context: &NodeContext,
        part: Part,
        momentum: Option<impl Fn(ShardId, Range<usize>) -> ChunkedBuffer>,
    ) {
        let Part { shards, is_due } = part;
        let layout = Layout::new(usize::try_from(self.outcome.spec.elements).unwrap_or(usize::MAX));
        let of = |momentum: &dyn Fn(ShardId, Range<usize>) -> ChunkedBuffer| {
            shards
                .iter()
                .map(|shard| momentum(*shard, parameters_of(&layout, *shard, self.parameters)))
                .collect()
        };
        let momentum = momentum.map(|momentum| of(&momentum));
        let snapshot = Snapshot {
            outcome: self.outcome.clone(),
            members_before: Arc::clone(self.members),
            values: self.own_values(&layout, &shards),
            parameters: self.parameters,
            shards,
            momentum,
            optimizer: self.optimizer.cloned(),
        };
        if is_due {
            context.store.keep(snapshot);
        } else {
            context.store.hold(snapshot);
        }
    }

    /// The values of these shards, without the memory of the others.
    fn own_values(&self, layout: &Layout, shards: &[ShardId]) -> ChunkedBuffer {
        let ranges: Vec<Range<usize>> = shards.iter().map(|shard| layout.range(*shard)).collect();
        let mut own = ChunkedBuffer::default();
        // A piece may reach over several shards.
        for (start, piece) in self.values.pieces() {
            let end = start + piece.values().len();
            if ranges
                .iter()
                .any(|range| start < range.end && range.start < end)
            {
                own.insert(start, piece.clone());
            }
        }
        own
    }

    /// Like [`AppliedRound::keep`], if the momentum is sharded or there is none. A whole momentum
    /// is stored by the aggregator, which holds it.
    pub fn keep_sharded(&self, context: &NodeContext, states: &Shards<Buffers>) {
        let outer = context.settings.algorithm.outer;
        if outer.is_some_and(|outer| !outer.sharded) {
            return;
        }
        if let Some(part) = self.part(context) {
            self.keep(
                context,
                part,
                outer.map(|_| |shard: ShardId, _| states.state(shard).momentum),
            );
        }
    }
}

/// The slow momentum of one owned shard, read from the checkpoint from which bootstrap continues.
pub async fn restore(
    context: &Arc<NodeContext>,
    plan: &Plan,
    shard: ShardId,
    parameters: usize,
) -> Result<ChunkedBuffer, Broken> {
    let range = parameters_of(&plan.layout, shard, parameters);
    let Some(restored) = context.store.restored() else {
        tracing::error!("the checkpoint for this bootstrap is missing");
        return Err(Broken::Stream(plan.me));
    };
    let pool = Arc::clone(&context.pool);
    let read = compute(move || {
        let mut momentum = ChunkedBuffer::default();
        // The shard is read as a whole, so that its stored data is read and verified once.
        let mut whole = vec![0.0; range.len()];
        restored.momentum(range.clone(), &mut whole)?;
        for chunk in chunks(range.clone()) {
            let mut buffer = pool.take(chunk.len());
            buffer
                .values_mut()
                .copy_from_slice(&whole[chunk.start - range.start..chunk.end - range.start]);
            momentum.insert(chunk.start, buffer.freeze());
        }
        Ok::<_, String>(momentum)
    });
    match read.await {
        Some(Ok(momentum)) => Ok(momentum),
        Some(Err(error)) => {
            tracing::error!(error, "the slow momentum cannot be restored");
            Err(Broken::Stream(plan.me))
        }
        // The executor is shutting down.
        None => Err(Broken::Stream(plan.me)),
    }
}
