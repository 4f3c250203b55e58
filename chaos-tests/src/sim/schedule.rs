//! Which faults a simulated run has, and when: everything follows from its seed.

use super::config::{Class, Config, MILLI};
use super::random::Random;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::trace::{Fault, Link, Timed};

/// New nodes have ids from here on, and below the founders'.
const NEW_IDS: u64 = 500;
/// Longest time that a node is stopped, or a link is not well.
const LONG: u64 = 3_000 * MILLI;
/// Longest time that members cannot reach each other, where it is that which is tried.
const APART: u64 = 12_000 * MILLI;

/// The faults of a run.
#[must_use]
pub fn of(config: &Config) -> Vec<Timed> {
    let mut planner = Planner { random: Random::new(config.seed, 4), config, ids: config.founders.clone(), new: 0, faults: Vec::new() };
    let begins = 300 * MILLI;
    for index in 0..config.faults {
        let span = config.horizon.saturating_sub(begins);
        let at = match config.class {
            // Far apart, and the last one well before the end.
            Class::Spaced => begins + index * span / config.faults,
            _ => begins + planner.random.below(span),
        };
        planner.plan(at);
    }
    planner.faults.sort_by_key(|timed| timed.at);
    planner.faults
}

struct Planner<'a> {
    random: Random,
    config: &'a Config,
    ids: Vec<NodeId>,
    new: u64,
    faults: Vec<Timed>,
}

