//! Rounds as they would ideally be: all living members contribute, or the round waits no longer;
//! everybody gets the mean.

use super::audit::{Mass, combine};
use super::node::Doing;
use super::seen;
use super::world::{Event, World};
use crate::gossip_peer::In;
use crate::ident::{Epoch, Incarnation, Lineage, NodeId, Round, Step};
use crate::view::{Member, View};
use std::collections::{BTreeMap, BTreeSet};

/// What a round came to.
pub struct Decision {
    pub view: View,
    pub mean: [f64; 2],
}

pub struct Rounds {
    tau: Option<u64>,
    /// The round under way.
    pub round: Round,
    pub view: View,
    pub contributed: BTreeMap<NodeId, Mass>,
    pub decided: BTreeMap<Round, Decision>,
    pub joiners: BTreeSet<NodeId>,
    pub leavers: BTreeSet<NodeId>,
}

/// A view of these nodes; each may be another start of it.
pub fn view_of(epoch: Epoch, ids: impl IntoIterator<Item = (NodeId, u64)>) -> View {
    let member = |(id, life)| Member {
        id,
        incarnation: Incarnation(life),
        address: ([127, 0, 0, 1], 1).into(),
        devices: 1,
    };
    View::new(epoch, ids.into_iter().map(member).collect()).unwrap()
}

impl Rounds {
    pub fn new(ids: &[NodeId], tau: Option<u64>) -> Self {
        let view = view_of(Epoch::BOOTSTRAP, ids.iter().map(|id| (*id, 0)));
        let contributed = BTreeMap::new();
        let decided = BTreeMap::new();
        Self {
            tau,
            round: Round(1),
            view,
            contributed,
            decided,
            joiners: BTreeSet::new(),
            leavers: BTreeSet::new(),
        }
    }

    /// The step that closes a round.
    pub fn boundary(&self, round: Round) -> Option<Step> {
        self.tau.map(|tau| Step(round.0 * tau - 1))
    }

    /// The first step of a round.
    pub fn first(&self, round: Round) -> Step {
        Step(self.tau.map_or(0, |tau| (round.0 - 1) * tau))
    }

    /// How many gossips there are before `step`.
    pub fn turn(&self, step: Step) -> u64 {
        step.0 - self.tau.map_or(0, |tau| step.0 / tau)
    }
}

impl World {
    /// A node's contribution is frozen.
    pub fn contribute(&mut self, id: NodeId) {
        let round = self.nodes[&id].round;
        let mass = self.nodes[&id].mass;
        self.node(id).doing = Doing::Settled;
        if round != self.rounds.round {
            return;
        }
        if self.rounds.contributed.is_empty() {
            let patience = self.now + self.scenario.grace.0;
            self.enqueue(patience, None, Event::Patience(round));
        }
        self.rounds.contributed.insert(id, mass);
        self.consider();
    }

    /// Decides once everybody who lives has contributed.
    pub fn consider(&mut self) {
        let waits =
            |id: NodeId| self.nodes[&id].alive && !self.rounds.contributed.contains_key(&id);
        if !self.rounds.contributed.is_empty() && !self.rounds.view.ids().any(waits) {
            self.decide();
        }
    }

