//! Control frames, datagrams and bulk streams between nodes. Bytes in, bytes out: a transport never
//! looks inside.

use async_trait::async_trait;
use bytes::Bytes;
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::net::SocketAddr;
use std::time::Duration;

pub use slowmo_protocol::wire::DATAGRAM_BYTES_MAX;

/// Events that wait between the transport and the node supervisor before the transport stops
/// reading.
pub const TRANSPORT_EVENTS_MAX: usize = 1024;
/// Control frames that wait for one peer before `send_control` refuses more.
pub const CONTROL_QUEUE_FRAMES_MAX: usize = 1024;

/// One node's access to the others. Each node id is authenticated before its first event.
///
/// A transport made by a constructor also hands out the only receiver of its [`TransportEvent`]s
/// (capacity [`TRANSPORT_EVENTS_MAX`]); when nobody reads them, reading from the network stops.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// This node.
    fn local(&self) -> LocalPeer;

    /// Dials `address` and keeps at it until `give_up_after`, or until an error that trying again
    /// cannot mend ([`DialError::is_final`]); then one [`TransportEvent::DialFailed`] follows.
    /// [`TransportEvent::PeerUp`] follows when frames can be sent. Dialing an address that is being
    /// dialed or up, or oneself, does nothing. A peer that went down is not dialed again by itself,
    /// and dialing is one-way: the peer must dial back to be able to send.
    fn connect(&self, address: SocketAddr, give_up_after: Duration);

    /// Queues a control frame; frames to one peer arrive in order, once, or the peer goes down.
    ///
    /// # Errors
    /// No connection to `to`, its queue is full, or the frame exceeds its bound. Nothing was
    /// queued.
    fn send_control(&self, to: NodeId, frame: Bytes) -> Result<(), SendError>;

    /// Sends a datagram that may be lost.
    ///
    /// # Errors
    /// No connection to `to`, or larger than [`DATAGRAM_BYTES_MAX`].
    fn send_datagram(&self, to: NodeId, datagram: Bytes) -> Result<(), SendError>;

    /// Opens a bulk stream that starts with `header`.
    ///
    /// # Errors
    /// No connection to `to`, or it broke.
    async fn open_bulk(&self, to: NodeId, header: Bytes) -> Result<Box<dyn BulkSender>, BulkError>;

    /// Closes the connections to a peer that is taken for dead or broke the protocol; a
    /// [`TransportEvent::PeerDown`] follows here, and there with [`DownReason::Dropped`], if it is
    /// alive. Both may dial again at once.
    fn disconnect(&self, node: NodeId, reason: &str);

    /// Signs of life: authenticated packets (or messages, where there are no packets) that came
    /// from the peer over all its connections since its session began, whatever they carried. 0 if
    /// there is no session; a new session counts anew.
    fn heard(&self, node: NodeId) -> u64;

    /// The smoothed round-trip time to a peer that can be sent to, if it was measured.
    fn round_trip(&self, node: NodeId) -> Option<Duration>;

    /// UDP payload bytes that were sent on the connections to a peer that can be sent to; 0 where
    /// they are not counted.
    fn sent_to(&self, node: NodeId) -> u64;

    /// Finds out whether anybody listens at the address where the peer listens, or listened when it
    /// was last connected. [`TransportEvent::PortRefused`] follows if its host says that nobody
    /// does; nothing follows otherwise.
    fn port_probe(&self, node: NodeId);

    /// What went over the wire so far.
    fn traffic(&self) -> Traffic;

    /// Sends what is queued, closes every connection, waits until peers were told (at most a few
    /// seconds, so that bulk streams that were finished arrive whole).
    async fn close(&self);
}

/// The sending end of a bulk stream. Dropping it unfinished resets the stream.
#[async_trait]
pub trait BulkSender: Send {
    /// Sends a chunk without copying it; waits while the receiver is behind.
    ///
    /// # Errors
    /// The connection broke or the receiver stopped the stream.
    async fn send(&mut self, chunk: Bytes) -> Result<(), BulkError>;

    /// Marks the end; what was sent is delivered in the background.
    ///
    /// # Errors
    /// The connection broke or the receiver stopped the stream.
    async fn finish(self: Box<Self>) -> Result<(), BulkError>;

    /// Ends the stream at once; the receiver sees [`BulkError::Reset`].
    fn reset(self: Box<Self>);
}

/// The receiving end of a bulk stream. Dropping it unfinished tells the sender to stop.
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
    /// Which start of it.
    pub incarnation: Incarnation,
    /// Where it really listens (the port is never 0).
    pub address: SocketAddr,
    /// Where others are told to dial it; another address behind a port that is forwarded.
    pub announced: SocketAddr,
}

/// Bytes on the wire, headers, acknowledgements and retransmissions included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// UDP payload bytes sent.
    pub sent_bytes: u64,
    /// UDP payload bytes received.
    pub received_bytes: u64,
    /// Packets found lost.
    pub lost_packets: u64,
    /// Largest current path MTU over all connections, in bytes; 0 where the transport has none.
    pub mtu_bytes: u16,
}

