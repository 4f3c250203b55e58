//! Figures of a merged trace, without I/O: how much was trained, how many nodes contributed, how
//! soon a round was decided after a fault, how soon a victim contributed again, whether processes
//! grew.
//!
//! | file | does |
//! |---|---|
//! | `observed` | the contents of a trace, line by line |
//! | `progress` | throughput, contributors |
//! | `recovery` | faults and their consequences |
//! | `growth` | memory and descriptors of the survivors |
//!
//! Rounds are those of the history that went furthest. The measured window begins when all
//! bootstrap members have contributed to a round and the warm-up is over, and ends when the last
//! fault is over.

pub mod growth;
mod observed;
mod progress;
pub mod quantiles;
mod recovery;

pub use growth::{DESCRIPTORS, Growth, MEMORY};
pub use observed::{Life, Observed, Round};
pub use quantiles::Quantiles;
pub use recovery::{Episode, Hit, Outcome};

use serde::{Deserialize, Serialize};
use slowmo_protocol::time::{Instant, Span};

/// The figures of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measures {
    /// Length of the measured window, in seconds.
    pub window_s: f64,
    /// Number of rounds that were decided in the window.
    pub rounds: usize,
    /// Median time from one decided round to the next, in milliseconds.
    pub round_ms: f64,
    /// The longest time without a decided round, in milliseconds.
    pub longest_gap_ms: f64,
    /// Lifetime in seconds, summed over the nodes.
    pub node_seconds: f64,
    /// Inner steps that went into the model, summed over the nodes.
    pub steps: u64,
    /// Inner steps that went into the model, per second of a live node.
    pub throughput: f64,
    /// Contributors of a decided round divided by the nodes that lived then, on average.
    pub contributing: f64,
    /// Faults and their consequences, by kind of fault.
    pub kinds: Vec<Kind>,
    /// Time from a fault to the next decided round, in milliseconds.
    pub next_round_ms: Quantiles,
    /// Time from a victim's restart, or the end of its trouble, until it was among the contributors
    /// again, in milliseconds.
    pub back_ms: Quantiles,
    /// Time from the moment that all links were restored until all nodes had applied one round that
    /// was decided since, in milliseconds.
    pub whole_ms: Quantiles,
    /// Number of times that a victim should have come back.
    pub episodes: usize,
    /// Number of times that a victim came back.
    pub returned: usize,
    /// Number of times that a victim was hit again before it could come back.
    pub hit_again: usize,
    /// Victims that did not come back, described in words.
    pub missing: Vec<String>,
    /// Processes that ended unintentionally, described in words.
    pub fell: Vec<String>,
    /// Resident memory, if it was sampled.
    pub memory: Option<Growth>,
    /// Open descriptors, if they were sampled.
    pub descriptors: Option<Growth>,
}

/// One kind of fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kind {
    /// Name of the fault.
    pub name: String,
    /// Number of such faults.
    pub count: usize,
    /// Time from the fault to the next decided round, in milliseconds.
    pub next_round_ms: Quantiles,
    /// Time from the end of the trouble until the victim contributed again, in milliseconds.
    pub back_ms: Quantiles,
    /// Excess of the time between two rounds around such a fault over the usual time, in
    /// milliseconds, summed.
    pub stalled_ms: f64,
}

impl Measures {
    /// Figures of a whole trace; `warm_up` is left out.
    #[must_use]
    pub fn of(observed: &Observed, warm_up: Span) -> Self {
        let history = observed.history();
        let window = window(observed, &history, warm_up);
        let progress = progress::of(observed, &history, window);
        let hits = recovery::hits(observed, &history);
        let episodes = recovery::episodes(observed, &history);
        let of_kind = |name: &str, outcome: &dyn Fn(&Hit) -> Option<f64>| {
            Quantiles::of(
                hits.iter()
                    .filter(|hit| name.is_empty() || hit.name == name)
                    .filter_map(outcome),
            )
        };
        let back = |name: &str| {
            let of = |episode: &&Episode| name.is_empty() || episode.after == name;
            Quantiles::of(episodes.iter().filter(of).filter_map(Episode::back_ms))
        };
        let mut names: Vec<&str> = hits.iter().map(|hit| hit.name).collect();
        names.sort_unstable();
        names.dedup();
        let kind = |name: &&str| Kind {
            name: (*name).to_owned(),
            count: hits.iter().filter(|hit| hit.name == *name).count(),
            next_round_ms: of_kind(name, &|hit| hit.next_round_ms),
            back_ms: back(name),
            stalled_ms: hits
                .iter()
                .filter(|hit| hit.name == *name)
                .map(|hit| (hit.gap_ms - progress.round_ms).max(0.0))
                .sum(),
        };
        let count = |wanted: fn(&Outcome) -> bool| {
            episodes
                .iter()
                .filter(|episode| wanted(&episode.outcome))
                .count()
        };
        Self {
            kinds: names.iter().map(kind).collect(),
            next_round_ms: of_kind("", &|hit| hit.next_round_ms),
            back_ms: back(""),
            whole_ms: Quantiles::of(recovery::whole_ms(observed, &history)),
            episodes: episodes.len(),
            returned: count(|outcome| matches!(outcome, Outcome::Back(_))),
            hit_again: count(|outcome| *outcome == Outcome::HitAgain),
            missing: episodes
                .iter()
                .filter(|episode| episode.outcome == Outcome::Missing)
                .map(Episode::describe)
                .collect(),
            fell: recovery::fell(observed),
            memory: growth::of(observed, MEMORY, window),
            descriptors: growth::of(observed, DESCRIPTORS, window),
            ..progress
        }
    }
}

/// Beginning and end of the measured window.
pub(super) fn window(observed: &Observed, history: &[&Round], warm_up: Span) -> (Instant, Instant) {
    let founders = observed.founders();
    let whole = history
        .iter()
        .find(|round| round.number > 0 && round.contributors.len() >= founders);
    let from = whole.map_or(observed.over, |round| round.at.after(warm_up));
    let to = observed.quiet.unwrap_or(observed.over);
    (from.min(to), to)
}

/// Milliseconds from one time to a later one.
fn ms(from: Instant, to: Instant) -> f64 {
    to.since(from).0 as f64 / 1e3
}

#[cfg(test)]
mod tests;
