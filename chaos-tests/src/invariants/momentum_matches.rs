//! 3. A decided round's momentum, values and anchors equal those of the single-process oracle for
//!    the same contributors.

use super::history::{Contribution, Known};
use super::{Checked, History, Invariant};
use slowmo_protocol::algorithm::OuterOptimizer;
use slowmo_protocol::coordinator::RoundKind;
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::shards::Layout;
use slowmo_protocol::trace::{Decided, Event, Held, Line, Place};
use std::collections::{BTreeMap, BTreeSet};

/// Outer optimizer assumed for runs that do not report one.
const OPTIMIZER: OuterOptimizer = OuterOptimizer::SlowMo {
    alpha: 1.0,
    beta: 0.5,
};

/// Relative difference from the oracle that sums over groups may have, in float64 over some hundred
/// rounds.
const TOLERANCE: f64 = 1e-9;

/// The state that one process would have after a round.
#[derive(Clone, Debug, Default)]
struct State {
    values: Vec<f64>,
    anchor: Vec<f64>,
    momentum: Vec<f64>,
}

/// Recomputes every decided round from the contributions as they were frozen.
#[derive(Default)]
pub struct MomentumMatches {
    states: BTreeMap<Place, State>,
    /// The holders of each shard after a round.
    holders: BTreeMap<Place, BTreeMap<ShardId, BTreeSet<NodeId>>>,
    checked: u64,
}

impl Invariant for MomentumMatches {
    fn name(&self) -> &'static str {
        "momentum_matches"
    }

    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String> {
        let Event::Applied {
            start,
            decided,
            values,
            holds,
            ..
        } = &line.event
        else {
            return Ok(());
        };
        if values.is_empty() {
            return Ok(());
        }
        if let Some(known) = history.new_outcome() {
            let state = self.compute(known, history)?;
            self.states.insert(decided.place, state);
        }
        for held in holds {
            self.holders
                .entry(decided.place)
                .or_default()
                .entry(held.shard)
                .or_default()
                .insert(start.node);
        }
        let Some(state) = self.states.get(&decided.place) else {
            return Ok(());
        };
        self.checked += 1;
        let node = start.node;
        let round = decided.place.round;
        let exact = history.setup().is_none_or(|setup| setup.groups <= 1);
        if !same(values, &state.values, exact) {
            return Err(format!(
                "{node} has other values than the oracle after {round}: {values:?} instead of {:?}",
                state.values
            ));
        }
        let layout = Layout::new(state.anchor.len());
        match holds
            .iter()
            .find(|held| !matches(held, state, layout, exact))
        {
            Some(Held {
                shard,
                momentum,
                anchor,
                ..
            }) => {
                let range = layout.range(*shard);
                let anchors = &state.anchor[range.clone()];
                let momenta = &state.momentum[range];
                Err(format!(
                    "{node} holds {shard} with anchor {anchor:?} and momentum {momentum:?} after \
                     {round}, the oracle {anchors:?} and {momenta:?}"
                ))
            }
            None => Ok(()),
        }
    }

    fn finish(&mut self, _: &History) -> Result<Checked, String> {
        Ok(if self.checked > 0 {
            Checked::Times(self.checked)
        } else {
            Checked::NotShown("the trace has digests, not values")
        })
    }
}

impl MomentumMatches {
    fn compute(&self, Known { decided, .. }: &Known, history: &History) -> Result<State, String> {
        let contributions = contributions(decided, history)?;
        let pieces: Vec<(f64, &[f64])> = contributions
            .iter()
            .map(|own| (own.weight, own.values.as_slice()))
            .collect();
        let mut values = average(&pieces);
        let before = history
            .before(decided)
            .and_then(|known| self.states.get(&known.decided.place));
        let (mut anchor, mut momentum) = before.map_or_else(
            || (values.clone(), vec![0.0; values.len()]),
            |state| (state.anchor.clone(), state.momentum.clone()),
        );
        let lost = self.lost(decided, history)?;
        if decided.kind == RoundKind::Slow {
            let optimizer = history
                .setup()
                .and_then(|setup| setup.optimizer)
                .unwrap_or(OPTIMIZER);
            let layout = Layout::new(values.len());
            for shard in layout.shards() {
                for index in layout.range(shard) {
                    let step = || {
                        slow_step(
                            optimizer,
                            values[index],
                            anchor[index],
                            momentum[index],
                            f64::from(decided.gamma),
                        )
                    };
                    (values[index], momentum[index]) = if lost.contains(&shard) {
                        (values[index], 0.0)
                    } else {
                        step()
                    };
                }
            }
        }
        if matches!(decided.kind, RoundKind::Slow | RoundKind::Bootstrap) {
            anchor.clone_from(&values);
        }
        Ok(State {
            values,
            anchor,
            momentum,
        })
    }

