//! What the coordinator is told, what it asks for, and what it needs to know at its start.

use super::error::RoundError;
#[cfg(any(test, feature = "testing"))]
use super::machine::ASK_AGAIN_EVERY;
use super::outcome::{Origin, Outcome, RoundSpec};
use super::plan::{Attempt, Plan, Publication};
use super::voters::Votes;
use crate::algorithm::BufferStrategy;
use crate::ident::{Epoch, Incarnation, Lineage, NodeId, Round};
use crate::machine::Identity;
use crate::policy::{OnMomentumLoss, OnQuorumLoss, Quorum};
use crate::sampler::Progress;
use crate::time::Span;
use crate::topology::Rate;
use crate::view::{Member, View};
use crate::wire::{Frame, Header, MemberState, Message};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What happens to the coordinator.
#[derive(Clone, Debug)]
pub enum In {
    /// The founding view is formed.
    Formed {
        /// Its members.
        view: View,
        /// The new model history.
        lineage: Lineage,
    },
    /// This node froze its contribution.
    Contribute {
        /// The round it works towards; a contribution to another one than the coordinator's is late
        /// and changes nothing.
        round: Round,
        /// What it expects the round to be.
        spec: RoundSpec,
        /// Which samples were left when the round began, if its training follows an elastic
        /// sampler.
        samples: Option<Progress>,
        /// How fast this node's messages reached others, if the gossip graph follows that.
        rates: Vec<Rate>,
        /// Values of the base optimizer's buffers of which a joiner may get a copy; the same on
        /// every node.
        buffers: u64,
    },
    /// A control frame about rounds arrived.
    Frame {
        /// Who, where in history.
        header: Header,
        /// What.
        message: Box<Message>,
    },
    /// This node's own shards are averaged and their publication is handed to the transport.
    Reduced(Attempt),
    /// All parameters that an owner publishes arrived.
    ParametersHeld(Attempt, NodeId),
    /// All state that a node moves to this one arrived.
    StateHeld(Attempt, NodeId),
    /// The donor's buffers of the base optimizer arrived.
    BuffersHeld(Attempt, NodeId),
    /// A contributor expects another round than this node.
    SpecsDiffer(Attempt, NodeId, RoundSpec),
    /// A stream to or from a node failed while the node seems alive.
    StreamBroken(Attempt, NodeId),
    /// A node is dead.
    Lost {
        /// Who.
        node: NodeId,
        /// Which start of it.
        incarnation: Incarnation,
        /// Whether its process is known to have ended: it said goodbye, its port refuses, its
        /// launcher saw it, or a later start of it proved itself. Otherwise it is silent, and may
        /// live.
        ended: bool,
    },
    /// A node that was thought dead is alive.
    Back(NodeId),
    /// A node can be sent to (again): what it may have missed is sent again.
    PeerUp(NodeId),
    /// The connections to a peer are gone. It may be alive.
    PeerDown(NodeId),
    /// All that live, as others say, and that this node itself has not heard for a while.
    Unheard(BTreeSet<NodeId>),
    /// The nodes that are ready to be admitted by the members of the view with this epoch, all of
    /// whom they can reach; replaces the list before. A list for another view than the round's
    /// changes nothing.
    Joiners {
        /// Which view they can reach.
        epoch: Epoch,
        /// Who.
        members: Vec<Member>,
    },
    /// A member leaves, this node included.
    Leaving {
        /// Who.
        node: NodeId,
        /// Which start of it: a later one under its id stays.
        incarnation: Incarnation,
        /// Whether its training threads still contribute to the next round.
        contributes: bool,
    },
    /// This node belongs to no view until it is admitted again, or forms one. Answered with
    /// [`Effect::Resigned`].
    Resign(GivesUp),
    /// The history that was to admit this node is deserted. A node that stood in another one takes
    /// its place there again, which is answered with [`Effect::Stands`]. Among survivors a joiner
    /// that holds the entry which admits it goes on with that.
    Return {
        /// Whether all members of the deserted history are known to have ended.
        ended: bool,
    },
    /// An operator says that this history goes on without a quorum: see
    /// [`super::Coordinator::recovery`].
    Recover(Lineage),
    /// Time passed.
    Tick,
}

