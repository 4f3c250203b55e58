//! Messages on their way out: numerators are encoded, sent by tasks of their own, and kept until they are answered.

use super::arithmetic::Job;
use super::{GossipPeerState, Payload, transfer, wire};
use crate::buffers::Assembled;
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::gossip_peer::{In, Plan, Sent};
use slowmo_protocol::ident::{NodeId, Step};
use slowmo_protocol::node::ToGossip;
use std::sync::Arc;
use std::time::Duration;

impl GossipPeerState {
    pub(super) async fn ship(&mut self, plan: Plan) {
        if !self.is_synchronous() {
            self.plan = Some(plan);
        } else if let Some(own) = &mut self.shipped {
            (own.scale, self.kept) = (plan.split.kept_scale, plan.split.kept);
            if let Payload::Float32(values) = own.values.clone() {
                self.encode(plan, values).await;
            }
        }
    }

    /// Float32 needs no encoding. Either way the message is kept from here on: its mass may come back before it leaves.
    async fn encode(&mut self, plan: Plan, values: Assembled) {
        let (plan, now) = (Arc::new(plan), self.context.clock.now());
        match wire(&self.context) {
            WireType::Float32 => {
                let payload = Payload::Float32(values);
                self.shipments.keep(&plan, payload.clone(), now);
                self.send(&plan, &payload);
            }
            wire => {
                let payload = Payload::awaited(wire);
                self.shipments.keep(&plan, payload.clone(), now);
                self.work(Job::Encode(plan, values, payload)).await;
            }
        }
    }

    /// Overlapped: the training thread has mixed; what is sent is made, and on its way, while it computes. `before` is the model as its
    /// inner step left it.
    pub(super) async fn moved(&mut self, step: Step, before: Assembled, withheld: bool) {
        if !std::mem::take(&mut self.training_mixes) {
            // A decided round came between.
            return;
        }
        if withheld {
            self.plan = None;
            if !before.is_empty() {
                self.work(Job::Mend(before)).await;
            }
            return self.feed(In::Withheld(step));
        }
        let (wire, now) = (wire(&self.context), self.context.clock.now());
        let message = self.plan.take_if(|plan| plan.step == step).map(|plan| {
            let payload = Payload::awaited(wire);
            self.shipments.keep(&plan, payload.clone(), now);
            (Arc::new(plan), payload)
        });
        self.work(Job::Moved(before, message)).await;
    }

    pub(super) fn send(&mut self, plan: &Arc<Plan>, values: &Payload) {
        // A decided round may have come while it was encoded.
        if plan.place.round < self.round {
            return;
        }
        self.shipments.depart(plan.step, self.context.clock.now());
        let wire = wire(&self.context);
        // One that died meanwhile gets nothing: its part has been taken back.
        let awaits = |to: &NodeId| self.machine.as_ref().is_some_and(|machine| machine.awaits_answer((*to, plan.step)));
        for to in plan.out.iter().copied().filter(awaits) {
            let (context, plan, values, myself) = (Arc::clone(&self.context), Arc::clone(plan), values.clone(), self.myself.clone());
            self.sending.spawn(async move {
                let sent = transfer::send(&context, &plan, (wire, &values), to).await;
                if let Err(error) = &sent {
                    tracing::info!(%to, step = %plan.step, %error, "a gossip message was not sent as a whole");
                }
                // A stopped gossip peer needs no result.
                _ = myself.cast(ToGossip::Sent((to, plan.step), sent.is_ok()).into());
            });
        }
    }

    /// The receiver has a message: its values need not be kept, and it says how fast the link is.
    pub(super) fn acknowledged(&mut self, sent: Sent) {
        if let Some((bytes, since)) = self.shipments.under_way(sent) {
            let elapsed = self.context.clock.now().since(since);
            self.context.rates.measured(sent.0, bytes, Duration::from_micros(elapsed.0));
        }
        self.shipments.forget(sent);
    }
}
