//! Late peers: those that this node waits for, and those that it goes on without.

use super::{Effect, GossipPeer, Phase, Straggler};
use crate::algorithm::LatePeers;
use crate::ident::{NodeId, Step};
use crate::machine::Outbox;
use crate::time::Instant;

impl GossipPeer {
    /// The peers that this node waits for now, and those that it skips because they are late.
    #[must_use]
    pub fn stragglers(&self) -> Vec<Straggler> {
        let straggler = |node: NodeId, since: Instant, skipped: bool| {
            let reached = self.reached.get(&node).copied();
            let steps = self
                .mixing
                .0
                .saturating_sub(reached.map_or(0, |reached| reached.0));
            Straggler {
                node,
                steps,
                since,
                skipped,
            }
        };
        let waited: Vec<_> = match (&self.phase, self.needed()) {
            (Phase::Gossiping { since, .. }, Some(needed)) => self
                .inbox
                .missing(needed)
                .into_iter()
                .map(|node| straggler(node, *since, false))
                .collect(),
            _ => Vec::new(),
        };
        self.late
            .iter()
            .map(|(node, (_, since))| straggler(*node, *since, true))
            .chain(waited)
            .collect()
    }

    /// Whether a node that gossips at `step` is later than the bound for a node that has reached
    /// `reached`.
    pub(super) fn is_too_late(&self, step: Step, reached: Step) -> bool {
        // In synchronous gossip, a detour may arrive one step late.
        step.0
            .saturating_add(u64::from(self.gossip.staleness).max(1))
            < reached.0
    }

    /// Waits again for peers that are within the bound again. If late peers are waited for, it is
    /// enough that one has reached the step at which it was given up: it has caught up. Where
    /// messages take longer than steps, it might otherwise never be within the bound while this
    /// node goes on without it.
    pub(super) fn forgive(&mut self, step: Step) {
        let mut late = std::mem::take(&mut self.late);
        late.retain(|peer, (given_up, _)| {
            let reached = self.reached.get(peer).copied().unwrap_or_default();
            self.is_too_late(reached, step) && !(self.is_patient() && reached >= *given_up)
        });
        self.late = late;
    }

    /// Whether peers that are later than the bound are waited for.
    pub(super) fn is_patient(&self) -> bool {
        self.gossip.late_peers == LatePeers::Wait || self.is_synchronous()
    }

    /// Goes on without the missing peers until they are in time again.
    pub(super) fn give_up_late(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let Phase::Gossiping { step, until, .. } = self.phase else {
            return;
        };
        if now < until {
            return;
        }
        let missing = self
            .needed()
            .map(|needed| self.inbox.missing(needed))
            .unwrap_or_default();
        for peer in &missing {
            self.inbox.give_up(*peer);
            self.late.insert(*peer, (step, now));
        }
        if !missing.is_empty() {
            out.push(Effect::Late(missing.into_iter().collect()));
        }
    }
}
