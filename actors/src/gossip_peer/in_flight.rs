//! In-flight messages: their values are kept until the receivers have confirmed them, because their
//! mass may come back.

use super::arithmetic::Part;
use crate::data::Payload;
use slowmo_protocol::gossip_peer::{Plan, Sent};
use slowmo_protocol::ident::{NodeId, Step};
use slowmo_protocol::time::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// Values sent in one step, and the receivers whose confirmations are missing.
struct InFlightMessage {
    values: Payload,
    scale: f32,
    open: BTreeSet<NodeId>,
    since: Instant,
}

/// The in-flight messages of one node; the gossip peer's state machine bounds their number.
#[derive(Default)]
pub struct InFlight {
    by_step: BTreeMap<Step, InFlightMessage>,
}

impl InFlight {
    /// Keeps the values that `plan` sends, from the moment that the message counts as in flight.
    pub fn keep(&mut self, plan: &Plan, values: Payload, now: Instant) {
        let message = InFlightMessage {
            values,
            scale: plan.split.scale,
            open: plan.out.iter().copied().collect(),
            since: now,
        };
        self.by_step.insert(plan.step, message);
    }

    /// Records that the messages of this step are sent at `now`.
    pub fn depart(&mut self, step: Step, now: Instant) {
        if let Some(message) = self.by_step.get_mut(&step) {
            message.since = now;
        }
    }

    /// Length of an in-flight message in bytes, and the time at which it was sent.
    pub fn under_way(&self, (to, step): Sent) -> Option<(u64, Instant)> {
        let message = self
            .by_step
            .get(&step)
            .filter(|message| message.open.contains(&to))?;
        Some((message.values.length() as u64, message.since))
    }

    /// Forgets a message that its receiver has.
    pub fn forget(&mut self, (to, step): Sent) {
        if let Some(message) = self.by_step.get_mut(&step) {
            message.open.remove(&to);
            if message.open.is_empty() {
                self.by_step.remove(&step);
            }
        }
    }

    /// Removes the messages whose mass comes back, and returns them to be mixed in again.
    pub fn take_back(&mut self, returned: &[Sent]) -> Vec<Part> {
        let part = |(to, step): &Sent| {
            let message = self
                .by_step
                .get(step)
                .filter(|message| message.open.contains(to));
            if message.is_none() {
                tracing::error!(%to, %step, "mass came back whose values are not kept");
            }
            message.map(|message| Part {
                values: message.values.clone(),
                scale: message.scale,
            })
        };
        let parts = returned.iter().filter_map(part).collect();
        returned.iter().for_each(|sent| self.forget(*sent));
        parts
    }

    /// Forgets all in-flight messages: no mass comes back any more.
    pub fn clear(&mut self) {
        self.by_step.clear();
    }
}
