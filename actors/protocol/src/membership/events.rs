//! What the membership is told, what it asks for, and what it needs to know at its start.

use super::FoundingError;
use crate::ident::{Incarnation, Lineage, NodeId};
use crate::machine::Identity;
use crate::time::Span;
use crate::view::View;
use crate::wire::{Frame, Header, Message};
use std::net::SocketAddr;

/// What happens to the membership.
#[derive(Clone, Debug)]
pub enum In {
    /// This node's workers called `synchronize`: the size of the model is known.
    Synchronize {
        /// Parameters.
        elements: u64,
        /// Values of the buffers that travel with them.
        buffer_elements: u64,
    },
    /// This start of a peer can be sent to.
    PeerUp(NodeId, Incarnation),
    /// A peer is gone.
    PeerDown(NodeId),
    /// An address was given up.
    DialFailed {
        /// The address.
        address: SocketAddr,
        /// How long it was tried.
        tried_for: Span,
        /// The last attempt's error, for a person.
        error: String,
    },
    /// A control frame about membership arrived.
    Frame {
        /// Who, where in history.
        header: Header,
        /// What.
        message: Message,
    },
    /// This node leaves.
    Leave,
    /// Time passed.
    Tick,
}

/// What the membership asks its shell for.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a control frame.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        frame: Frame,
    },
    /// The founding view is formed.
    Formed {
        /// Its members.
        view: View,
        /// The new model history.
        lineage: Lineage,
    },
    /// This node cannot be part of a founding view.
    Fail(FoundingError),
    /// A member of the view is gone.
    Lost(NodeId),
    /// Everybody left, or was given the time to: the node may go.
    Left,
}

/// What the membership of a node needs to know at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node.
    pub identity: Identity,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its workers.
    pub devices: u16,
    /// Nodes of the founding view.
    pub min_nodes: usize,
    /// The settings that all nodes must share, as `key = value` lines.
    pub shared: String,
    /// Addresses may be those of nodes that are gone: one that cannot be reached is no reason to give up before the others'
    /// time is over.
    pub addresses_may_be_stale: bool,
    /// How long peers may take to appear after `synchronize`.
    pub connect_timeout: Span,
    /// How long connected peers may take to call `synchronize` too.
    pub synchronize_timeout: Span,
}
