//! Settings of a QUIC transport, with defaults for nodes in one data centre, and the QUIC
//! parameters derived from them.

use super::congestion::DeliveryConfig;
use super::identity::Identity;
use super::stripes::{STRIPE_WINDOW_BYTES, STRIPES};
use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::{
    AckFrequencyConfig, Connection, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt,
};
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::wire::PROTOCOL_VERSION;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Largest number of unidirectional streams that a peer may have open on its bulk connection.
pub const STREAMS_MAX: u32 = 1024;
/// The same for any connection before it is admitted as one for bulk: the preface, and the frames.
pub const CONTROL_STREAMS_MAX: u32 = 2;
/// Unread bytes of such a connection at which its sender waits: two of the largest frames.
pub const CONTROL_WINDOW_BYTES: u32 = 2 << 20;
/// Unread bytes of a connection that this node dialed, of streams and of datagrams each: only the
/// peer's preface comes on it.
const DIALED_WINDOW_BYTES: u32 = 16 << 10;
/// Unread bytes of a bulk connection of which this node has read no values yet: headers, and the
/// beginnings of the first streams.
pub const UNREAD_WINDOW_BYTES: u32 = 2 << 20;
/// Unread bytes of a connection that is not admitted yet, or whose peer is one of many of its host;
/// a larger frame is read in parts.
const ACCEPTED_WINDOW_BYTES: u32 = 128 << 10;
/// Unread bytes of one bulk stream at which its sender waits. A path of 1 Gbit/s and 100 ms holds
/// 12.5 MB.
pub const STREAM_WINDOW_BYTES: u32 = STRIPES as u32 * STRIPE_WINDOW_BYTES;
/// Unread bytes of one connection at which its sender waits. A node reads a contribution in step
/// with those of other nodes, and may get two of one sender, as an owner and as the relay of its
/// group: room for these two streams, and for a third one, so that published values always come
/// through.
pub const CONNECTION_WINDOW_BYTES: u32 = 3 * STREAM_WINDOW_BYTES;
/// Unacknowledged bytes of one connection at which its sender waits.
pub const SEND_WINDOW_BYTES: u64 = 32 << 20;
/// Datagram bytes that may be buffered on either side, some hundred datagrams; beyond that, the
/// oldest are lost.
pub const DATAGRAM_BUFFER_BYTES: usize = 256 << 10;
/// Largest UDP payload over IPv4, in bytes.
const UDP_PAYLOAD_BYTES_MAX: u16 = 65_507;
/// Number of packets that quinn passes to the kernel in one send, with segmentation offload.
const SEGMENTS_PER_SEND: u16 = 10;
/// Largest MTU, in bytes: one batch of segments must fit in a UDP datagram, or sending stalls
/// without an error.
pub const MTU_BYTES_MAX: u16 = UDP_PAYLOAD_BYTES_MAX / SEGMENTS_PER_SEND;
/// Smallest MTU that QUIC allows, in bytes.
pub const MTU_BYTES_MIN: u16 = 1200;
/// Time after a loss of large packets before a larger MTU is tried again.
const MTU_RETRY: Duration = Duration::from_secs(2);

/// Longest time that a peer waits with an acknowledgement.
pub(super) const ACK_DELAY_MAX: Duration = Duration::from_millis(5);
/// Longest keep-alive interval of a control connection.
const CONTROL_KEEP_ALIVE_MAX: Duration = Duration::from_millis(300);

/// Lets a peer open the streams of a bulk connection, with a window for what is not read yet.
pub(super) fn admit_bulk(connection: &Connection, is_one_of_many: bool) {
    connection.set_max_concurrent_uni_streams(VarInt::from_u32(STREAMS_MAX));
    if !is_one_of_many {
        connection.set_receive_window(VarInt::from_u32(UNREAD_WINDOW_BYTES));
    }
}

/// Gives a control connection its whole window, unless many peers of its host are connected.
pub(super) fn admit_control(connection: &Connection, is_one_of_many: bool) {
    if !is_one_of_many {
        connection.set_receive_window(VarInt::from_u32(CONTROL_WINDOW_BYTES));
    }
}

/// Opens the whole window of a bulk connection whose streams this node reads.
pub(super) fn open_window(connection: &Connection) {
    connection.set_receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES));
}

/// Settings for [`bind`](super::bind).
#[derive(Debug)]
pub struct QuicSettings {
    /// The id of this node.
    pub node: NodeId,
    /// The incarnation of this node.
    pub incarnation: Incarnation,
    /// Address to listen on; port 0 picks a free port. The address family decides between IPv4 and
    /// IPv6.
    pub listen: SocketAddr,
    /// Address that other nodes are told to dial, if it differs from the listening address.
    pub advertise: Option<SocketAddr>,
    /// Certificates and key with which the node authenticates.
    pub identity: Identity,
    /// Parameters of the connections.
    pub tuning: Tuning,
    /// Protocol version to announce; tests of the refusal set it to another one than this build's.
    #[doc(hidden)]
    pub protocol_version: u32,
}

