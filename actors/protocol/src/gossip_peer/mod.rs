//! Push-sum gossip as a state machine, synchronous or overlapped with computation.
//!
//! ```text
//!   node i                                     out-peer j
//!     │ (x_i, w_i)·1/(d+1)  (bulk stream)          │
//!     ├───────────────────────────────────────────►│ holds it until its next mix
//!     │◄────────────────────────────── GossipMixed ┤ or GossipRefused: the mass is i's again
//!   the mass leaves escrow
//! ```
//!
//! Synchronous gossip (`staleness` 0): step `k` sends, waits for the messages of step `k`, and
//! mixes them. Overlapped gossip: a step mixes the messages that have arrived, sends, and returns;
//! it waits only if a message is more than `staleness` steps late.
//!
//! **Waiting.** The set of peers that a node waits for is a function of view and step: the members
//! that send to it by the graph. A member that does not send to such a peer (because it takes it
//! for dead, or because it is late) tells it so (`GossipSkipped`), and sends to the next member
//! behind it instead; nobody waits for such a detour. So nodes may disagree on which members are
//! dead.
//!
//! **Mass.** The mass of a message stays in escrow until its receiver holds the message. It comes
//! back if the receiver refuses the message (another history, a closed round, more than `staleness`
//! steps late) or dies. A receiver that was wrongly taken for dead gives up reclaimed mass
//! (`GossipReclaimed`, repeated until it answers). A receiver that does not answer is asked
//! (`GossipAsk`). So Σw over the live members is their number, except for mass that died with its
//! holder. Before an exact average a node flushes (`Settle`): it waits until its escrow is empty,
//! mixes, and refuses later messages, so that all mass is in the average exactly once.

mod escrow;
mod events;
mod inbox;
mod lateness;
mod mixing;
mod receiving;
mod sending;

pub use escrow::ASK_INTERVAL;
pub use events::{Effect, In, Key, Mix, Plan, Purpose, Sent, Straggler, Waits};
pub use inbox::PARKED_MAX;
pub use sending::models_kept_max;

use crate::algorithm::Gossip;
use crate::ident::{Epoch, Incarnation, Lineage, NodeId, Round, Step, Term};
use crate::machine::{Identity, Machine, Outbox, Place};
use crate::planted::{self, Bug};
use crate::time::Instant;
use crate::topology::{self, Topology};
use crate::view::View;
use crate::wire::{Header, Message};
use escrow::Escrow;
use inbox::Inbox;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Current activity of a node.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// The training threads compute.
    Computing,
    /// The training threads wait for the gossip of a step.
    Gossiping {
        step: Step,
        /// The peers that the graph lets this node send to in this step.
        out: Vec<NodeId>,
        since: Instant,
        /// Time at which it goes on without the missing peers.
        until: Instant,
    },
    /// The training threads wait until in-flight messages are mixed (flush).
    Settling { step: Step, until: Instant },
    /// The contribution to the round is frozen: nothing more is mixed before the next round.
    Settled,
}

/// The gossip peer of one node.
#[derive(Clone, Debug)]
pub struct GossipPeer {
    identity: Identity,
    gossip: Gossip,
    waits: Waits,
    lineage: Lineage,
    epoch: Epoch,
    members: Vec<NodeId>,
    /// Incarnation of each member.
    starts: Vec<Incarnation>,
    graph: Arc<dyn Topology>,
    round: Round,
    phase: Phase,
    /// The push-sum weight of this node's own numerators.
    weight: f64,
    /// The step whose mix will include messages that arrive now.
    mixing: Step,
    inbox: Inbox,
    escrow: Escrow,
    lost: BTreeSet<NodeId>,
    /// Members that may be dead.
    suspects: BTreeSet<NodeId>,
    /// Late peers that are skipped: the step and the time at which they were given up.
    late: BTreeMap<NodeId, (Step, Instant)>,
    /// The latest step heard of, by peer.
    reached: BTreeMap<NodeId, Step>,
    /// Weight that was accepted here but reclaimed by its sender, which had taken this node for
    /// dead.
    debt: f64,
    /// The inner step of the peers that refused a message of this node because it is late.
    behind: Option<Step>,
    /// Whether the training threads were told to jump to that step: steps are left out.
    jumps: bool,
    /// The last step whose messages were sent or skipped.
    shipped: Option<Step>,
    /// The last step whose message was sent, by receiver.
    shipped_to: BTreeMap<NodeId, Step>,
    leaving: bool,
    written_off: f64,
    leave_by: Option<Instant>,
}

