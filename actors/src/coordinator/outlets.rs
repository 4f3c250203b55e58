//! Streams of published values: a bounded queue for each receiver.

use super::opening::open;
use crate::context::NodeContext;
use crate::data::Coding;
use crate::ports::transport::BulkError;
use bytes::Bytes;
use slowmo_protocol::coordinator::Plan;
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::machine::Place;
use slowmo_protocol::wire::Bulk;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Most chunks that may wait for one receiver of published values before their sender waits for it.
pub const PUBLISH_WINDOW_CHUNKS: usize = 16;

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
    queue: mpsc::Sender<Published>,
}

/// The receivers of the same values. Their streams are reset if this is dropped before
/// [`Outlets::end`].
pub struct Outlets(Vec<Outlet>);

impl Outlets {
    /// Opens a stream and a bounded queue to each receiver; the tasks end when their queue is
    /// dropped and drained.
    pub fn new(
        context: &Arc<NodeContext>,
        place: Place,
        content: &Bulk,
        receivers: impl IntoIterator<Item = NodeId>,
    ) -> Self {
        let receivers = receivers.into_iter().map(|node| (node, None));
        Self::of_shards(context, place, content, receivers)
    }

    /// The same, with the shards of which each receiver gets values; `None` for all.
    pub fn of_shards(
        context: &Arc<NodeContext>,
        place: Place,
        content: &Bulk,
        receivers: impl Iterator<Item = (NodeId, Option<BTreeSet<ShardId>>)>,
    ) -> Self {
        let outlets = receivers.map(|(node, shards)| {
            let (queue, published) = mpsc::channel(PUBLISH_WINDOW_CHUNKS);
            let context = Arc::clone(context);
            let content = content.clone();
            tokio::spawn(async move {
                if let Err(error) = publish(&context, place, node, content, published).await {
                    // The receiver reports what it misses; a receiver that is gone is handled by
                    // the liveness layer.
                    tracing::debug!(%node, %error, "publication ended early");
                }
            });
            Outlet { shards, queue }
        });
        Self(outlets.collect())
    }

    /// The nodes to which this relay passes the values of `owner` on, encoded as they come; none
    /// if it is no relay.
    pub fn passing_on(
        context: &Arc<NodeContext>,
        plan: &Plan,
        owner: NodeId,
        coding: Option<&Coding>,
    ) -> Self {
        let wire = coding.map(|coding| coding.wire);
        let content = Bulk::Forwarded { owner, wire };
        Self::new(context, plan.place, &content, plan.passes_on(owner))
    }

    /// Whether there is no receiver.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends a chunk to all receivers, and waits where a queue is full.
    pub async fn send(&self, bytes: &Bytes) {
        for outlet in &self.0 {
            // The publication to a receiver that is gone has ended and logged why.
            _ = outlet.queue.send(Published::Chunk(bytes.clone())).await;
        }
    }

    /// Sends a chunk of a shard to those that get this shard.
    pub async fn send_shard(&self, shard: ShardId, bytes: &Bytes) {
        let gets = |outlet: &&Outlet| {
            let shards = outlet.shards.as_ref();
            shards.is_none_or(|shards| shards.contains(&shard))
        };
        for outlet in self.0.iter().filter(gets) {
            _ = outlet.queue.send(Published::Chunk(bytes.clone())).await;
        }
    }

    /// Completes all streams with these bytes.
    pub async fn end(&self, bytes: &Bytes) {
        for outlet in &self.0 {
            _ = outlet.queue.send(Published::End(bytes.clone())).await;
        }
    }
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
