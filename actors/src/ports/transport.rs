//! Control frames, datagrams and bulk streams between nodes. A transport carries bytes and never
//! interprets them.

use async_trait::async_trait;
use bytes::Bytes;
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

pub use slowmo_protocol::wire::DATAGRAM_BYTES_MAX;

/// Most events that may wait between the transport and the node supervisor before the transport
/// stops reading.
pub const TRANSPORT_EVENTS_MAX: usize = 1024;
/// Bytes of events of one peer that a node holds at once, from the transport until they are
/// handled: four of the largest control frames.
pub const PEER_INBOX_BYTES: u32 = 4 << 20;
/// The same of all peers of one host: what 16 of them may take.
pub const HOST_INBOX_BYTES: u32 = 16 * PEER_INBOX_BYTES;
/// Bytes that an event counts as at least, so that one peer has at most 256 of the
/// [`TRANSPORT_EVENTS_MAX`] events.
pub const EVENT_BYTES_MIN: u32 = PEER_INBOX_BYTES / 256;
/// Most control frames that may wait for one peer before `send_control` refuses more.
pub const CONTROL_QUEUE_FRAMES_MAX: usize = 1024;

/// How long an address is dialed where another process with this node's id is alive and connected:
/// longer than it takes to find out that such a process has ended.
pub const DUPLICATE_DIALED_MAX: Duration = Duration::from_secs(2);

/// One node's access to the other nodes. Each node id is authenticated before its first event.
///
/// The constructor of a transport also returns the only receiver of its [`TransportEvent`]s
/// (capacity [`TRANSPORT_EVENTS_MAX`]); when nobody reads them, reading from the network stops.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// This node.
    fn local(&self) -> LocalPeer;

    /// Dials `address` repeatedly until `give_up_after` has passed, or until an error that another
    /// attempt cannot fix ([`DialError::is_final`]), or until another process with this node's id
    /// has been alive there for [`DUPLICATE_DIALED_MAX`]; in each case one
    /// [`TransportEvent::DialFailed`] follows. [`TransportEvent::PeerUp`] follows when frames can
    /// be sent. Does nothing for this node's own address and for an address that is being dialed or
    /// is up. The transport does not redial a peer that went down, and dialing is one-way: the peer
    /// must dial back to be able to send.
    fn connect(&self, address: SocketAddr, give_up_after: Duration);

    /// Queues a control frame. Frames to one peer arrive in order and once, or the peer goes down.
    ///
    /// # Errors
    /// There is no connection to `to`, its queue is full, or the frame exceeds its size bound.
    /// Nothing was queued.
    fn send_control(&self, to: NodeId, frame: Bytes) -> Result<(), SendError>;

    /// Sends a datagram that may be lost.
    ///
    /// # Errors
    /// There is no connection to `to`, or the datagram is larger than [`DATAGRAM_BYTES_MAX`].
    fn send_datagram(&self, to: NodeId, datagram: Bytes) -> Result<(), SendError>;

    /// Opens a bulk stream that starts with `header`.
    ///
    /// # Errors
    /// There is no connection to `to`, or it broke.
    async fn open_bulk(&self, to: NodeId, header: Bytes) -> Result<Box<dyn BulkSender>, BulkError>;

    /// Closes the connections to a peer that is considered dead or broke the protocol. A
    /// [`TransportEvent::PeerDown`] follows here, and at the peer, if it is alive, with
    /// [`DownReason::Dropped`]. Both sides may dial again at once.
    fn disconnect(&self, node: NodeId, reason: &str);

    /// Signs of life: the number of authenticated packets (or messages, if the transport has no
    /// packets) received from the peer over all its connections since its session began, whatever
    /// they carried. 0 if there is no session; a new session counts from 0.
    fn heard(&self, node: NodeId) -> u64;

    /// The smoothed round-trip time to a peer that can be sent to, if it was measured.
    fn round_trip(&self, node: NodeId) -> Option<Duration>;

    /// UDP payload bytes sent on the connections to a peer that can be sent to, and values sent to
    /// it on this machine; 0 if they are not counted.
    fn sent_to(&self, node: NodeId) -> u64;

    /// Sends a port probe: checks whether a process listens at the peer's address, or at the
    /// address where it listened when it was last connected. [`TransportEvent::PortRefused`]
    /// follows if the host reports that the port is closed; otherwise nothing follows.
    fn port_probe(&self, node: NodeId);

    /// Traffic so far.
    fn traffic(&self) -> Traffic;

    /// Sends what is queued, closes every connection, and waits until the peers were told: at most
    /// a few seconds, so that finished bulk streams arrive completely.
    async fn close(&self);
}

