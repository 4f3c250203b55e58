//! One peer while it is connected in any way: its state, its signs of life, and the delivery of its
//! events.

use super::pulse::Pulse;
use super::sessions::PeerIdentity;
use super::watched::Watched;
use slowmo_actors::ports::transport::{DownReason, TransportEvent};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{RwLock, RwLockWriteGuard, mpsc};

/// How long a peer that closed its connections is still read from.
const READING_AFTER_CLOSE_MAX: Duration = Duration::from_millis(300);

/// One peer while it is connected in any way.
pub(crate) struct Session {
    pub peer: PeerIdentity,
    /// Its signs of life.
    pub pulse: Pulse,
    /// A later start of the same node wants its place.
    challenged: AtomicBool,
    events: mpsc::Sender<TransportEvent>,
    /// The predecessor's `PeerDown` was delivered.
    started: Watched<bool>,
    /// Where the peer was dialed, once it is up.
    up: Watched<Option<SocketAddr>>,
    closing: Watched<Option<DownReason>>,
    ended: Watched<bool>,
    /// An event was delivered; without one the node never heard of this session, nor hears of its
    /// end.
    noticed: AtomicBool,
    /// Readers of control frames.
    readers: Arc<Watched<usize>>,
    /// Connections that are not closed yet.
    connections: Arc<Watched<usize>>,
    /// Held shared while an event is delivered, so that `PeerDown` comes last.
    delivering: RwLock<()>,
}

/// One more of something, until it is dropped.
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

/// The session is over; the event was not delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionOver;

impl Session {
    pub(super) fn new(peer: PeerIdentity, events: mpsc::Sender<TransportEvent>) -> Self {
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
            delivering: RwLock::new(()),
        }
    }

    /// Begins the end; the first reason counts.
    pub(crate) fn close(&self, reason: DownReason) {
        self.closing
            .modify(|current| _ = current.get_or_insert(reason));
    }

    /// Counts a reader of control frames until the answer is dropped.
    pub(crate) fn reading(&self) -> Counted {
        Counted::new(&self.readers)
    }

    /// Counts a connection until the answer is dropped; `PeerDown` waits for that.
    pub(crate) fn attach(&self) -> Counted {
        Counted::new(&self.connections)
    }

    /// Waits until its readers have delivered what arrived before the end, within a bound.
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

    /// The peer is up, dialed at this address.
    pub(super) fn set_up(&self, address: SocketAddr) {
        self.up.set(Some(address));
    }

    /// Waits until the session is closing, and says why.
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

    /// Hands an event of this peer to the node; waits while the node is behind.
    pub(crate) async fn deliver(&self, event: TransportEvent) -> Result<(), SessionOver> {
        let _shared = self.delivering.read().await;
        tokio::select! {
            biased;
            _ = self.closing() => Err(SessionOver),
            delivered = self.deliver_in_order(event) => delivered,
        }
    }

    async fn deliver_in_order(&self, event: TransportEvent) -> Result<(), SessionOver> {
        self.started.wait_for(|started| *started).await;
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

    /// Delivers `PeerUp` once the peer can be sent to, and waits until the session is closing, its
    /// connections are closed and nothing is being delivered; nothing more is while the answer is
    /// held.
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

    /// Delivers `PeerDown` if the node ever heard of this session.
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
