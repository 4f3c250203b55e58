//! Opens the bulk streams of a round.

use crate::context::NodeContext;
use crate::data::Gathered;
use crate::ports::transport::{BulkError, BulkSender};
use bytes::Bytes;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::machine::Place;
use slowmo_protocol::wire::{Bulk, BulkHeader};
use std::time::Duration;
use tokio::time::Instant;

/// Longest time that a stream waits for a connection: two nodes that join in one round dial each
/// other only when they hear of it.
pub const CONNECT_WAIT_MAX: Duration = Duration::from_secs(2);
/// Interval at which a waiting stream checks for the connection.
const CONNECT_LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Opens a bulk stream of the round.
pub async fn open(
    context: &NodeContext,
    place: Place,
    to: NodeId,
    content: Bulk,
) -> Result<Box<dyn BulkSender>, BulkError> {
    let header = context.settings.identity.header(place);
    let header = BulkHeader::V1 {
        header,
        content: content.clone(),
    }
    .encode()
    .map_err(|error| BulkError::Broken(error.to_string()))?;
    let header = Bytes::from(header);
    let give_up = Instant::now() + CONNECT_WAIT_MAX;
    loop {
        match context.transport.open_bulk(to, header.clone()).await {
            Err(BulkError::NotConnected(_)) if Instant::now() < give_up => {
                tokio::time::sleep(CONNECT_LOOK_INTERVAL).await
            }
            opened => {
                let stream = context.metrics.counts_sent(&content, opened?);
                let mut stream = Gathered::new(stream);
                if is_summed(&content) {
                    stream.hurry();
                }
                return Ok(Box::new(stream));
            }
        }
    }
}

/// Whether the receiver publishes what comes of it. Such values go first. Otherwise the last sums
/// would be published only after the line fell idle.
fn is_summed(content: &Bulk) -> bool {
    matches!(
        content,
        Bulk::Contribution(_) | Bulk::Relayed(_) | Bulk::Partial(_)
    )
}
