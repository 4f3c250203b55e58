//! Which addresses are being dialed, so that dialing one twice does nothing.

use super::sessions::lock;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

/// Addresses being dialed.
#[derive(Default)]
pub(crate) struct Dialing {
    wishes: Mutex<BTreeMap<SocketAddr, Wish>>,
}

/// What is known of an address that is being dialed.
#[derive(Default)]
struct Wish {
    /// It was wished again meanwhile, for so long.
    again: Option<Duration>,
    /// Who listens there was heard.
    heard: Arc<Notify>,
}

impl Dialing {
    /// Whether the caller should dial now. If somebody does already, the wish is remembered: the
    /// peer may have come and gone before that somebody is done.
    pub(crate) fn begin(&self, address: SocketAddr, give_up_after: Duration) -> bool {
        let mut wishes = lock(&self.wishes);
        if let Some(wish) = wishes.get_mut(&address) {
            wish.again = Some(give_up_after);
            return false;
        }
        wishes.insert(address, Wish::default());
        true
    }

    /// Who listens at an address has just connected to this node: an attempt that waits there for
    /// an answer, which may have begun before anybody listened, is made anew at once.
    pub(crate) fn heard(&self, address: SocketAddr) {
        if let Some(wish) = lock(&self.wishes).get(&address) {
            wish.heard.notify_one();
        }
    }

    /// Notified when somebody was heard from an address that is being dialed.
    pub(crate) fn hearing(&self, address: SocketAddr) -> Arc<Notify> {
        lock(&self.wishes)
            .get(&address)
            .map(|wish| wish.heard.clone())
            .unwrap_or_default()
    }

    /// Ends dialing, or says how long to dial again: somebody wished so, and the address is not up
    /// (any more).
    pub(crate) fn end(
        &self,
        address: SocketAddr,
        is_up: impl FnOnce() -> bool,
    ) -> Option<Duration> {
        let mut wishes = lock(&self.wishes);
        match wishes.remove(&address).and_then(|wish| wish.again) {
            Some(again) if !is_up() => {
                wishes.insert(address, Wish::default());
                Some(again)
            }
            _ => None,
        }
    }
}
