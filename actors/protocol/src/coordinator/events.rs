//! Events, effects and settings of the coordinator.

use super::error::RoundError;
use super::outcome::{Origin, Outcome, RoundSpec};
use super::plan::{Attempt, Plan, Publication};
use super::voters::Votes;
use crate::algorithm::BufferStrategy;
use crate::changeable::SettingValues;
use crate::checkpoint::Points;
use crate::ident::{Epoch, Incarnation, Lineage, NodeId, Round, Step};
use crate::machine::Identity;
use crate::policy::{OnMomentumLoss, OnQuorumLoss, Quorum};
use crate::published::Signed;
use crate::sampler::Progress;
use crate::sound::Unsound;
use crate::time::{Instant, Span};
use crate::topology::Rate;
use crate::view::{Member, View};
use crate::wire::{Frame, Header, MemberState, Message};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Interval at which a member that waits for a round asks its leader for the result, in real
/// deployments.
pub const ASK_AGAIN_EVERY: Span = Span::from_millis(1_500);

/// Events the coordinator handles.
#[derive(Clone, Debug)]
pub enum In {
    /// The bootstrap view is formed.
    Formed {
        /// The bootstrap view.
        view: View,
        /// The new model history.
        lineage: Lineage,
    },
    /// This node froze its contribution.
    Contribute {
        /// The round that the node works towards. A contribution to a round other than the
        /// coordinator's is late and changes nothing.
        round: Round,
        /// The spec that the node expects of the round.
        spec: RoundSpec,
        /// Samples that were left when the round began, if the training follows an elastic sampler.
        samples: Option<Progress>,
        /// Measured rates at which this node's messages reached others, if the gossip graph is
        /// built on them.
        rates: Vec<Rate>,
        /// Number of values in the base optimizer's buffers of which a joiner may get a copy; the
        /// same on every node.
        buffers: u64,
    },
    /// A control frame about rounds arrived. The signatures that it carries are sound.
    Frame {
        /// Header of the frame: the sender and its place in history.
        header: Header,
        /// Content of the frame.
        message: Box<Message>,
    },
    /// This node's own shards are averaged, signed, and handed to the transport.
    Reduced(Attempt, Signed),
    /// All parameters that an owner publishes arrived, with its signature, which is sound.
    ParametersHeld(Attempt, NodeId, Signed),
    /// All state that a node moves to this one arrived.
    StateHeld(Attempt, NodeId),
    /// The base optimizer's buffers arrived from the node that sends them.
    BuffersHeld(Attempt, NodeId),
    /// A contributor expects a different spec of the round than this node.
    SpecsDiffer(Attempt, NodeId, RoundSpec),
    /// A stream to or from a node failed while the node seems alive.
    StreamBroken(Attempt, NodeId),
    /// A node sent values or a weight in this attempt that no correct node sends. It counts as a
    /// node that this one cannot reach, for as long as it runs.
    Unsound(Attempt, NodeId),
    /// A node sent such values in a message of no attempt. It counts as unreachable likewise.
    Distrust(NodeId),
    /// This node's own shards cannot be published: their average or slow step overflows at this
    /// element, though all contributions are sound.
    Overflowed(Attempt, u64),
    /// A node is dead.
    Lost {
        /// The dead node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Whether its process is known to have ended: it said goodbye, its port refuses
        /// connections, its launcher saw it end, or a later incarnation of it proved itself.
        /// Otherwise it is silent, and may live.
        ended: bool,
    },
    /// A node that was thought dead is alive.
    Back(NodeId),
    /// A node can be sent to (again): messages that it may have missed are sent again.
    PeerUp(NodeId),
    /// The connections to a peer are gone. It may be alive.
    PeerDown(NodeId),
    /// All nodes heard only indirectly: others report that they live, and this node itself has not
    /// heard them for a while.
    Unheard(BTreeSet<NodeId>),
    /// The nodes that are ready to be admitted by the members of the view with this epoch and can
    /// reach all of these. Replaces the previous list. A list for a view other than the round's
    /// changes nothing.
    Joiners {
        /// Epoch of the view whose members they can reach.
        epoch: Epoch,
        /// The nodes that are ready to be admitted.
        members: Vec<Member>,
    },
    /// A node asks to be admitted, perhaps again: it was a member in its own eyes since it asked
    /// before.
    JoinAsked(NodeId),
    /// A member leaves, this node included.
    Leaving {
        /// The node that leaves.
        node: NodeId,
        /// Its incarnation; a later one under the same id stays.
        incarnation: Incarnation,
        /// Whether its training threads still contribute to the next round.
        contributes: bool,
    },
    /// This node gives up its place and belongs to no view until it is admitted again, or forms
    /// one. Answered with [`Effect::Resigned`].
    Resign(GivesUp),
    /// The history that was to admit this node is deserted. A node that was in another history
    /// takes its place there again, which is answered with [`Effect::Stands`]. Among survivors, a
    /// joiner that holds the entry which admits it continues with that entry.
    Return {
        /// Whether all members of the deserted history are known to have ended.
        ended: bool,
    },
    /// An operator orders this history to continue without a quorum: see
    /// [`super::Coordinator::recovery`].
    Recover(Lineage),
    /// This node's training takes the result of a round, which was decided while it did not wait.
    TrainingGoesOn,
    /// This node asks for a checkpoint of the state after the next round that allows one.
    AskCheckpoint,
    /// This node asks for other values of settings from the next entry on.
    AskSettings(SettingValues),
    /// Time passed.
    Tick,
}

