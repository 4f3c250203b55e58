//! When decided state is checkpointed, and which node writes which part: functions of what every
//! member knows, so no communication is needed.
//!
//! The state after an outer round is checkpointed: there every member has the same parameters, the
//! anchor equals those parameters, and the slow momentum is the shards' (with `sharded = false`
//! every node's, identical on all). Without an outer optimizer it is the state after an exact
//! average.

use crate::algorithm::{Algorithm, Base};
use crate::changeable::SettingValues;
use crate::coordinator::{RoundKind, RoundSpec};
use crate::ident::{NodeId, ShardId, Step};
use crate::shards::{Layout, ShardMap};
use crate::view::View;
use std::num::NonZeroU64;

/// Inner steps from one possible checkpoint to the next; `None` if the nodes never have the same
/// parameters, or the slow momentum is not the same on all.
#[must_use]
pub fn period(algorithm: &Algorithm) -> Option<u64> {
    Points::all(algorithm).period()
}

/// The rounds after which the state can be checkpointed, and how many of them are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Points {
    /// Frequency of the outer rounds, whether they are sharded, and whether they average exactly.
    outer: Option<(u64, bool, bool)>,
    /// LocalSGD's frequency.
    frequency: Option<u64>,
    average_every: Option<u64>,
    /// Every so many of them are checkpointed.
    every: u64,
}

impl Points {
    /// All of an algorithm; `None` if there are none: see [`period`].
    #[must_use]
    pub fn of(algorithm: &Algorithm) -> Option<Self> {
        let points = Self::all(algorithm);
        points.period().is_some().then_some(points)
    }

    /// All of an algorithm; it may be that none of them ever comes.
    #[must_use]
    pub fn all(algorithm: &Algorithm) -> Self {
        let frequency = match algorithm.base {
            Base::LocalSgd { frequency } => Some(frequency),
            _ => None,
        };
        let outer = algorithm
            .outer
            .map(|outer| (outer.frequency, outer.sharded, outer.average));
        Self {
            outer,
            frequency,
            average_every: algorithm.average_every,
            every: 1,
        }
    }

    /// Every `steps` inner steps, after an outer round.
    #[must_use]
    pub fn each(steps: u64) -> Self {
        Self {
            outer: Some((steps, true, true)),
            frequency: None,
            average_every: None,
            every: 1,
        }
    }

    /// Every `every`-th of these is checkpointed.
    #[must_use]
    pub fn every(self, every: u64) -> Self {
        Self { every, ..self }
    }

    /// These with the values of changed settings.
    #[must_use]
    pub fn changed(self, values: SettingValues) -> Self {
        let tau = values.tau.map(NonZeroU64::get);
        let frequency = values.frequency.map(NonZeroU64::get);
        Self {
            outer: self
                .outer
                .map(|(outer, sharded, average)| (tau.unwrap_or(outer), sharded, average)),
            frequency: self.frequency.map(|before| frequency.unwrap_or(before)),
            average_every: self.average_every,
            every: values.checkpoint_every(self.every),
        }
    }

    /// Inner steps from one of them to the next; at least 1.
    fn period(&self) -> Option<u64> {
        let period = match (self.outer, self.frequency) {
            (Some((tau, true, _)), _) => Some(tau),
            // fairscale's unsharded path: the whole step follows an average only where LocalSGD's
            // own frequency says so.
            (Some((tau, false, _)), Some(frequency)) => {
                (tau.checked_rem(frequency) == Some(0)).then_some(tau)
            }
            (Some((tau, false, average)), None) => average.then_some(tau),
            (None, frequency) => frequency.or(self.average_every),
        };
        period.filter(|period| *period > 0)
    }

    /// Inner steps from one checkpoint to the next; `None` if there are none.
    #[must_use]
    pub fn spacing(&self) -> Option<u64> {
        self.period()
            .and_then(|period| period.checked_mul(self.every))
            .filter(|spacing| *spacing > 0)
    }

    fn follow(&self, spec: &RoundSpec, spacing: Option<u64>) -> bool {
        let kind = if self.outer.is_some_and(|(_, sharded, _)| sharded) {
            RoundKind::Slow
        } else {
            RoundKind::Average
        };
        let steps = spec.step.0.saturating_add(1);
        spec.kind == kind && spacing.and_then(|spacing| steps.checked_rem(spacing)) == Some(0)
    }

