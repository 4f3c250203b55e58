//! The lifecycle of a peer, from its first connection to its `PeerDown`, shared by every transport.
//!
//! Does no network I/O: a transport registers the connections it made and looks up the one to send
//! on. Guarantees, per session of a peer: `PeerUp` at most once, nothing after `PeerDown`, and a
//! later session's events only after the earlier one's `PeerDown`.

use super::accepted::Accepted;
pub(crate) use super::session::{Counted, Session};
use super::session::{KeyDigest, PeerIdentity, host_inbox};
use parking_lot::Mutex;
use slowmo_actors::ports::transport::{DownReason, TransportEvent};
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::view::MEMBERS_MAX;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

/// Largest number of peers at once: the members of the largest view, and some that join.
const SESSIONS_MAX: usize = MEMBERS_MAX + SESSIONS_OF_ONE_HOST_MAX;
/// Largest number of peers at once from one host (of IPv6, one network of 64 bits): four times the
/// nodes of one launch. A process with a credential of the cluster can take any number of ids.
const SESSIONS_OF_ONE_HOST_MAX: usize = 256;
/// Peers of one host that may fill as much memory each as a peer alone; further ones may fill less.
const FULL_SESSIONS_OF_ONE_HOST: usize = 16;

/// All peers of one node. `L` is the transport's handle for sending to one peer.
pub(crate) struct Sessions<L> {
    events: mpsc::Sender<TransportEvent>,
    runtime: Handle,
    table: Mutex<Table<L>>,
}

struct Table<L> {
    entries: BTreeMap<NodeId, Entry<L>>,
    /// Addresses where peers listened when they were last connected; at most [`MEMBERS_MAX`]
    /// entries.
    addresses: BTreeMap<NodeId, SocketAddr>,
    /// The keys with which peers came when they were last connected; at most [`MEMBERS_MAX`]
    /// entries.
    keys: BTreeMap<NodeId, (Incarnation, KeyDigest)>,
    closed: bool,
}

struct Entry<L> {
    session: Arc<Session>,
    outgoing: Option<L>,
    incoming_control: Incoming,
    incoming_bulk: Incoming,
}

/// The accepted connections of one kind.
#[derive(Default)]
struct Incoming {
    held: Option<Arc<Accepted>>,
    /// A connection that will take the place of the held one, which is read to its end first.
    renewal: Option<Arc<Accepted>>,
}

/// A connection that joins a peer's session.
pub(crate) enum Part<L> {
    /// The dialed connections, with everything needed to send, and the address dialed. The peer is
    /// up.
    Outgoing(L, SocketAddr),
    /// An accepted connection for control frames.
    IncomingControl(Arc<Accepted>),
    /// An accepted connection for bulk streams.
    IncomingBulk(Arc<Accepted>),
}

/// Reason why a connection was not admitted. The session table is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmitError {
    /// Another incarnation of the same node is connected and alive; it listens at this address.
    Duplicate(SocketAddr),
    /// An outgoing connection to this peer already exists.
    AlreadyConnected,
    /// This node's transport is closing.
    Closed,
    /// Too many peers are connected, or too many from its host.
    TooMany,
    /// The same incarnation of this node came with another key before. Whoever holds the cluster
    /// key can issue itself a certificate in the name of any node.
    OtherKey,
    /// There is no connection that this one could take the place of, or another one does that
    /// already.
    NothingToRenew,
}

