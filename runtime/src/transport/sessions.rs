//! The life of a peer, from its first connection to its `PeerDown`, the same for every transport.
//!
//! Touches no network: a transport says what it attached, and asks where to send. Guarantees, per peer: `PeerUp` at most
//! once, nothing after `PeerDown`, and a later session's events only after the earlier one's `PeerDown`.

use super::accepted::Accepted;
use slowmo_actors::ports::transport::{DownReason, TransportEvent};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{RwLock, mpsc, watch};

/// How long a peer that closed its connections is still read from.
const READING_AFTER_CLOSE_MAX: Duration = Duration::from_millis(300);

/// Locks, also after a panic elsewhere: the tables behind these locks are whole between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All peers of one node. `L` is what the transport needs to send to one.
pub(crate) struct Sessions<L> {
    events: mpsc::Sender<TransportEvent>,
    runtime: Handle,
    table: Mutex<Table<L>>,
}

struct Table<L> {
    entries: BTreeMap<NodeId, Entry<L>>,
    closed: bool,
}

struct Entry<L> {
    session: Arc<Session>,
    outgoing: Option<L>,
    incoming_control: Option<Arc<Accepted>>,
    incoming_bulk: Option<Arc<Accepted>>,
}

/// What was connected.
pub(crate) enum Part<L> {
    /// Everything needed to send, dialed at this address: the peer is up.
    Outgoing(L, SocketAddr),
    /// An accepted connection for control frames.
    IncomingControl(Arc<Accepted>),
    /// An accepted connection for bulk streams.
    IncomingBulk(Arc<Accepted>),
}

/// Who a connection belongs to, after authentication.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerIdentity {
    pub node: NodeId,
    pub incarnation: Incarnation,
    /// Where it listens, as it says itself.
    pub address: SocketAddr,
}

/// Why a connection was not admitted. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmitError {
    /// A later start of the same node is connected.
    Superseded,
    /// This peer can already be sent to.
    AlreadyConnected,
    /// This node is closing.
    Closed,
}

