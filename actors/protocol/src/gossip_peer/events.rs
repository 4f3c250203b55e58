//! Events and effects of the gossip peer.

use crate::ident::{Lineage, NodeId, Round, Step};
use crate::machine::Place;
use crate::push_sum::Split;
use crate::time::{Instant, Span};
use crate::view::View;
use crate::wire::{Frame, Header, Message};
use std::collections::BTreeSet;

/// Identifies a gossip message at its receiver: the round it belongs to, the sender's inner step,
/// the sender.
pub type Key = (Round, Step, NodeId);

/// Identifies a gossip message at its sender: the receiver and the sender's inner step.
pub type Sent = (NodeId, Step);

/// Events that the gossip peer handles.
#[derive(Clone, Debug)]
pub enum In {
    /// This node finished an inner step and gossips.
    Gossip {
        /// The inner step.
        step: Step,
        /// Number of gossips that the schedule has before it.
        turn: u64,
        /// The round it works towards.
        round: Round,
    },
    /// This node finished the inner step of an exact average: it must flush, so that all in-flight
    /// mass is in the average.
    Settle {
        /// The inner step.
        step: Step,
        /// The round it works towards.
        round: Round,
    },
    /// The training thread's values were not finite: nothing of this step was sent.
    Withheld(Step),
    /// A gossip stream with this header begins.
    Offered {
        /// Sender and position in history.
        header: Header,
        /// The sender's inner step.
        step: Step,
        /// The push-sum weight that comes with it.
        weight: f64,
    },
    /// An incoming message has been received completely.
    Arrived(Key),
    /// An incoming message broke off, or does not match its header.
    Broken(Key),
    /// A message of this node was handed to the transport completely.
    Sent(Sent),
    /// A message of this node could not be sent completely; it may have arrived nevertheless.
    SendFailed(Sent),
    /// The next round has a different view.
    View {
        /// The view.
        view: View,
        /// The model history.
        lineage: Lineage,
        /// The next round.
        round: Round,
        /// The decided order of its members for the bandwidth-aware graph.
        order: Vec<NodeId>,
    },
    /// A round was decided without a change of view; this is the next round. Messages sent in it by
    /// others are answered from now on, even while this node still computes.
    Round(Round),
    /// A control frame about gossip arrived.
    Frame {
        /// Sender and position in history.
        header: Header,
        /// The message.
        message: Box<Message>,
    },
    /// The members suspected from now on: they may be dead. Nothing is sent to them; their messages
    /// are awaited as long as they are members.
    Suspects(BTreeSet<NodeId>),
    /// A member is dead.
    MemberLost(NodeId),
    /// A member that was declared dead is alive, in the same view.
    MemberBack(NodeId),
    /// This node leaves while working towards this round.
    Leave(Round),
    /// Time passed.
    Tick,
}

/// Effects that the gossip peer asks its shell to execute.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Read the stream of this message.
    Receive(Key),
    /// Drop this message, whether it was read or not; of several copies the latest one.
    Drop(Key),
    /// Mix in received messages and mass that was taken back.
    Mix(Mix),
    /// Send a part of the numerators as they are after the preceding mix, with the movement of the
    /// step (see [`Mix`]). In synchronous gossip: as the training thread left them.
    Ship(Plan),
    /// The receiver has the message: its values need no longer be kept.
    Forget(Sent),
    /// Send a control frame.
    Send {
        /// Receiver of the frame.
        to: NodeId,
        /// The frame.
        frame: Frame,
    },
    /// These peers are later than the staleness bound: this node goes on without them until they
    /// are in time again.
    Late(Vec<NodeId>),
    /// Every message of this node has arrived or can no longer arrive: the node may leave.
    Left,
}

/// One mix: `x = own·z + stays·Δ + Σ scale·y`, where `z` is the de-biased model before the inner
/// step, and `Δ` the movement of the model in that step. In synchronous gossip and before an exact
/// average, all of the movement stays: `stays = 1`.
///
/// In overlapped gossip, if messages share the movement, `stays = min(own, 1)`: the model becomes
/// the mean of its value `z + Δ` and of the received messages, by their push-sum weights, and the
/// rest of the movement goes with the messages of the same step (see [`Plan::goes`]). The movement
/// is thus distributed as in synchronous gossip, and a node of little weight does not move its
/// model by more than it learnt. If all of it stayed until the next gossip, the replicas would be
/// further apart, and learn less.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// The round that the node works towards.
    pub round: Round,
    /// The inner step.
    pub step: Step,
    /// Purpose of the mix.
    pub purpose: Purpose,
    /// The push-sum weight of this node's own numerators in the mix.
    pub own: f64,
    /// The push-sum weight after the mix.
    pub weight: f64,
    /// Whether messages of the same step take a part of the movement; otherwise all of it stays,
    /// and has the factor `1/w` in the model.
    pub shared: bool,
    /// The received messages that are mixed, ascending by step and sender.
    pub arrivals: Vec<Key>,
    /// Messages of this node whose mass was taken back, ascending.
    pub returned: Vec<Sent>,
    /// The inner step of this node's peers, if it is so late that they go on without it.
    pub behind: Option<Step>,
}

/// Purpose of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A gossip.
    Gossip,
    /// An exact average: no more messages are accepted before it.
    Average,
}

/// The messages that one gossip sends.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The inner step.
    pub step: Step,
    /// Position in history of its streams.
    pub place: Place,
    /// Receivers, ascending.
    pub out: Vec<NodeId>,
    /// Split of the mass.
    pub split: Split,
}

impl Plan {
    /// Factor of the step's movement `Δ` in the sent values: each message is the receiver's part of
    /// `x + goes·Δ`, and together they carry all movement that does not stay: `d·scale·goes = 1 −
    /// stays`. Never negative.
    #[must_use]
    pub fn goes(&self, stays: f32) -> f32 {
        (1.0 - stays) / self.given()
    }

    /// The part of the mass that is given away, `d·scale`.
    #[must_use]
    pub fn given(&self) -> f32 {
        self.out.len() as f32 * self.split.scale
    }
}

/// A peer that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Straggler {
    /// The peer.
    pub node: NodeId,
    /// Number of inner steps that it is behind, as far as this node has heard.
    pub steps: u64,
    /// Time since which this node waits for it, or skips it.
    pub since: Instant,
    /// Whether this node goes on without it.
    pub skipped: bool,
}

/// Maximum waiting times of a gossip peer.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// Wait for messages that are later than the staleness bound.
    pub message: Span,
    /// Wait for answers before an exact average. Must be clearly shorter than the round's wait for
    /// contributions, or this node's contribution is not in the round.
    pub settle: Span,
    /// Wait of a leaving node for its messages to arrive.
    pub leave: Span,
}