/// What a transport reports.
pub enum TransportEvent {
    /// Frames and streams can be sent to this peer, which has admitted this node. Its own messages
    /// may come before.
    PeerUp {
        /// The authenticated id.
        node: NodeId,
        /// Which start of it.
        incarnation: Incarnation,
        /// Where it was dialed.
        address: SocketAddr,
    },
    /// A connection to or from this peer was lost, and with it all others of this peer. Follows
    /// once after `PeerUp` or after its first message, whichever came; nothing of the peer follows
    /// until it is connected anew.
    PeerDown {
        /// Who.
        node: NodeId,
        /// Where it was dialed; where it says it listens, if it never was.
        address: SocketAddr,
        /// Why.
        reason: DownReason,
    },
    /// Nobody listens where this peer listened.
    PortRefused {
        /// Who was knocked at.
        node: NodeId,
    },
    /// Dialing was given up.
    DialFailed {
        /// The address dialed.
        address: SocketAddr,
        /// How long it was tried.
        tried_for: Duration,
        /// The last attempt's error.
        error: DialError,
    },
    /// Somebody who dialed this node was refused; for logs and errors.
    Refused {
        /// From where.
        remote: SocketAddr,
        /// Why.
        error: DialError,
    },
    /// A control frame.
    Control {
        /// The authenticated sender.
        from: NodeId,
        /// The encoded frame.
        frame: Bytes,
    },
    /// A datagram.
    Datagram {
        /// The authenticated sender.
        from: NodeId,
        /// Its bytes.
        datagram: Bytes,
    },
    /// A bulk stream began.
    Bulk {
        /// The authenticated sender.
        from: NodeId,
        /// The encoded stream header.
        header: Bytes,
        /// The rest.
        stream: Box<dyn BulkReceiver>,
    },
}

/// Why a peer went down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// It left, or its process ended in order.
    #[error("it closed the connection: {0}")]
    ClosedByPeer(String),
    /// It closed the connections because it takes this node for dead or broken; dialing it again
    /// shows otherwise.
    #[error("it dropped this node: {0}")]
    Dropped(String),
    /// Nothing was heard from it for too long.
    #[error("nothing was heard from it for {0:?}")]
    Silent(Duration),
    /// It sent what no correct peer sends.
    #[error("it broke the protocol: {0}")]
    ProtocolViolation(String),
    /// This node disconnected it.
    #[error("closed here: {0}")]
    ClosedHere(String),
    /// This node is leaving.
    #[error("closed here: {0}")]
    Leaving(String),
    /// The network said so.
    #[error("the connection broke: {0}")]
    Broken(String),
}

impl DownReason {
    /// Whether the peer is gone because it wanted to.
    #[must_use]
    pub fn is_departure(&self) -> bool {
        matches!(self, Self::ClosedByPeer(_))
    }
}

/// Why a frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No connection to this node.
    #[error("there is no connection to {0}")]
    NotConnected(NodeId),
    /// The peer does not keep up; see [`CONTROL_QUEUE_FRAMES_MAX`].
    #[error("{CONTROL_QUEUE_FRAMES_MAX} control frames already wait for {0}")]
    QueueFull(NodeId),
    /// Larger than its bound.
    #[error("{length} bytes exceed the bound of {bound}")]
    TooLarge {
        /// Bytes given.
        length: usize,
        /// The bound.
        bound: usize,
    },
}

/// Why a bulk stream failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BulkError {
    /// No connection to this node.
    #[error("there is no connection to {0}")]
    NotConnected(NodeId),
    /// The other end reset or stopped the stream.
    #[error("the other end reset the stream")]
    Reset,
    /// The stream ended before the expected bytes.
    #[error("the stream ended early")]
    EndedEarly,
    /// The header exceeds its bound; nothing was opened.
    #[error("a stream header of {length} bytes exceeds the bound of {bound}")]
    HeaderTooLarge {
        /// Bytes given.
        length: usize,
        /// The bound.
        bound: usize,
    },
    /// Bytes follow where the stream should end.
    #[error("the stream is longer than its header says")]
    TooLong,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
}

/// Why a connection could not be made. Each says what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// Nobody answered.
    #[error("no answer; check that a node listens there and that UDP passes")]
    NoAnswer,
    /// The certificate was not issued under this cluster's key or CA.
    #[error(
        "its certificate was not issued under this cluster's key ({0}); give every node the same cluster_key, or the same CA files"
    )]
    WrongClusterKey(String),
    /// The peers speak different protocol versions.
    #[error(
        "it speaks protocol version {theirs}, this node {ours}; run the same slowmo release on all nodes"
    )]
    ProtocolVersion {
        /// Its version, as it names it.
        theirs: String,
        /// Ours.
        ours: String,
    },
    /// The first bytes were not a valid preface, or contradict the certificate.
    #[error("it introduced itself wrongly: {0}")]
    BadPreface(String),
    /// Another node with this node's own id.
    #[error("it uses this node's own id {0}; give each node its own node_id")]
    SameId(NodeId),
    /// A process with the same id is alive and connected there. Tried again: it may be about to
    /// end.
    #[error(
        "another process with the id of {0} is alive; give each node its own node_id, or end that process"
    )]
    DuplicateId(NodeId),
    /// The peer did not accept this node's introduction.
    #[error("it refused this node: {0}")]
    RefusedThere(String),
    /// Anything else the network said.
    #[error("{0}")]
    Other(String),
}

impl DialError {
    /// Whether trying again cannot help, so that dialing is given up at once.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::NoAnswer | Self::DuplicateId(_) | Self::Other(_))
    }
}
