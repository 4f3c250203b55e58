//! Counts of the events that simulated runs had.

use super::scenario::Class;
use crate::gossip_peer::Plan;
use crate::topology::Peers;

/// Figures of one run, or of many.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub events: u64,
    /// The longest wait of a gossip, in simulated microseconds.
    pub waited: u64,
    pub late: usize,
    /// Times that a node waited in vain for a peer that was not late.
    pub wrong_waits: usize,
    pub refused: usize,
    pub reclaimed: usize,
    pub debts: usize,
    pub jumps: usize,
    pub detours: usize,
    pub silent: usize,
    pub withheld: usize,
    pub held: usize,
    pub parked: usize,
    pub models: usize,
    pub weight_min: f64,
    pub weight_max: f64,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            events: 0,
            waited: 0,
            late: 0,
            wrong_waits: 0,
            refused: 0,
            reclaimed: 0,
            debts: 0,
            jumps: 0,
            detours: 0,
            silent: 0,
            withheld: 0,
            held: 0,
            parked: 0,
            models: 0,
            weight_min: 1.0,
            weight_max: 1.0,
        }
    }
}

impl Seen {
    pub fn weight(&mut self, weight: f64) {
        self.weight_min = self.weight_min.min(weight);
        self.weight_max = self.weight_max.max(weight);
    }

    pub fn shipped(&mut self, nominal: Peers, plan: &Plan) {
        self.detours += plan
            .out
            .iter()
            .filter(|to| !nominal.out.contains(to))
            .count();
        self.silent += nominal.out.len().saturating_sub(plan.out.len());
        self.weight(plan.split.kept);
    }

    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        for (mine, theirs) in [
            (&mut self.late, other.late),
            (&mut self.wrong_waits, other.wrong_waits),
            (&mut self.refused, other.refused),
            (&mut self.reclaimed, other.reclaimed),
            (&mut self.debts, other.debts),
            (&mut self.jumps, other.jumps),
            (&mut self.detours, other.detours),
            (&mut self.silent, other.silent),
            (&mut self.withheld, other.withheld),
        ] {
            *mine += theirs;
        }
        for (mine, theirs) in [
            (&mut self.held, other.held),
            (&mut self.parked, other.parked),
            (&mut self.models, other.models),
        ] {
            *mine = theirs.max(*mine);
        }
        self.waited = self.waited.max(other.waited);
        self.weight(other.weight_min);
        self.weight(other.weight_max);
    }
}

impl Seen {
    /// Checks the events of [`super::storm::RUNS`] runs of a class. Those that the class is for
    /// must have happened at least about half as often as when this was written, the others never.
    pub fn shows(&self, class: Class) {
        let least: [usize; 8] = match class {
            Class::Quiet => [80, 0, 900, 0, 0, 200, 30, 0],
            Class::Slow => [200, 0, 2_000, 0, 0, 450, 350, 0],
            Class::Lossy => [250, 40, 2_500, 0, 0, 450, 1_400, 75],
            Class::Churn => [240, 30, 2_000, 13, 2, 450, 3_800, 75],
            Class::Doubt => [250, 35, 2_400, 30, 3, 490, 1_400, 90],
        };
        let seen = [
            ("late", self.late),
            ("wrong_waits", self.wrong_waits),
            ("refused", self.refused),
            ("reclaimed", self.reclaimed),
            ("debts", self.debts),
            ("jumps", self.jumps),
            ("detours and skips", self.detours.min(self.silent)),
            ("withheld", self.withheld),
        ];
        for ((what, times), least) in seen.into_iter().zip(least) {
            assert!(
                times >= least && (times == 0 || least > 0),
                "{class:?}: {what} {times} times, not {least}: {self:?}"
            );
        }
    }
}