    /// Whether the state after a round with this spec can be checkpointed.
    #[must_use]
    pub fn contain(&self, spec: &RoundSpec) -> bool {
        self.follow(spec, self.period())
    }

    /// Whether the state after a round with this spec is checkpointed.
    #[must_use]
    pub fn are_due(&self, spec: &RoundSpec) -> bool {
        self.follow(spec, self.spacing())
    }
}

/// The rank of the checkpoint that `step` follows: how often the number of checkpoints up to it can
/// be halved. Half of all have rank 0, half of the rest rank 1, and so on. Nodes that cannot write
/// all checkpoints thereby agree on which to write.
#[must_use]
pub fn rank(step: Step, spacing: u64) -> u32 {
    match (step.0.checked_div(spacing), step.0.checked_rem(spacing)) {
        (Some(number), Some(0)) if number > 0 => number.trailing_zeros(),
        _ => 0,
    }
}

/// Whether a writer that is behind, with `waiting` already queued, replaces it by `next`: true if
/// `next` has no lower rank.
///
/// If writing a part takes no longer than the time of 2^r checkpoints, all checkpoints of rank r
/// and above are written: one of them is begun before the next of them is due, and nothing of a
/// lower rank takes its place. So nodes that are behind by different amounts, at different times,
/// skip the same ones: every 2^r-th checkpoint is complete, where r is the slowest node's. If each
/// node always took the newest, each would write different ones.
#[must_use]
pub fn replaces(next: Step, waiting: Step, spacing: u64) -> bool {
    rank(next, spacing) >= rank(waiting, spacing)
}

/// Whether the outcome of a round with this spec is checkpointed, if every `every`-th one is. 0
/// disables checkpoints.
#[must_use]
pub fn is_due(algorithm: &Algorithm, every: u64, spec: &RoundSpec) -> bool {
    Points::all(algorithm).every(every).are_due(spec)
}

