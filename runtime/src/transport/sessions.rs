//! The life of a peer, from its first connection to its `PeerDown`, the same for every transport.
//!
//! Touches no network: a transport says what it attached, and asks where to send. Guarantees, per
//! peer: `PeerUp` at most once, nothing after `PeerDown`, and a later session's events only after
//! the earlier one's `PeerDown`.

use super::accepted::Accepted;
pub(crate) use super::session::{Counted, Session};
use slowmo_actors::ports::transport::{DownReason, TransportEvent};
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::view::MEMBERS_MAX;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// Locks, also after a panic elsewhere: the tables behind these locks are whole between any two
/// statements.
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
    /// Where peers listened when they were last connected; at most [`MEMBERS_MAX`].
    addresses: BTreeMap<NodeId, SocketAddr>,
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
    /// Another start of the same node is connected, at this address, and alive.
    Duplicate(SocketAddr),
    /// This peer can already be sent to.
    AlreadyConnected,
    /// This node is closing.
    Closed,
}

impl<L: Clone + Send + 'static> Sessions<L> {
    pub(crate) fn new(events: mpsc::Sender<TransportEvent>, runtime: Handle) -> Arc<Self> {
        let table = Mutex::new(Table {
            entries: BTreeMap::new(),
            addresses: BTreeMap::new(),
            closed: false,
        });
        Arc::new(Self {
            events,
            runtime,
            table,
        })
    }

    /// Adds a connection to its peer's session, or begins a new session, which ends an older one of
    /// the same peer.
    pub(crate) fn admit(
        self: &Arc<Self>,
        peer: PeerIdentity,
        part: Part<L>,
    ) -> Result<Arc<Session>, AdmitError> {
        let mut table = lock(&self.table);
        if table.closed {
            return Err(AdmitError::Closed);
        }
        let mut predecessor = None;
        if let Some(entry) = table.entries.get_mut(&peer.node) {
            match entry.verdict(peer, &part) {
                Verdict::Refuse(error) => return Err(error),
                Verdict::Attach => {
                    entry.attach(part);
                    return Ok(entry.session.clone());
                }
                Verdict::Replace => {
                    entry
                        .session
                        .close(DownReason::Broken("it connected anew".into()));
                    predecessor = Some(entry.session.clone());
                }
            }
        }
        let session = Arc::new(Session::new(peer, self.events.clone()));
        let mut entry = Entry {
            session: session.clone(),
            outgoing: None,
            incoming_control: None,
            incoming_bulk: None,
        };
        entry.attach(part);
        table.entries.insert(peer.node, entry);
        if table.addresses.len() < MEMBERS_MAX || table.addresses.contains_key(&peer.node) {
            table.addresses.insert(peer.node, peer.address);
        }
        self.runtime
            .spawn(live(session.clone(), predecessor, Arc::downgrade(self)));
        Ok(session)
    }

    /// Whether [`Sessions::admit`] would take the part now.
    pub(crate) fn would_admit(&self, peer: PeerIdentity, part: &Part<L>) -> Result<(), AdmitError> {
        let table = lock(&self.table);
        let verdict = table
            .entries
            .get(&peer.node)
            .map(|entry| entry.verdict(peer, part));
        match verdict {
            _ if table.closed => Err(AdmitError::Closed),
            Some(Verdict::Refuse(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Where an earlier start of the peer listens that is alive, and keeps [`Sessions::admit`] from
    /// taking anything of it.
    pub(crate) fn duplicate_of(&self, peer: PeerIdentity) -> Option<SocketAddr> {
        let table = lock(&self.table);
        match table
            .entries
            .get(&peer.node)
            .filter(|entry| !entry.session.is_closing())?
            .of_another_start(peer)?
        {
            Verdict::Refuse(AdmitError::Duplicate(address)) => Some(address),
            _ => None,
        }
    }

    /// Where to send to a peer that is up.
    pub(crate) fn outgoing(&self, node: NodeId) -> Option<L> {
        let table = lock(&self.table);
        let entry = table.entries.get(&node)?;
        if entry.session.is_closing() {
            None
        } else {
            entry.outgoing.clone()
        }
    }

    /// Which start of a peer can be sent to.
    pub(crate) fn outgoing_incarnation(&self, node: NodeId) -> Option<Incarnation> {
        let table = lock(&self.table);
        let entry = table.entries.get(&node)?;
        (entry.outgoing.is_some() && !entry.session.is_closing())
            .then_some(entry.session.peer.incarnation)
    }

    /// Everything that can be sent to.
    pub(crate) fn all_outgoing(&self) -> Vec<L> {
        lock(&self.table)
            .entries
            .values()
            .filter_map(|entry| entry.outgoing.clone())
            .collect()
    }

    /// The session of a peer, up or not.
    pub(crate) fn session(&self, node: NodeId) -> Option<Arc<Session>> {
        lock(&self.table)
            .entries
            .get(&node)
            .map(|entry| entry.session.clone())
    }

    /// Ends the session of a peer on purpose.
    pub(crate) fn disconnect(&self, node: NodeId, reason: &str) {
        if let Some(session) = self.session(node) {
            session.close(DownReason::ClosedHere(reason.into()));
        }
    }

    /// Signs of life of a peer.
    pub(crate) fn heard(&self, node: NodeId) -> u64 {
        self.session(node)
            .map_or(0, |session| session.pulse.heard())
    }

    /// Where a peer listens, or listened.
    pub(crate) fn address(&self, node: NodeId) -> Option<SocketAddr> {
        lock(&self.table).addresses.get(&node).copied()
    }

    /// Nobody listens at this address any more: a start of the node that stands in the way of a
    /// later one is gone.
    pub(crate) fn refused_at(&self, node: NodeId, address: SocketAddr) {
        if let Some(session) = self
            .session(node)
            .filter(|session| session.peer.address == address && session.is_challenged())
        {
            session.close(DownReason::Broken(
                "nobody listens at its address any more, and a later start of it came".into(),
            ));
        }
    }

    /// Whether the node dialed at this address is up.
    pub(crate) fn is_up_at(&self, address: SocketAddr) -> bool {
        lock(&self.table)
            .entries
            .values()
            .any(|entry| entry.session.is_up_at(address) && !entry.session.is_closing())
    }

    /// Ends every session and admits none from now on.
    pub(crate) fn close(&self, reason: &str) -> Vec<Arc<Session>> {
        let mut table = lock(&self.table);
        table.closed = true;
        let sessions: Vec<_> = table
            .entries
            .values()
            .map(|entry| entry.session.clone())
            .collect();
        for session in &sessions {
            session.close(DownReason::Leaving(reason.into()));
        }
        sessions
    }

    /// An accepted connection ended. One that carried nothing leaves the session to the other
    /// connections, if there are any.
    pub(crate) fn lost(
        &self,
        session: &Arc<Session>,
        accepted: &Arc<Accepted>,
        reason: DownReason,
    ) {
        let mut table = lock(&self.table);
        if let Some(entry) = table
            .entries
            .get_mut(&session.peer.node)
            .filter(|entry| Arc::ptr_eq(&entry.session, session))
        {
            for slot in [&mut entry.incoming_control, &mut entry.incoming_bulk] {
                slot.take_if(|held| Arc::ptr_eq(held, accepted));
            }
            let alone = entry.outgoing.is_none()
                && entry.incoming_control.is_none()
                && entry.incoming_bulk.is_none();
            if !alone && !accepted.is_used() {
                return;
            }
        }
        session.close(reason);
    }

    fn forget(&self, session: &Arc<Session>) {
        let mut table = lock(&self.table);
        if table
            .entries
            .get(&session.peer.node)
            .is_some_and(|entry| Arc::ptr_eq(&entry.session, session))
        {
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
    fn verdict(&self, peer: PeerIdentity, part: &Part<L>) -> Verdict {
        if self.session.is_closing() {
            return Verdict::Replace;
        }
        let occupied = match part {
            Part::Outgoing(..) => self.outgoing.is_some(),
            Part::IncomingControl(_) => self
                .incoming_control
                .as_ref()
                .is_some_and(|earlier| earlier.is_used()),
            Part::IncomingBulk(_) => self
                .incoming_bulk
                .as_ref()
                .is_some_and(|earlier| earlier.is_used()),
        };
        if let Some(verdict) = self.of_another_start(peer) {
            return verdict;
        }
        match part {
            Part::Outgoing(..) if occupied => Verdict::Refuse(AdmitError::AlreadyConnected),
            _ if occupied => Verdict::Replace,
            _ => Verdict::Attach,
        }
    }

    /// The verdict on another start of the same node, whatever it connects.
    fn of_another_start(&self, peer: PeerIdentity) -> Option<Verdict> {
        let known = self.session.peer;
        if peer.incarnation == known.incarnation {
            return None;
        }
        // Incarnations have no order: a clock may step back between two starts. The new one has
        // just answered a handshake; two processes cannot listen at one address, so the known one
        // is gone, or it must prove that it lives.
        if peer.address == known.address || !self.session.pulse.is_live() {
            return Some(Verdict::Replace);
        }
        self.session.challenge();
        Some(Verdict::Refuse(AdmitError::Duplicate(known.address)))
    }

    fn attach(&mut self, part: Part<L>) {
        match part {
            Part::IncomingControl(accepted) => take_place(&mut self.incoming_control, accepted),
            Part::IncomingBulk(accepted) => take_place(&mut self.incoming_bulk, accepted),
            Part::Outgoing(outgoing, address) => {
                self.outgoing = Some(outgoing);
                self.session.set_up(address);
            }
        }
    }
}

/// An earlier connection that carried nothing was abandoned by its dialer, whether or not this node
/// heard of it.
fn take_place(slot: &mut Option<Arc<Accepted>>, accepted: Arc<Accepted>) {
    if let Some(earlier) = slot.replace(accepted) {
        earlier.replace();
    }
}

/// Reports a session's beginning and end, after its predecessor's.
async fn live<L: Clone + Send + 'static>(
    session: Arc<Session>,
    predecessor: Option<Arc<Session>>,
    sessions: Weak<Sessions<L>>,
) {
    if let Some(predecessor) = predecessor {
        predecessor.ended().await;
    }
    let _exclusive = session.live_until_closed().await;
    if let Some(sessions) = sessions.upgrade() {
        sessions.forget(&session);
    }
    session.end().await;
}
