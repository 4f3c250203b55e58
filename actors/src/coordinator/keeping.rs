//! Writes this node's part of a decided round to the store, and restores stored state at bootstrap.

use super::transfer::Broken;
use crate::buffers::{ChunkedBuffer, Frozen, chunks};
use crate::compute::compute;
use crate::context::NodeContext;
use crate::data::Buffers;
use crate::ports::store::Snapshot;
use slowmo_protocol::checkpoint::{is_due, written_by};
use slowmo_protocol::coordinator::{Outcome, Plan};
use slowmo_protocol::ident::ShardId;
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

impl AppliedRound<'_> {
    /// The shards of this outcome that this node writes; empty if the outcome is not stored or this
    /// node writes no part of it.
    #[must_use]
    pub fn shards(&self, context: &NodeContext) -> Vec<ShardId> {
        let settings = &context.settings;
        let spec = &self.outcome.spec;
        if !(context.store.keeps() && is_due(&settings.algorithm, settings.checkpoint_every, spec))
        {
            return Vec::new();
        }
        let elements = usize::try_from(spec.elements).unwrap_or(usize::MAX);
        written_by(
            settings.identity.node,
            &self.outcome.view,
            elements,
            settings.replicas,
        )
    }

    /// Hands this node's part to the store; calls `momentum` with each shard and the range of its
    /// parameters.
    pub fn keep(
        &self,
        context: &NodeContext,
        shards: Vec<ShardId>,
        momentum: Option<impl Fn(ShardId, Range<usize>) -> ChunkedBuffer>,
    ) {
        let layout = Layout::new(usize::try_from(self.outcome.spec.elements).unwrap_or(usize::MAX));
        let of = |momentum: &dyn Fn(ShardId, Range<usize>) -> ChunkedBuffer| {
            shards
                .iter()
                .map(|shard| momentum(*shard, parameters_of(&layout, *shard, self.parameters)))
                .collect()
        };
        let momentum = momentum.map(|momentum| of(&momentum));
        context.store.keep(Snapshot {
            outcome: self.outcome.clone(),
            members_before: Arc::clone(self.members),
            values: self.values.clone(),
            parameters: self.parameters,
            shards,
            momentum,
            optimizer: self.optimizer.cloned(),
        });
    }

    /// Like [`AppliedRound::keep`], if the momentum is sharded or there is none. A whole momentum
    /// is stored by the aggregator, which holds it.
    pub fn keep_sharded(&self, context: &NodeContext, states: &Shards<Buffers>) {
        let outer = context.settings.algorithm.outer;
        if outer.is_some_and(|outer| !outer.sharded) {
            return;
        }
        let shards = self.shards(context);
        if !shards.is_empty() {
            self.keep(
                context,
                shards,
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
