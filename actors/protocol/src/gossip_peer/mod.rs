//! Synchronous push-sum gossip as a state machine: step `k` ends when the messages of this step's in-peers are mixed in.
//!
//! ```text
//!   node i                                     out-peer j
//!     │ (x_i, w_i)·1/(d+1)  (bulk stream)          │
//!     ├───────────────────────────────────────────►│ mixes it into x_j, w_j
//!     │◄────────────────────────────── GossipMixed ┤
//!   the mass leaves escrow
//! ```

use crate::ident::{Ballot, Epoch, Lineage, NodeId, Nodes, Round, Step};
use crate::machine::{Identity, Machine, Outbox, Place};
use crate::push_sum::{Escrow, Split, split};
use crate::time::{Instant, Span};
use crate::topology::Exponential;
use crate::view::View;
use crate::wire::{Frame, Header, Message};
use std::collections::BTreeSet;

/// What happens to the gossip peer.
#[derive(Clone, Debug)]
pub enum In {
    /// This node finished an inner step and gossips.
    Gossip {
        /// The inner step.
        step: Step,
        /// The round it works towards.
        round: Round,
        /// The node's push-sum weight.
        weight: f64,
    },
    /// Every in-peer's message was mixed and every own message is handed to the transport.
    Mixed {
        /// The inner step.
        step: Step,
        /// The senders with the weight each sent, ascending.
        arrived: Vec<(NodeId, f64)>,
    },
    /// A gossip stream to or from a member failed.
    StreamBroken(Step, NodeId),
    /// A control frame about gossip arrived.
    Frame {
        /// Who, where in history.
        header: Header,
        /// What.
        message: Message,
    },
    /// A member is gone.
    MemberLost(NodeId),
    /// This node leaves.
    Leave,
    /// Time passed.
    Tick,
}

/// What the gossip peer asks its shell for.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Stream the frozen numerator to the out-peers and mix what the in-peers send.
    Exchange(Plan),
    /// Send a control frame.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        frame: Frame,
    },
    /// The gossip is complete.
    Done {
        /// The inner step.
        step: Step,
        /// The node's push-sum weight now.
        weight: f64,
        /// Nodes whose values were mixed, this one included.
        contributors: usize,
    },
    /// The gossip failed; the node's numerator and weight are what they were.
    Fail(GossipError),
    /// Everything that this node sent was mixed or can no longer be: the node may leave.
    Left,
}

/// One gossip's data movements as one node sees them.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The inner step.
    pub step: Step,
    /// The place of its streams.
    pub place: Place,
    /// Whom to send to, ascending.
    pub out: Vec<NodeId>,
    /// Whom to receive from, ascending.
    pub inward: Vec<NodeId>,
    /// How the mass is split.
    pub split: Split,
}

/// Why a gossip failed. The node's numerator and push-sum weight are what they were before it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GossipError {
    /// A member of the fixed view is gone.
    #[error("the gossip of {step} cannot complete: {node} is gone; restart the run on the remaining nodes")]
    MemberLost {
        /// The inner step.
        step: Step,
        /// Who.
        node: NodeId,
    },
    /// A stream to or from a live member failed.
    #[error("the gossip of {step} failed: a stream to or from {node} broke; see that node's log")]
    StreamBroken {
        /// The inner step.
        step: Step,
        /// The other end.
        node: NodeId,
    },
    /// The gossip took longer than allowed.
    #[error("the gossip of {step} was given up after {} s, waiting for {}; see those nodes' logs, or raise round_timeout_ms", after.as_millis() / 1000, Nodes(waiting_for))]
    TimedOut {
        /// The inner step.
        step: Step,
        /// The bound that passed.
        after: Span,
        /// Whose message may be missing.
        waiting_for: Vec<NodeId>,
    },
}

/// The gossip peer of one node.
#[derive(Clone, Debug)]
pub struct GossipPeer {
    identity: Identity,
    lineage: Lineage,
    epoch: Epoch,
    members: Vec<NodeId>,
    graph: Exponential,
    timeout: Span,
    escrow: Escrow,
    current: Option<(Plan, Instant)>,
    round: Round,
    lost: BTreeSet<NodeId>,
    failed: Option<GossipError>,
    leave_by: Option<Instant>,
}

impl Machine for GossipPeer {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        match event {
            In::Gossip { step, round, weight } => self.gossip(step, round, weight, now, out),
            In::Mixed { step, arrived } => self.mixed(step, &arrived, out),
            In::StreamBroken(step, node) => self.fail_current(step, GossipError::StreamBroken { step, node }, out),
            In::Frame { header, message } => self.receive(&header, &message, out),
            In::MemberLost(node) => self.member_lost(node, out),
            In::Leave => self.leave(now, out),
            In::Tick => self.tick(now, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.current.as_ref().map(|(_, deadline)| *deadline).into_iter().chain(self.leave_by).min()
    }
}

impl GossipPeer {
    /// The gossip peer of a member of `view`, its cursor at the start.
    #[must_use]
    pub fn new(identity: Identity, lineage: Lineage, view: &View, peers_per_step: u32, timeout: Span) -> Self {
        Self {
            identity,
            lineage,
            epoch: view.epoch(),
            members: view.ids().collect(),
            graph: Exponential::new(view.size(), peers_per_step),
            timeout,
            escrow: Escrow::default(),
            current: None,
            round: Round::FOUNDING,
            lost: BTreeSet::new(),
            failed: None,
            leave_by: None,
        }
    }

