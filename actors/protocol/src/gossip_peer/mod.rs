//! Synchronous push-sum gossip as a state machine: step `k` ends when the messages of this step's in-peers are mixed in.
//!
//! ```text
//!   node i                                     out-peer j
//!     │ (x_i, w_i)·1/(d+1)  (bulk stream)          │
//!     ├───────────────────────────────────────────►│ mixes it into x_j, w_j
//!     │◄────────────────────────────── GossipMixed ┤
//!   the mass leaves escrow
//! ```
//!
//! A peer that dies, or keeps a gossip waiting longer than the grace, is done without: what it sent is not mixed, what was meant
//! for it and did not leave stays here, values and weight alike. So no mass is ever made; what a dead peer had mixed is gone
//! with it. The next exact average makes every weight 1 again.

use crate::ident::{Ballot, Epoch, Lineage, NodeId, Round, Step};
use crate::machine::{Identity, Machine, Outbox, Place};
use crate::push_sum::{Escrow, Split, split};
use crate::time::{Instant, Span};
use crate::topology::{Exponential, Topology};
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
        /// How many gossips the schedule has before it.
        turn: u64,
        /// The round it works towards.
        round: Round,
        /// The node's push-sum weight.
        weight: f64,
    },
    /// Every in-peer's message was mixed or given up, and every own message is handed to the transport or failed.
    Mixed {
        /// The inner step.
        step: Step,
        /// The senders with the weight each sent, ascending; only those whose whole message came.
        arrived: Vec<(NodeId, f64)>,
        /// Out-peers that could not be sent to: their share stayed here.
        returned: Vec<NodeId>,
    },
    /// The view of the next round is another one.
    View {
        /// Its members.
        view: View,
        /// The model history.
        lineage: Lineage,
        /// The next round.
        round: Round,
    },
    /// A control frame about gossip arrived.
    Frame {
        /// Who, where in history.
        header: Header,
        /// What.
        message: Box<Message>,
    },
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
    /// Wait no longer for the messages of these in-peers, unless they have begun to arrive.
    GiveUp {
        /// The inner step.
        step: Step,
        /// The round being worked towards.
        round: Round,
        /// Whose.
        nodes: Vec<NodeId>,
    },
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

/// How long a gossip peer waits.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// For an in-peer's message to begin.
    pub message: Span,
    /// When leaving, for what was sent to be mixed.
    pub leave: Span,
}

/// The gossip peer of one node.
#[derive(Clone, Debug)]
pub struct GossipPeer {
    identity: Identity,
    lineage: Lineage,
    epoch: Epoch,
    members: Vec<NodeId>,
    graph: Exponential,
    waits: Waits,
    peers_per_step: u32,
    escrow: Escrow,
    /// The gossip under way, and when its in-peers are given up.
    current: Option<(Plan, Option<Instant>)>,
    round: Round,
    lost: BTreeSet<NodeId>,
    leave_by: Option<Instant>,
}

impl Machine for GossipPeer {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        match event {
            In::Gossip { step, turn, round, weight } => self.gossip(step, turn, round, weight, now, out),
            In::Mixed { step, arrived, returned } => self.mixed(step, &arrived, &returned, out),
            In::View { view, lineage, round } => self.enter(&view, lineage, round, out),
            In::Frame { header, message } => self.receive(&header, &message, out),
            In::MemberLost(node) => self.member_lost(node, out),
            In::MemberBack(node) => _ = self.lost.remove(&node),
            In::Leave(round) => self.leave(round, now, out),
            In::Tick => self.tick(now, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.current.as_ref().and_then(|(_, deadline)| *deadline).into_iter().chain(self.leave_by).min()
    }
}

impl GossipPeer {
    /// The gossip peer of a member of `view`.
    #[must_use]
    pub fn new(identity: Identity, lineage: Lineage, view: &View, peers_per_step: u32, waits: Waits) -> Self {
        Self {
            identity,
            lineage,
            epoch: view.epoch(),
            members: view.ids().collect(),
            graph: Exponential::new(view.size(), peers_per_step),
            waits,
            peers_per_step,
            escrow: Escrow::default(),
            current: None,
            round: Round::FOUNDING,
            lost: BTreeSet::new(),
            leave_by: None,
        }
    }