impl Machine for GossipPeer {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        match event {
            In::Gossip { step, turn, round } => self.gossip(step, turn, round, now, out),
            In::Settle { step, round } => self.settle(step, round, now, out),
            In::Withheld(step) => self.withheld(step, out),
            In::Offered {
                header,
                step,
                weight,
            } => self.offered(&header, step, weight, out),
            In::Arrived(key) => self.arrived(key, out),
            In::Broken(key) => self.broken(key, out),
            In::Sent(sent) => self.escrow.sent(sent, now.after(ASK_INTERVAL)),
            In::SendFailed(sent) => self.send_failed(sent, now, out),
            In::View {
                view,
                lineage,
                round,
                order,
            } => self.enter((&view, lineage, round), &order, out),
            In::Round(round) => {
                self.go_to(round, out);
                self.read_on(out);
            }
            In::Frame { header, message } => self.receive(&header, &message, out),
            In::Suspects(nodes) => self.suspects = nodes,
            In::MemberLost(node) => self.member_lost(node),
            In::MemberBack(node) => self.member_back(node, now, out),
            In::Leave(round) => self.leave(round, now, out),
            In::Tick => self.tick(now, out),
        }
        self.go_on(out);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let until = match &self.phase {
            Phase::Gossiping { until, .. } | Phase::Settling { until, .. } => Some(*until),
            Phase::Computing | Phase::Settled => None,
        };
        until
            .into_iter()
            .chain(self.leave_by)
            .chain(self.escrow.next_ask())
            .min()
    }
}

impl GossipPeer {
    /// The gossip peer of a member of `view`, before its first gossip in `round`.
    #[must_use]
    pub fn new(
        identity: Identity,
        gossip: Gossip,
        waits: Waits,
        (view, lineage, round): (&View, Lineage, Round),
    ) -> Self {
        let members: Vec<_> = view.ids().collect();
        let graph = topology::of(&gossip, &members, &[]);
        Self {
            identity,
            gossip,
            waits,
            lineage,
            epoch: view.epoch(),
            members,
            starts: view
                .members()
                .iter()
                .map(|member| member.incarnation)
                .collect(),
            graph,
            round,
            phase: Phase::Computing,
            weight: 1.0,
            mixing: Step(0),
            inbox: Inbox::default(),
            escrow: Escrow::default(),
            lost: BTreeSet::new(),
            suspects: BTreeSet::new(),
            late: BTreeMap::new(),
            reached: BTreeMap::new(),
            debt: 0.0,
            behind: None,
            jumps: false,
            shipped: None,
            shipped_to: BTreeMap::new(),
            leaving: false,
            written_off: 0.0,
            leave_by: None,
        }
        .reading()
    }

    /// Sets the number of messages read ahead, which depends on the number of peers in the graph.
    fn reading(mut self) -> Self {
        let Gossip {
            peers_per_step,
            staleness,
            ..
        } = self.gossip;
        self.inbox.reads_max =
            2 * self.graph.peers_max().max(peers_per_step as usize) * (staleness as usize + 1) + 2;
        self
    }

    /// The same gossip peer, with the decided order of the members; an order that does not name
    /// each member once stands for ascending ids.
    #[must_use]
    pub fn ordered(mut self, order: &[NodeId]) -> Self {
        self.graph = topology::of(&self.gossip, &self.members, order);
        self
    }

