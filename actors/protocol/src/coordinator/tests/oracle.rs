//! The numeric model: what a single process computes from the same contributions, and the seeded drift between rounds.

use crate::coordinator::RoundKind;

pub const BETA: f64 = 0.5;
pub const GAMMA: f32 = 0.125;

/// A seeded generator (splitmix64), so that a run is a function of its seed.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// What `node` (by rank) adds to element `index` of its parameters before `round`: its inner steps.
pub fn drift(rank: usize, round: u64, index: usize) -> f64 {
    let seed = (rank as u64) << 40 ^ round << 20 ^ index as u64;
    (Random(seed).next() >> 11) as f64 / (1u64 << 53) as f64 - 0.5
}

pub fn mean(contributions: &[&[f64]]) -> Vec<f64> {
    let sum = |index: usize| contributions.iter().fold(0.0, |sum, values| sum + values[index]);
    (0..contributions[0].len()).map(|index| sum(index) / contributions.len() as f64).collect()
}

/// `u ← βu + (o − x̄)/γ; x ← o − γu` on one element: the new parameter and the new momentum.
pub fn slow_step(average: f64, anchor: f64, momentum: f64) -> (f64, f64) {
    let next = BETA * momentum + (anchor - average) / f64::from(GAMMA);
    (anchor - f64::from(GAMMA) * next, next)
}

/// Every node's parameters, the anchor and the momentum, in one process.
pub struct Oracle {
    pub parameters: Vec<Vec<f64>>,
    anchor: Vec<f64>,
    momentum: Vec<f64>,
}

/// What a round's result must be everywhere.
#[derive(Clone, PartialEq, Debug)]
pub struct Expected {
    pub values: Vec<f64>,
    pub momentum: Vec<f64>,
}

impl Oracle {
    pub fn new(nodes: usize, elements: usize) -> Self {
        let parameters = (0..nodes).map(|rank| vec![rank as f64 + 1.0; elements]).collect();
        Self { parameters, anchor: vec![0.0; elements], momentum: vec![0.0; elements] }
    }

    /// Closes `round`, of `kind`, with every node's next contribution.
    pub fn close(&mut self, round: u64, kind: RoundKind, elements: usize) -> Expected {
        let contributions: Vec<Vec<f64>> = (0..self.parameters.len()).map(|rank| self.contribution(rank, round, kind, elements)).collect();
        let all: Vec<&[f64]> = contributions.iter().map(Vec::as_slice).collect();
        let mut values = if kind == RoundKind::Found { contributions[0].clone() } else { mean(&all) };
        if kind == RoundKind::Slow {
            for (index, value) in values.iter_mut().enumerate() {
                (*value, self.momentum[index]) = slow_step(*value, self.anchor[index], self.momentum[index]);
            }
        }
        if kind != RoundKind::Gradients {
            self.parameters.fill(values.clone());
        }
        if matches!(kind, RoundKind::Found | RoundKind::Slow) {
            self.anchor.clone_from(&values);
        }
        Expected { values, momentum: self.momentum.clone() }
    }

    /// What the node of `rank` contributes; gradients are no parameters and leave them alone.
    pub fn contribution(&mut self, rank: usize, round: u64, kind: RoundKind, elements: usize) -> Vec<f64> {
        if kind == RoundKind::Gradients {
            return (0..elements).map(|index| drift(rank, round, index)).collect();
        }
        let parameters = &mut self.parameters[rank];
        for (index, value) in parameters.iter_mut().enumerate() {
            *value += drift(rank, round, index);
        }
        parameters.clone()
    }
}
