//! What happens to the gossip peer, and what it asks its shell for.

use crate::ident::{Lineage, NodeId, Round, Step};
use crate::machine::Place;
use crate::push_sum::Split;
use crate::time::{Instant, Span};
use crate::view::View;
use crate::wire::{Frame, Header, Message};
use std::collections::BTreeSet;

/// Which gossip message, as its receiver knows it: the round it belongs to, the sender's inner
/// step, the sender.
pub type Key = (Round, Step, NodeId);

/// Which gossip message, as its sender knows it: the receiver and the sender's inner step.
pub type Sent = (NodeId, Step);

/// What happens to the gossip peer.
#[derive(Clone, Debug)]
pub enum In {
    /// This node finished an inner step and gossips.
    Gossip {
        /// The inner step.
        step: Step,
        /// How many gossips the schedule has before it.
        turn: u64,
        /// The round it works towards.
        round: Round,
    },
    /// This node finished the inner step of an exact average: what is in flight must be in it.
    Settle {
        /// The inner step.
        step: Step,
        /// The round it works towards.
        round: Round,
    },
    /// The training thread's values were not finite: nothing of this step was sent.
    Withheld(Step),
    /// A gossip stream of this header begins.
    Offered {
        /// Who, where in history.
        header: Header,
        /// The sender's inner step.
        step: Step,
        /// The push-sum weight that comes with it.
        weight: f64,
    },
    /// A message that was to be received is here as a whole.
    Arrived(Key),
    /// A message that was to be received broke off, or is not what it says.
    Broken(Key),
    /// An own message was handed to the transport as a whole.
    Sent(Sent),
    /// An own message could not be sent as a whole; it may have arrived all the same.
    SendFailed(Sent),
    /// The view of the next round is another one.
    View {
        /// Its members.
        view: View,
        /// The model history.
        lineage: Lineage,
        /// The next round.
        round: Round,
        /// Its members in the order that the bandwidth-aware graph stands on, as it was decided.
        order: Vec<NodeId>,
    },
    /// A round was decided that did not change the view; the next one is this. What others send in
    /// it is answered from now on, also while this node still computes.
    Round(Round),
    /// A control frame about gossip arrived.
    Frame {
        /// Who, where in history.
        header: Header,
        /// What.
        message: Box<Message>,
    },
    /// Who is suspected from now on: it may be dead. Nothing is sent to it; what it sends is waited
    /// for as long as it is a member.
    Suspects(BTreeSet<NodeId>),
    /// A member is gone.
    MemberLost(NodeId),
    /// A member that was thought gone is alive, in the same view.
    MemberBack(NodeId),
    /// This node leaves, working towards this round.
    Leave(Round),
    /// Time passed.
    Tick,
}

/// What the gossip peer asks its shell for.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Read the stream of this message.
    Receive(Key),
    /// Drop this message, read or not; of several copies the one that came last.
    Drop(Key),
    /// Fold in what arrived and what was taken back.
    Mix(Mix),
    /// Send a part of the numerators as they are after the mix that came before, with the movement
    /// of the step (see [`Mix`]); synchronous: as the training thread left them.
    Ship(Plan),
    /// The receiver has the message: its values need not be kept any more.
    Forget(Sent),
    /// Send a control frame.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        frame: Frame,
    },
    /// These peers are later than the staleness bound: this node does without them until they are
    /// in time again.
    Late(Vec<NodeId>),
    /// Everything that this node sent has arrived or never can: the node may leave.
    Left,
}

/// One mix: `x = own·z + stays·Δ + Σ scale·y`, where `z` is the de-biased model before the inner
/// step, and `Δ` what that step moved it by. In synchronous gossip and before an exact average, all
/// of the movement stays: `stays = 1`.
///
/// Overlapped, where messages share it, `stays = min(own, 1)`: the model becomes the mean of what
/// it is, `z + Δ`, and of what arrived, by their push-sum weights, and the rest of the movement
/// goes with the messages of the same step (see [`Plan::goes`]). So it is shared out as synchronous
/// gossip does it, and a node of little weight does not move its model by more than it learnt. If
/// all of it stayed until the next gossip, the replicas would be further apart, and learn less.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// The round that it works towards.
    pub round: Round,
    /// The inner step.
    pub step: Step,
    /// What it is for.
    pub purpose: Purpose,
    /// The push-sum weight of this node's own numerators.
    pub own: f64,
    /// The push-sum weight afterwards.
    pub weight: f64,
    /// Whether messages of the same step take a part of its movement; otherwise all of it stays,
    /// and weighs `1/w` in the model.
    pub shared: bool,
    /// The messages that are mixed, ascending by step and sender.
    pub arrivals: Vec<Key>,
    /// Own messages whose mass was taken back, ascending.
    pub returned: Vec<Sent>,
    /// Where this node's peers are, if it is so late that they do without it.
    pub behind: Option<Step>,
}

/// What a mix is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A gossip.
    Gossip,
    /// An exact average: nothing arrives any more before it.
    Average,
}

/// What one gossip sends.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The inner step.
    pub step: Step,
    /// The place of its streams.
    pub place: Place,
    /// Whom to send to, ascending.
    pub out: Vec<NodeId>,
    /// How the mass is split.
    pub split: Split,
}

impl Plan {
    /// How often the step's movement `Δ` is in what is sent: each message is the receiver's part of
    /// `x + goes·Δ`, and all of them bring what does not stay, `d·scale·goes = 1 − stays`. Never
    /// negative.
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
    /// Who.
    pub node: NodeId,
    /// How many inner steps behind, as far as this node has heard.
    pub steps: u64,
    /// Since when it is waited for, or done without.
    pub since: Instant,
    /// Whether it is done without.
    pub skipped: bool,
}

/// How long a gossip peer waits.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// For messages that are later than the staleness bound.
    pub message: Span,
    /// For answers before an exact average: clearly shorter than the round waits for contributions,
    /// or this node's is not in it.
    pub settle: Span,
    /// When leaving, for what was sent to arrive.
    pub leave: Span,
}