/// The sending end of a bulk stream. Dropping it unfinished resets the stream. A call that is
/// dropped before it returned may have sent a part: drop the stream then.
#[async_trait]
pub trait BulkSender: Send {
    /// Sends a chunk without copying it; waits while the receiver is behind.
    ///
    /// # Errors
    /// The connection broke or the receiver stopped the stream.
    async fn send(&mut self, chunk: Bytes) -> Result<(), BulkError>;

    /// Lets what is sent from here on pass other streams to the same peer, where the transport can.
    fn hurry(&mut self) {}

    /// Marks the end of the stream; the sent bytes are delivered in the background.
    ///
    /// # Errors
    /// The connection broke or the receiver stopped the stream.
    async fn finish(self: Box<Self>) -> Result<(), BulkError>;

    /// Sends the last chunk and marks the end of the stream, at one stroke where the transport can.
    ///
    /// # Errors
    /// Those of [`BulkSender::send`] and [`BulkSender::finish`].
    async fn finish_with(mut self: Box<Self>, last: Bytes) -> Result<(), BulkError> {
        self.send(last).await?;
        self.finish().await
    }

    /// Ends the stream at once; the receiver sees [`BulkError::Reset`].
    fn reset(self: Box<Self>);
}

/// The receiving end of a bulk stream. Dropping it unfinished tells the sender to stop. A call that
/// is dropped before it returned may have read a part: drop the stream then.
#[async_trait]
pub trait BulkReceiver: Send {
    /// Fills `into` completely.
    ///
    /// # Errors
    /// The stream ended early, was reset, or the connection broke; `into` may be partly
    /// overwritten.
    async fn read_exact(&mut self, into: &mut [u8]) -> Result<(), BulkError>;

    /// Waits for the end of the stream.
    ///
    /// # Errors
    /// More bytes follow, or the stream was reset.
    async fn expect_end(&mut self) -> Result<(), BulkError>;
}

impl std::fmt::Debug for dyn BulkReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BulkReceiver")
    }
}

/// This node as its transport knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPeer {
    /// The node's id.
    pub node: NodeId,
    /// The node's incarnation.
    pub incarnation: Incarnation,
    /// The address at which the node actually listens (the port is never 0).
    pub address: SocketAddr,
    /// The address that other nodes are told to dial; differs from `address` behind a forwarded
    /// port.
    pub announced: SocketAddr,
}

/// Traffic in bytes, including headers, acknowledgements and retransmissions. Values between nodes
/// of one machine count as much as they are long, whatever carries them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// UDP payload bytes sent, and values sent to nodes of this machine.
    pub sent_bytes: u64,
    /// UDP payload bytes received, and values received from nodes of this machine.
    pub received_bytes: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Largest current path MTU over all connections, in bytes; 0 if the transport has none.
    pub mtu_bytes: u16,
}

/// Part of one peer's [`PEER_INBOX_BYTES`]. An event holds it until it was handled, so that a peer
/// which sends more than the node handles waits, and no other one does. The default holds nothing.
#[derive(Debug, Default)]
pub struct Share {
    _permits: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
}

impl Share {
    /// Holds these bytes of its peer's, and of the [`HOST_INBOX_BYTES`] of its peer's host.
    #[must_use]
    pub fn new(of_peer: OwnedSemaphorePermit, of_host: OwnedSemaphorePermit) -> Self {
        Self {
            _permits: Some((of_peer, of_host)),
        }
    }
}

/// Events that a transport reports.
pub enum TransportEvent {
    /// Frames and streams can be sent to this peer, which has admitted this node. The peer's own
    /// messages may arrive before this event.
    PeerUp {
        /// The authenticated id.
        node: NodeId,
        /// The peer's incarnation.
        incarnation: Incarnation,
        /// The address at which it was dialed.
        address: SocketAddr,
    },
    /// A connection to or from this peer was lost, and with it all other connections of this peer.
    /// Follows once after `PeerUp` or after the peer's first message, whichever came first; no
    /// other event of the peer follows until it is connected anew.
    PeerDown {
        /// The peer that went down.
        node: NodeId,
        /// The address at which it was dialed; if it never was, the address at which it says it
        /// listens.
        address: SocketAddr,
        /// Reason for which it went down.
        reason: DownReason,
    },
    /// A port probe found that no process listens at this peer's address.
    PortRefused {
        /// The peer that was probed.
        node: NodeId,
    },
    /// Dialing was given up.
    DialFailed {
        /// The address dialed.
        address: SocketAddr,
        /// How long it was dialed.
        tried_for: Duration,
        /// The last attempt's error.
        error: DialError,
    },
    /// A node that dialed this one was refused; for logs and errors.
    Refused {
        /// The address from which it dialed.
        remote: SocketAddr,
        /// Reason of the refusal.
        error: DialError,
    },
    /// A control frame arrived.
    Control {
        /// The authenticated sender.
        from: NodeId,
        /// The encoded frame.
        frame: Bytes,
        /// The sender's share.
        share: Share,
    },
    /// A datagram arrived.
    Datagram {
        /// The authenticated sender.
        from: NodeId,
        /// Content of the datagram.
        datagram: Bytes,
        /// The sender's share.
        share: Share,
    },
    /// A bulk stream began.
    Bulk {
        /// The authenticated sender.
        from: NodeId,
        /// The encoded stream header.
        header: Bytes,
        /// The rest of the stream, after the header.
        stream: Box<dyn BulkReceiver>,
        /// The sender's share.
        share: Share,
    },
}

