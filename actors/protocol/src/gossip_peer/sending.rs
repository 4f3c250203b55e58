//! Receivers of a gossip, and notices to peers that are skipped.

use super::escrow::ASK_INTERVAL;
use super::{Effect, GossipPeer, Plan, Sent};
use crate::algorithm::Gossip;
use crate::ident::{NodeId, Step};
use crate::machine::Outbox;
use crate::push_sum::{WEIGHT_MIN, split};
use crate::time::Instant;
use crate::wire::Message;

impl GossipPeer {
    /// Splits the node's mass over the peers of this step; returns the messages to send, if any.
    pub(super) fn ship(
        &mut self,
        step: Step,
        nominal: &[NodeId],
        out: &mut Outbox<Effect>,
    ) -> Option<Plan> {
        self.shipped = Some(step);
        let to = self.receivers(step, nominal);
        for peer in nominal.iter().filter(|peer| !to.contains(peer)) {
            // Includes the steps since the last message, in which the peer was not due: so a long
            // skip is a single range.
            let first = self
                .shipped_to
                .get(peer)
                .map_or(Step(0), |shipped| Step(shipped.0.saturating_add(1)));
            self.tell(*peer, Message::GossipSkipped { first, last: step }, out);
        }
        self.shipped_to.extend(to.iter().map(|to| (*to, step)));
        if to.is_empty() {
            return None;
        }
        let split = split(self.weight, to.len());
        to.iter()
            .for_each(|to| self.escrow.deposit(*to, step, split.share));
        self.weight = split.kept;
        Some(Plan {
            step,
            place: self.place(),
            out: to,
            split,
        })
    }

    /// The peers of the graph, each replaced by the next member that can take a message if it
    /// cannot take one now (a detour); ascending.
    fn receivers(&self, step: Step, nominal: &[NodeId]) -> Vec<NodeId> {
        // A node with little weight sends nothing: inner steps are taken on `x`, and weigh ever
        // more in `x / w`.
        if self.weight < WEIGHT_MIN || self.escrow.steps() >= models_kept_max(&self.gossip) {
            return Vec::new();
        }
        let mut to: Vec<NodeId> = nominal
            .iter()
            .copied()
            .filter(|peer| self.can_take(*peer, step))
            .collect();
        for peer in nominal.iter().filter(|peer| !self.can_take(**peer, step)) {
            let detour = self.members_behind(*peer).find(|member| {
                !to.contains(member) && !nominal.contains(member) && self.can_take(*member, step)
            });
            to.extend(detour);
        }
        to.sort_unstable();
        to
    }

    fn can_take(&self, peer: NodeId, step: Step) -> bool {
        // Synchronous gossip waits for a suspected peer until it is dead, so that the set of
        // receivers does not depend on the load.
        let suspected = !self.is_synchronous() && self.suspects.contains(&peer);
        let lives = !self.lost.contains(&peer) && !suspected;
        // An answer may take as long as a message.
        lives
            && !self.late.contains_key(&peer)
            && self
                .escrow
                .is_in_time(peer, step, 2 * u64::from(self.gossip.staleness))
    }

    /// The other members in ascending order, starting after `peer` and wrapping around.
    fn members_behind(&self, peer: NodeId) -> impl Iterator<Item = NodeId> {
        let first = self.members.partition_point(|member| *member <= peer);
        self.members[first..]
            .iter()
            .chain(&self.members[..first])
            .copied()
            .filter(move |member| *member != peer && *member != self.identity.node)
    }

    /// A message that could not be sent completely may have arrived nevertheless: asks its
    /// receiver.
    pub(super) fn send_failed(&mut self, sent: Sent, now: Instant, out: &mut Outbox<Effect>) {
        self.escrow.sent(sent, now.after(ASK_INTERVAL));
        self.tell(sent.0, Message::GossipAsk { step: sent.1 }, out);
    }

    /// Cancels the messages of this step: nothing of them left the node.
    pub(super) fn withheld(&mut self, step: Step, out: &mut Outbox<Effect>) {
        for to in self.members.clone() {
            if let Some(weight) = self.escrow.cancel((to, step)) {
                self.weight += weight;
                self.tell(
                    to,
                    Message::GossipSkipped {
                        first: step,
                        last: step,
                    },
                    out,
                );
            }
        }
    }
}

/// Maximum number of models that a node keeps for receivers that have not answered. With as many,
/// it sends nothing until they answer.
pub fn models_kept_max(gossip: &Gossip) -> usize {
    if gossip.staleness == 0 {
        SYNCHRONOUS_MODELS
    } else {
        gossip.staleness as usize + MODELS_BEYOND_STALENESS
    }
}

/// Models kept for overlapped gossip beyond one for each step of staleness.
const MODELS_BEYOND_STALENESS: usize = 4;
/// Models kept for synchronous gossip, where nothing is mixed late. There are more of them, because
/// skipping a peer changes what the others learn.
const SYNCHRONOUS_MODELS: usize = 8;
