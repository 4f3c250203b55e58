//! Ends gossips and flushes, and computes their mixes.

use super::{Effect, GossipPeer, Mix, Phase, Purpose};
use crate::ident::Step;
use crate::machine::Outbox;
use crate::push_sum::WEIGHT_MIN;

impl GossipPeer {
    /// The step whose messages must have arrived before the current gossip can end.
    pub(super) fn needed(&self) -> Option<Step> {
        match &self.phase {
            Phase::Gossiping { step, .. } => step
                .0
                .checked_sub(u64::from(self.gossip.staleness))
                .map(Step),
            _ => None,
        }
    }

    pub(super) fn has_what_it_needs(&self) -> bool {
        self.needed()
            .is_none_or(|needed| self.inbox.missing(needed).is_empty())
    }

    /// Ends the current gossip, flush or leave if it can end now.
    pub(super) fn go_on(&mut self, out: &mut Outbox<Effect>) {
        match &self.phase {
            Phase::Gossiping {
                step, out: peers, ..
            } if self.has_what_it_needs() => {
                let step = *step;
                let peers = peers.clone();
                self.phase = Phase::Computing;
                let mix = self.mix(step, Purpose::Gossip);
                let plan = if self.is_synchronous() {
                    None
                } else {
                    self.ship(step, &peers, out)
                };
                out.push(Effect::Mix(Mix {
                    shared: plan.is_some(),
                    ..mix
                }));
                out.push_all(plan.map(Effect::Ship));
                self.mixing = Step(step.0.saturating_add(1));
                self.read_on(out);
            }
            Phase::Settling { step, .. } if self.escrow.messages() == 0 => {
                let step = *step;
                self.close(out);
                out.push(Effect::Mix(self.mix(step, Purpose::Average)));
                self.read_on(out);
            }
            _ => {}
        }
        if self.leave_by.is_some() && self.escrow.messages() == 0 {
            self.leave_by = None;
            out.push(Effect::Left);
        }
    }

    /// Mixes held messages and mass that was taken back.
    pub(super) fn mix(&mut self, step: Step, purpose: Purpose) -> Mix {
        let exact = self.is_synchronous() && purpose == Purpose::Gossip;
        let arrivals = self.inbox.take_held(step, exact);
        let returned = self.escrow.take_returned();
        let parts = arrivals
            .iter()
            .map(|(_, weight)| weight)
            .chain(returned.iter().map(|(_, weight)| weight));
        let whole = parts.fold(self.weight, |sum, weight| sum + weight);
        // The debt is paid only as far as some of the node's own mass remains and the weight stays
        // at least `WEIGHT_MIN`: inner steps are taken on `x` and must not weigh too much in `x /
        // w`.
        let paid = self
            .debt
            .min(self.weight / 2.0)
            .min((whole - WEIGHT_MIN).max(0.0));
        self.debt -= paid;
        let own = self.weight - paid;
        let weight = whole - paid;
        self.weight = weight;
        let arrivals = arrivals.into_iter().map(|(key, _)| key).collect();
        let returned = returned.into_iter().map(|(sent, _)| sent).collect();
        let behind = self.behind.take();
        self.jumps |= behind.is_some();
        Mix {
            round: self.round,
            step,
            purpose,
            own,
            weight,
            shared: false,
            arrivals,
            returned,
            behind,
        }
    }

    /// Refuses messages from now on: the contribution is about to be frozen.
    pub(super) fn close(&mut self, out: &mut Outbox<Effect>) {
        self.phase = Phase::Settled;
        for key in self.inbox.close(self.round) {
            self.refuse(key, out);
        }
    }
}
