//! What the membership is told, what it asks for, and what it needs to know at its start.

use super::BootstrapError;
use crate::coordinator::GivesUp;
use crate::ident::{Epoch, Incarnation, Lineage, NodeId, Round};
use crate::machine::Identity;
use crate::model::ModelSize;
use crate::policy::Bootstrap;
use crate::time::Span;
use crate::view::{Member, View};
use crate::wire::{Frame, Header, JoinRefusal, MemberState, Message};
use std::net::SocketAddr;

/// What happens to the membership.
#[derive(Clone, Debug)]
pub enum In {
    /// This node's workers called `synchronize`: the size of the model is known.
    Synchronize(ModelSize),
    /// The addresses that discovery finds by now, this node's own perhaps among them.
    Discovered(Vec<SocketAddr>),
    /// This start of a peer can be sent to.
    PeerUp(NodeId, Incarnation),
    /// The connections to a peer are gone; whether it closed them because it leaves. Otherwise it
    /// may be alive.
    PeerDown {
        /// Who.
        node: NodeId,
        /// It left on purpose.
        departed: bool,
    },
    /// Liveness declared a start of a node dead.
    Down {
        /// Who.
        node: NodeId,
        /// Which start of it.
        incarnation: Incarnation,
        /// Whether its process is known to have ended; told later if it is found out later.
        ended: bool,
    },
    /// A node that was declared dead is alive.
    Up(NodeId),
    /// The coordinator applied a decided outcome: where this node stands now.
    Decided(MemberState),
    /// Who votes on the rounds to come without being a member, in place of those told before:
    /// watched like members, and dialed.
    Retained(Vec<Member>),
    /// A round was decided whose data this node does not hold: it has to join again.
    MustRejoin,
    /// The coordinator took note that this node resigns, or keeps to the founding which it was to
    /// give up. What it told before was of before.
    Resigned(bool),
    /// This node hands over and leaves with the next round.
    Drain,
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
        message: Box<Message>,
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
    Fail(BootstrapError),
    /// A member or a joiner is dead.
    Lost {
        /// Who.
        node: NodeId,
        /// Which start of it.
        incarnation: Incarnation,
        /// Whether its process is known to have ended; told later if it is found out later.
        ended: bool,
    },
    /// A node that was dead is alive.
    Back(NodeId),
    /// The nodes that are ready to join the view with this epoch.
    Joiners {
        /// Which view they can reach.
        epoch: Epoch,
        /// Who.
        members: Vec<Member>,
    },
    /// A member leaves, perhaps this node.
    Leaving {
        /// Who.
        node: NodeId,
        /// Which start of it.
        incarnation: Incarnation,
        /// Whether it still contributes to the next round.
        contributes: bool,
    },
    /// The others went on without this node, which asks to be admitted again. The coordinator
    /// answers with [`In::Resigned`].
    Resign(GivesUp),
    /// Nobody is left of the history that was to admit this node. Its coordinator takes its place
    /// again where it stood, or goes on with what it holds of that history, if it can.
    Return {
        /// Whether all members of that history are known to have ended.
        ended: bool,
    },
    /// This node wanted to hand over and leave, and was left out without hearing of it, or holds
    /// nothing any more: it has left.
    Drained,
    /// What keeps this node from being a member; `None`: it is one, or does not wait to be.
    Waiting(Option<String>),
    /// Another cluster runs beside this one, under the same key; neither gives way.
    OtherCluster {
        /// One of its members.
        node: NodeId,
        /// Its history.
        lineage: Lineage,
        /// Its next round.
        round: Round,
    },
    /// Dial a node.
    Connect(SocketAddr),
    /// Close the connections to a node that was declared dead.
    Disconnect(NodeId),
    /// Whom to watch for signs of life from now on.
    Watch(Vec<(NodeId, Incarnation)>),
    /// Whether to look for further addresses.
    Search(bool),
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
    /// Most members of the cluster.
    pub max_nodes: usize,
    /// Join a running cluster only, never found one.
    pub join: bool,
    /// Whether it may found a run.
    pub bootstrap: Bootstrap,
    /// It was a member of a run before it was started again: it founds nothing before it has heard
    /// from everybody that it knows.
    pub restarted: bool,
    /// The history whose state this node brings: only a cluster of this history may admit it.
    pub lineage: Option<Lineage>,
    /// What nodes that ask to join are told where this cluster's rounds carry nothing that would
    /// bring them up to date.
    pub refuses: Option<JoinRefusal>,
    /// The settings that all nodes must share, as `key = value` lines.
    pub shared: String,
    /// Addresses may be those of nodes that are gone: one that cannot be reached is no reason to
    /// give up before the others' time is over.
    pub addresses_may_be_stale: bool,
    /// How long peers may take to appear after `synchronize`.
    pub connect_timeout: Span,
    /// How long connected peers may take to call `synchronize` too.
    pub synchronize_timeout: Span,
}
