//! Events, effects and settings of the membership machine.

use super::{BootstrapError, DialFault};
use crate::coordinator::GivesUp;
use crate::ident::{Epoch, GroupId, Incarnation, Lineage, NodeId, Round};
use crate::machine::Identity;
use crate::model::ModelSize;
use crate::policy::Bootstrap;
use crate::published::PublicKey;
use crate::time::Span;
use crate::view::{Member, View};
use crate::wire::{Frame, Header, JoinRefusal, MemberState, Message};
use std::net::SocketAddr;

/// Events that the membership handles.
#[derive(Clone, Debug)]
pub enum In {
    /// This node's workers called `synchronize`: the size of the model is known.
    Synchronize(ModelSize),
    /// The addresses that discovery finds by now, this node's own perhaps among them.
    Discovered(Vec<SocketAddr>),
    /// This incarnation of a peer can be sent to.
    PeerUp(NodeId, Incarnation),
    /// The connections to a peer are gone. Unless it closed them because it leaves, it may be
    /// alive.
    PeerDown {
        /// The peer.
        node: NodeId,
        /// It left on purpose.
        departed: bool,
    },
    /// Liveness declared an incarnation of a node dead.
    Down {
        /// The dead node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Whether its process is known to have ended; reported again if that is found out later.
        ended: bool,
    },
    /// A node that was declared dead is alive.
    Up(NodeId),
    /// The coordinator applied a decided outcome: the new member state of this node.
    Decided(MemberState),
    /// Voters on the coming rounds that are not members; replaces the previous list. They are
    /// watched like members, and dialed.
    Retained(Vec<Member>),
    /// The others went on without this node, to where a decision says. [`In::MustRejoin`] follows.
    WentOn(MemberState),
    /// A round was decided whose data this node does not hold: it has to join again.
    MustRejoin,
    /// The coordinator took note that this node resigns (`true`), or keeps the bootstrap that it
    /// was to give up (`false`). Everything it reported before this is older.
    Resigned(bool),
    /// This node hands over and leaves with the next round.
    Drain,
    /// The shell gave up dialing an address.
    DialFailed {
        /// The address that was dialed.
        address: SocketAddr,
        /// How long it was tried.
        tried_for: Span,
        /// The kind of the last attempt's error.
        fault: DialFault,
        /// That error, as text for an operator.
        error: String,
    },
    /// A node of another cluster dialed this one from this address, and was refused.
    StrangerDialed(SocketAddr),
    /// A control frame about membership arrived.
    Frame {
        /// Sender and its place in the history.
        header: Header,
        /// The message.
        message: Box<Message>,
    },
    /// This node leaves.
    Leave,
    /// A deadline may have passed.
    Tick,
}

/// Actions that the membership requests from its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a control frame.
    Send {
        /// Receiver of the frame.
        to: NodeId,
        /// The frame.
        frame: Frame,
    },
    /// The bootstrap view is formed.
    Formed {
        /// Its members.
        view: View,
        /// The new model history.
        lineage: Lineage,
    },
    /// This node got into no view: neither a bootstrap's nor a running cluster's.
    Fail(BootstrapError),
    /// A member or a joiner is dead.
    Lost {
        /// The dead node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Whether its process is known to have ended; reported again if that is found out later.
        ended: bool,
    },
    /// A node that was dead is alive.
    Back(NodeId),
    /// The nodes that are ready to join the view with this epoch.
    Joiners {
        /// Epoch of the view that they can reach.
        epoch: Epoch,
        /// The joiners.
        members: Vec<Member>,
    },
    /// A node asks to join that was not waiting to. It may have asked before: it was a member in its
    /// own eyes meanwhile.
    JoinAsked(NodeId),
    /// A member leaves, perhaps this node.
    Leaving {
        /// The leaving node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Whether it still contributes to the next round.
        contributes: bool,
    },
    /// The others went on without this node, which asks to be admitted again. The coordinator
    /// answers with [`In::Resigned`].
    Resign(GivesUp),
    /// Nobody is left of the history that was to admit this node. The coordinator returns to its
    /// previous place, or goes on with what it holds of that history, if it can.
    Return {
        /// Whether all members of that history are known to have ended.
        ended: bool,
    },
    /// This node has left: it wanted to hand over and leave, and was left out without hearing the
    /// decision or no longer holds the data.
    Drained,
    /// Reason why this node is no member; `None` if it is one, or does not wait to be.
    Waiting(Option<String>),
    /// This node has waited for a while, for this reason, and goes on waiting.
    StillWaits(String),
    /// A node at this address is refused, for this reason, as text for an operator.
    Refused {
        /// Where it listens.
        address: SocketAddr,
        /// The reason.
        why: String,
    },
    /// Another cluster runs beside this one with the same key; neither gives way.
    OtherCluster {
        /// One of its members.
        node: NodeId,
        /// Its history.
        lineage: Lineage,
        /// Its next round.
        round: Round,
    },
    /// Dial an address.
    Connect(SocketAddr),
    /// Close the connections to a node that was declared dead.
    Disconnect(NodeId),
    /// The nodes to watch for signs of life from now on.
    Watch(Vec<(NodeId, Incarnation)>),
    /// Whether to look for further addresses.
    Search(bool),
    /// All others left, or the time for that is over: the node may stop.
    Left,
}

/// Settings of the membership machine at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node.
    pub identity: Identity,
    /// Address at which it listens.
    pub address: SocketAddr,
    /// Number of its workers.
    pub devices: u16,
    /// Its group.
    pub group: GroupId,
    /// Key that signs what it publishes.
    pub key: PublicKey,
    /// Least number of nodes in the bootstrap view.
    pub min_nodes: usize,
    /// Most members of the cluster.
    pub max_nodes: usize,
    /// Join a running cluster only, never bootstrap one.
    pub join: bool,
    /// Whether it may bootstrap a run.
    pub bootstrap: Bootstrap,
    /// It was a member of a run before it was restarted: it does not bootstrap before it has heard
    /// from every node that it knows.
    pub restarted: bool,
    /// The history whose state this node brings: only a cluster of this history may admit it.
    pub lineage: Option<Lineage>,
    /// Refusal for nodes that ask to join, if this cluster's rounds carry nothing that would bring
    /// them up to date.
    pub refuses: Option<JoinRefusal>,
    /// The settings that all nodes must share, as `key = value` lines.
    pub shared: String,
    /// Addresses may belong to nodes that are gone: an unreachable address is no reason to give up
    /// before the timeouts expire.
    pub addresses_may_be_stale: bool,
    /// How long this node waits for `min_nodes` nodes, or for a cluster that it can join.
    pub meet_timeout: Span,
    /// How long a node that was a member waits to be admitted again, and a restarted one looks for
    /// the run that it was in.
    pub rejoin_timeout: Span,
    /// How long the nodes that have met may take to call `synchronize` and to decide a round.
    pub synchronize_timeout: Span,
}
