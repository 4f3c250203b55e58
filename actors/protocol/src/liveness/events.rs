//! Events, effects and settings of the liveness machine. Performs no I/O.

use crate::ident::{Incarnation, NodeId};
use crate::machine::Identity;
use crate::time::Span;
use std::fmt;

/// Settings with which a node watches others.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// This node.
    pub identity: Identity,
    /// Time between probes; a node that was silent for half of it is asked for a sign of life.
    pub probe_interval: Span,
    /// How long a suspected node has to show that it is alive.
    pub suspect: Span,
    /// Seed of the order of probes.
    pub seed: u64,
}

impl Settings {
    /// Probes every 200 ms, suspicions of 1 s, a seed of this node's own.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        let seed = identity.node.0 ^ identity.incarnation.0.rotate_left(32);
        Self {
            identity,
            probe_interval: Span::from_millis(200),
            suspect: Span::from_millis(1_000),
            seed,
        }
    }
}

/// Events that the machine handles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum In {
    /// The nodes to watch from now on, at most [`MEMBERS_MAX`](crate::view::MEMBERS_MAX); may
    /// include this node. Watched nodes that are not named are forgotten. New ones count as alive.
    Members(Vec<(NodeId, Incarnation)>),
    /// A datagram; also a sign of life.
    Datagram {
        /// The authenticated sender.
        from: NodeId,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// At least one authenticated packet of the node arrived since the last such event.
    Heard(NodeId),
    /// The round-trip time to the node, as the transport measures it.
    RoundTrip(NodeId, Span),
    /// A port probe was refused: nobody listens at the node's address. Everything heard earlier has
    /// been reported before this event.
    PortRefused(NodeId),
    /// A launcher saw the process exit; any incarnation of the node if none is named.
    Exited(NodeId, Option<Incarnation>),
    /// The node closed its connections on purpose.
    Gone(NodeId),
    /// This incarnation of the node was connected anew.
    PeerUp(NodeId, Incarnation),
    /// A deadline passed.
    Tick,
}

/// Actions that the machine requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a datagram; it may be lost.
    Datagram {
        /// Receiver of the datagram.
        to: NodeId,
        /// Its bytes, at most [`crate::wire::DATAGRAM_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// Send a port probe: find out whether anybody listens at the node's address.
    PortProbe(NodeId),
    /// The node is dead. Reported once, and again if its process is found later to have ended; the
    /// node is watched for its return as long as it is a member.
    Down(NodeId, Incarnation, DownCause),
    /// The same incarnation of a node that was down is alive.
    Up(NodeId, Incarnation),
}

/// Reason why a node is declared dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownCause {
    /// It was not heard for this long.
    Silent(Span),
    /// Nobody listens at its address.
    Refused,
    /// A launcher saw it exit.
    Exited,
    /// It closed its connections on purpose.
    Left,
    /// A later incarnation of it is connected.
    Superseded,
    /// The given other node reported it dead.
    Told(NodeId),
}

impl DownCause {
    /// Whether the cause proves that the process ended. A silent node may be alive.
    #[must_use]
    pub fn has_ended(self) -> bool {
        match self {
            Self::Refused | Self::Exited | Self::Left | Self::Superseded => true,
            Self::Silent(_) | Self::Told(_) => false,
        }
    }
}

impl fmt::Display for DownCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(span) => write!(f, "it was not heard for {} ms", span.as_millis()),
            Self::Refused => f.write_str("nobody listens at its address any more"),
            Self::Exited => f.write_str("its process ended"),
            Self::Left => f.write_str("it left"),
            Self::Superseded => f.write_str("a later start of it is connected"),
            Self::Told(node) => write!(f, "{node} found it dead"),
        }
    }
}