    /// Goes over to another view. The exact average that changed it made every weight 1; what was in escrow is in it, or lost.
    fn enter(&mut self, view: &View, lineage: Lineage, round: Round, out: &mut Outbox<Effect>) {
        let fresh = Self::new(self.identity, lineage, view, self.peers_per_step, self.waits);
        *self = Self { round, leave_by: self.leave_by, ..fresh };
        self.left_when_acknowledged(out);
    }

    /// Whether a gossip stream of this header is of no round that is over, and of this view, or of a later one that this node
    /// has not heard of yet. A peer may be several rounds ahead of this machine, which hears of rounds only when it gossips.
    #[must_use]
    pub fn admits(&self, header: &Header) -> bool {
        header.round >= self.round && (self.is_of_view(header) || header.epoch > self.epoch)
    }

    /// Push-sum weight that was sent and not acknowledged yet.
    #[must_use]
    pub fn escrowed(&self) -> f64 {
        self.escrow.total()
    }

    fn gossip(&mut self, step: Step, turn: u64, round: Round, weight: f64, now: Instant, out: &mut Outbox<Effect>) {
        self.go_to(round);
        let peers = self.graph.peers(&self.members, self.identity.node, turn);
        let living = |peers: Vec<NodeId>| peers.into_iter().filter(|peer| !self.lost.contains(peer)).collect::<Vec<_>>();
        let (to, inward) = (living(peers.out), living(peers.inward));
        let split = split(weight, to.len());
        for to in &to {
            self.escrow.deposit(*to, step, split.share);
        }
        let place = Place { lineage: self.lineage, epoch: self.epoch, round, ballot: Ballot::default() };
        let plan = Plan { step, place, out: to, inward, split };
        self.current = Some((plan.clone(), Some(now.after(self.waits.message))));
        out.push(Effect::Exchange(plan));
    }

    /// A decided round makes every weight 1: what was in escrow before it is in it, or lost, and nobody waits for it.
    fn go_to(&mut self, round: Round) {
        if round > self.round {
            (self.round, self.escrow) = (round, Escrow::default());
        }
    }

    fn mixed(&mut self, step: Step, arrived: &[(NodeId, f64)], returned: &[NodeId], out: &mut Outbox<Effect>) {
        let Some((plan, _)) = self.current.take_if(|(plan, _)| plan.step == step) else { return };
        let kept = plan.split.kept + plan.split.share * returned.len() as f64;
        let weight = arrived.iter().fold(kept, |sum, (_, weight)| sum + weight);
        for to in returned {
            self.escrow.release(*to, step);
        }
        for (from, _) in arrived {
            let frame = self.identity.frame(plan.place, Message::GossipMixed { step });
            out.push(Effect::Send { to: *from, frame });
        }
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
        let current = self.current.as_ref().filter(|(plan, _)| plan.inward.contains(&node));
        if let Some((plan, _)) = current {
            out.push(Effect::GiveUp { step: plan.step, round: plan.place.round, nodes: vec![node] });
        }
    }

    /// The node's last messages may still be under way to peers that are behind: it stays until they were mixed.
    fn leave(&mut self, round: Round, now: Instant, out: &mut Outbox<Effect>) {
        self.go_to(round);
        self.leave_by = Some(now.after(self.waits.leave));
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
        let Some((plan, deadline)) = &mut self.current else { return };
        if deadline.take_if(|deadline| now >= *deadline).is_some() {
            out.push(Effect::GiveUp { step: plan.step, round: plan.place.round, nodes: plan.inward.clone() });
        }
    }
}

#[cfg(test)]
mod tests;