    pub fn decide(&mut self) {
        let sum = self
            .rounds
            .contributed
            .values()
            .fold([0.0; 3], |sum, mass| combine(sum, 1.0, *mass));
        let mean = [sum[1] / sum[0], sum[2] / sum[0]];
        seen::trace(
            self.now,
            "DECIDE",
            &(
                self.rounds.round,
                &self.rounds.contributed.keys().collect::<Vec<_>>(),
                mean,
            ),
        );
        self.assert_all_is_in_it(sum);
        let before = self.rounds.view.clone();
        let (kept, joiners) = self.next_members();
        let ids = kept
            .iter()
            .map(|id| (*id, before.member(*id).unwrap().incarnation.0));
        let ids = ids
            .chain(joiners.iter().map(|id| (*id, self.lives + 1)))
            .collect::<Vec<_>>();
        if ids.is_empty() {
            // Everybody left.
            return;
        }
        if !joiners.is_empty() || kept.len() < before.size() {
            self.rounds.view = view_of(Epoch(before.epoch().0 + 1), ids);
        }
        self.rounds.round = self.rounds.round.next();
        self.rounds.contributed.clear();
        let round = self.rounds.round;
        let view = self.rounds.view.clone();
        self.rounds.decided.insert(
            round,
            Decision {
                view: view.clone(),
                mean,
            },
        );
        joiners
            .iter()
            .for_each(|id| self.spawn(*id, [1.0, mean[0], mean[1]]));
        let members = view.ids().filter(|id| self.nodes[id].alive).collect();
        self.audit.begin(round, mean, members);
        for id in before
            .ids()
            .chain(joiners.iter().copied())
            .filter(|id| self.nodes[id].alive)
            .collect::<Vec<_>>()
        {
            let delay = self.delay() * (1 + self.random.below(3));
            self.later(delay, id, Event::Decided(round));
        }
        self.introduce(&joiners);
    }

    /// If nothing was lost, all is in the average.
    fn assert_all_is_in_it(&self, sum: Mass) {
        let all = self
            .rounds
            .view
            .ids()
            .all(|id| self.rounds.contributed.contains_key(&id));
        if all && !self.audit.adjusted {
            let missing = combine(self.audit.expected, -1.0, sum);
            assert!(
                missing.iter().all(|value| value.abs() < 1e-6),
                "not in the average: {missing:?}"
            );
        }
    }

    /// Who stays, and who comes. That a member died may be noticed late.
    fn next_members(&mut self) -> (Vec<NodeId>, Vec<NodeId>) {
        let mut kept = Vec::new();
        for id in self.rounds.view.ids().collect::<Vec<_>>() {
            let unnoticed = !self.nodes[&id].alive
                && !self.rounds.joiners.contains(&id)
                && self.random.below(10) < 3;
            if (self.nodes[&id].alive && !self.rounds.leavers.contains(&id)) || unnoticed {
                kept.push(id);
            }
        }
        let joiners = std::mem::take(&mut self.rounds.joiners)
            .into_iter()
            .collect();
        (kept, joiners)
    }

    /// Joiners hear of the round and of who is dead.
    fn introduce(&mut self, joiners: &[NodeId]) {
        let dead: Vec<NodeId> = self
            .rounds
            .view
            .ids()
            .filter(|id| !self.nodes[id].alive)
            .collect();
        for id in joiners {
            // Its transport keeps what arrives before it has a view.
            let wakes = self.now + self.delay();
            self.node(*id).paused_until = wakes;
            for dead in &dead {
                self.later(1, *id, Event::Tell(In::MemberLost(*dead)));
            }
        }
    }

    /// A node is told what was decided.
    pub fn hear(&mut self, id: NodeId, round: Round) {
        let decision = &self.rounds.decided[&round];
        let view = decision.view.clone();
        let node = &self.nodes[&id];
        if node.doing == Doing::Leaving || node.heard.is_some_and(|heard| heard >= round) {
            return;
        }
        if node.doing != Doing::Joining && node.round >= round {
            return;
        }
        if !view.contains(id) {
            self.node(id).doing = Doing::Leaving;
            return self.feed(id, In::Leave(round));
        }
        if view.epoch() != node.machine.epoch {
            self.feed(
                id,
                In::View {
                    view,
                    lineage: Lineage(1),
                    round,
                    order: Vec::new(),
                },
            );
        } else {
            self.feed(id, In::Round(round));
        }
        self.node(id).heard = Some(round);
        if self.nodes[&id].doing != Doing::Computing {
            self.adopt(id);
        }
    }

    /// The training threads take over what was decided.
    pub fn adopt(&mut self, id: NodeId) {
        let Some(round) = self.nodes[&id].heard else {
            return;
        };
        let mean = self.rounds.decided[&round].mean;
        let first = self.rounds.first(round);
        self.node(id).adopt(round, first, mean);
        self.compute(id);
    }
}