impl<L: Clone + Send + 'static> Sessions<L> {
    pub(crate) fn new(events: mpsc::Sender<TransportEvent>, runtime: Handle) -> Arc<Self> {
        let table = Mutex::new(Table { entries: BTreeMap::new(), closed: false });
        Arc::new(Self { events, runtime, table })
    }

    /// Adds a connection to its peer's session, or begins a new session, which ends an older one of the same peer.
    pub(crate) fn admit(self: &Arc<Self>, peer: PeerIdentity, part: Part<L>) -> Result<Arc<Session>, AdmitError> {
        let mut table = lock(&self.table);
        if table.closed {
            return Err(AdmitError::Closed);
        }
        let mut predecessor = None;
        if let Some(entry) = table.entries.get_mut(&peer.node) {
            match entry.verdict(peer.incarnation, &part) {
                Verdict::Refuse(error) => return Err(error),
                Verdict::Attach => {
                    entry.attach(part);
                    return Ok(entry.session.clone());
                }
                Verdict::Replace => {
                    entry.session.close(DownReason::Broken("it connected anew".into()));
                    predecessor = Some(entry.session.clone());
                }
            }
        }
        let session = Arc::new(Session::new(peer, self.events.clone()));
        let mut entry = Entry { session: session.clone(), outgoing: None, incoming_control: None, incoming_bulk: None };
        entry.attach(part);
        table.entries.insert(peer.node, entry);
        self.runtime.spawn(live(session.clone(), predecessor, Arc::downgrade(self)));
        Ok(session)
    }

    /// Whether [`Sessions::admit`] would take the part now.
    pub(crate) fn would_admit(&self, peer: PeerIdentity, part: &Part<L>) -> Result<(), AdmitError> {
        let table = lock(&self.table);
        let verdict = table.entries.get(&peer.node).map(|entry| entry.verdict(peer.incarnation, part));
        match verdict {
            _ if table.closed => Err(AdmitError::Closed),
            Some(Verdict::Refuse(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Where to send to a peer that is up.
    pub(crate) fn outgoing(&self, node: NodeId) -> Option<L> {
        let table = lock(&self.table);
        let entry = table.entries.get(&node)?;
        if entry.session.is_closing() { None } else { entry.outgoing.clone() }
    }

    /// Which start of a peer can be sent to.
    pub(crate) fn outgoing_incarnation(&self, node: NodeId) -> Option<Incarnation> {
        let table = lock(&self.table);
        let entry = table.entries.get(&node)?;
        (entry.outgoing.is_some() && !entry.session.is_closing()).then_some(entry.session.peer.incarnation)
    }

    /// Everything that can be sent to.
    pub(crate) fn all_outgoing(&self) -> Vec<L> {
        lock(&self.table).entries.values().filter_map(|entry| entry.outgoing.clone()).collect()
    }

    /// The session of a peer, up or not.
    pub(crate) fn session(&self, node: NodeId) -> Option<Arc<Session>> {
        lock(&self.table).entries.get(&node).map(|entry| entry.session.clone())
    }

    /// Whether the node dialed at this address is up.
    pub(crate) fn is_up_at(&self, address: SocketAddr) -> bool {
        lock(&self.table).entries.values().any(|entry| entry.session.is_up_at(address) && !entry.session.is_closing())
    }

    /// Ends every session and admits none from now on.
    pub(crate) fn close(&self, reason: &str) -> Vec<Arc<Session>> {
        let mut table = lock(&self.table);
        table.closed = true;
        let sessions: Vec<_> = table.entries.values().map(|entry| entry.session.clone()).collect();
        for session in &sessions {
            session.close(DownReason::ClosedHere(reason.into()));
        }
        sessions
    }

    /// An accepted connection ended. One that carried nothing leaves the session to the other connections, if there are any.
    pub(crate) fn lost(&self, session: &Arc<Session>, accepted: &Arc<Accepted>, reason: DownReason) {
        let mut table = lock(&self.table);
        if let Some(entry) = table.entries.get_mut(&session.peer.node).filter(|entry| Arc::ptr_eq(&entry.session, session)) {
            for slot in [&mut entry.incoming_control, &mut entry.incoming_bulk] {
                slot.take_if(|held| Arc::ptr_eq(held, accepted));
            }
            let alone = entry.outgoing.is_none() && entry.incoming_control.is_none() && entry.incoming_bulk.is_none();
            if !alone && !accepted.is_used() {
                return;
            }
        }
        session.close(reason);
    }

    fn forget(&self, session: &Arc<Session>) {
        let mut table = lock(&self.table);
        if table.entries.get(&session.peer.node).is_some_and(|entry| Arc::ptr_eq(&entry.session, session)) {
            table.entries.remove(&session.peer.node);
        }
    }
}

enum Verdict {
    Attach,
    Replace,
    Refuse(AdmitError),
}

impl<L> Entry<L> {
    fn verdict(&self, incarnation: Incarnation, part: &Part<L>) -> Verdict {
        let known = self.session.peer.incarnation;
        if self.session.is_closing() {
            return Verdict::Replace;
        }
        let occupied = match part {
            Part::Outgoing(..) => self.outgoing.is_some(),
            Part::IncomingControl(_) => self.incoming_control.as_ref().is_some_and(|earlier| earlier.is_used()),
            Part::IncomingBulk(_) => self.incoming_bulk.as_ref().is_some_and(|earlier| earlier.is_used()),
        };
        match part {
            _ if incarnation < known => Verdict::Refuse(AdmitError::Superseded),
            _ if incarnation > known => Verdict::Replace,
            Part::Outgoing(..) if occupied => Verdict::Refuse(AdmitError::AlreadyConnected),
            _ if occupied => Verdict::Replace,
            _ => Verdict::Attach,
        }
    }

    fn attach(&mut self, part: Part<L>) {
        match part {
            Part::IncomingControl(accepted) => take_place(&mut self.incoming_control, accepted),
            Part::IncomingBulk(accepted) => take_place(&mut self.incoming_bulk, accepted),
            Part::Outgoing(outgoing, address) => {
                self.outgoing = Some(outgoing);
                self.session.up.send_replace(Some(address));
            }
        }
    }
}

/// An earlier connection that carried nothing was abandoned by its dialer, whether or not this node heard of it.
fn take_place(slot: &mut Option<Arc<Accepted>>, accepted: Arc<Accepted>) {
    if let Some(earlier) = slot.replace(accepted) {
        earlier.replace();
    }
}

/// One peer while it is connected in any way.
pub(crate) struct Session {
    pub peer: PeerIdentity,
    events: mpsc::Sender<TransportEvent>,
    /// The predecessor's `PeerDown` was delivered.
    started: watch::Sender<bool>,
    /// Where the peer was dialed, once it is up.
    up: watch::Sender<Option<SocketAddr>>,
    closing: watch::Sender<Option<DownReason>>,
    ended: watch::Sender<bool>,
    /// An event was delivered; without one the node never heard of this session, nor hears of its end.
    noticed: AtomicBool,
    /// Readers of control frames.
    readers: watch::Sender<usize>,
    /// Connections that are not closed yet.
    connections: watch::Sender<usize>,
    /// Held shared while an event is delivered, so that `PeerDown` comes last.
    delivering: RwLock<()>,
}

/// One more of something, until it is dropped.
pub(crate) struct Counted(watch::Sender<usize>);

impl Counted {
    pub(crate) fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The session is over; the event was not delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionOver;

impl Session {
    fn new(peer: PeerIdentity, events: mpsc::Sender<TransportEvent>) -> Self {
        Self {
            peer,
            events,
            started: watch::Sender::new(false),
            up: watch::Sender::new(None),
            closing: watch::Sender::new(None),
            ended: watch::Sender::new(false),
            noticed: AtomicBool::new(false),
            readers: watch::Sender::new(0),
            connections: watch::Sender::new(0),
            delivering: RwLock::new(()),
        }
    }

    /// Begins the end; the first reason counts.
    pub(crate) fn close(&self, reason: DownReason) {
        self.closing.send_if_modified(|current| {
            let first = current.is_none();
            current.get_or_insert(reason);
            first
        });
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
        let mut readers = self.readers.subscribe();
        let _ = tokio::time::timeout(READING_AFTER_CLOSE_MAX, readers.wait_for(|readers| *readers == 0)).await;
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.borrow().is_some()
    }

    fn is_up_at(&self, address: SocketAddr) -> bool {
        *self.up.borrow() == Some(address)
    }

    /// Waits until the session is closing, and says why.
    pub(crate) async fn closing(&self) -> DownReason {
        let mut closing = self.closing.subscribe();
        let reason = closing.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        reason.unwrap_or_else(|| DownReason::Broken("the session was dropped".into()))
    }

    /// Waits until `PeerDown` was delivered.
    pub(crate) async fn ended(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
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
        let _ = self.started.subscribe().wait_for(|started| *started).await;
        let room = self.events.reserve().await.map_err(|_| SessionOver)?;
        self.noticed.store(true, Ordering::Release);
        room.send(event);
        Ok(())
    }

    async fn wait_up(&self) -> SocketAddr {
        let mut up = self.up.subscribe();
        up.wait_for(Option::is_some).await.ok().and_then(|address| *address).unwrap_or(self.peer.address)
    }
}

/// Reports a session's beginning and end, after its predecessor's.
async fn live<L: Clone + Send + 'static>(session: Arc<Session>, predecessor: Option<Arc<Session>>, sessions: Weak<Sessions<L>>) {
    if let Some(predecessor) = predecessor {
        predecessor.ended().await;
    }
    session.started.send_replace(true);
    tokio::select! {
        biased;
        _ = session.closing() => {}
        address = session.wait_up() => {
            let PeerIdentity { node, incarnation, .. } = session.peer;
            let _ = session.deliver(TransportEvent::PeerUp { node, incarnation, address }).await;
        }
    }
    let reason = session.closing().await;
    let _ = session.connections.subscribe().wait_for(|connections| *connections == 0).await;
    let _exclusive = session.delivering.write().await;
    if let Some(sessions) = sessions.upgrade() {
        sessions.forget(&session);
    }
    if session.noticed.load(Ordering::Acquire) {
        let address = session.up.borrow().unwrap_or(session.peer.address);
        let _ = session.events.send(TransportEvent::PeerDown { node: session.peer.node, address, reason }).await;
    }
    session.ended.send_replace(true);
}
