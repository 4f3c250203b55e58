//! Amount of training and number of contributors.

use super::quantiles::median;
use super::{Measures, Observed, Round, ms};
use slowmo_protocol::time::Instant;

/// Throughput and contributors of the window between two times.
pub(super) fn of(
    observed: &Observed,
    history: &[&Round],
    (from, to): (Instant, Instant),
) -> Measures {
    let within = |round: &Round| round.at > from && round.at <= to;
    let rounds: Vec<&Round> = history
        .iter()
        .copied()
        .filter(|round| within(round))
        .collect();
    let pairs = || history.windows(2).filter(|pair| within(pair[1]));
    // A round consists of the steps since the previous round, of each of its contributors.
    let steps = pairs()
        .map(|pair| pair[1].step.saturating_sub(pair[0].step) * pair[1].contributors.len() as u64)
        .sum();
    let gaps = || pairs().map(|pair| ms(pair[0].at, pair[1].at));
    let node_seconds = node_seconds(observed, from, to);
    let share =
        |round: &&Round| round.contributors.len() as f64 / observed.alive(round.at).max(1) as f64;
    let last_gap = rounds.last().map_or(ms(from, to), |round| ms(round.at, to));
    Measures {
        window_s: ms(from, to) / 1e3,
        rounds: rounds.len(),
        round_ms: median(gaps()),
        longest_gap_ms: gaps().fold(last_gap, f64::max),
        node_seconds,
        steps,
        throughput: if node_seconds > 0.0 {
            steps as f64 / node_seconds
        } else {
            0.0
        },
        contributing: rounds.iter().map(share).sum::<f64>() / rounds.len().max(1) as f64,
        ..Measures::default()
    }
}

fn node_seconds(observed: &Observed, from: Instant, to: Instant) -> f64 {
    let lived = |life: &super::Life| {
        let until = life.ended.map_or(to, |(at, _)| at.min(to));
        ms(life.from.max(from), until) / 1e3
    };
    observed.lives.values().map(lived).sum()
}
