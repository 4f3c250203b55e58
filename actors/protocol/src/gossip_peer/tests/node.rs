//! One simulated node: its machine, its values, its training loop's place, its streams.

use super::audit::{Mass, combine};
use crate::gossip_peer::{GossipPeer, Key, Mix, Plan, Sent};
use crate::ident::{NodeId, Step};
use std::collections::BTreeMap;

/// The activity of a node's training loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Computing,
    Gossiping(u64),
    /// It takes no further step.
    Leaving,
}

/// A message on its way, as its receiver sees it.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    pub number: u64,
    pub values: Mass,
    /// It breaks while it is read.
    pub breaks: bool,
    /// Its sender hears only when it is read, or dropped, whether it was sent.
    pub answers: bool,
}

pub struct Node {
    pub alive: bool,
    pub machine: GossipPeer,
    pub mass: Mass,
    /// The change by the last inner step, and the part of it that goes with the next messages.
    pub moved: Mass,
    goes: Mass,
    /// The step under way.
    pub step: Step,
    /// The first step whose mix has not been.
    pub mixing: Step,
    pub doing: Doing,
    /// The mass that was sent and may come back.
    pub kept: BTreeMap<Sent, Mass>,
    pub incoming: BTreeMap<Key, Stream>,
    pub held: BTreeMap<Key, Mass>,
    /// The plan that waits for the training thread.
    pub pending: Option<Plan>,
    pub paused_until: u64,
    pub ticks_at: Option<u64>,
    /// Percent of the usual time of a step.
    pub slowness: u64,
    /// The next step takes so much longer.
    pub stall: u64,
    pub steps: u64,
    /// When it came to the last steps.
    pub came_at: BTreeMap<Step, u64>,
}

impl Node {
    pub fn new(machine: GossipPeer, mass: Mass) -> Self {
        Self {
            alive: true,
            machine,
            mass,
            moved: [0.0; 3],
            goes: [0.0; 3],
            step: Step(0),
            mixing: Step(0),
            doing: Doing::Computing,
            kept: BTreeMap::new(),
            incoming: BTreeMap::new(),
            held: BTreeMap::new(),
            pending: None,
            paused_until: 0,
            ticks_at: None,
            slowness: 100,
            stall: 0,
            steps: 0,
            came_at: BTreeMap::new(),
        }
    }

    /// The de-biased values.
    pub fn model(&self) -> [f64; 2] {
        [self.mass[1] / self.mass[0], self.mass[2] / self.mass[0]]
    }

    /// `x = own·z + Σ scale·y`; returns what was given up of the own numerators.
    pub fn mix(&mut self, mix: &Mix) -> Mass {
        let kept = mix.own / self.mass[0];
        let given_up = self.mass.map(|value| value * (1.0 - kept));
        self.mass = self.mass.map(|value| value * kept);
        for key in &mix.arrivals {
            self.mass = combine(
                self.mass,
                1.0,
                self.held
                    .remove(key)
                    .expect("a message that is mixed is held"),
            );
        }
        for sent in &mix.returned {
            self.mass = combine(
                self.mass,
                1.0,
                self.kept.remove(sent).expect("what comes back was kept"),
            );
        }
        // The rest of the movement goes with the messages of this step.
        let goes = if mix.shared {
            1.0 - mix.own.min(1.0)
        } else {
            0.0
        };
        self.goes = std::mem::take(&mut self.moved).map(|moved| moved * goes);
        self.mass = combine(self.mass, -1.0, self.goes);
        assert!(
            (self.mass[0] - mix.weight).abs() < 1e-9,
            "{:?} {mix:?}",
            self.mass
        );
        self.mass[0] = mix.weight;
        given_up
    }

    /// Splits the numerators; returns what each receiver gets.
    pub fn ship(&mut self, plan: &Plan) -> Mass {
        let weight = self.mass[0];
        let split = &plan.split;
        let part = self.mass.map(|value| value * (split.share / weight));
        let part = combine(
            part,
            1.0 / plan.out.len() as f64,
            std::mem::take(&mut self.goes),
        );
        self.mass = self.mass.map(|value| value * (split.kept / weight));
        self.mass[0] = split.kept;
        plan.out.iter().for_each(|to| {
            assert!(
                self.kept.insert((*to, plan.step), part).is_none(),
                "sent twice"
            )
        });
        part
    }

    /// Takes back what was never sent.
    pub fn unship(&mut self, plan: &Plan) {
        for to in &plan.out {
            if let Some(part) = self.kept.remove(&(*to, plan.step)) {
                self.mass = combine(self.mass, 1.0, part);
            }
        }
    }

    /// Of several copies, the one that came last goes.
    pub fn drop_message(&mut self, key: Key) -> Option<Stream> {
        let stream = self.incoming.remove(&key);
        if stream.is_none() {
            self.held.remove(&key);
        }
        stream
    }

    /// Mass of the messages that arrived and are not mixed yet.
    pub fn held_mass(&self) -> Mass {
        let masses = self.held.values();
        masses.fold([0.0; 3], |sum, mass| combine(sum, 1.0, *mass))
    }
}

/// Where a message is from and to, as the audit knows it.
pub type Parcelled = (NodeId, NodeId, Step);
