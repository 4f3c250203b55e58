//! Tracks the addresses that are being dialed, so that dialing one a second time does nothing.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The set of addresses being dialed.
#[derive(Default)]
pub(crate) struct Dialing {
    wishes: Mutex<BTreeMap<SocketAddr, Wish>>,
}

/// State of one address that is being dialed.
#[derive(Default)]
struct Wish {
    /// Time limit of a request to dial that arrived while the address was already being dialed.
    again: Option<Duration>,
    /// Notified when the node that listens at the address connects to this node.
    heard: Arc<Notify>,
}

impl Dialing {
    /// Whether the caller should dial now. If the address is already being dialed, the request is
    /// remembered: the peer may come up and go down again before that dialing ends.
    pub(crate) fn begin(&self, address: SocketAddr, give_up_after: Duration) -> bool {
        let mut wishes = self.wishes.lock();
        if let Some(wish) = wishes.get_mut(&address) {
            wish.again = Some(give_up_after);
            return false;
        }
        wishes.insert(address, Wish::default());
        true
    }

    /// Records that the node that listens at `address` has just connected to this node. An attempt
    /// that still waits for an answer from there may have begun before that node listened, so it is
    /// restarted at once.
    pub(crate) fn heard(&self, address: SocketAddr) {
        if let Some(wish) = self.wishes.lock().get(&address) {
            wish.heard.notify_one();
        }
    }

    /// The [`Notify`] that is triggered when the node at an address that is being dialed is heard
    /// from.
    pub(crate) fn hearing(&self, address: SocketAddr) -> Arc<Notify> {
        self.wishes
            .lock()
            .get(&address)
            .map(|wish| wish.heard.clone())
            .unwrap_or_default()
    }

    /// Ends dialing. Returns a time limit if the address must be dialed again: it was requested
    /// again meanwhile, and its peer is not up (any more).
    pub(crate) fn end(
        &self,
        address: SocketAddr,
        is_up: impl FnOnce() -> bool,
    ) -> Option<Duration> {
        let mut wishes = self.wishes.lock();
        match wishes.remove(&address).and_then(|wish| wish.again) {
            Some(again) if !is_up() => {
                wishes.insert(address, Wish::default());
                Some(again)
            }
            _ => None,
        }
    }
}