/// What a node gives up when it resigns, and whether it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivesUp {
    /// Its place: the others went on without it.
    Membership,
    /// A founding, for a history that is decided, or because nobody can decide it any more: unless
    /// its own is decided.
    ForDecided,
    /// A founding, for another one: unless its own is decided, or this node was ready or voted for
    /// it. So nobody helps to decide two.
    ForBootstrap,
}

/// What the coordinator asks its shell for.
#[derive(Clone, Debug, PartialEq)]
// The large one comes once a round.
#[allow(clippy::large_enum_variant)]
pub enum Effect {
    /// Send a control frame.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        frame: Frame,
    },
    /// Start the reduction of an attempt. Those before it stay until they are discarded.
    Open(Arc<Plan>),
    /// The receivers of an attempt under way are known: what was averaged may be published, and
    /// state moves.
    Publish(Arc<Publication>),
    /// Stop the data movements of an attempt and throw their results away.
    Discard(Attempt),
    /// Install a decided outcome with what an attempt brought, drop every other attempt, and
    /// release whoever waits for it.
    Apply {
        /// Whose data.
        attempt: Attempt,
        /// What was decided.
        outcome: Outcome,
        /// The members of the view that the round began with, ascending.
        members: Arc<[Member]>,
        /// The history that the round began in; another one than the outcome's where it forked.
        began_in: Lineage,
        /// How it was decided, if this node led.
        votes: Option<Votes>,
        /// The outcome leaves this node out: it has handed over and may end.
        drained: bool,
    },
    /// Release whoever waits with an error; nothing was changed.
    Fail(RoundError),
    /// A round was decided whose data this node does not hold: it must join again.
    MustRejoin,
    /// The answer to [`In::Resign`]: whether this node belongs to no view now, and its decided
    /// state is void. Otherwise it keeps to the founding that it was to give up.
    Resigned(bool),
    /// This node has returned to the history that it stood in before it resigned.
    Stands(MemberState),
    /// Why no round is decided now and what would release it; `None`: nothing is in the way.
    Waiting(Option<String>),
}

/// What a coordinator needs to know at its start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// This node.
    pub identity: Identity,
    /// `R`: replicas of a shard beside its owner.
    pub replicas: usize,
    /// Whether the outer optimizer keeps anchor and momentum in shards.
    pub keeps_state: bool,
    /// Where a history that this node founds comes from, as it says who leads the founding.
    pub origin: Origin,
    /// Whether a founding goes on from a checkpoint: owners read the slow momentum of their shards
    /// and hand it to the other holders.
    pub restores: bool,
    /// Whether a joiner gets a copy of a member's buffers of the base optimizer, and what rounds do
    /// to those.
    pub copies_buffers: Option<BufferStrategy>,
    /// Whether the gossip graph stands on an order of the members by measured rates.
    pub orders_by_rate: bool,
    /// Who may decide.
    pub quorum: Quorum,
    /// What happens when the quorum is lost.
    pub on_quorum_loss: OnQuorumLoss,
    /// How long survivors wait without a quorum before they go on in a history of their own.
    pub fork_after: Span,
    /// What happens when all holders of a shard are lost.
    pub on_momentum_loss: OnMomentumLoss,
    /// How long a round waits for a live member that does not contribute, after the first
    /// contribution.
    pub grace: Span,
    /// How long a round of live members may take before it is given up.
    pub round_timeout: Span,
    /// How often a member that waits for a round asks its leader what became of it.
    pub ask_again: Span,
}

#[cfg(any(test, feature = "testing"))]
impl Settings {
    /// What most nodes of simulations and tests have in common.
    #[must_use]
    pub fn simulated(identity: Identity) -> Self {
        Self {
            identity,
            replicas: 1,
            keeps_state: true,
            origin: Origin::default(),
            restores: false,
            copies_buffers: None,
            orders_by_rate: false,
            quorum: Quorum::Majority,
            on_quorum_loss: OnQuorumLoss::Wait,
            fork_after: Span::from_millis(4_000),
            on_momentum_loss: OnMomentumLoss::Reset,
            grace: Span::from_millis(60_000),
            round_timeout: Span::from_millis(300_000),
            ask_again: ASK_AGAIN_EVERY,
        }
    }
}