/// Reason for which a peer went down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// It left, or its process ended in an orderly way.
    #[error("it closed the connection: {0}")]
    ClosedByPeer(String),
    /// It closed the connections because it considers this node dead or faulty; dialing it again
    /// shows it otherwise.
    #[error("it dropped this node: {0}")]
    Dropped(String),
    /// Nothing was received from it for too long.
    #[error("nothing was heard from it for {0:?}")]
    Silent(Duration),
    /// It sent something that no correct peer sends.
    #[error("it broke the protocol: {0}")]
    ProtocolViolation(String),
    /// This node disconnected it.
    #[error("closed here: {0}")]
    ClosedHere(String),
    /// This node is leaving.
    #[error("closed here: {0}")]
    Leaving(String),
    /// The network reported an error.
    #[error("the connection broke: {0}")]
    Broken(String),
}

impl DownReason {
    /// Whether the peer closed the connection itself, on purpose.
    #[must_use]
    pub fn is_departure(&self) -> bool {
        matches!(self, Self::ClosedByPeer(_))
    }
}

/// Error of a frame that was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no connection to this node.
    #[error("there is no connection to {0}")]
    NotConnected(NodeId),
    /// The peer does not keep up; see [`CONTROL_QUEUE_FRAMES_MAX`].
    #[error("{CONTROL_QUEUE_FRAMES_MAX} control frames already wait for {0}")]
    QueueFull(NodeId),
    /// The frame or datagram is larger than its bound.
    #[error("{length} bytes exceed the bound of {bound}")]
    TooLarge {
        /// Its length in bytes.
        length: usize,
        /// The bound in bytes.
        bound: usize,
    },
}

/// Error of a bulk stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BulkError {
    /// There is no connection to this node.
    #[error("there is no connection to {0}")]
    NotConnected(NodeId),
    /// The other end reset or stopped the stream.
    #[error("the other end reset the stream")]
    Reset,
    /// The stream ended before all expected bytes arrived.
    #[error("the stream ended early")]
    EndedEarly,
    /// The header exceeds its bound; no stream was opened.
    #[error("a stream header of {length} bytes exceeds the bound of {bound}")]
    HeaderTooLarge {
        /// Its length in bytes.
        length: usize,
        /// The bound in bytes.
        bound: usize,
    },
    /// More bytes follow after the expected end of the stream.
    #[error("the stream is longer than its header says")]
    TooLong,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
}

/// Error of a connection that could not be made. Each message says what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// Nobody answered.
    #[error("no answer; check that a node listens there and that UDP passes")]
    NoAnswer,
    /// The certificate was not issued under this cluster's key or CA.
    #[error(
        "its certificate was not issued under this cluster's key ({0}); give every node the same \
         cluster_key, or the same CA files"
    )]
    WrongClusterKey(String),
    /// The peers speak different protocol versions.
    #[error(
        "it speaks protocol version {theirs}, this node speaks {ours}; run the same slowmo release \
         on all nodes"
    )]
    ProtocolVersion {
        /// The peer's version, as it names it.
        theirs: String,
        /// This node's version.
        ours: String,
    },
    /// The first bytes were not a valid preface, or contradict the certificate.
    #[error("its introduction is not valid: {0}")]
    BadPreface(String),
    /// Another node uses this node's own id.
    #[error("it uses this node's own id {0}; give each node its own node_id")]
    SameId(NodeId),
    /// Another process with the same id is alive and connected there. Dialing is tried again for
    /// [`DUPLICATE_DIALED_MAX`], because that process may be about to end.
    #[error(
        "another process with the id of {0} is alive; give each node its own node_id, or end that \
         process"
    )]
    DuplicateId(NodeId),
    /// The peer did not accept this node's introduction.
    #[error("it refused this node: {0}")]
    RefusedThere(String),
    /// Any other error that the network reported.
    #[error("{0}")]
    Other(String),
}

impl DialError {
    /// Whether another attempt cannot help, so that dialing is given up at once.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::NoAnswer | Self::DuplicateId(_) | Self::Other(_))
    }
}
