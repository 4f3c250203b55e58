//! When decided state is kept for good, and who writes which part of it: functions of what every member knows, so nobody asks anybody.
//!
//! Kept is what an outer round left: there every member has the same parameters, the anchor is those parameters, and the slow momentum
//! is the shards' (with `sharded = false` every node's, all alike). Without an outer optimizer it is what an exact average left.

use crate::algorithm::{Algorithm, Base};
use crate::coordinator::{RoundKind, Terms};
use crate::ident::{NodeId, ShardId, Step};
use crate::shards::{Layout, ShardMap};
use crate::view::View;

/// Inner steps from one point where state can be kept to the next; `None` where nodes never are at the same parameters, or the slow
/// momentum is not the same on all.
#[must_use]
pub fn period(algorithm: &Algorithm) -> Option<u64> {
    let frequency = match algorithm.base {
        Base::LocalSgd { frequency } => Some(frequency),
        _ => None,
    };
    match algorithm.outer {
        Some(outer) if outer.sharded => Some(outer.frequency),
        // fairscale's unsharded path: the whole step follows an average only where LocalSGD's own frequency says so.
        Some(outer) => match frequency {
            Some(frequency) => (outer.frequency.checked_rem(frequency) == Some(0)).then_some(outer.frequency),
            None => outer.average.then_some(outer.frequency),
        },
        None => frequency.or(algorithm.average_every),
    }
}

/// Inner steps from one checkpoint to the next, where every `every`-th point is one; `None` where nothing is kept.
#[must_use]
pub fn spacing(algorithm: &Algorithm, every: u64) -> Option<u64> {
    period(algorithm).and_then(|period| period.checked_mul(every)).filter(|spacing| *spacing > 0)
}

/// The rank of the checkpoint that `step` follows: how often the number of checkpoints up to it can be halved. Half of all have rank 0, half of
/// the rest rank 1, and so on: whoever cannot write all agrees with the others on which.
#[must_use]
pub fn rank(step: Step, spacing: u64) -> u32 {
    match (step.0.checked_div(spacing), step.0.checked_rem(spacing)) {
        (Some(number), Some(0)) if number > 0 => number.trailing_zeros(),
        _ => 0,
    }
}

/// Whether what a round of these terms decided is kept, where every `every`-th one is. 0 keeps none.
#[must_use]
pub fn is_due(algorithm: &Algorithm, every: u64, terms: &Terms) -> bool {
    let kind = if algorithm.outer.is_some_and(|outer| outer.sharded) { RoundKind::Slow } else { RoundKind::Average };
    let steps = terms.step.0.saturating_add(1);
    terms.kind == kind && spacing(algorithm, every).and_then(|spacing| steps.checked_rem(spacing)) == Some(0)
}

/// The shards of a vector of `elements` values that `node` writes: those that it owns in the view that was decided, ascending.
#[must_use]
pub fn written_by(node: NodeId, view: &View, elements: usize, replicas: usize) -> Vec<ShardId> {
    let layout = Layout::new(elements);
    let map = ShardMap::new(view, &layout, replicas);
    layout.shards().filter(|shard| map.owner(*shard) == Some(node)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::algorithm::{BufferStrategy, Gossip, Outer, OuterOptimizer, WireType};
    use crate::ident::{Epoch, Incarnation};
    use crate::view::Member;

    fn algorithm(base: Base, outer: Option<(u64, bool, bool)>, average_every: Option<u64>) -> Algorithm {
        let optimizer = OuterOptimizer::SlowMo { alpha: 1.0, beta: 0.5 };
        let outer = outer.map(|(frequency, sharded, average)| Outer { frequency, optimizer, sharded, average });
        Algorithm { base, outer, average_every, buffers: BufferStrategy::Maintain, round_wire: WireType::Float32 }
    }

    fn kept(algorithm: &Algorithm, every: u64, kind: RoundKind) -> Vec<u64> {
        let terms = |step| Terms { kind, step: Step(step), gamma: 0.1, elements: 3 };
        (0..24).filter(|step| is_due(algorithm, every, &terms(*step))).collect()
    }

    #[test]
    fn every_so_many_outer_rounds_are_kept() {
        let local = |frequency| Base::LocalSgd { frequency };
        let sgp = Base::Sgp(Gossip::synchronous(1));
        let sharded = algorithm(local(3), Some((6, true, true)), None);
        assert_eq!(kept(&sharded, 1, RoundKind::Slow), [5, 11, 17, 23]);
        assert_eq!(kept(&sharded, 2, RoundKind::Slow), [11, 23]);
        assert_eq!(kept(&sharded, 1, RoundKind::Average), [], "between outer rounds the anchor is not the parameters");
        assert_eq!(kept(&sharded, 0, RoundKind::Slow), []);
        assert_eq!(kept(&algorithm(local(3), Some((6, false, true)), None), 1, RoundKind::Average), [5, 11, 17, 23]);
        assert_eq!(kept(&algorithm(sgp, Some((8, false, true)), None), 1, RoundKind::Average), [7, 15, 23]);
        assert_eq!(kept(&algorithm(local(8), None, None), 2, RoundKind::Average), [15]);
        assert_eq!(kept(&algorithm(sgp, None, Some(12)), 1, RoundKind::Average), [11, 23]);
    }

    #[test]
    fn ranks_halve() {
        let ranks = |spacing| (0..=8).map(|number| rank(Step(number * 6), spacing)).collect::<Vec<_>>();
        assert_eq!(ranks(6), [0, 0, 1, 0, 2, 0, 1, 0, 3]);
        assert_eq!(ranks(12), [0, 0, 0, 0, 1, 0, 0, 0, 2], "another spacing before");
        assert_eq!(rank(Step(7), 0), 0);
    }

    #[test]
    fn replicas_that_never_meet_are_not_kept() {
        let sgp = Base::Sgp(Gossip::synchronous(1));
        assert_eq!(period(&algorithm(sgp, None, None)), None);
        assert_eq!(period(&algorithm(sgp, Some((8, false, false)), None)), None);
        assert_eq!(period(&algorithm(Base::AllReduce, None, None)), None);
        assert_eq!(period(&algorithm(Base::LocalSgd { frequency: 4 }, Some((6, false, true)), None)), None);
    }

    #[test]
    fn every_shard_is_written_once_by_a_member() {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 7000));
        let member = |id| Member { id: NodeId(id), incarnation: Incarnation(1), address, devices: 1 };
        let view = View::new(Epoch(1), (3..8).map(member).collect()).unwrap();
        for replicas in 0..3 {
            let mut written: Vec<_> = view.ids().flat_map(|node| written_by(node, &view, 10_000, replicas)).collect();
            written.sort_unstable();
            assert_eq!(written, Layout::new(10_000).shards().collect::<Vec<_>>());
        }
    }
}
