//! Which addresses are being dialed, so that dialing one twice does nothing.

use super::sessions::lock;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

/// Addresses being dialed, each with the wish, if any, that came while it was.
#[derive(Default)]
pub(crate) struct Dialing {
    wishes: Mutex<BTreeMap<SocketAddr, Option<Duration>>>,
}

impl Dialing {
    /// Whether the caller should dial now. If somebody does already, the wish is remembered: the peer may have come and
    /// gone before that somebody is done.
    pub(crate) fn begin(&self, address: SocketAddr, give_up_after: Duration) -> bool {
        let mut wishes = lock(&self.wishes);
        let already = wishes.contains_key(&address);
        wishes.insert(address, already.then_some(give_up_after));
        !already
    }

    /// Ends dialing, or says how long to dial again: somebody wished so, and the address is not up (any more).
    pub(crate) fn end(&self, address: SocketAddr, is_up: impl FnOnce() -> bool) -> Option<Duration> {
        let mut wishes = lock(&self.wishes);
        match wishes.remove(&address).flatten() {
            Some(again) if !is_up() => {
                wishes.insert(address, None);
                Some(again)
            }
            _ => None,
        }
    }
}