impl Planner<'_> {
    fn push(&mut self, at: u64, fault: Fault) {
        self.faults.push(Timed { at: Instant(at), fault });
    }

    /// Every other fault hits the lowest ids: one of them leads.
    fn victim(&mut self) -> NodeId {
        let reach = if self.random.once_in(2) { 2 } else { self.ids.len() as u64 };
        self.ids[self.random.below(reach.min(self.ids.len() as u64)) as usize]
    }

    fn newcomer(&mut self) -> NodeId {
        self.new += 1;
        let id = if self.random.once_in(4) { NodeId(self.new % 2) } else { NodeId(NEW_IDS + self.new) };
        if !self.ids.contains(&id) {
            self.ids.push(id);
        }
        id
    }

    fn plan(&mut self, at: u64) {
        let node = self.victim();
        match (self.config.class, self.random.below(16)) {
            (Class::Calm, _) => {}
            (Class::Network, choice) => self.plan_links(at, choice),
            (Class::Apart, choice) => self.plan_apart(at, choice),
            (Class::Storm, choice) if choice < 7 => self.plan_links(at, self.random.clone().below(16)),
            (_, 0..3) => {
                self.push(at, Fault::Kill { node });
                if self.random.once_in(2) {
                    let back = at + self.random.below(1_500 * MILLI);
                    self.push(back, Fault::Start { node });
                }
            }
            (_, 3..6) => {
                self.push(at, Fault::Kill { node });
                let back = at + self.random.below(30 * MILLI);
                self.push(back, Fault::Start { node });
            }
            (_, 6 | 7) => {
                let span = Span(self.random.below(LONG));
                self.push(at, Fault::Pause { node, span });
            }
            (_, 8..11) => self.plan_arrival(at),
            (_, 11) => self.push(at, Fault::Drain { node }),
            (_, 12) => {
                self.push(at, Fault::Drain { node });
                let soon = at + self.random.below(200 * MILLI);
                self.push(soon, Fault::Kill { node });
                let back = soon + self.random.below(200 * MILLI);
                self.push(back, Fault::Start { node });
            }
            (_, 13) => {
                let hundredths = 100 + self.random.below(900) as u32;
                self.push(at, Fault::Slow { node, hundredths });
            }
            (_, 14) => {
                let span = Span(self.random.below(400 * MILLI));
                self.push(at, Fault::SlowDisk { node, span });
            }
            _ => {
                let millionths = 950_000 + self.random.below(100_000) as u32;
                self.push(at, Fault::Drift { node, millionths });
            }
        }
    }

    /// A new node; perhaps it dies, drains or pauses while it joins.
    fn plan_arrival(&mut self, at: u64) {
        let node = self.newcomer();
        self.push(at, Fault::Start { node });
        let soon = at + self.random.below(400 * MILLI);
        match self.random.below(5) {
            0 => self.push(soon, Fault::Kill { node }),
            1 => {
                let span = Span(self.random.below(LONG));
                self.push(soon, Fault::Pause { node, span });
            }
            2 => self.push(soon, Fault::Drain { node }),
            _ => {}
        }
    }

    fn plan_links(&mut self, at: u64, choice: u64) {
        let node = self.victim();
        let other = self.ids[self.random.below(self.ids.len() as u64) as usize];
        let cut = Link { cut: true, ..Link::default() };
        let healed = at + self.random.below(LONG);
        match choice {
            0 | 1 => self.push(at, Fault::Break { one: node, other }),
            2..4 => {
                // One node hears nobody, or is heard by nobody.
                let (alone, rest) = (vec![node], self.ids.clone());
                let (from, to) = if self.random.once_in(2) { (alone, rest) } else { (rest, alone) };
                self.links_for(at, healed, (from, to), cut);
            }
            4 | 5 => self.links_for(at, healed, (vec![node], vec![other]), cut),
            6..9 => {
                let (one, rest) = self.sides();
                self.both_ways(at, healed, (one, rest), cut);
            }
            9 | 10 => self.bridge(at, healed, node),
            11 | 12 => {
                let link = Link {
                    delay_us: self.random.below(80 * MILLI),
                    jitter_us: self.random.below(60 * MILLI),
                    lost_per_million: self.random.below(200_000) as u32,
                    doubled_per_million: self.random.below(100_000) as u32,
                    ..Link::default()
                };
                let (one, rest) = self.sides();
                self.both_ways(at, healed, (one, rest), link);
            }
            13 => {
                let link = Link { bytes_per_second: 2_000 + self.random.below(60_000), ..Link::default() };
                let rest = self.ids.clone();
                self.links_for(at, healed, (vec![node], rest), link);
            }
            _ => {
                // A link that comes and goes.
                for flap in 0..2 + self.random.below(4) {
                    let down = at + flap * 400 * MILLI;
                    let up = down + self.random.below(390 * MILLI);
                    self.both_ways(down, up, (vec![node], vec![other]), cut);
                }
            }
        }
    }

    /// Members that cannot reach each other, in one direction or both, while others reach both of them; now and then one dies meanwhile.
    fn plan_apart(&mut self, at: u64, choice: u64) {
        let node = self.victim();
        let other = self.ids[self.random.below(self.ids.len() as u64) as usize];
        let cut = Link { cut: true, ..Link::default() };
        let healed = at + self.random.below(APART);
        match choice {
            0..6 => self.both_ways(at, healed, (vec![node], vec![other]), cut),
            6..9 => self.links_for(at, healed, (vec![node], vec![other]), cut),
            9..12 => self.bridge(at, healed, node),
            12 | 13 => {
                let third = self.victim();
                self.both_ways(at, healed, (vec![node], vec![other, third]), cut);
            }
            _ => {
                self.both_ways(at, healed, (vec![node], vec![other]), cut);
                let dies = at + self.random.below(APART);
                let node = self.victim();
                self.push(dies, Fault::Kill { node });
                let back = dies + self.random.below(LONG);
                self.push(back, Fault::Start { node });
            }
        }
    }

    /// Two sides that only `node` reaches both of.
    fn bridge(&mut self, at: u64, healed: u64, node: NodeId) {
        let (one, mut rest) = self.sides();
        rest.retain(|id| *id != node);
        let one = one.into_iter().filter(|id| *id != node).collect();
        self.both_ways(at, healed, (one, rest), Link { cut: true, ..Link::default() });
    }

    fn sides(&mut self) -> (Vec<NodeId>, Vec<NodeId>) {
        let ids = self.ids.clone();
        ids.into_iter().partition(|_| self.random.once_in(3))
    }

    fn both_ways(&mut self, at: u64, healed: u64, (one, other): (Vec<NodeId>, Vec<NodeId>), link: Link) {
        self.links_for(at, healed, (one.clone(), other.clone()), link);
        self.links_for(at, healed, (other, one), link);
    }

    fn links_for(&mut self, at: u64, healed: u64, (from, to): (Vec<NodeId>, Vec<NodeId>), link: Link) {
        self.push(at, Fault::Links { from: from.clone(), to: to.clone(), link });
        self.push(healed, Fault::Links { from, to, link: Link::default() });
    }
}