impl QuicSettings {
    /// Settings with default tuning.
    #[must_use]
    pub fn new(
        node: NodeId,
        incarnation: Incarnation,
        listen: SocketAddr,
        identity: Identity,
    ) -> Self {
        Self {
            node,
            incarnation,
            listen,
            advertise: None,
            identity,
            tuning: Tuning::default(),
            protocol_version: PROTOCOL_VERSION,
        }
    }
}

/// Parameters of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Largest UDP payload to try, in bytes; clamped to [`MTU_BYTES_MIN`] to [`MTU_BYTES_MAX`].
    pub mtu_bytes_max: u16,
    /// Congestion controller.
    pub congestion: Congestion,
    /// Silence after which a peer is down.
    pub idle_timeout: Duration,
    /// Interval of keep-alive packets on an idle connection; well below `idle_timeout`.
    pub keep_alive: Duration,
    /// Size in bytes of each kernel buffer (send and receive) of the UDP socket; the kernel may
    /// grant less.
    pub socket_buffer_bytes: usize,
    /// Whether bulk streams to nodes of the same user on this machine go over Unix sockets, where
    /// that is possible.
    pub same_host: bool,
    /// Round-trip time assumed before the first measurement.
    pub initial_round_trip: Duration,
    /// Initial congestion window: bytes that may be in flight before the first measurement.
    pub initial_window_bytes: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            mtu_bytes_max: 6400,
            congestion: Congestion::Rate,
            idle_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(1),
            socket_buffer_bytes: 4 << 20,
            same_host: true,
            initial_round_trip: Duration::from_millis(20),
            initial_window_bytes: 256 << 10,
        }
    }
}

/// Congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// Measures the path's rate: fills links, also those that lose packets at random, with short
    /// queues.
    #[default]
    Rate,
    /// CUBIC: fills clean links; its rate collapses when packets are lost at random.
    Cubic,
    /// BBR: keeps its rate on links that lose packets at random; causes some losses on clean links.
    Bbr,
    /// New Reno: the simplest of the three.
    NewReno,
}

impl Tuning {
    /// The largest UDP payload that is tried.
    pub(super) fn mtu_bytes(&self) -> u16 {
        self.mtu_bytes_max.clamp(MTU_BYTES_MIN, MTU_BYTES_MAX)
    }

    /// Configuration for control connections: idle or not, they produce signs of life several times
    /// within the window in which a node counts as alive. Pings from one end suffice, because the
    /// acknowledgements are signs of life too.
    pub(super) fn control_config(&self) -> TransportConfig {
        let mut config = self.dialed_config();
        config.keep_alive_interval(Some(self.keep_alive.min(CONTROL_KEEP_ALIVE_MAX)));
        config
    }

    /// Configuration for connections that this node dials, on which it sends and hardly receives.
    pub(super) fn dialed_config(&self) -> TransportConfig {
        let mut config = self.transport_config();
        config
            .receive_window(VarInt::from_u32(DIALED_WINDOW_BYTES))
            .datagram_receive_buffer_size(Some(DIALED_WINDOW_BYTES as usize));
        config
    }

    /// Configuration for connections that this node accepts. Their window, and of bulk connections
    /// their streams, grow when a peer is admitted (see [`admit_bulk`]).
    pub(super) fn accepted_config(&self) -> TransportConfig {
        let mut config = self.transport_config();
        config.receive_window(VarInt::from_u32(ACCEPTED_WINDOW_BYTES));
        config
    }

    fn transport_config(&self) -> TransportConfig {
        let mut mtu = MtuDiscoveryConfig::default();
        mtu.upper_bound(self.mtu_bytes())
            .black_hole_cooldown(MTU_RETRY);
        let mut acknowledgements = AckFrequencyConfig::default();
        acknowledgements
            .ack_eliciting_threshold(VarInt::from_u32(10))
            .max_ack_delay(Some(ACK_DELAY_MAX));
        let mut config = TransportConfig::default();
        config
            .max_concurrent_uni_streams(VarInt::from_u32(CONTROL_STREAMS_MAX))
            .max_concurrent_bidi_streams(VarInt::from_u32(0))
            .stream_receive_window(VarInt::from_u32(STRIPE_WINDOW_BYTES))
            .send_window(SEND_WINDOW_BYTES)
            .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
            .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES)
            .initial_rtt(self.initial_round_trip)
            .mtu_discovery_config(Some(mtu))
            .ack_frequency_config(Some(acknowledgements))
            .congestion_controller_factory(self.congestion_controller())
            .keep_alive_interval(Some(self.keep_alive))
            .max_idle_timeout(IdleTimeout::try_from(self.idle_timeout).ok())
            .enable_segmentation_offload(true);
        config
    }

    fn congestion_controller(&self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self.congestion {
            Congestion::Rate => Arc::new(DeliveryConfig {
                initial_window: self.initial_window_bytes,
            }),
            Congestion::Cubic => {
                let mut config = CubicConfig::default();
                config.initial_window(self.initial_window_bytes);
                Arc::new(config)
            }
            Congestion::Bbr => {
                let mut config = BbrConfig::default();
                config.initial_window(self.initial_window_bytes);
                Arc::new(config)
            }
            Congestion::NewReno => {
                let mut config = NewRenoConfig::default();
                config.initial_window(self.initial_window_bytes);
                Arc::new(config)
            }
        }
    }
}
