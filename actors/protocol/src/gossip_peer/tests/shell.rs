//! The shell of a simulated node: it does for the machine what a real one would, and checks the
//! books at every event.

use super::node::Doing;
use super::scenario::MILLI;
use super::world::{Event, World, is_in_time};
use crate::algorithm::LatePeers;
use crate::gossip_peer::{Effect, In, Key, Mix, PARKED_MAX, Plan, Purpose};
use crate::ident::{NodeId, Step};
use crate::wire::{Frame, Message};

/// One overlapped gossip in so many is withheld while there are faults.
const RARELY_WITHHELD: u64 = 40;
/// How long after a gossip began the training thread has mixed.
const MIXES_IN: u64 = MILLI;
/// The books balance that well.
const EXACT: f64 = 1e-9;

impl World {
    pub fn act(&mut self, id: NodeId, cause: &In, effect: Effect) {
        match effect {
            Effect::Receive(key) => self.receive(id, key),
            Effect::Drop(key) => self.dropped(id, key),
            Effect::Mix(mix) => self.mixed(id, cause, &mix),
            Effect::Ship(plan) => self.ship(id, plan),
            Effect::Forget(sent) => {
                let node = self.node(id);
                node.kept.remove(&sent);
                self.audit.released((id, sent.0, sent.1));
            }
            Effect::Send { to, frame } => {
                self.watch(id, cause, to, &frame);
                self.send(id, to, frame);
            }
            Effect::Late(peers) => peers.into_iter().for_each(|peer| self.late(id, peer)),
            Effect::Left => self.gone(id),
        }
    }

    /// An answer to what was just read says that it is held.
    fn watch(&mut self, id: NodeId, cause: &In, to: NodeId, frame: &Frame) {
        let Frame::V1 { message, .. } = frame;
        match (cause, &**message) {
            (In::Arrived(key), Message::GossipMixed { step }) if (*step, to) == (key.1, key.2) => {
                self.accepted(id, *key)
            }
            (_, Message::GossipRefused { .. }) => self.seen.refused += 1,
            (_, Message::GossipReclaimed { .. }) => self.seen.reclaimed += 1,
            _ => {}
        }
    }

    fn accepted(&mut self, id: NodeId, key: Key) {
        let node = &self.nodes[&id];
        assert!(
            is_in_time(key.1, node.mixing, self.scenario.late_max()),
            "{id} accepts {key:?} at {}",
            node.mixing
        );
        self.audit.accepted((key.2, id, key.1));
    }

    /// Values follow the split at once; the streams begin when the training thread has mixed.
    fn ship(&mut self, id: NodeId, plan: Plan) {
        self.seen.shipped(
            self.nodes[&id]
                .machine
                .graph
                .peers(&self.nodes[&id].machine.members, id, plan.step.0),
            &plan,
        );
        let part = self.node(id).ship(&plan);
        plan.out
            .iter()
            .for_each(|to| self.audit.shipped((id, *to, plan.step), part));
        if self.scenario.staleness() == 0 {
            return self.dispatch(id, &plan, part);
        }
        let delay = self.random.below(MIXES_IN);
        let node = self.node(id);
        node.pending = Some(plan);
        self.later(delay, id, Event::Numerators);
    }

    pub fn numerators(&mut self, id: NodeId) {
        let Some(plan) = self.node(id).pending.take() else {
            return;
        };
        if self.breaks_now() && self.random.below(RARELY_WITHHELD) == 0 {
            self.seen.withheld += 1;
            self.node(id).unship(&plan);
            plan.out
                .iter()
                .for_each(|to| self.audit.back((id, *to, plan.step)));
            return self.feed(id, In::Withheld(plan.step));
        }
        let Some(part) = plan
            .out
            .first()
            .and_then(|to| self.nodes[&id].kept.get(&(*to, plan.step)).copied())
        else {
            return;
        };
        self.dispatch(id, &plan, part);
    }

