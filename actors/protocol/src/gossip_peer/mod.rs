//! Push-sum gossip as a state machine, synchronous or overlapped with computation (algorithm
//! section 5).
//!
//! ```text
//!   node i                                     out-peer j
//!     │ (x_i, w_i)·1/(d+1)  (bulk stream)          │
//!     ├───────────────────────────────────────────►│ holds it until its next mix
//!     │◄────────────────────────────── GossipMixed ┤ or GossipRefused: the mass is i's again
//!   the mass leaves escrow
//! ```
//!
//! Synchronous (`staleness` 0), step `k` sends, waits for the messages of step `k`, and mixes them.
//! Overlapped, it mixes what has arrived, sends, and returns; it waits only where a message is more
//! than `staleness` steps late.
//!
//! **Who waits for whom** is a function of view and step: a node waits for the members that the
//! graph lets send to it. A member that does not send to such a peer (it takes it for dead, or it
//! is late) tells it so (`GossipSkipped`), and sends to the next member behind it instead; nobody
//! waits for such a detour. So nodes may differ in whom they take for dead.
//!
//! **Mass.** What is sent stays in escrow until its receiver holds it. It comes back if the
//! receiver refuses it (another history, a closed round, more than `staleness` steps late) or dies.
//! A receiver that was only thought dead gives up what was reclaimed (`GossipReclaimed`, told until
//! it answers). Nobody answers: it is asked (`GossipAsk`). So Σw over the living is the members'
//! number, but for what died with its holder. Before an exact average a node *settles*: it waits
//! until its escrow is empty, mixes, and refuses what comes later, so that all mass is in the
//! average exactly once.

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

/// What a node is doing.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// Its training threads compute.
    Computing,
    /// They wait for the gossip of a step.
    Gossiping {
        step: Step,
        /// The peers that the graph lets this node send to in this step.
        out: Vec<NodeId>,
        since: Instant,
        /// When it goes on without those that are missing.
        until: Instant,
    },
    /// They wait until what is in flight is mixed.
    Settling { step: Step, until: Instant },
    /// Their contribution to the round is frozen: nothing more is mixed before the next one.
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
    /// Which start of each member it is.
    starts: Vec<Incarnation>,
    graph: Arc<dyn Topology>,
    round: Round,
    phase: Phase,
    /// The push-sum weight of the own numerators.
    weight: f64,
    /// The step whose mix takes in what arrives now.
    mixing: Step,
    inbox: Inbox,
    escrow: Escrow,
    lost: BTreeSet<NodeId>,
    /// Those that may be dead.
    suspects: BTreeSet<NodeId>,
    /// Peers that are done without: the step at which they were given up, and when.
    late: BTreeMap<NodeId, (Step, Instant)>,
    /// The last step that something was heard of, by peer.
    reached: BTreeMap<NodeId, Step>,
    /// Weight that was accepted here and reclaimed by its sender, which had taken this node for
    /// dead.
    debt: f64,
    /// Where the peers are that refused a message of this node because it is late.
    behind: Option<Step>,
    /// The training threads were told to go on from there: steps are left out.
    jumps: bool,
    /// The last step of which parts were sent, or skipped.
    shipped: Option<Step>,
    /// The last step of which something was sent, by receiver.
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

    /// How many messages are read ahead depends on how many peers the graph has.
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

    /// The same over the decided order of the members; one that does not name each once stands for
    /// ascending ids.
    #[must_use]
    pub fn ordered(mut self, order: &[NodeId]) -> Self {
        self.graph = topology::of(&self.gossip, &self.members, order);
        self
    }

    /// Push-sum weight that this node answers for: its own numerators', what it holds for the next
    /// mix, and what it has in escrow.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.weight + self.inbox.held_weight() - self.debt + self.escrow.total()
    }

    /// The push-sum weight of the own numerators alone.
    #[must_use]
    pub fn own_weight(&self) -> f64 {
        self.weight
    }

    /// Of that, what is in escrow.
    #[must_use]
    pub fn escrowed(&self) -> f64 {
        self.escrow.total()
    }

    /// Whether a message to this peer is in escrow.
    #[must_use]
    pub fn awaits_answer(&self, sent: Sent) -> bool {
        self.escrow.is_open(sent)
    }

    /// Whether a member is taken for dead.
    #[must_use]
    pub fn is_lost(&self, node: NodeId) -> bool {
        self.lost.contains(&node)
    }

    /// Weight whose fate was not known when a round closed; it is in the average twice, or not at
    /// all.
    #[must_use]
    pub fn written_off(&self) -> f64 {
        self.written_off
    }

    /// The step whose mix takes in what arrives now.
    #[must_use]
    pub fn step(&self) -> Step {
        self.mixing
    }

    /// Goes over to another view. The exact average that changed it made every weight 1.
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
        // That a member is lost may be known before the round in which it is missed; another start
        // of it is another matter.
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
            // Another history may stand at an earlier step.
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

    /// A decided round makes every weight 1: what was not in it is void.
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
        // All members stand at the same step again.
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

    /// The training threads are at `step` now; those that await messages of steps that were left
    /// out are told.
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
        // Who was never heard of is no later than this node is now.
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

    /// Where in history this node's mass is; the term says nothing.
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

    /// It was only away for a moment: no round was decided without it.
    fn member_back(&mut self, node: NodeId, now: Instant, out: &mut Outbox<Effect>) {
        if !self.lost.remove(&node) {
            return;
        }
        for step in self.escrow.tell_reclaimed(node, now.after(ASK_INTERVAL)) {
            self.tell(node, Message::GossipReclaimed { step }, out);
        }
        // It was not told what was skipped meanwhile.
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

    /// The node's last messages may still be under way: it stays until they have arrived.
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