/// Role that a node gives up when it resigns; determines whether it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivesUp {
    /// Its membership: the others continued without it.
    Membership,
    /// A bootstrap, for a history that is decided, or because nobody can decide it any more.
    /// Refused if its own bootstrap is decided.
    ForDecided,
    /// A bootstrap, for another one. Refused if its own bootstrap is decided, or if this node was
    /// ready or voted for it, so that no node helps to decide two.
    ForBootstrap,
}

/// Effects that the coordinator requests from its shell.
#[derive(Clone, Debug, PartialEq)]
// The large variant occurs once a round.
#[allow(clippy::large_enum_variant)]
pub enum Effect {
    /// Send a control frame.
    Send {
        /// Receiver of the frame.
        to: NodeId,
        /// The frame.
        frame: Frame,
    },
    /// Start the reduction of an attempt. Earlier attempts stay until they are discarded.
    Open(Arc<Plan>),
    /// The receivers of an attempt under way are known: averaged values may be published, and state
    /// moves.
    Publish(Arc<Publication>),
    /// Stop the data movements of an attempt and throw their results away.
    Discard(Attempt),
    /// Install a decided outcome with the data of an attempt, drop every other attempt, and release
    /// the callers that wait for it.
    Apply {
        /// The attempt whose data is installed.
        attempt: Attempt,
        /// The decided outcome.
        outcome: Outcome,
        /// The members of the view that the round began with, ascending.
        members: Arc<[Member]>,
        /// The history that the round began in; differs from the outcome's if the round forked.
        began_in: Lineage,
        /// Votes that decided the round, if this node led.
        votes: Option<Votes>,
        /// Whether the outcome excludes this node: it has handed over its data and may end.
        drained: bool,
    },
    /// Release the callers that wait, with an error; nothing was changed.
    Fail(RoundError),
    /// Name a node that this one goes on without.
    Unsound(NodeId, Unsound),
    /// A round was decided whose data this node does not hold: it must join again.
    MustRejoin,
    /// The answer to [`In::Resign`]: whether this node belongs to no view now, and its decided
    /// state is void. Otherwise it keeps the bootstrap that it was to give up.
    Resigned(bool),
    /// This node has returned to the history that it was in before it resigned.
    Stands(MemberState),
    /// Reason why no round can be decided, and what would change that. `None` while a quorum lives,
    /// also if the round waits for a straggler.
    Waiting(Option<String>),
    /// Members that live and contributed nothing to the last round. Pushed when that changes.
    Stragglers(Vec<Straggler>),
    /// Whether a round may soon make a checkpoint beside the schedule: a member asked for one, or
    /// this node leaves.
    CheckpointAsked(bool),
    /// Another member ordered something of all nodes. Pushed once for each order.
    Ordered(NodeId, MemberOrder),
}

/// An order that any member may give to all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberOrder {
    /// A checkpoint beside the schedule.
    Checkpoint,
    /// Other values of settings.
    Settings(SettingValues),
}

/// A member that lives and contributed nothing to the last round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Straggler {
    /// The member.
    pub node: NodeId,
    /// Number of rounds in a row to which it did not contribute.
    pub missed: u32,
    /// The inner step that its training had not finished when it was last heard of: that of the
    /// first round that it missed, or the one from which it goes on.
    pub step: Step,
    /// When the first of these rounds was decided.
    pub since: Instant,
    /// Whether the round under way waits for it.
    pub is_waited_for: bool,
}

/// How long a round waits for a live straggler: `grace`, and at most half of the round's time, so
/// that enough is left to complete the round without it.
#[must_use]
pub fn capped_grace(grace: Span, round_timeout: Span) -> Span {
    Span(grace.0.min(round_timeout.0 / 2))
}

/// Settings of a coordinator, given at its start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Identity of this node.
    pub identity: Identity,
    /// `R`: number of replicas of a shard besides its owner.
    pub replicas: usize,
    /// Whether the outer optimizer keeps anchor and momentum in shards.
    pub keeps_state: bool,
    /// Source of a history that this node bootstraps; the value of the node that leads the
    /// bootstrap is decided.
    pub origin: Origin,
    /// Whether a bootstrap continues from a checkpoint: owners read the slow momentum of their
    /// shards and send it to the other holders.
    pub restores: bool,
    /// Set if a joiner gets a copy of a member's base-optimizer buffers; says what rounds do to
    /// these buffers.
    pub copies_buffers: Option<BufferStrategy>,
    /// Whether the gossip graph is built on an order of the members by measured rates.
    pub orders_by_rate: bool,
    /// The group of voters that may decide.
    pub quorum: Quorum,
    /// Reaction to the loss of the quorum.
    pub on_quorum_loss: OnQuorumLoss,
    /// Time that survivors wait without a quorum before they continue in a history of their own.
    pub fork_after: Span,
    /// Reaction to the loss of all holders of a shard.
    pub on_momentum_loss: OnMomentumLoss,
    /// Time that a round waits for a live member that does not contribute, after the first
    /// contribution.
    pub grace: Span,
    /// Time that a round of live members may take before it is given up.
    pub round_timeout: Span,
    /// Interval at which a member that waits for a round asks its leader for the result.
    pub ask_again: Span,
    /// Time for which a member that was told a decision waits for the votes of all living voters,
    /// which show whether the leader had two entries voted for. Zero: it believes what one node
    /// says.
    pub votes_wait: Span,
    /// The rounds after which the state can be checkpointed; `None` if it never can, or no node
    /// has a folder for it.
    pub checkpoints: Option<Points>,
}

#[cfg(any(test, feature = "testing"))]
impl Settings {
    /// Settings that most nodes of simulations and tests have in common.
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
            votes_wait: Span(0),
            checkpoints: None,
        }
    }
}
