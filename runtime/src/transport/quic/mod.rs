//! QUIC between processes: mutual TLS 1.3, one connection for control and one for bulk, both dialed
//! by the sending node.
//!
//! Each node dials every other, sends on the two connections that it dialed and receives on those
//! that it accepted, so that the two sides need not agree on which of them dials. This module is
//! the only user of quinn and rustls.
//!
//! `identity` holds the certificates, `tls` says who is accepted. `credential` and `renewal`
//! replace keys and certificates while nodes train: connections are made anew inside their
//! sessions.

mod accept;
mod admissions;
mod bulk;
mod certificate;
mod close;
mod cluster_keys;
mod congestion;
mod credential;
mod dial;
pub mod framing;
mod gate;
mod handshake;
mod identity;
mod identity_error;
mod ids;
mod incoming;
#[cfg(feature = "testing")]
pub mod initials;
mod names;
mod outgoing;
mod pair;
mod port_probe;
mod rate;
mod renewal;
#[cfg(target_os = "linux")]
mod same_host;
#[cfg(not(target_os = "linux"))]
#[path = "same_host/off.rs"]
mod same_host;
mod settings;
mod socket;
mod stripes;
mod tls;
mod traffic;

pub use cluster_keys::{ClusterKey, ClusterKeys};
pub use credential::Renewer;
pub use identity::{Identity, OperatorFiles};
pub use identity_error::{CLUSTER_KEY_BYTES, IdentityError};
pub use names::{ClusterName, NotAName, PeerName, plain_name};
pub use settings::{
    CONNECTION_WINDOW_BYTES, Congestion, MTU_BYTES_MAX, MTU_BYTES_MIN, QuicSettings, Tuning,
};
pub use socket::BindError;

use super::accepted::Accepted;
use super::dialing::Dialing;
use super::sessions::{Session, Sessions};
use async_trait::async_trait;
use bytes::Bytes;
use credential::{Credential, End};
use gate::Gate;
use handshake::Introduction;
use outgoing::Outgoing;
use quinn::{Connection, Endpoint};
use slowmo_actors::ports::transport::{
    BulkError, BulkSender, DATAGRAM_BYTES_MAX, DownReason, LocalPeer, SendError,
    TRANSPORT_EVENTS_MAX, Traffic, Transport, TransportEvent,
};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::wire::{BULK_HEADER_BYTES_MAX, CONTROL_FRAME_BYTES_MAX};
use socket::Opened;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use traffic::TrafficCounter;

/// Longest time that `close` waits for peers to receive the queued control frames.
const CONTROL_FLUSH_MAX: Duration = Duration::from_millis(300);
/// Longest time that `close` waits for peers to receive the finished bulk streams; longer than for
/// control, because a large model takes time.
const BULK_FLUSH_MAX: Duration = Duration::from_secs(2);
/// Longest time that `close` waits for the sessions to end, and then again for the close to reach
/// the peers.
const GOODBYE_MAX: Duration = Duration::from_millis(300);
/// Longest time that `close` takes.
pub const CLOSE_MAX: Duration = BULK_FLUSH_MAX
    .saturating_add(GOODBYE_MAX)
    .saturating_add(GOODBYE_MAX);

/// Starts to listen, and returns the transport with the only receiver of its events. Must be called
/// inside a tokio runtime.
///
/// # Errors
/// The address is in use or not one of this machine, or the identity is unusable. Nothing was
/// opened.
pub fn bind(settings: QuicSettings) -> Result<Bound, BindError> {
    bind_renewable(settings).map(|(bound, _)| bound)
}

/// A transport, and the only receiver of its events.
pub type Bound = (Arc<dyn Transport>, mpsc::Receiver<TransportEvent>);

/// [`bind`], for a transport whose credential may be replaced while it runs.
///
/// # Errors
/// As for [`bind`].
pub fn bind_renewable(settings: QuicSettings) -> Result<(Bound, Renewer), BindError> {
    let Opened {
        endpoint,
        credential,
        gate,
        address,
    } = socket::open(&settings)?;
    let (events, receiver) = mpsc::channel(TRANSPORT_EVENTS_MAX);
    let runtime = Handle::current();
    let announced = settings.advertise.unwrap_or(address);
    let local = LocalPeer {
        node: settings.node,
        incarnation: settings.incarnation,
        address,
        announced,
    };
    let node = Arc::new(Node {
        introduction: Introduction {
            local,
            cluster: settings.identity.cluster,
            named: settings.identity.named,
            peer_name: settings.identity.peer_name.clone(),
            version: tls::version_name(settings.protocol_version),
        },
        sessions: Sessions::new(events.clone(), runtime.clone()),
        idle_timeout: settings.tuning.idle_timeout,
        same_host: settings.tuning.same_host,
        endpoint,
        credential: watch::Sender::new(Arc::new(credential)),
        renewals: Semaphore::new(renewal::AT_ONCE_MAX),
        gate,
        events,
        runtime,
        dialing: Dialing::default(),
        doors: port_probe::Doors::default(),
        stopped: watch::Sender::new(false),
        traffic: TrafficCounter::default(),
    });
    node.runtime.spawn(accept::run(node.clone()));
    let renewer = Renewer::new(&node, settings.protocol_version, settings.tuning);
    Ok(((Arc::new(QuicTransport { node }), receiver), renewer))
}

