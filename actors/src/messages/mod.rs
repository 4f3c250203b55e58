//! Messages of the actors' mailboxes, one file per actor that receives them.

mod aggregator;
mod coordinator;
mod gossip_peer;
mod worker;

pub use aggregator::{AggregatorMessage, Arrival};
pub use coordinator::{CoordinatorMessage, Inspection};
pub use gossip_peer::GossipPeerMessage;
pub use worker::Exchanged;

use crate::ports::transport::Share;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A message to a part of the node. A message that is a network event carries its credit.
#[derive(Debug)]
pub struct Told<M> {
    /// The message.
    pub message: M,
    /// Credit of the network event, released when the message has been handled; `None` for other
    /// messages.
    pub credit: Option<Credit>,
}

/// A permit that a network event holds until its actor has handled it, with its sender's share.
#[derive(Debug)]
pub struct Credit {
    _permit: OwnedSemaphorePermit,
    _share: Share,
}

impl Credit {
    /// Waits until another network event may enter a mailbox; `None` when the node stops.
    pub async fn acquire(credits: &Arc<Semaphore>) -> Option<Self> {
        let permit = Arc::clone(credits).acquire_owned().await.ok()?;
        Some(Self {
            _permit: permit,
            _share: Share::default(),
        })
    }

    /// Keeps the sender's share for as long as the credit.
    #[must_use]
    pub fn with(self, share: Share) -> Self {
        Self {
            _share: share,
            ..self
        }
    }
}