    /// Push-sum weight that this node answers for: of its own numerators, of messages held for the
    /// next mix, and in escrow.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.weight + self.inbox.held_weight() - self.debt + self.escrow.total()
    }

    /// The push-sum weight of its own numerators alone.
    #[must_use]
    pub fn own_weight(&self) -> f64 {
        self.weight
    }

    /// The part of the weight that this node answers for which is in escrow.
    #[must_use]
    pub fn escrowed(&self) -> f64 {
        self.escrow.total()
    }

    /// Whether a message to this peer is in escrow.
    #[must_use]
    pub fn awaits_answer(&self, sent: Sent) -> bool {
        self.escrow.is_open(sent)
    }

    /// Waits so long from the next wait on.
    pub fn wait(&mut self, waits: Waits) {
        self.waits = waits;
    }

    /// Whether a member is taken for dead.
    #[must_use]
    pub fn is_lost(&self, node: NodeId) -> bool {
        self.lost.contains(&node)
    }

    /// Weight of messages without an answer when a round closed; it is in the average twice, or not
    /// at all.
    #[must_use]
    pub fn written_off(&self) -> f64 {
        self.written_off
    }

    /// The step whose mix will include messages that arrive now.
    #[must_use]
    pub fn step(&self) -> Step {
        self.mixing
    }

    /// Switches to another view. The exact average that changed it made every weight 1.
    fn enter(
        &mut self,
        (view, lineage, round): (&View, Lineage, Round),
        order: &[NodeId],
        out: &mut Outbox<Effect>,
    ) {
        self.begin(round, out);
        let fresh = Self::new(
            self.identity,
            self.gossip,
            self.waits,
            (view, lineage, round),
        )
        .ordered(order);
        let mut inbox = std::mem::take(&mut self.inbox);
        let mut lost = std::mem::take(&mut self.lost);
        let suspects = std::mem::take(&mut self.suspects);
        // The loss of a member may be known before the round that removes it; a new incarnation of
        // it is not lost.
        lost.retain(|node| {
            fresh
                .start_of(*node)
                .is_some_and(|start| self.start_of(*node) == Some(start))
        });
        inbox.reads_max = fresh.inbox.reads_max;
        let mut reached = std::mem::take(&mut self.reached);
        let mut mixing = self.mixing;
        reached.retain(|node, _| {
            fresh
                .start_of(*node)
                .is_some_and(|start| self.start_of(*node) == Some(start))
        });
        if lineage != self.lineage {
            // Another history may be at an earlier step.
            reached = BTreeMap::new();
            mixing = Step(0);
            inbox.forget_skips(|_| true);
        }
        inbox.forget_skips(|node| !fresh.is_member(node));
        let Self {
            leave_by,
            leaving,
            written_off,
            ..
        } = *self;
        *self = Self {
            inbox,
            lost,
            suspects,
            reached,
            mixing,
            leave_by,
            leaving,
            written_off,
            ..fresh
        };
        self.refuse_strays(out);
        self.read_on(out);
    }

    fn start_of(&self, node: NodeId) -> Option<Incarnation> {
        self.members
            .binary_search(&node)
            .ok()
            .and_then(|rank| self.starts.get(rank).copied())
    }

    /// Goes on to `round`. A decided round makes every weight 1: mass that was not in it is void.
    fn go_to(&mut self, round: Round, out: &mut Outbox<Effect>) {
        if round > self.round {
            self.begin(round, out);
        }
    }

    fn begin(&mut self, round: Round, out: &mut Outbox<Effect>) {
        self.written_off += self.escrow.write_off() + self.debt;
        out.push_all(self.inbox.go_to(round).into_iter().map(Effect::Drop));
        self.round = round;
        self.phase = Phase::Computing;
        self.escrow = Escrow::default();
        self.weight = 1.0;
        self.debt = 0.0;
        self.behind = None;
        self.jumps = false;
        // All members are at the same step again.
        self.late.clear();
    }

    fn gossip(
        &mut self,
        step: Step,
        turn: u64,
        round: Round,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        self.go_to(round, out);
        self.arrive_at(step, out);
        self.forgive(step);
        let peers = self.graph.peers(&self.members, self.identity.node, turn);
        for from in peers
            .inward
            .iter()
            .filter(|from| !self.lost.contains(from) && !self.late.contains_key(from))
        {
            self.inbox.expect(step, *from);
        }
        if self.is_synchronous() {
            let plan = self.ship(step, &peers.out, out);
            out.push_all(plan.map(Effect::Ship));
        }
        let until = if self.is_patient() {
            now.after(self.waits.message)
        } else {
            now
        };
        self.phase = Phase::Gossiping {
            step,
            out: peers.out,
            since: now,
            until,
        };
        self.read_on(out);
        self.give_up_late(now, out);
    }

    fn settle(&mut self, step: Step, round: Round, now: Instant, out: &mut Outbox<Effect>) {
        self.go_to(round, out);
        self.arrive_at(step, out);
        self.phase = Phase::Settling {
            step,
            until: now.after(self.waits.settle),
        };
        self.read_on(out);
    }

    /// The training threads are at `step` now; tells members that await messages of left-out steps.
    fn arrive_at(&mut self, step: Step, out: &mut Outbox<Effect>) {
        let first = self
            .shipped
            .map_or(Step(0), |shipped| Step(shipped.0.saturating_add(1)));
        if std::mem::take(&mut self.jumps) && first < step {
            let last = Step(step.0 - 1);
            let others = self
                .members
                .iter()
                .filter(|member| **member != self.identity.node && !self.lost.contains(member));
            others
                .for_each(|member| self.tell(*member, Message::GossipSkipped { first, last }, out));
        }
        self.mixing = step;
        // A member never heard of counts as no later than this node is now.
        let before = Step(step.0.saturating_sub(1));
        self.members
            .iter()
            .for_each(|member| _ = self.reached.entry(*member).or_insert(before));
    }

    fn is_synchronous(&self) -> bool {
        self.gossip.staleness == 0
    }

    fn tell(&self, to: NodeId, message: Message, out: &mut Outbox<Effect>) {
        out.push(Effect::Send {
            to,
            frame: self.identity.frame(self.place(), message),
        });
    }

    /// Position in history of this node's mass; the term has no meaning.
    #[must_use]
    pub fn place(&self) -> Place {
        Place {
            lineage: self.lineage,
            epoch: self.epoch,
            round: self.round,
            term: Term::default(),
            attempt: 0,
        }
    }

    fn is_of_view(&self, header: &Header) -> bool {
        header.lineage == self.lineage
            && header.epoch == self.epoch
            && self.is_member(header.sender)
    }

    fn is_member(&self, node: NodeId) -> bool {
        self.members.binary_search(&node).is_ok()
    }

    fn member_lost(&mut self, node: NodeId) {
        if self.is_member(node) {
            self.lost.insert(node);
            if !planted::has(Bug::EscrowNotReclaimed) {
                self.escrow.reclaim(node);
            }
            self.inbox.give_up(node);
        }
    }

    /// The member was only unreachable for a moment: no round was decided without it.
    fn member_back(&mut self, node: NodeId, now: Instant, out: &mut Outbox<Effect>) {
        if !self.lost.remove(&node) {
            return;
        }
        for step in self.escrow.tell_reclaimed(node, now.after(ASK_INTERVAL)) {
            self.tell(node, Message::GossipReclaimed { step }, out);
        }
        // It was not told of the steps skipped meanwhile.
        if let Some(last) = self.shipped {
            self.tell(
                node,
                Message::GossipSkipped {
                    first: Step(0),
                    last,
                },
                out,
            );
        }
    }

    /// The node's last messages may still be in flight: it stays until they have arrived.
    fn leave(&mut self, round: Round, now: Instant, out: &mut Outbox<Effect>) {
        self.go_to(round, out);
        self.leaving = true;
        self.leave_by = Some(now.after(self.waits.leave));
        self.close(out);
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        for (to, step) in self.escrow.overdue(now) {
            self.tell(to, Message::GossipAsk { step }, out);
        }
        for (to, step) in self.escrow.untold(now) {
            self.tell(to, Message::GossipReclaimed { step }, out);
        }
        if self.leave_by.take_if(|leave_by| now >= *leave_by).is_some() {
            out.push(Effect::Left);
        }
        if matches!(self.phase, Phase::Settling { until, .. } if now >= until) {
            self.written_off += self.escrow.write_off();
        }
        self.give_up_late(now, out);
    }
}

#[cfg(test)]
mod tests;