    fn mixed(&mut self, id: NodeId, cause: &In, mix: &Mix) {
        let now = self.now;
        let limit = self.scenario.grace.0;
        let node = self.node(id);
        let doing = node.doing;
        let step = node.step;
        let paused_until = node.paused_until;
        let Doing::Gossiping(since) = doing else {
            return;
        };
        assert_eq!((step, mix.purpose), (mix.step, Purpose::Gossip));
        assert!(
            now - since <= limit || paused_until >= since,
            "{id} waited {} at {step}",
            now - since
        );
        self.book(id, cause, mix);
        self.seen.waited = self.seen.waited.max(now - since);
        self.seen.jumps += usize::from(mix.behind.is_some());
        let next = Step(step.0 + 1);
        let node = self.node(id);
        node.mixing = next;
        node.step = mix.behind.map_or(next, |reached| reached.max(next));
        self.compute(id);
    }

    /// Books a mix in the values and in the audit.
    fn book(&mut self, id: NodeId, cause: &In, mix: &Mix) {
        for (to, step) in &mix.returned {
            self.audit
                .returned((id, *to, *step), matches!(cause, In::MemberLost(_)));
            self.audit.back((id, *to, *step));
        }
        let given_up = self.node(id).mix(mix);
        if given_up[0].abs() > 0.0 {
            // Its weight was given up when the debt was made.
            self.audit.adjust(-1.0, [0.0, given_up[1], given_up[2]]);
        }
        self.seen.weight(mix.weight);
    }

    /// A node does without a peer. If that one is not late at all, somebody waited for nothing.
    fn late(&mut self, id: NodeId, peer: NodeId) {
        self.seen.late += 1;
        let node = &self.nodes[&id];
        let other = &self.nodes[&peer];
        let needed = Step(node.step.0.saturating_sub(self.scenario.staleness()));
        let passed = other
            .came_at
            .range(Step(needed.0 + 1)..)
            .next()
            .is_some_and(|(_, at)| at + 3 * self.scenario.delay_max < self.now);
        let ran = |paused_until: u64| paused_until + 2 * self.scenario.delay_max < self.now;
        let waits = self.scenario.gossip.late_peers == LatePeers::Wait && other.alive;
        if waits && passed && ran(node.paused_until) && ran(other.paused_until) {
            self.seen.wrong_waits += 1;
        }
    }

    /// A node ends: it died, or it left. The others hear of it one by one.
    pub fn gone(&mut self, id: NodeId) {
        self.audit.gone(id, &self.nodes);
        self.node(id).alive = false;
        for other in self.living() {
            let notices = 1 + self.random.below(200 * MILLI);
            self.later(notices, other, Event::Tell(In::MemberLost(id)));
        }
    }

    /// After every event: the books balance, weights are sound, memory is bounded.
    pub fn check(&mut self, id: NodeId) {
        let total = self.audit.total(&self.nodes);
        let expected = self.audit.expected;
        let scale = 1.0
            + expected
                .iter()
                .fold(0.0f64, |max, value| max.max(value.abs()));
        let balanced = total
            .iter()
            .zip(expected)
            .all(|(total, expected)| (total - expected).abs() < EXACT * scale);
        assert!(
            balanced,
            "at {} {id}: {total:?} instead of {expected:?}",
            self.now
        );
        let node = &self.nodes[&id];
        if !node.alive {
            return;
        }
        let machine = &node.machine;
        assert!(
            node.mass.iter().all(|value| value.is_finite()) && node.mass[0] > 0.0,
            "{id}: {:?}",
            node.mass
        );
        assert!(
            (node.mass[0] - machine.weight).abs() < EXACT,
            "{id}: {:?} {}",
            node.mass,
            machine.weight
        );
        let steps = machine.escrow.steps() as u64;
        assert!(
            self.scenario.staleness() == 0 || steps <= self.scenario.staleness() + 4,
            "{steps} models are kept"
        );
        assert!(node.incoming.len() <= PARKED_MAX);
        let held = node.held.len();
        self.seen.held = self.seen.held.max(held);
        self.seen.parked = self.seen.parked.max(node.incoming.len());
        self.seen.models = self.seen.models.max(steps as usize);
    }
}
