//! The whole history in one process: what every decided round must have made of the recorded contributions.

use crate::coordinator::outcome::{Outcome, RoundKind};
use crate::ident::{NodeId, Round, ShardId};
use crate::shards::Layout;
use std::collections::BTreeMap;

pub const BETA: f64 = 0.5;
pub const GAMMA: f32 = 0.125;

/// `x̄ → (parameters, momentum)`: the slow step on one value (algorithm section 4, α = 1).
pub fn slow_step(average: f64, anchor: f64, momentum: f64) -> (f64, f64) {
    let gamma = f64::from(GAMMA);
    let next = BETA * momentum + (anchor - average) / gamma;
    (anchor - gamma * next, next)
}

/// The mean in the order given.
pub fn mean(pieces: &[&[f64]]) -> Vec<f64> {
    let mut sum = pieces[0].to_vec();
    for piece in &pieces[1..] {
        sum.iter_mut().zip(*piece).for_each(|(sum, value)| *sum += value);
    }
    sum.iter_mut().for_each(|sum| *sum /= pieces.len() as f64);
    sum
}

/// Contributions as they were frozen, and the state after the last decided round.
#[derive(Default)]
pub struct Oracle {
    pub contributions: BTreeMap<(Round, NodeId), Vec<f64>>,
    /// The base optimizer's buffers as they were then.
    pub buffers: BTreeMap<(Round, NodeId), Vec<f64>>,
    pub outcomes: BTreeMap<Round, Outcome>,
    /// What a round made.
    pub values: BTreeMap<Round, Vec<f64>>,
    /// The parameters after it.
    pub parameters: BTreeMap<Round, Vec<f64>>,
    pub anchors: BTreeMap<Round, Vec<f64>>,
    pub momenta: BTreeMap<Round, Vec<f64>>,
}

impl Oracle {
    /// Takes in an outcome the first time it is applied; `lost` are the shards whose state nobody had.
    pub fn decide(&mut self, outcome: &Outcome, lost: &[ShardId]) {
        if let Some(known) = self.outcomes.get(&outcome.round) {
            // Fewer than a quorum may go on with it under another lineage.
            assert!(known.has_the_data_of(outcome), "two outcomes of one round: {known:?} and {outcome:?}");
            return;
        }
        let mut order = outcome.order.clone();
        order.sort_unstable();
        assert!(order.is_empty() || order.iter().copied().eq(outcome.view.ids()), "{:?}", outcome.order);
        let round = outcome.round;
        self.outcomes.insert(round, outcome.clone());
        let pieces: Vec<&[f64]> = outcome.contributors.iter().map(|node| self.contributions[&(round, *node)].as_slice()).collect();
        let mut values = mean(&pieces);
        let before = Round(round.0.wrapping_sub(1));
        let zeros = vec![0.0; values.len()];
        let (mut anchor, mut momentum) =
            (self.anchors.get(&before).unwrap_or(&values).clone(), self.momenta.get(&before).unwrap_or(&zeros).clone());
        if outcome.spec.kind == RoundKind::Slow {
            let layout = Layout::new(values.len());
            for shard in layout.shards() {
                for index in layout.range(shard) {
                    let plain = (values[index], 0.0);
                    (values[index], momentum[index]) =
                        if lost.contains(&shard) { plain } else { slow_step(values[index], anchor[index], momentum[index]) };
                }
            }
        }
        if matches!(outcome.spec.kind, RoundKind::Slow | RoundKind::Found) {
            anchor.clone_from(&values);
        }
        let parameters = if outcome.spec.carries_parameters() { values.clone() } else { self.parameters[&before].clone() };
        self.parameters.insert(round, parameters);
        self.values.insert(round, values);
        self.anchors.insert(round, anchor);
        self.momenta.insert(round, momentum);
    }
}
