//! One peer while it has any connection: its state, its signs of life, and the delivery of its
//! events.

use super::pulse::Pulse;
use super::watched::Watched;
use slowmo_actors::ports::transport::{
    DownReason, EVENT_BYTES_MIN, HOST_INBOX_BYTES, PEER_INBOX_BYTES, Share, TransportEvent,
};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, RwLock, RwLockWriteGuard, Semaphore, mpsc};

/// The authenticated peer that a connection belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerIdentity {
    pub node: NodeId,
    pub incarnation: Incarnation,
    /// The address where the peer listens, as the peer announced it.
    pub address: SocketAddr,
    /// The host from which its packets come; `None` if the transport has no network.
    pub host: Option<IpAddr>,
    /// Digest of the public key in its certificate, which its process keeps as long as it runs;
    /// `None` if certificates may change otherwise.
    pub key: Option<KeyDigest>,
}

/// SHA-256 of a certificate's public key.
pub(crate) type KeyDigest = [u8; 32];

/// Longest time that received data is still read after a peer has closed its connections.
const READING_AFTER_CLOSE_MAX: Duration = Duration::from_millis(300);

/// Room for the events of all peers of one host.
pub(super) fn host_inbox() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(HOST_INBOX_BYTES as usize))
}

/// One peer while it has any connection.
pub(crate) struct Session {
    pub peer: PeerIdentity,
    /// The peer's signs of life.
    pub pulse: Pulse,
    /// Another incarnation of the same node has tried to take this one's place.
    challenged: AtomicBool,
    events: mpsc::Sender<TransportEvent>,
    /// Set once the predecessor session, if any, has ended; no event is delivered before.
    started: Watched<bool>,
    /// The address where the peer was dialed; set once the peer is up.
    up: Watched<Option<SocketAddr>>,
    closing: Watched<Option<DownReason>>,
    ended: Watched<bool>,
    /// At least one event was delivered. Without one the node does not know of this session and is
    /// not told of its end.
    noticed: AtomicBool,
    /// Number of running readers of control frames.
    readers: Arc<Watched<usize>>,
    /// Number of connections that are not closed yet.
    connections: Arc<Watched<usize>>,
    /// Notified when the peer has renewed a connection, so that it may accept this node's renewal.
    pub(crate) peer_renewed: Notify,
    /// Bytes that the node may still take in from this peer.
    inbox: Arc<Semaphore>,
    /// Bytes that the node may still take in from all peers of this peer's host.
    host_inbox: Arc<Semaphore>,
    /// Whether many peers of its host were connected when it came: then it may fill less memory.
    pub(crate) is_one_of_many: bool,
    /// Read-locked while an event is delivered, so that `PeerDown` comes last.
    delivering: RwLock<()>,
}

/// Guard that adds one to a count until it is dropped.
pub(crate) struct Counted(Arc<Watched<usize>>);

impl Counted {
    pub(crate) fn new(count: &Arc<Watched<usize>>) -> Self {
        count.modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.modify(|count| *count -= 1);
    }
}

/// Error: the session is over and the event was not delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionOver;

impl Session {
    pub(super) fn new(
        peer: PeerIdentity,
        events: mpsc::Sender<TransportEvent>,
        host_inbox: Arc<Semaphore>,
        is_one_of_many: bool,
    ) -> Self {
        Self {
            peer,
            pulse: Pulse::new(),
            challenged: AtomicBool::new(false),
            events,
            started: Watched::new(false),
            up: Watched::new(None),
            closing: Watched::new(None),
            ended: Watched::new(false),
            noticed: AtomicBool::new(false),
            readers: Arc::new(Watched::new(0)),
            connections: Arc::new(Watched::new(0)),
            peer_renewed: Notify::new(),
            inbox: Arc::new(Semaphore::new(PEER_INBOX_BYTES as usize)),
            host_inbox,
            is_one_of_many,
            delivering: RwLock::new(()),
        }
    }

    /// The room that it shares with the other peers of its host.
    pub(super) fn host_inbox(&self) -> Arc<Semaphore> {
        self.host_inbox.clone()
    }

    /// Starts to close the session; if called more than once, the first reason counts.
    pub(crate) fn close(&self, reason: DownReason) {
        self.closing
            .modify(|current| _ = current.get_or_insert(reason));
    }

    /// Counts a reader of control frames until the returned guard is dropped.
    pub(crate) fn reading(&self) -> Counted {
        Counted::new(&self.readers)
    }

    /// Counts a connection until the returned guard is dropped; `PeerDown` waits for that.
    pub(crate) fn attach(&self) -> Counted {
        Counted::new(&self.connections)
    }

    /// Waits until the readers have delivered what arrived before the end, at most
    /// [`READING_AFTER_CLOSE_MAX`].
    pub(crate) async fn read_out(&self) {
        let _ = tokio::time::timeout(
            READING_AFTER_CLOSE_MAX,
            self.readers.wait_for(|readers| *readers == 0),
        )
        .await;
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get().is_some()
    }

    pub(super) fn challenge(&self) {
        self.challenged.store(true, Ordering::Release);
    }

    pub(super) fn is_challenged(&self) -> bool {
        self.challenged.load(Ordering::Acquire)
    }

    pub(super) fn is_up_at(&self, address: SocketAddr) -> bool {
        self.up.get() == Some(address)
    }

    /// Marks the peer as up, dialed at this address.
    pub(super) fn set_up(&self, address: SocketAddr) {
        self.up.set(Some(address));
    }

    /// Waits until the session is closing, and returns the reason.
    pub(crate) async fn closing(&self) -> DownReason {
        self.closing
            .wait_for(Option::is_some)
            .await
            .unwrap_or_else(|| DownReason::Broken("the session was dropped".into()))
    }