/// State shared by all tasks of one transport.
struct Node {
    introduction: Introduction,
    endpoint: Endpoint,
    /// The credential that this node authenticates with now.
    credential: watch::Sender<Arc<Credential>>,
    /// Permits for connections that are renewed at once.
    renewals: Semaphore,
    gate: Arc<Gate>,
    idle_timeout: Duration,
    /// Whether values and frames for nodes of this machine go over Unix sockets.
    same_host: bool,
    runtime: Handle,
    events: mpsc::Sender<TransportEvent>,
    sessions: Arc<Sessions<Arc<Outgoing>>>,
    dialing: Dialing,
    doors: port_probe::Doors,
    stopped: watch::Sender<bool>,
    traffic: TrafficCounter,
}

/// The transport handle of a node; dropping it ends all sessions and closes the endpoint.
struct QuicTransport {
    node: Arc<Node>,
}

#[async_trait]
impl Transport for QuicTransport {
    fn local(&self) -> LocalPeer {
        self.node.introduction.local
    }

    fn connect(&self, address: SocketAddr, give_up_after: Duration) {
        let node = &self.node;
        let local = self.local();
        let own = address == local.address || address == local.announced;
        if own || node.sessions.is_up_at(address) || !node.dialing.begin(address, give_up_after) {
            return;
        }
        dial::spawn(node.clone(), address, give_up_after);
    }

    fn send_control(&self, to: NodeId, frame: Bytes) -> Result<(), SendError> {
        if frame.len() > CONTROL_FRAME_BYTES_MAX {
            return Err(SendError::TooLarge {
                length: frame.len(),
                bound: CONTROL_FRAME_BYTES_MAX,
            });
        }
        self.node
            .sessions
            .outgoing(to)
            .ok_or(SendError::NotConnected(to))?
            .queue_control(frame)
    }

    fn send_datagram(&self, to: NodeId, datagram: Bytes) -> Result<(), SendError> {
        if datagram.len() > DATAGRAM_BYTES_MAX {
            return Err(SendError::TooLarge {
                length: datagram.len(),
                bound: DATAGRAM_BYTES_MAX,
            });
        }
        self.node
            .sessions
            .outgoing(to)
            .ok_or(SendError::NotConnected(to))?
            .send_datagram(datagram)
    }

    async fn open_bulk(&self, to: NodeId, header: Bytes) -> Result<Box<dyn BulkSender>, BulkError> {
        if header.len() > BULK_HEADER_BYTES_MAX {
            return Err(BulkError::HeaderTooLarge {
                length: header.len(),
                bound: BULK_HEADER_BYTES_MAX,
            });
        }
        let outgoing = self
            .node
            .sessions
            .outgoing(to)
            .ok_or(BulkError::NotConnected(to))?;
        outgoing.open_bulk(&header).await
    }

    fn disconnect(&self, node: NodeId, reason: &str) {
        self.node.sessions.disconnect(node, reason);
    }

    fn heard(&self, node: NodeId) -> u64 {
        self.node.sessions.heard(node)
    }

    fn round_trip(&self, node: NodeId) -> Option<Duration> {
        self.node
            .sessions
            .outgoing(node)
            .map(|outgoing| outgoing.control_connection.rtt())
    }

    fn sent_to(&self, node: NodeId) -> u64 {
        let outgoing = self.node.sessions.outgoing(node);
        outgoing.map_or(0, |outgoing| outgoing.sent())
    }

    fn port_probe(&self, node: NodeId) {
        if let Some(address) = self.node.sessions.address(node) {
            port_probe::port_probe(&self.node, node, address);
        }
    }

    fn traffic(&self) -> Traffic {
        self.node.traffic.total()
    }