/// The shards of a vector of `elements` values that `node` writes: those that it owns in the
/// decided view, ascending.
#[must_use]
pub fn written_by(node: NodeId, view: &View, elements: usize, replicas: usize) -> Vec<ShardId> {
    let layout = Layout::new(elements);
    let map = ShardMap::new(view, &layout, replicas);
    layout
        .shards()
        .filter(|shard| map.owner(*shard) == Some(node))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::algorithm::{BufferStrategy, Gossip, Outer, OuterOptimizer, WireType};
    use crate::ident::{Epoch, GroupId, Incarnation};
    use crate::published::PublicKey;
    use crate::view::Member;

    fn algorithm(
        base: Base,
        outer: Option<(u64, bool, bool)>,
        average_every: Option<u64>,
    ) -> Algorithm {
        let optimizer = OuterOptimizer::SlowMo {
            alpha: 1.0,
            beta: 0.5,
        };
        let outer = outer.map(|(frequency, sharded, average)| Outer {
            frequency,
            optimizer,
            sharded,
            average,
        });
        Algorithm {
            base,
            outer,
            average_every,
            buffers: BufferStrategy::Maintain,
            round_wire: WireType::Float32,
        }
    }

    fn kept(algorithm: &Algorithm, every: u64, kind: RoundKind) -> Vec<u64> {
        let spec = |step| RoundSpec {
            kind,
            step: Step(step),
            gamma: 0.1,
            elements: 3,
        };
        (0..24)
            .filter(|step| is_due(algorithm, every, &spec(*step)))
            .collect()
    }

    #[test]
    fn every_so_many_outer_rounds_are_kept() {
        let local = |frequency| Base::LocalSgd { frequency };
        let sgp = Base::Sgp(Gossip::synchronous(1));
        let sharded = algorithm(local(3), Some((6, true, true)), None);
        assert_eq!(kept(&sharded, 1, RoundKind::Slow), [5, 11, 17, 23]);
        assert_eq!(kept(&sharded, 2, RoundKind::Slow), [11, 23]);
        assert_eq!(
            kept(&sharded, 1, RoundKind::Average),
            [],
            "between outer rounds the anchor is not the parameters"
        );
        assert_eq!(kept(&sharded, 0, RoundKind::Slow), []);
        assert_eq!(
            kept(
                &algorithm(local(3), Some((6, false, true)), None),
                1,
                RoundKind::Average
            ),
            [5, 11, 17, 23]
        );
        assert_eq!(
            kept(
                &algorithm(sgp, Some((8, false, true)), None),
                1,
                RoundKind::Average
            ),
            [7, 15, 23]
        );
        assert_eq!(
            kept(&algorithm(local(8), None, None), 2, RoundKind::Average),
            [15]
        );
        assert_eq!(
            kept(&algorithm(sgp, None, Some(12)), 1, RoundKind::Average),
            [11, 23]
        );
    }

    #[test]
    fn ranks_halve() {
        let ranks = |spacing| {
            (0..=8)
                .map(|number| rank(Step(number * 6), spacing))
                .collect::<Vec<_>>()
        };
        assert_eq!(ranks(6), [0, 0, 1, 0, 2, 0, 1, 0, 3]);
        assert_eq!(
            ranks(12),
            [0, 0, 0, 0, 1, 0, 0, 0, 2],
            "another spacing before"
        );
        assert_eq!(rank(Step(7), 0), 0);
    }

    /// Which of the checkpoints 1 to `until` a writer writes, and when it finishes each, in tenths
    /// of the time between two of them. Writing a part takes any time up to `slowest` of these.
    fn written(until: u64, slowest: u64, random: &mut u64, newest: bool) -> Vec<(u64, u64)> {
        let mut done = Vec::new();
        let mut busy = None;
        let mut waiting = None;
        let mut begin = |number: u64, at: u64| {
            *random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (number, at + 1 + (*random >> 33) % slowest)
        };
        for at in 10..until * 10 {
            if busy.is_some_and(|(_, end)| end <= at) {
                done.extend(busy.take());
                busy = waiting.take().map(|number| begin(number, at));
            }
            if at % 10 == 0 {
                match (busy, waiting) {
                    (None, _) => busy = Some(begin(at / 10, at)),
                    (Some(_), Some(before))
                        if !newest && !replaces(Step(at / 10), Step(before), 1) => {}
                    _ => waiting = Some(at / 10),
                }
            }
        }
        done
    }

    #[test]
    fn writers_that_are_behind_write_the_same() {
        let mut random = 7;
        for slowest in 1..200u64 {
            let rank_of_all = slowest.div_ceil(10).next_power_of_two();
            for _ in 0..20 {
                let written = written(400, slowest, &mut random, false);
                for number in (rank_of_all..300).step_by(rank_of_all as usize) {
                    let end = written
                        .iter()
                        .find(|(one, _)| *one == number)
                        .map(|(_, end)| *end);
                    // No writer gives it up before.
                    assert!(
                        end.is_some_and(|end| end <= (number + 2 * rank_of_all) * 10),
                        "{number} of {slowest}: {end:?}"
                    );
                }
            }
        }
        // Eight nodes, each with its own writing time.
        let mut whole = |newest| {
            let mut counts = std::collections::BTreeMap::new();
            (0..8)
                .flat_map(|node| written(400, 25 + node, &mut random, newest))
                .for_each(|(number, _)| *counts.entry(number).or_insert(0) += 1);
            counts.values().filter(|count| **count == 8).count()
        };
        let by_rank = whole(false);
        let by_age = whole(true);
        assert!(
            by_rank >= 95 && by_age < by_rank / 4,
            "{by_rank} instead of {by_age}"
        );
    }

    #[test]
    fn replicas_that_never_meet_are_not_kept() {
        let sgp = Base::Sgp(Gossip::synchronous(1));
        assert_eq!(period(&algorithm(sgp, None, None)), None);
        assert_eq!(period(&algorithm(sgp, Some((8, false, false)), None)), None);
        assert_eq!(period(&algorithm(Base::AllReduce, None, None)), None);
        assert_eq!(
            period(&algorithm(
                Base::LocalSgd { frequency: 4 },
                Some((6, false, true)),
                None
            )),
            None
        );
    }

    #[test]
    fn every_shard_is_written_once_by_a_member() {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 7000));
        let member = |id| Member {
            id: NodeId(id),
            incarnation: Incarnation(1),
            address,
            devices: 1,
            group: GroupId::default(),
            key: PublicKey::default(),
        };
        let view = View::new(Epoch(1), (3..8).map(member).collect()).unwrap();
        for replicas in 0..3 {
            let mut written: Vec<_> = view
                .ids()
                .flat_map(|node| written_by(node, &view, 10_000, replicas))
                .collect();
            written.sort_unstable();
            assert_eq!(written, Layout::new(10_000).shards().collect::<Vec<_>>());
        }
    }
}
