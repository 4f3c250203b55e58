//! Whether the processes that survived a run grew.
//!
//! The memory that a process needs depends on the number of members, so only equal numbers are
//! compared: for each number of live nodes, the median of the samples in the first third of the
//! measured time with the median of those in the last third. A node's growth is the mean of these
//! growths, weighted by the number of samples behind each.

use super::Observed;
use super::quantiles::median;
use serde::{Deserialize, Serialize};
use slowmo_protocol::time::Instant;
use std::collections::BTreeMap;

/// The gauge of a process's resident memory, in bytes.
pub const MEMORY: &str = "resident memory";
/// The gauge of a process's open descriptors.
pub const DESCRIPTORS: &str = "open descriptors";
/// Minimum number of samples per number of nodes; fewer are ignored.
const SAMPLES_MIN: usize = 5;

/// Growth of a gauge in the processes that survived the measured time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// Nodes that survived the measured time.
    pub survivors: Vec<Survivor>,
    /// The largest growth of a survivor, as a share: 0.05 is 5 %.
    pub worst: f64,
}

/// A node that survived the measured time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Survivor {
    /// Id of the node.
    pub node: u64,
    /// Median in the first third.
    pub first: f64,
    /// Median in the last third.
    pub last: f64,
    /// Growth at equal numbers of nodes, as a share.
    pub growth: f64,
    /// Number of samples of the last third behind the growth.
    pub samples: usize,
}

/// Growth of a gauge within a window; `None` if no node survived it or nothing was sampled.
pub(super) fn of(
    observed: &Observed,
    gauge: &str,
    (from, to): (Instant, Instant),
) -> Option<Growth> {
    let third = to.since(from).0 / 3;
    let early = Instant(from.0 + third);
    let late = Instant(to.0.saturating_sub(third));
    let lived = |start| {
        observed
            .lives
            .get(start)
            .is_some_and(|life| life.from <= from && life.includes(to))
    };
    let mut survivors = Vec::new();
    for (start, samples) in observed
        .gauges
        .get(gauge)?
        .iter()
        .filter(|(start, _)| lived(start))
    {
        let within = |from: Instant, to: Instant| {
            let mut by_alive: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
            for (at, value) in samples.iter().filter(|(at, _)| *at >= from && *at <= to) {
                by_alive
                    .entry(observed.alive(*at))
                    .or_default()
                    .push(*value as f64);
            }
            by_alive
        };
        survivors.extend(survivor(
            start.node.0,
            &within(from, early),
            &within(late, to),
        ));
    }
    let worst = survivors
        .iter()
        .map(|survivor| survivor.growth)
        .reduce(f64::max)?;
    Some(Growth { survivors, worst })
}

fn survivor(
    node: u64,
    first: &BTreeMap<usize, Vec<f64>>,
    last: &BTreeMap<usize, Vec<f64>>,
) -> Option<Survivor> {
    let mut sum = 0.0;
    let mut weight = 0;
    for (alive, early) in first {
        let Some(late) = last.get(alive) else {
            continue;
        };
        let samples = early.len().min(late.len());
        let before = median(early.iter().copied());
        if samples >= SAMPLES_MIN && before > 0.0 {
            sum += (median(late.iter().copied()) / before - 1.0) * samples as f64;
            weight += samples;
        }
    }
    let all = |of: &BTreeMap<usize, Vec<f64>>| median(of.values().flatten().copied());
    (weight > 0).then(|| Survivor {
        node,
        first: all(first),
        last: all(last),
        growth: sum / weight as f64,
        samples: weight,
    })
}