impl<L: Clone + Send + 'static> Sessions<L> {
    pub(crate) fn new(events: mpsc::Sender<TransportEvent>, runtime: Handle) -> Arc<Self> {
        let table = Mutex::new(Table {
            entries: BTreeMap::new(),
            addresses: BTreeMap::new(),
            keys: BTreeMap::new(),
            closed: false,
        });
        Arc::new(Self {
            events,
            runtime,
            table,
        })
    }

    /// Adds a connection to its peer's session, or begins a new session, which ends the peer's
    /// older one.
    pub(crate) fn admit(
        self: &Arc<Self>,
        peer: PeerIdentity,
        part: Part<L>,
    ) -> Result<Arc<Session>, AdmitError> {
        let mut table = self.table.lock();
        if table.closed {
            return Err(AdmitError::Closed);
        }
        if table.knows_another_key_of(peer) {
            return Err(AdmitError::OtherKey);
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
        if predecessor.is_none() && table.is_full_for(peer) {
            return Err(AdmitError::TooMany);
        }
        let host_inbox = table.host_inbox_of(peer);
        let is_one_of_many = table.others_of_its_host(peer).count() >= FULL_SESSIONS_OF_ONE_HOST;
        let session = Session::new(peer, self.events.clone(), host_inbox, is_one_of_many);
        let session = Arc::new(session);
        let mut entry = Entry {
            session: session.clone(),
            outgoing: None,
            incoming_control: Incoming::default(),
            incoming_bulk: Incoming::default(),
        };
        entry.attach(part);
        table.entries.insert(peer.node, entry);
        if table.addresses.len() < MEMBERS_MAX || table.addresses.contains_key(&peer.node) {
            table.addresses.insert(peer.node, peer.address);
        }
        if let Some(key) = peer.key
            && (table.keys.len() < MEMBERS_MAX || table.keys.contains_key(&peer.node))
        {
            table.keys.insert(peer.node, (peer.incarnation, key));
        }
        self.runtime
            .spawn(live(session.clone(), predecessor, Arc::downgrade(self)));
        Ok(session)
    }

    /// Adds an accepted connection that takes the place of one that the same process dialed before;
    /// returns that one, which is read to its end first.
    pub(crate) fn admit_renewal(
        &self,
        peer: PeerIdentity,
        is_bulk: bool,
        accepted: Arc<Accepted>,
    ) -> Result<(Arc<Session>, Arc<Accepted>), AdmitError> {
        let mut table = self.table.lock();
        if table.closed {
            return Err(AdmitError::Closed);
        }
        if table.knows_another_key_of(peer) {
            return Err(AdmitError::OtherKey);
        }
        let entry = table.entries.get_mut(&peer.node).filter(|entry| {
            !entry.session.is_closing() && entry.session.peer.incarnation == peer.incarnation
        });
        let entry = entry.ok_or(AdmitError::NothingToRenew)?;
        let held = entry.incoming(is_bulk).renew(accepted);
        let held = held.ok_or(AdmitError::NothingToRenew)?;
        entry.session.peer_renewed.notify_one();
        Ok((entry.session.clone(), held))
    }

    /// Gives a session other connections to send on; `false` if it is over.
    pub(crate) fn renew_outgoing(&self, session: &Arc<Session>, outgoing: L) -> bool {
        let mut table = self.table.lock();
        let entry = table
            .entries
            .get_mut(&session.peer.node)
            .filter(|entry| Arc::ptr_eq(&entry.session, session) && !session.is_closing());
        entry.is_some_and(|entry| entry.outgoing.replace(outgoing).is_some())
    }

    /// Whether [`Sessions::admit`] would accept the connection now, and the error if not.
    pub(crate) fn would_admit(&self, peer: PeerIdentity, part: &Part<L>) -> Result<(), AdmitError> {
        let table = self.table.lock();
        let verdict = table
            .entries
            .get(&peer.node)
            .map(|entry| entry.verdict(peer, part));
        match verdict {
            _ if table.closed => Err(AdmitError::Closed),
            _ if table.knows_another_key_of(peer) => Err(AdmitError::OtherKey),
            Some(Verdict::Refuse(error)) => Err(error),
            None if table.is_full_for(peer) => Err(AdmitError::TooMany),
            _ => Ok(()),
        }
    }

    /// Whether another key than this one is known of the peer's incarnation.
    pub(crate) fn knows_another_key_of(&self, peer: PeerIdentity) -> bool {
        self.table.lock().knows_another_key_of(peer)
    }

    /// The listening address of an earlier incarnation of the peer that is still alive, because of
    /// which [`Sessions::admit`] refuses every connection of the peer.
    pub(crate) fn duplicate_of(&self, peer: PeerIdentity) -> Option<SocketAddr> {
        let table = self.table.lock();
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

    /// The handle for sending to a peer that is up.
    pub(crate) fn outgoing(&self, node: NodeId) -> Option<L> {
        let table = self.table.lock();
        let entry = table.entries.get(&node)?;
        if entry.session.is_closing() {
            None
        } else {
            entry.outgoing.clone()
        }
    }

    /// The incarnation of a peer that frames can be sent to.
    pub(crate) fn outgoing_incarnation(&self, node: NodeId) -> Option<Incarnation> {
        let table = self.table.lock();
        let entry = table.entries.get(&node)?;
        (entry.outgoing.is_some() && !entry.session.is_closing())
            .then_some(entry.session.peer.incarnation)
    }

    /// The sending handles of all peers that have one.
    pub(crate) fn all_outgoing(&self) -> Vec<L> {
        self.table
            .lock()
            .entries
            .values()
            .filter_map(|entry| entry.outgoing.clone())
            .collect()
    }

    /// The session of a peer, up or not.
    pub(crate) fn session(&self, node: NodeId) -> Option<Arc<Session>> {
        self.table
            .lock()
            .entries
            .get(&node)
            .map(|entry| entry.session.clone())
    }

    /// Ends the session of a peer deliberately.
    pub(crate) fn disconnect(&self, node: NodeId, reason: &str) {
        if let Some(session) = self.session(node) {
            session.close(DownReason::ClosedHere(reason.into()));
        }
    }

    /// The number of signs of life in a peer's current session; 0 without one.
    pub(crate) fn heard(&self, node: NodeId) -> u64 {
        self.session(node)
            .map_or(0, |session| session.pulse.heard())
    }

    /// The address where a peer listens, or listened when it was last connected.
    pub(crate) fn address(&self, node: NodeId) -> Option<SocketAddr> {
        self.table.lock().addresses.get(&node).copied()
    }

    /// Records that nobody listens at this address any more. If an incarnation of the node that
    /// blocks a later one listened there, it is gone, and its session is closed.
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

    /// Whether the peer that was dialed at this address is up.
    pub(crate) fn is_up_at(&self, address: SocketAddr) -> bool {
        self.table
            .lock()
            .entries
            .values()
            .any(|entry| entry.session.is_up_at(address) && !entry.session.is_closing())
    }

    /// Ends every session, admits no connection from now on, and returns the sessions.
    pub(crate) fn close(&self, reason: &str) -> Vec<Arc<Session>> {
        let mut table = self.table.lock();
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

    /// Handles the end of an accepted connection. The session continues if the connection was
    /// renewed, or if it carried nothing and the session has other connections; otherwise it is
    /// closed.
    pub(crate) fn lost(
        &self,
        session: &Arc<Session>,
        accepted: &Arc<Accepted>,
        is_renewed: bool,
        reason: DownReason,
    ) {
        let mut table = self.table.lock();
        if let Some(entry) = table
            .entries
            .get_mut(&session.peer.node)
            .filter(|entry| Arc::ptr_eq(&entry.session, session))
        {
            let mut has_successor = false;
            for incoming in [&mut entry.incoming_control, &mut entry.incoming_bulk] {
                has_successor |= incoming.lose(accepted);
            }
            let alone = entry.outgoing.is_none()
                && entry.incoming_control.is_empty()
                && entry.incoming_bulk.is_empty();
            if (is_renewed && has_successor) || (!alone && !accepted.is_used()) {
                return;
            }
        }
        session.close(reason);
    }

    /// Whether another connection takes the place of this accepted one.
    pub(crate) fn has_successor(&self, session: &Arc<Session>, accepted: &Arc<Accepted>) -> bool {
        let table = self.table.lock();
        let entry = table.entries.get(&session.peer.node);
        entry.is_some_and(|entry| {
            [&entry.incoming_control, &entry.incoming_bulk]
                .into_iter()
                .any(|incoming| incoming.holds(accepted) && incoming.renewal.is_some())
        })
    }

    fn forget(&self, session: &Arc<Session>) {
        let mut table = self.table.lock();
        if table
            .entries
            .get(&session.peer.node)
            .is_some_and(|entry| Arc::ptr_eq(&entry.session, session))
        {
            table.entries.remove(&session.peer.node);
        }
    }
}

impl<L> Table<L> {
    fn knows_another_key_of(&self, peer: PeerIdentity) -> bool {
        let known = self.keys.get(&peer.node);
        known.is_some_and(|(incarnation, key)| {
            *incarnation == peer.incarnation && Some(*key) != peer.key
        })
    }

    /// Whether there is no room for another peer from this one's host.
    fn is_full_for(&self, peer: PeerIdentity) -> bool {
        peer.host.is_some()
            && (self.entries.len() >= SESSIONS_MAX
                || self.of_same_host(peer).count() >= SESSIONS_OF_ONE_HOST_MAX)
    }

    /// The sessions with peers of this one's host.
    fn of_same_host(&self, peer: PeerIdentity) -> impl Iterator<Item = &Arc<Session>> {
        let host = peer.host.map(network_of);
        let sessions = self.entries.values().map(|entry| &entry.session);
        sessions.filter(move |other| host.is_some() && other.peer.host.map(network_of) == host)
    }

    /// The sessions with other nodes of this peer's host.
    fn others_of_its_host(&self, peer: PeerIdentity) -> impl Iterator<Item = &Arc<Session>> {
        let of_host = self.of_same_host(peer);
        of_host.filter(move |session| session.peer.node != peer.node)
    }

    /// The room that a new session shares with the others of its peer's host.
    fn host_inbox_of(&self, peer: PeerIdentity) -> Arc<Semaphore> {
        let other = self.others_of_its_host(peer).next();
        other.map_or_else(host_inbox, |session| session.host_inbox())
    }
}

/// Returns a number that stands for all addresses that one host can send from: its IPv4 address, or
/// a network of 64 bits of IPv6.
fn network_of(host: IpAddr) -> u128 {
    match host.to_canonical() {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits() >> 64 | 1 << 127,
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
            Part::IncomingControl(_) => self.incoming_control.is_used(),
            Part::IncomingBulk(_) => self.incoming_bulk.is_used(),
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

    /// The verdict on a connection from another incarnation of the same node, for any kind of
    /// connection; `None` if the incarnation is the known one.
    fn of_another_start(&self, peer: PeerIdentity) -> Option<Verdict> {
        let known = self.session.peer;
        if peer.incarnation == known.incarnation {
            return None;
        }
        // Incarnations are not ordered: a clock may step back between two starts of a node. The new
        // one has just answered a handshake. Two processes cannot listen at one address, so if the
        // addresses are equal, the known one is gone; otherwise it must show signs of life.
        if peer.address == known.address || !self.session.pulse.is_live() {
            return Some(Verdict::Replace);
        }
        self.session.challenge();
        Some(Verdict::Refuse(AdmitError::Duplicate(known.address)))
    }

    fn incoming(&mut self, is_bulk: bool) -> &mut Incoming {
        if is_bulk {
            &mut self.incoming_bulk
        } else {
            &mut self.incoming_control
        }
    }

    fn attach(&mut self, part: Part<L>) {
        match part {
            Part::IncomingControl(accepted) => {
                take_place(&mut self.incoming_control.held, accepted)
            }
            Part::IncomingBulk(accepted) => take_place(&mut self.incoming_bulk.held, accepted),
            Part::Outgoing(outgoing, address) => {
                self.outgoing = Some(outgoing);
                self.session.set_up(address);
            }
        }
    }
}

impl Incoming {
    fn is_empty(&self) -> bool {
        self.held.is_none() && self.renewal.is_none()
    }

    fn is_used(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.is_used())
    }

    fn holds(&self, accepted: &Arc<Accepted>) -> bool {
        self.held
            .as_ref()
            .is_some_and(|held| Arc::ptr_eq(held, accepted))
    }

    /// Adds the connection that takes the place of the held one, which it returns. One renewal at a
    /// time, so that a peer has two connections of a kind at most; one that carried nothing was
    /// abandoned.
    fn renew(&mut self, accepted: Arc<Accepted>) -> Option<Arc<Accepted>> {
        let held = self.held.clone()?;
        if self
            .renewal
            .as_ref()
            .is_some_and(|renewal| renewal.is_used())
        {
            return None;
        }
        take_place(&mut self.renewal, accepted);
        Some(held)
    }

    /// Removes a connection that has ended; returns whether another one has taken its place.
    fn lose(&mut self, accepted: &Arc<Accepted>) -> bool {
        self.renewal.take_if(|held| Arc::ptr_eq(held, accepted));
        if !self.holds(accepted) {
            return false;
        }
        self.held = self.renewal.take();
        self.held.is_some()
    }
}

/// Puts an accepted connection into its slot. An earlier connection there carried nothing and was
/// abandoned by its dialer, whether or not this node learned of it; it is marked as replaced.
fn take_place(slot: &mut Option<Arc<Accepted>>, accepted: Arc<Accepted>) {
    if let Some(earlier) = slot.replace(accepted) {
        earlier.replace();
    }
}

/// Reports the session's beginning and end, after its predecessor has ended.
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
