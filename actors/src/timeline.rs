//! History of a node, kept so that its page can show it later: the last decided rounds, and
//! thinned-out curves of the values that the training reported.

use crate::metrics::round_name;
use crate::unix_time::unix_us;
use serde::Serialize;
use slowmo_protocol::coordinator::Outcome;
use slowmo_protocol::ident::{NodeId, Step};
use slowmo_protocol::time::Span;
use slowmo_protocol::wire::MEASURES_MAX;
use std::collections::{BTreeMap, VecDeque};

/// Most rounds that are kept.
pub const ROUNDS_MAX: usize = 240;
/// Most points of a curve. A curve that is full drops every second point and from then on keeps
/// half as many of the new values.
pub const CURVE_POINTS_MAX: usize = 512;
/// Name of the curve that shows the node's distance from the mean.
pub const DISAGREEMENT: &str = "disagreement";

/// One decided round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoundNote {
    /// Number of the round.
    pub round: u64,
    /// Time at which this node applied it, in microseconds since 1970.
    pub at_us: u64,
    /// Kind of the round, as metrics name it.
    pub kind: &'static str,
    /// The inner step after the round.
    pub step: u64,
    /// Members of the view after the round.
    pub members: Vec<NodeId>,
    /// Nodes whose contributions the round averaged.
    pub contributors: Vec<NodeId>,
    /// Time from the moment when all contributions were on their way until the round was decided,
    /// in microseconds.
    pub published_us: u64,
}

/// Values over inner steps: every value, or one out of every `every` values.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<(u64, f64)>,
    every: u64,
    left_out: u64,
}

impl Default for Curve {
    fn default() -> Self {
        Self {
            points: Vec::new(),
            every: 1,
            left_out: 0,
        }
    }
}

impl Curve {
    /// Inner steps and values, ascending; at most [`CURVE_POINTS_MAX`].
    #[must_use]
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }

    /// Appends one value, or leaves it out if the curve is being thinned.
    pub fn push(&mut self, step: Step, value: f64) {
        self.left_out += 1;
        if self.left_out < self.every {
            return;
        }
        self.left_out = 0;
        if self.points.len() == CURVE_POINTS_MAX {
            let mut keeps = false;
            self.points.retain(|_| {
                keeps = !keeps;
                keeps
            });
            self.every = self.every.saturating_mul(2);
        }
        self.points.push((step.0, value));
    }
}

/// Rounds and curves of one node.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    rounds: VecDeque<RoundNote>,
    curves: BTreeMap<String, Curve>,
}

impl Timeline {
    /// Records a decided round.
    pub fn decided(&mut self, outcome: &Outcome, disagreement: Option<f32>, published: Span) {
        if self.rounds.len() == ROUNDS_MAX {
            self.rounds.pop_front();
        }
        // As with events: no two rounds have the same time, and none is earlier than the one
        // before.
        let after = self.rounds.back().map_or(0, |last| last.at_us + 1);
        self.rounds.push_back(RoundNote {
            round: outcome.round.0,
            at_us: unix_us().max(after),
            kind: round_name(outcome.spec.kind),
            step: outcome.spec.next_step().0,
            members: outcome.view.ids().collect(),
            contributors: outcome.contributors.clone(),
            published_us: published.0,
        });
        if let Some(disagreement) = disagreement {
            self.push(DISAGREEMENT, outcome.spec.step, f64::from(disagreement));
        }
    }

    /// Records a value that the training reported.
    pub fn measured(&mut self, name: &str, step: Step, value: f64) {
        self.push(name, step, value);
    }

    /// Values that are not finite are left out: they have no place on a curve.
    fn push(&mut self, name: &str, step: Step, value: f64) {
        if !value.is_finite() {
            return;
        }
        if let Some(curve) = self.curves.get_mut(name) {
            curve.push(step, value);
        } else if self.curves.len() <= MEASURES_MAX {
            self.curves
                .entry(name.to_owned())
                .or_default()
                .push(step, value);
        }
    }

    /// The kept rounds that were applied after `at_us`, oldest first.
    pub fn rounds_after(&self, at_us: u64) -> impl Iterator<Item = &RoundNote> {
        self.rounds.iter().filter(move |note| note.at_us > at_us)
    }

    /// The curves by name.
    pub fn curves(&self) -> impl Iterator<Item = (&str, &Curve)> {
        self.curves
            .iter()
            .map(|(name, curve)| (name.as_str(), curve))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_is_thinned_out_and_keeps_its_span() {
        let mut curve = Curve::default();
        for step in 0..100_000 {
            curve.push(Step(step), step as f64);
        }
        let points = curve.points();
        assert!(
            (CURVE_POINTS_MAX / 2..=CURVE_POINTS_MAX).contains(&points.len()),
            "{}",
            points.len()
        );
        assert!(points[0].0 < 512 && points[points.len() - 1].0 > 99_000);
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