    async fn close(&self) {
        self.node.stopped.send_replace(true);
        let outgoing = self.node.sessions.all_outgoing();
        let frames =
            futures_util::future::join_all(outgoing.iter().map(|outgoing| outgoing.flush()));
        let streams = futures_util::future::join_all(
            outgoing.iter().map(|outgoing| outgoing.deliver_streams()),
        );
        let _ = tokio::join!(
            timeout(CONTROL_FLUSH_MAX, frames),
            timeout(BULK_FLUSH_MAX, streams)
        );
        let sessions = self.node.sessions.close("the node leaves");
        let ends = futures_util::future::join_all(sessions.iter().map(|session| session.ended()));
        let _ = timeout(GOODBYE_MAX, ends).await;
        self.node.endpoint.close(
            quinn::VarInt::from_u32(close::CloseCode::Leave as u32),
            b"the node leaves",
        );
        let _ = timeout(GOODBYE_MAX, self.node.endpoint.wait_idle()).await;
    }
}

impl Drop for QuicTransport {
    fn drop(&mut self) {
        self.node.stopped.send_replace(true);
        self.node.sessions.close("the node is gone");
        self.node
            .endpoint
            .close(quinn::VarInt::from_u32(close::CloseCode::Gone as u32), b"");
    }
}

impl Node {
    /// Ends the session when a dialed connection ends, and the connection when the session ends or
    /// others have taken its place.
    fn watch(
        self: &Arc<Self>,
        outgoing: &Arc<Outgoing>,
        connection: &Connection,
        session: &Arc<Session>,
    ) {
        let node = self.clone();
        let outgoing = outgoing.clone();
        let connection = connection.clone();
        let session = session.clone();
        let attached = session.attach();
        session.pulse.attach(Box::new(connection.clone()));
        self.runtime.spawn(async move {
            let refused = async {
                let reason = node.refused(&connection, End::Dialer).await;
                if outgoing.is_replaced() {
                    outgoing.moved().await;
                }
                reason
            };
            tokio::select! {
                biased;
                reason = session.closing() => close::close_for(&connection, &reason),
                () = outgoing.moved() => close::close(
                    &connection,
                    close::CloseCode::Renewed,
                    "its successor is in use"
                ),
                reason = refused => {
                    session.close(not_accepted(&reason));
                    close::close_for(&connection, &not_accepted(&reason));
                }
                reason = node.end_of(&connection, &session) => session.close(reason),
            }
            drop(attached);
        });
    }

    /// Like [`Node::watch`] for an accepted connection, whose end leaves the session open if it was
    /// renewed, or if nothing came on it and the session has other connections.
    fn watch_accepted(
        self: &Arc<Self>,
        connection: &Connection,
        session: &Arc<Session>,
        accepted: Arc<Accepted>,
    ) {
        let node = self.clone();
        let connection = connection.clone();
        let session = session.clone();
        let attached = session.attach();
        session.pulse.attach(Box::new(connection.clone()));
        self.runtime.spawn(async move {
            let refused = async {
                loop {
                    let reason = node.refused(&connection, End::Acceptor).await;
                    if !node.sessions.has_successor(&session, &accepted) {
                        return reason;
                    }
                }
            };
            tokio::select! {
                biased;
                reason = session.closing() => close::close_for(&connection, &reason),
                () = accepted.replaced() => close::close(
                    &connection,
                    close::CloseCode::Needless,
                    "it connected anew"
                ),
                reason = refused => {
                    session.close(not_accepted(&reason));
                    close::close_for(&connection, &not_accepted(&reason));
                }
                reason = node.end_of(&connection, &session) => {
                    let is_renewed = close::is_renewed(&connection);
                    node.sessions.lost(&session, &accepted, is_renewed, reason);
                }
            }
            drop(attached);
        });
    }

    /// Waits until a connection has ended and, if its peer closed it, until what came before was
    /// delivered or [`Session::read_out`] timed out. Returns the reason of the end.
    async fn end_of(&self, connection: &Connection, session: &Session) -> DownReason {
        let reason = close::down_reason(&connection.closed().await, self.idle_timeout);
        if close::is_renewed(connection) {
            return reason;
        }
        if matches!(reason, DownReason::ClosedByPeer(_)) {
            session.read_out().await;
        }
        reason
    }

    /// Counts a connection's bytes until it ends.
    fn track(self: &Arc<Self>, connection: &Connection) {
        let id = self.traffic.add(connection);
        let node = self.clone();
        let connection = connection.clone();
        self.runtime.spawn(async move {
            connection.closed().await;
            node.traffic.fold(id);
        });
    }

    /// Runs a task until it is done or the transport is closed; `None` if closed.
    async fn until_stopped<T>(&self, task: impl Future<Output = T>) -> Option<T> {
        let mut stopped = self.stopped.subscribe();
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => None,
            done = task => Some(done),
        }
    }
}

/// The reason of a session's end whose peer has no accepted certificate any more.
fn not_accepted(reason: &str) -> DownReason {
    DownReason::ClosedHere(format!(
        "its certificate is not accepted any more ({reason})"
    ))
}
