//! Whole nodes in virtual time: a fixed number of seeds with every build. Runs that failed once are
//! kept as schedules.
//!
//! `SLOWMO_SEEDS=5000` runs more; `cargo run --release -p slowmo-chaos -- sim --first-seed 123456
//! --seeds 20000` hunts among seeds that nobody tried, and shows and shrinks what fails.
#![allow(clippy::unwrap_used, clippy::panic)]

use slowmo_chaos::sim::Look;
use slowmo_chaos::sim::counters::{Counters, RUNS_MIN};
use slowmo_chaos::sim::search::{self, Search};
use std::ops::RangeInclusive;

/// Nodes that a run starts with.
const NODES: RangeInclusive<usize> = 1..=8;
/// Few enough to run with every build.
const SEEDS: u64 = 500;

#[test]
fn no_seed_breaks_an_invariant() {
    let seeds = std::env::var("SLOWMO_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let found = search::search(&Search::usual(0..seeds, NODES), &|_| {});
    let first = found.failures.first();
    assert!(
        first.is_none(),
        "{first:?}: cargo run --release -p slowmo-chaos -- sim --first-seed {} --seeds 1",
        first.unwrap().0
    );
    assert!(found.rounds > 50 * seeds, "rounds go on: {}", found.rounds);
}

/// Seeds of a swarm of which none founds beside a living cluster.
const SWARM: u64 = 300;

#[test]
fn no_seed_of_a_swarm_breaks_an_invariant() {
    let found = search::search(&Search::swarm(0..SWARM, NODES), &|_| {});
    assert!(
        found.failures.is_empty(),
        "{:?}: cargo run --release -p slowmo-chaos -- sim --all --first-seed N --seeds 1",
        found.failures
    );
}

/// Seeds of runs in which the training ends.
const ENDS: u64 = 200;

#[test]
fn no_seed_of_an_end_breaks_an_invariant() {
    let found = search::search(&Search::ends(0..ENDS, NODES), &|_| {});
    assert!(
        found.failures.is_empty(),
        "{:?}: cargo run --release -p slowmo-chaos -- sim --ends --first-seed N --seeds 1",
        found.failures
    );
}

#[test]
fn few_runs_need_not_show_everything_and_many_must() {
    let mut counters = Counters::default();
    let report = search::seed(2, &NODES, Look::default());
    counters.take(&report);
    assert!(counters.missed().is_empty());
    for _ in 1..RUNS_MIN {
        counters.take(&report);
    }
    let missed = counters.missed();
    assert!(
        missed.contains(&"clock stepped back") && !missed.contains(&"one_outcome"),
        "{missed:?}"
    );
    assert!(counters.table().contains("too few"));
}

#[test]
#[ignore = "takes minutes: cargo test --release -p slowmo-chaos --test simulation -- --ignored \
    a_thousand_nodes"]
fn a_thousand_nodes() {
    let report = search::seed(1, &(1000..=1000), Look::default());
    assert!(report.violation.is_none(), "{:?}", report.violation);
    assert!(report.rounds > 10, "rounds go on: {}", report.rounds);
}

#[test]
fn a_trace_is_read_as_it_was_written() {
    let look = Look {
        keeps_trace: true,
        verbose: false,
    };
    let report = search::seed(2, &NODES, look);
    for line in report.trace.unwrap() {
        let text = serde_json::to_string(&line).unwrap();
        let read: slowmo_protocol::trace::Line = serde_json::from_str(&text).unwrap();
        assert_eq!(read, line, "{text}");
    }
}