    /// Waits until `PeerDown` was delivered.
    pub(crate) async fn ended(&self) {
        self.ended.wait_for(|ended| *ended).await;
    }

    /// Delivers an event of this peer to the node; waits while the node holds
    /// [`PEER_INBOX_BYTES`] of this peer's events or [`HOST_INBOX_BYTES`] of those of its host, or
    /// its event queue is full.
    pub(crate) async fn deliver(&self, event: TransportEvent) -> Result<(), SessionOver> {
        let _shared = self.delivering.read().await;
        tokio::select! {
            biased;
            _ = self.closing() => Err(SessionOver),
            delivered = self.deliver_in_order(event) => delivered,
        }
    }

    async fn deliver_in_order(&self, mut event: TransportEvent) -> Result<(), SessionOver> {
        self.started.wait_for(|started| *started).await;
        let (share, length) = match &mut event {
            TransportEvent::Control { frame, share, .. } => (Some(share), frame.len()),
            TransportEvent::Datagram {
                datagram, share, ..
            } => (Some(share), datagram.len()),
            TransportEvent::Bulk { header, share, .. } => (Some(share), header.len()),
            _ => (None, 0),
        };
        if let Some(share) = share {
            let bytes = u32::try_from(length).unwrap_or(u32::MAX);
            let bytes = bytes.clamp(EVENT_BYTES_MIN, PEER_INBOX_BYTES);
            let of_peer = self.inbox.clone().acquire_many_owned(bytes).await;
            let of_host = self.host_inbox.clone().acquire_many_owned(bytes).await;
            *share = Share::new(
                of_peer.map_err(|_| SessionOver)?,
                of_host.map_err(|_| SessionOver)?,
            );
        }
        let room = self.events.reserve().await.map_err(|_| SessionOver)?;
        self.noticed.store(true, Ordering::Release);
        room.send(event);
        Ok(())
    }

    async fn wait_up(&self) -> SocketAddr {
        self.up
            .wait_for(Option::is_some)
            .await
            .unwrap_or(self.peer.address)
    }

    /// Delivers `PeerUp` once frames can be sent to the peer. Then waits until the session is
    /// closing, its connections are closed and no event is being delivered. While the returned
    /// guard is held, nothing more is delivered.
    pub(super) async fn live_until_closed(&self) -> RwLockWriteGuard<'_, ()> {
        self.started.set(true);
        tokio::select! {
            biased;
            _ = self.closing() => {}
            address = self.wait_up() => {
                let PeerIdentity { node, incarnation, .. } = self.peer;
                let _ = self.deliver(TransportEvent::PeerUp { node, incarnation, address }).await;
            }
        }
        self.closing().await;
        self.connections
            .wait_for(|connections| *connections == 0)
            .await;
        self.delivering.write().await
    }

    /// Delivers `PeerDown` if any event of this session was delivered, and marks the session as
    /// ended.
    pub(super) async fn end(&self) {
        if self.noticed.load(Ordering::Acquire) {
            let reason = self.closing().await;
            let address = self.up.get().unwrap_or(self.peer.address);
            let _ = self
                .events
                .send(TransportEvent::PeerDown {
                    node: self.peer.node,
                    address,
                    reason,
                })
                .await;
        }
        self.ended.set(true);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use slowmo_actors::ports::transport::{Share, TRANSPORT_EVENTS_MAX};

    fn session(node: u64, events: &mpsc::Sender<TransportEvent>) -> Arc<Session> {
        let peer = PeerIdentity {
            node: NodeId(node),
            incarnation: Incarnation(1),
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            host: None,
            key: None,
        };
        let session = Arc::new(Session::new(peer, events.clone(), host_inbox(), false));
        session.started.set(true);
        session
    }

    fn frame(session: &Session, length: usize) -> TransportEvent {
        TransportEvent::Control {
            from: session.peer.node,
            frame: Bytes::from(vec![0; length]),
            share: Share::default(),
        }
    }

    /// Lets every task run until it waits.
    async fn let_all_run() {
        for _ in 0..TRANSPORT_EVENTS_MAX {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_noisy_peer_delays_another_by_its_share_at_most() {
        let (sender, mut events) = mpsc::channel(TRANSPORT_EVENTS_MAX);
        let noisy = session(1, &sender);
        for _ in 0..2 * TRANSPORT_EVENTS_MAX {
            let noisy = noisy.clone();
            tokio::spawn(async move { noisy.deliver(frame(&noisy, 1)).await });
        }
        let_all_run().await;
        let quiet = session(2, &sender);
        tokio::spawn(async move { quiet.deliver(frame(&quiet, 1)).await });
        let_all_run().await;
        let mut before = 0;
        while let Some(TransportEvent::Control { from, .. }) = events.recv().await
            && from != NodeId(2)
        {
            before += 1;
        }
        assert!(
            before <= (PEER_INBOX_BYTES / EVENT_BYTES_MIN) as usize,
            "{before} events of the noisy peer came first"
        );
    }

    #[tokio::test]
    async fn a_peer_fills_no_more_memory_than_its_share() {
        let (sender, mut events) = mpsc::channel(TRANSPORT_EVENTS_MAX);
        let noisy = session(1, &sender);
        for _ in 0..100 {
            let noisy = noisy.clone();
            tokio::spawn(async move { noisy.deliver(frame(&noisy, 1 << 20)).await });
        }
        let_all_run().await;
        assert_eq!(events.len(), 4);
        drop(events.recv().await);
        let_all_run().await;
        assert_eq!(events.len(), 4, "what was handled makes room");
    }
}
