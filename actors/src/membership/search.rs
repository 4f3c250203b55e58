//! The search for peers until the view is formed: dials every address that discovery finds.

use crate::context::NodeContext;
use crate::messages::Told;
use parking_lot::Mutex;
use ractor::ActorRef;
use slowmo_protocol::membership::In;
use slowmo_protocol::node::ToMembership;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Interval at which discovery is asked for peers.
pub const DISCOVERY_INTERVAL: Duration = Duration::from_millis(50);
/// Pause before an address that was given up is dialed again: it may belong to another node by now,
/// which logs every refusal.
pub const REDIAL_PAUSE: Duration = Duration::from_secs(1);

/// Addresses that were given up, each until it is dialed again; at most as many as were discovered.
#[derive(Debug, Default)]
pub(super) struct Resting(Mutex<BTreeMap<SocketAddr, Instant>>);

impl Resting {
    pub(super) fn begin(&self, address: SocketAddr) {
        self.0.lock().insert(address, Instant::now() + REDIAL_PAUSE);
    }

    /// Whether an address may be dialed; removes every pause that is over.
    fn is_over(&self, address: SocketAddr, now: Instant) -> bool {
        let mut resting = self.0.lock();
        resting.retain(|_, until| *until > now);
        !resting.contains_key(&address)
    }
}

/// Reports the discovered addresses to the membership, and dials them repeatedly; dialing an
/// address that is being dialed or up does nothing.
pub(super) async fn search(
    context: Arc<NodeContext>,
    resting: Arc<Resting>,
    membership: ActorRef<Told<ToMembership>>,
) {
    // The last error, so that it is logged once: a failing discovery fails many times a second.
    let mut told = None;
    let mut found = None;
    loop {
        match context.discovery.peers().await {
            Ok(peers) => {
                told = None;
                if found.as_ref() != Some(&peers) {
                    found = Some(peers.clone());
                    let message = ToMembership::In(In::Discovered(peers.clone()));
                    // The search ends with the actor. It may begin before others know the actor, so
                    // the message is sent to it directly.
                    _ = membership.cast(Told {
                        message,
                        credit: None,
                    });
                }
                let now = Instant::now();
                let due = peers.into_iter().filter(|peer| resting.is_over(*peer, now));
                due.for_each(|peer| {
                    context
                        .transport
                        .connect(peer, context.settings.connect_timeout)
                });
            }
            Err(error) if told.as_ref() == Some(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "discovery failed; trying again");
                told = Some(error);
            }
        }
        tokio::time::sleep(DISCOVERY_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_was_given_up_rests() {
        let resting = Resting::default();
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let now = Instant::now();
        assert!(resting.is_over(address, now));
        resting.begin(address);
        assert!(!resting.is_over(address, now));
        assert!(resting.is_over(SocketAddr::from(([127, 0, 0, 1], 8)), now));
        assert!(resting.is_over(address, Instant::now() + REDIAL_PAUSE));
    }
}
