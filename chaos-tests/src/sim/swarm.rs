//! Schedules that each draw which kinds of faults can occur at all. A run with few kinds of faults
//! has many of each, and reaches states that a run with all of them never does.

use super::config::{Class, Config, MILLI};
use super::generator::{Planner, settings};
use super::schedule::{Act, Millis, Schedule, Settings, Timed};
use crate::random::Random;
use slowmo_protocol::algorithm::OuterOptimizer;
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::time::Span;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;

/// The incarnation of the first start, from which clocks can step back.
const FIRST_INCARNATION: u64 = 1_000;
/// Maximum number of faults in a run.
const FAULTS_MAX: u64 = 14;
/// Bounds of n, from often to seldom: a kind of fault exists in one of n runs.
const ONE_IN: (u64, u64) = (2, 6);
/// Time within which the live nodes must continue without the others.
pub const GOES_ON_WITHIN: Span = Span::from_millis(5_000);
/// Minimum time that a run continues after its faults.
const SETTLES: Span = Span::from_millis(1_500);

/// Kinds of faults, by the class of the usual runs that has them and the number that selects them
/// in it.
const KINDS: [(Class, u64); 17] = [
    // A node dies for long, dies for a moment, is stopped; a new node arrives; one drains, or dies
    // while draining; one is slow, has a slow disk, has a clock that drifts.
    (Class::Churn, 0),
    (Class::Churn, 3),
    (Class::Churn, 6),
    (Class::Churn, 8),
    (Class::Churn, 11),
    (Class::Churn, 12),
    (Class::Churn, 13),
    (Class::Churn, 14),
    (Class::Churn, 15),
    // A connection breaks; one node hears no other, a pair is cut one way, two sides are cut, two
    // sides are cut except for a bridge; links are bad; one is narrow; one flaps.
    (Class::Network, 0),
    (Class::Network, 2),
    (Class::Network, 4),
    (Class::Network, 6),
    (Class::Network, 9),
    (Class::Network, 11),
    (Class::Network, 13),
    (Class::Network, 14),
];
/// A node lies in one of as many runs.
const LIES_ONCE_IN: u64 = 4;
/// In one of so many runs, settings are changed.
const ORDERS_ONCE_IN: u64 = 4;
/// Most such orders in a run, and the longest time between two of them.
const ORDERS_MAX: u64 = 4;
const ORDERS_APART: u64 = 1_000 * MILLI;
/// Minimum number of nodes of such a run.
const LIES_AMONG: usize = 4;
/// Additional duration of the faults where `LONG_KINDS` may be drawn. No run is so long that a node
/// waiting to be admitted gives up.
const LONGER: u64 = 5_000 * MILLI;
/// Kinds of faults that take longer.
const LONG_KINDS: [(Class, u64); 5] = [
    (Class::Apart, 0),
    (Class::Apart, 6),
    (Class::Apart, 9),
    (Class::Apart, 12),
    (Class::Apart, 14),
];

