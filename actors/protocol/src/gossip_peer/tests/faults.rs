//! Faults of simulated nodes and their connections.

use super::bench::ROUND;
use super::node::Doing;
use super::scenario::{Class, MILLI};
use super::world::{Event, World};
use crate::gossip_peer::In;
use crate::ident::NodeId;

#[derive(Clone, Debug)]
pub enum Fault {
    Kill(NodeId),
    Leave(NodeId),
    /// The next step takes so much longer.
    Stall(NodeId, u64),
    /// All steps take so many percent.
    Slow(NodeId, u64),
    Pause(NodeId, u64),
    Break(NodeId, NodeId),
    /// Nothing passes for so long.
    Cut(NodeId, NodeId, u64),
    Heal(NodeId, NodeId),
    /// The first does not hear the second any more.
    Doubt(NodeId, NodeId),
    /// The first takes the second for dead for so long; whether their connection is down meanwhile.
    Suspect(NodeId, NodeId, u64, bool),
    /// The faults are over.
    Quiet,
}

impl World {
    pub fn plan_faults(&mut self) {
        let ids = self.living();
        for _ in 0..self.scenario.faults {
            let at = self.random.below(self.scenario.horizon);
            let one = ids[self.random.below(ids.len() as u64) as usize];
            let other = ids[self.random.below(ids.len() as u64) as usize];
            let long = self.random.below(2 * self.scenario.grace.0);
            for fault in self.some_faults(one, other, long) {
                self.enqueue(at, None, Event::Fault(fault));
            }
        }
        self.enqueue(self.scenario.horizon, None, Event::Fault(Fault::Quiet));
    }

    fn some_faults(&mut self, one: NodeId, other: NodeId, long: u64) -> Vec<Fault> {
        let choice = self.random.below(12);
        match (self.scenario.class, choice) {
            (Class::Quiet, _) => vec![],
            (Class::Slow, 0..6) | (_, 0) => vec![Fault::Stall(one, long)],
            (Class::Slow, _) | (_, 1) => vec![Fault::Slow(one, 50 + self.random.below(500))],
            _ if one == other => vec![],
            (Class::Doubt, 2..8) => vec![Fault::Suspect(one, other, long, choice < 5)],
            (Class::Doubt, _) => vec![
                Fault::Suspect(one, other, long, true),
                Fault::Suspect(other, one, long / 2, true),
            ],
            (Class::Lossy, 2..8) | (Class::Churn, 2) => vec![Fault::Break(one, other)],
            (Class::Lossy, _) | (Class::Churn, 3) => vec![Fault::Cut(one, other, long)],
            (_, 4) => vec![Fault::Pause(one, long)],
            (_, 5 | 6) => vec![Fault::Kill(one)],
            (_, 7) => vec![Fault::Leave(one)],
            (_, 8 | 9) => vec![Fault::Suspect(one, other, long, self.random.below(2) == 0)],
            (_, 10) => vec![
                Fault::Suspect(one, other, long, true),
                Fault::Suspect(other, one, long / 2, true),
            ],
            // Everybody takes it for dead.
            _ => self
                .living()
                .into_iter()
                .filter(|by| *by != one)
                .map(|by| Fault::Suspect(by, one, long, true))
                .collect(),
        }
    }

    pub fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(id) if self.may_go(id) => self.gone(id),
            Fault::Leave(id) if self.may_go(id) => self.leave(id),
            Fault::Stall(id, by) => self.node(id).stall += by,
            Fault::Slow(id, percent) => self.node(id).slowness = percent,
            Fault::Pause(id, by) => self.node(id).paused_until = self.now + by,
            Fault::Break(one, other) => self.network.break_link(one, other),
            Fault::Cut(one, other, by) => {
                self.network.cut(one, other);
                for (by_whom, of) in [(one, other), (other, one)] {
                    self.enqueue(
                        self.now + by / 4,
                        None,
                        Event::Fault(Fault::Doubt(by_whom, of)),
                    );
                }
                self.enqueue(self.now + by, None, Event::Fault(Fault::Heal(one, other)));
            }
            Fault::Heal(one, other) => self.heal(one, other),
            Fault::Doubt(by, of) if self.nodes[&by].alive && !self.quiet => {
                self.later(0, by, Event::Tell(In::Suspects([of].into())))
            }
            Fault::Suspect(by, of, long, down) => self.suspect(by, of, long, down),
            Fault::Quiet => self.end_faults(),
            _ => {}
        }
    }

    /// Somebody stays.
    fn may_go(&self, id: NodeId) -> bool {
        let stays = |(other, node): (&NodeId, &super::node::Node)| {
            *other != id && node.alive && node.doing != Doing::Leaving
        };
        let node = &self.nodes[&id];
        node.alive && node.doing != Doing::Leaving && self.nodes.iter().any(stays)
    }

    fn leave(&mut self, id: NodeId) {
        self.node(id).doing = Doing::Leaving;
        self.feed(id, In::Leave(ROUND));
    }

    fn suspect(&mut self, by: NodeId, of: NodeId, long: u64, down: bool) {
        if by == of || !self.nodes[&by].alive || !self.nodes[&of].alive {
            return;
        }
        if down {
            self.network.cut(by, of);
        }
        self.later(0, by, Event::Tell(In::MemberLost(of)));
        self.enqueue(self.now + long, None, Event::Fault(Fault::Heal(by, of)));
    }

    /// The connection is up again, and who was thought dead is alive.
    fn heal(&mut self, one: NodeId, other: NodeId) {
        self.network.heal(one, other);
        for (by, of) in [(one, other), (other, one)] {
            if self.nodes[&by].alive && self.nodes[&by].machine.suspects.contains(&of) {
                self.later(0, by, Event::Tell(In::Suspects([].into())));
            }
            if self.nodes[&of].alive
                && self.nodes[&by].alive
                && self.nodes[&by].machine.lost.contains(&of)
            {
                let notices = self.random.below(20 * MILLI);
                self.later(notices, by, Event::Tell(In::MemberBack(of)));
            }
        }
    }

    fn end_faults(&mut self) {
        self.network.heal_all();
        let ids = self.living();
        for one in &ids {
            let now = self.now;
            let node = self.node(*one);
            node.slowness = 100;
            node.paused_until = node.paused_until.min(now);
            ids.iter()
                .filter(|other| *other > one)
                .for_each(|other| self.heal(*one, *other));
        }
        self.fall_quiet();
    }
}