    /// The shards whose state no participant had; the number of newly lost ones must be what was
    /// decided.
    fn lost(&self, decided: &Decided, history: &History) -> Result<BTreeSet<ShardId>, String> {
        let Some(before) = history.before(decided).map(|known| &known.decided) else {
            return Ok(BTreeSet::new());
        };
        if self.holders.is_empty() {
            // The trace shows no holders.
            return Ok(BTreeSet::new());
        }
        let is_held = |shard: &ShardId| {
            let holders = self
                .holders
                .get(&before.place)
                .and_then(|holders| holders.get(shard));
            holders.is_some_and(|holders| {
                decided
                    .participants
                    .iter()
                    .any(|node| holders.contains(node))
            })
        };
        let shards = Layout::new(
            self.states
                .get(&before.place)
                .map_or(0, |state| state.anchor.len()),
        )
        .shards();
        let lost: BTreeSet<ShardId> = shards.filter(|shard| !is_held(shard)).collect();
        let new = lost
            .iter()
            .filter(|shard| !before.absent.contains(shard))
            .count() as u64;
        let counted = decided.momentum_lost.checked_sub(before.momentum_lost);
        let sharded = history.setup().is_some_and(|setup| setup.sharded);
        if sharded && counted != Some(new) {
            return Err(format!(
                "{} counts {counted:?} shards whose momentum is lost, and it is that of {lost:?}",
                decided.place.round
            ));
        }
        Ok(lost)
    }
}

/// The contributions that were averaged, in ascending node id.
fn contributions<'a>(
    decided: &Decided,
    history: &'a History,
) -> Result<Vec<&'a Contribution>, String> {
    let of = |node| {
        let start = decided.members.iter().find(|start| start.node == node);
        let contribution = start
            .and_then(|start| history.contribution(*start, decided.began_in, decided.place.round));
        contribution.ok_or_else(|| {
            format!(
                "{} was averaged with a contribution of {node} that it never made",
                decided.place.round
            )
        })
    };
    decided.contributors.iter().map(|node| of(*node)).collect()
}

/// The exact average: `Σx / Σw`, in ascending node id.
fn average(contributions: &[(f64, &[f64])]) -> Vec<f64> {
    let weight: f64 = contributions.iter().map(|(weight, _)| weight).sum();
    let elements = contributions.first().map_or(0, |(_, values)| values.len());
    let sum = |index: usize| {
        contributions
            .iter()
            .map(|(_, values)| values[index])
            .reduce(|sum, value| sum + value)
            .unwrap_or(0.0)
    };
    (0..elements).map(|index| sum(index) / weight).collect()
}

/// The slow step on one value, as in the papers; returns the parameter and its momentum.
// The judge has its own arithmetic, so that an error in that of the nodes cannot hide here.
fn slow_step(
    optimizer: OuterOptimizer,
    average: f64,
    anchor: f64,
    momentum: f64,
    gamma: f64,
) -> (f64, f64) {
    let change = anchor - average;
    match optimizer {
        OuterOptimizer::SlowMo { alpha, beta } => {
            let next = f64::from(beta) * momentum + change / gamma;
            (anchor - f64::from(alpha) * gamma * next, next)
        }
        OuterOptimizer::Nesterov { eta, mu } => {
            let next = f64::from(mu) * momentum + change;
            (
                anchor - f64::from(eta) * (change + f64::from(mu) * next),
                next,
            )
        }
        OuterOptimizer::BmufNbm { eta, mu } => {
            let next = f64::from(mu) * momentum + f64::from(eta) * change;
            (anchor - next - f64::from(mu) * next, next)
        }
    }
}

fn matches(held: &Held, state: &State, layout: Layout, exact: bool) -> bool {
    let range = layout.range(held.shard);
    same(&held.anchor, &state.anchor[range.clone()], exact)
        && same(&held.momentum, &state.momentum[range], exact)
}

/// Whether the values are those of the oracle. Sums over groups are not exact: there the groups'
/// sums are rounded, which the oracle's are not.
fn same(values: &[f64], oracle: &[f64], exact: bool) -> bool {
    let close =
        |value: f64, oracle: f64| (value - oracle).abs() <= TOLERANCE * oracle.abs().max(1.0);
    values.len() == oracle.len()
        && values
            .iter()
            .zip(oracle)
            .all(|(value, oracle)| value == oracle || (!exact && close(*value, *oracle)))
}