/// The schedule of `seed` with a number of nodes in this range.
pub(super) fn draw(seed: u64, nodes: &RangeInclusive<usize>) -> Schedule {
    let (mut config, _) = settings(seed, nodes);
    let mut random = Random::new(seed, 7);
    let mut kinds = KINDS.to_vec();
    let longer = random.once_in(12);
    if longer {
        kinds.extend(LONG_KINDS);
    }
    let one_in = random.between(ONE_IN.0, ONE_IN.1);
    kinds.retain(|_| random.once_in(one_in));
    config.class = Class::Swarm;
    config.quorum = if random.once_in(3) {
        Quorum::Survivors
    } else {
        Quorum::Majority
    };
    config.replicas = random.below(4) as usize;
    config.first_incarnation = FIRST_INCARNATION;
    config.true_sizes = random.once_in(2);
    config.horizon = (1_500 + random.below(3_000)) * MILLI + if longer { LONGER } else { 0 };
    config.goes_on_within = Some(GOES_ON_WITHIN);
    config.settles = Some(SETTLES);
    if let Some(outer) = &mut config.algorithm.outer {
        outer.optimizer = optimizer(&mut random);
    }
    let mut planner = Planner::new(Random::new(seed, 8), &config);
    let begins = 300 * MILLI;
    let faults = random.below(FAULTS_MAX + 1);
    for _ in 0..faults {
        let at = begins + random.below(config.horizon - begins);
        if let Some(kind) = random.pick(&kinds) {
            planner.plan_kind(at, *kind);
        }
    }
    let mut faults = planner.finish();
    change_starts(&mut faults, &config.founders, &mut random);
    if random.once_in(6) {
        let at = Millis(random.between(begins, config.horizon));
        faults.push(Timed {
            at,
            act: Act::KillHolders {
                shard: random.below(8) as u32,
            },
        });
        faults.sort_by_key(|timed| timed.at);
    }
    faults.extend(liar(seed, &config));
    faults.extend(orders(seed, &config));
    faults.sort_by_key(|timed| timed.at);
    Schedule {
        what: String::new(),
        config,
        faults,
    }
}

/// In some runs, one of the first nodes lies from some time on. The others are a quorum without it.
fn liar(seed: u64, config: &Config) -> Option<Timed> {
    let mut random = Random::new(seed, 9);
    let lies = random.once_in(LIES_ONCE_IN) && config.founders.len() >= LIES_AMONG;
    let node = *random.pick(&config.founders)?;
    let at = Millis(random.between(300 * MILLI, config.horizon));
    let act = Act::Equivocate { node };
    (lies && config.quorum == Quorum::Majority).then_some(Timed { at, act })
}

/// In some runs, nodes are told to change settings, some of them at the same time.
fn orders(seed: u64, config: &Config) -> Vec<Timed> {
    let mut random = Random::new(seed, 10);
    if !random.once_in(ORDERS_ONCE_IN) {
        return Vec::new();
    }
    let mut at = random.between(300 * MILLI, config.horizon);
    let mut orders = Vec::new();
    for _ in 0..random.between(1, ORDERS_MAX) {
        at += random.below(2) * random.below(ORDERS_APART);
        let Some(node) = random.pick(&config.founders).copied() else {
            break;
        };
        let act = Act::Set {
            node,
            tau: NonZeroU64::MIN.saturating_add(random.below(12)),
            grace_ms: NonZeroU64::MIN.saturating_add(150 + random.below(400)),
        };
        orders.push(Timed {
            at: Millis(at),
            act,
        });
    }
    orders
}

/// In runs that have either, lets bootstrap members come back with the settings of a bootstrap
/// member, and with clocks that stepped back.
fn change_starts(
    faults: &mut [Timed],
    founders: &[slowmo_protocol::ident::NodeId],
    random: &mut Random,
) {
    let founds = random.once_in(3);
    let steps_back = random.once_in(3);
    for timed in faults {
        if let Act::Start {
            node,
            settings,
            clock_back,
        } = &mut timed.act
            && founders.contains(node)
        {
            if founds && random.once_in(2) {
                *settings = Settings::Founds;
            }
            if steps_back && random.once_in(2) {
                *clock_back = 1 + random.below(3);
            }
        }
    }
}

/// Draws an outer optimizer. All numbers are dyadic fractions, so that sums are exact.
fn optimizer(random: &mut Random) -> OuterOptimizer {
    match random.below(4) {
        0 => OuterOptimizer::SlowMo {
            alpha: 0.5,
            beta: 0.75,
        },
        1 => OuterOptimizer::Nesterov { eta: 0.5, mu: 0.5 },
        2 => OuterOptimizer::BmufNbm { eta: 0.5, mu: 0.5 },
        _ => OuterOptimizer::SlowMo {
            alpha: 1.0,
            beta: 0.5,
        },
    }
}
