//! The relay's part of a round over several groups: sums its group's contributions for the owners
//! of other groups, chunk by chunk, and sends the sums to them.

use super::opening::open;
use super::reduce::{Expected, OwnContribution, Sources, gather};
use super::transfer::Broken;
use crate::buffers::{Buffer, ChunkedBuffer, chunks};
use crate::context::NodeContext;
use crate::data::{Buffers, Coding, Encoder, Update};
use crate::ports::transport::{BulkError, BulkSender};
use bytes::Bytes;
use parking_lot::Mutex;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::mean;
use slowmo_protocol::node::GroupSum;
use slowmo_protocol::wire::{Bulk, ContributionHeader};
use std::collections::BTreeMap;
use std::ops::Range;

/// The streams of the sums that are not finished, by owner.
pub type SumStreams = BTreeMap<NodeId, Box<dyn BulkSender>>;

/// The relay's residual for the shards whose sums it sends, with what the encoding of the sums
/// dropped.
pub type Owed = Mutex<ChunkedBuffer>;

/// Sums up and sends, for one owner after the other in ascending id. `own` is this node's
/// contribution, if it contributes. `owed` gets the residual of each chunk before the chunk is sent,
/// so it has all of them when the round is decided. After an error the unfinished streams are left
/// to the caller.
pub async fn sum(
    context: &NodeContext,
    sum: GroupSum<Buffers>,
    coding: Option<&Coding>,
    own: Option<OwnContribution>,
    streams: &mut SumStreams,
    owed: &Owed,
) -> Result<(), Broken> {
    let GroupSum {
        plan,
        contributions,
    } = sum;
    let encoder = own.as_ref().and_then(|own| own.encoder.clone());
    OwnContribution::check(own.as_ref(), &plan, coding)?;
    let expected = Expected::of(context, &plan, coding);
    let (sources, weight) = gather(plan.me, own, contributions, &expected, &BTreeMap::new())?;
    let mut sources = Sources::new(context, &plan, coding, sources);
    let content = Bulk::Partial(ContributionHeader {
        spec: plan.spec,
        weight,
        wire: expected.wire,
    });
    // All begin before any value is sent: an owner reads nothing before all its streams have begun.
    for owner in plan.sums_for() {
        let stream = open(context, plan.place, owner, content.clone()).await;
        streams.insert(owner, stream.map_err(|error| broken(owner, &error))?);
    }
    for owner in plan.sums_for() {
        let Some(mut stream) = streams.remove(&owner) else {
            continue;
        };
        let shards = plan.owned_by(owner).into_iter();
        for range in shards.flat_map(|shard| chunks(plan.layout.range(shard))) {
            let mut chunk = context.pool.take(range.len());
            if let Err(error) = sources.sum(coding, &range, &mut chunk).await {
                streams.insert(owner, stream);
                return Err(error);
            }
            let bytes = match coding {
                Some(coding) => encode(coding, encoder.as_deref(), &chunk, &range, owed),
                None => chunk.freeze().bytes(0..range.len()),
            };
            let sent = stream.send(bytes).await;
            sent.map_err(|error| broken(owner, &error))?;
        }
        let finished = stream.finish().await;
        finished.map_err(|error| broken(owner, &error))?;
    }
    sources.end().await
}

/// Encodes a summed chunk. What rounding drops is added to this node's residual.
fn encode(
    coding: &Coding,
    own: Option<&Encoder>,
    chunk: &Buffer,
    range: &Range<usize>,
    owed: &Owed,
) -> Bytes {
    let Update { bytes, mut dropped } = coding.sum(chunk, range);
    mean::add(dropped.values_mut(), coding.owes(own, range).values());
    owed.lock().insert(range.start, dropped.freeze());
    bytes
}

fn broken(owner: NodeId, error: &BulkError) -> Broken {
    tracing::info!(node = %owner, %error, "the stream of a group's sum broke");
    Broken::Stream(owner)
}