    /// Whether a gossip stream of this header is of this view and of no round that is over. A peer may be several rounds ahead
    /// of this machine, which hears of rounds only when it gossips.
    #[must_use]
    pub fn admits(&self, header: &Header) -> bool {
        header.round >= self.round && self.is_of_view(header)
    }

    /// Push-sum weight that was sent and not acknowledged yet.
    #[must_use]
    pub fn escrowed(&self) -> f64 {
        self.escrow.total()
    }

    fn gossip(&mut self, step: Step, round: Round, weight: f64, now: Instant, out: &mut Outbox<Effect>) {
        if let Some(error) = &self.failed {
            return out.push(Effect::Fail(error.clone()));
        }
        self.round = round;
        let peers = self.graph.peers(&self.members, self.identity.node);
        if let Some(node) = peers.out.iter().chain(&peers.inward).find(|peer| self.lost.contains(peer)) {
            return self.fail(GossipError::MemberLost { step, node: *node }, out);
        }
        let split = split(weight, peers.out.len());
        for to in &peers.out {
            self.escrow.deposit(*to, step, split.share);
        }
        let place = Place { lineage: self.lineage, epoch: self.epoch, round, ballot: Ballot::default() };
        let plan = Plan { step, place, out: peers.out, inward: peers.inward, split };
        self.current = Some((plan.clone(), now.after(self.timeout)));
        out.push(Effect::Exchange(plan));
    }

    fn mixed(&mut self, step: Step, arrived: &[(NodeId, f64)], out: &mut Outbox<Effect>) {
        let Some((plan, _)) = self.current.take_if(|(plan, _)| plan.step == step) else { return };
        let weight = arrived.iter().fold(plan.split.kept, |sum, (_, weight)| sum + weight);
        for (from, _) in arrived {
            let frame = self.identity.frame(plan.place, Message::GossipMixed { step });
            out.push(Effect::Send { to: *from, frame });
        }
        self.graph.advance();
        out.push(Effect::Done { step, weight, contributors: arrived.len() + 1 });
    }

    fn receive(&mut self, header: &Header, message: &Message, out: &mut Outbox<Effect>) {
        if let Message::GossipMixed { step } = message
            && self.is_of_view(header)
        {
            self.escrow.release(header.sender, *step);
            self.left_when_acknowledged(out);
        }
    }

    fn is_of_view(&self, header: &Header) -> bool {
        header.lineage == self.lineage && header.epoch == self.epoch && self.members.binary_search(&header.sender).is_ok()
    }

    fn member_lost(&mut self, node: NodeId, out: &mut Outbox<Effect>) {
        if self.members.binary_search(&node).is_err() {
            return;
        }
        self.lost.insert(node);
        self.escrow.reclaim(node);
        self.left_when_acknowledged(out);
        // A node leaves only when all it sent was mixed, so a gossip that has no part in it is not disturbed.
        let concerned = |plan: &Plan| plan.out.contains(&node) || plan.inward.contains(&node);
        if let Some(step) = self.current.as_ref().filter(|(plan, _)| concerned(plan)).map(|(plan, _)| plan.step) {
            self.fail_current(step, GossipError::MemberLost { step, node }, out);
        }
    }

    /// The node's last messages may still be under way to peers that are behind: it stays until they were mixed.
    fn leave(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        self.leave_by = Some(now.after(self.timeout));
        self.left_when_acknowledged(out);
    }

    fn left_when_acknowledged(&mut self, out: &mut Outbox<Effect>) {
        if self.escrow.messages() == 0 && self.leave_by.take().is_some() {
            out.push(Effect::Left);
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        if self.leave_by.take_if(|leave_by| now >= *leave_by).is_some() {
            out.push(Effect::Left);
        }
        let Some((plan, _)) = self.current.as_ref().filter(|(_, deadline)| now >= *deadline) else { return };
        let (step, waiting_for) = (plan.step, plan.inward.clone());
        self.fail_current(step, GossipError::TimedOut { step, after: self.timeout, waiting_for }, out);
    }

    fn fail_current(&mut self, step: Step, error: GossipError, out: &mut Outbox<Effect>) {
        if let Some((plan, _)) = self.current.take_if(|(plan, _)| plan.step == step) {
            // The node's weight is what it was before the gossip, so none of it may stand in escrow too.
            for to in plan.out {
                self.escrow.release(to, step);
            }
            self.fail(error, out);
        }
    }

    /// A failed gossip is not taken up again: some receivers may have mixed what others have not.
    fn fail(&mut self, error: GossipError, out: &mut Outbox<Effect>) {
        self.failed.get_or_insert_with(|| error.clone());
        out.push(Effect::Fail(error));
    }
}

#[cfg(test)]
mod tests;
