//! Whole nodes in virtual time: a fixed number of seeds with every build, and each seed that ever failed.
//!
//! `SLOWMO_SEEDS=5000` runs more; `cargo run --release -p slowmo-chaos -- sim` shows and shrinks what fails.
#![allow(clippy::unwrap_used, clippy::panic)]

use slowmo_chaos::sim::search::{self, Search};
use slowmo_chaos::sim::{Look, Report};
use std::ops::RangeInclusive;

/// Nodes that a run starts with.
const NODES: RangeInclusive<usize> = 1..=8;
/// Few enough to run with every build.
const SEEDS: u64 = 500;

fn seed(seed: u64, look: Look) -> Report {
    search::seed(seed, &NODES, look)
}

#[test]
fn no_seed_breaks_an_invariant() {
    let seeds = std::env::var("SLOWMO_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let found = search::search(&Search { seeds: 0..seeds, nodes: NODES, threads, all: false }, &|_| {});
    let first = found.failures.first();
    assert!(first.is_none(), "{first:?}: cargo run --release -p slowmo-chaos -- sim --first-seed {} --seeds 1", first.unwrap().0);
    assert!(found.rounds > 50 * seeds, "rounds go on: {}", found.rounds);
}

/// Seeds that no build before this one has tried: `FRESH_SEEDS` names them, in CI the commit.
#[test]
fn fresh_seeds() {
    let Ok(name) = std::env::var("FRESH_SEEDS") else {
        return println!("skipped: FRESH_SEEDS names no fresh seeds");
    };
    // Replaying is easier with short numbers.
    let first = slowmo_protocol::trace::digest(name.as_bytes()) >> 24;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let found = search::search(&Search { seeds: first..first + SEEDS, nodes: NODES, threads, all: false }, &|_| {});
    let failed = found.failures.first();
    assert!(failed.is_none(), "{failed:?}: cargo run --release -p slowmo-chaos -- sim --first-seed {} --seeds 1", failed.unwrap().0);
    println!("{SEEDS} fresh seeds from {first}: none breaks an invariant");
}

#[test]
fn seeds_that_failed_once() {
    let failed = [
        // A node's founding gave way to another one, whose streams it had refused until then.
        (113, "streams of the other founding"),
        // A founding was given up for another one after it was decided, and everybody joined nobody.
        (754, "a founding decided and given up"),
        (778, "a founding decided and given up"),
        (857, "a founding decided and given up"),
        // Who was taken for dead when an outcome was proposed, and was back before it was decided, was never told that it is out.
        (33, "left out and not told"),
        (703, "left out and not told"),
        (833, "left out and not told"),
        (982, "left out and not told"),
        // Promises were lost because the leader was heard before it could be answered.
        (441, "lost promises"),
        (706, "lost promises"),
        // Parameters that a late node had not taken were replaced by a mean of gradients that followed them.
        (1944, "parameters lost"),
        // A member resigned while the others decided a view with it, and waited for a decision that had been made before.
        (2297, "counted on after it resigned"),
        // Fewer than a quorum went on with an outcome that a quorum had refuted, in the history of both.
        (3015, "two outcomes of a round"),
        (5943, "two outcomes of a round"),
        // A joiner waited for a cluster of which nobody was left, because it had decided more rounds than the one that went on.
        (3665, "a deserted cluster"),
        // Streams were lost unnoticed with a connection that was replaced.
        (3408, "lost streams"),
        (5176, "lost streams"),
        // A node asked to be admitted before its coordinator had resigned: it voted where the others counted on it no more.
        (1810, "asked before it resigned"),
        (3844, "asked before it resigned"),
        (6085, "asked before it resigned"),
        (6882, "asked before it resigned"),
        (542_576_466_145, "asked before it resigned"),
        // The same of a joiner that was admitted and did not know it yet.
        (5837, "asked again while it was admitted"),
        // A node said that it stands in another founding, and its coordinator had accepted, or decided, the first one.
        (15_704, "stood in two foundings"),
        (15_726, "stood in two foundings"),
        // Two nodes took each other for dead, went on alone, and nobody looked for the other.
        (975, "two histories that never met"),
        (1001, "two histories that never met"),
        // Among survivors, a node that woke up decided alone while the others, alive and ahead, were silent.
        (21_866, "alone beside the living"),
        (22_121, "alone beside the living"),
        // A member that had resigned, and that the view counts on, was not told who of it died, and waited for that node.
        (3840, "a stranger among the members"),
        (9149, "survivors beside one that has resigned"),
        // An outcome was inherited that a quorum had refuted: its last holder was drained with it, and everybody else was stranded.
        (2306, "the last holder leaves"),
        // The oracle had forgotten what a leaver contributed that was 80 rounds behind and decided alone.
        (879_884_207_567, "a contribution forgotten by the oracle"),
        // The last member that could be reached was drained: the run is over.
        (23_723, "nobody is left"),
        // Two led, cut off from each other; who had followed one of them waited with the other when the first one died.
        (18_072, "a promise to the dead"),
        // Connections replaced each other forever, as one end was not told that the other had closed one.
        (5290, "connections that come and go"),
        (6540, "connections that come and go"),
        (7537, "connections that come and go"),
        // Streams between the same two members broke again and again; the round was given up, and with it the run.
        (1653, "members that cannot reach each other"),
        (3432, "members that cannot reach each other"),
        (4893, "members that cannot reach each other"),
        (6970, "members that cannot reach each other"),
        // A node that woke up gave members up that it heard again a moment later, and with them the momentum of a shard.
        (884_875_773_416, "given up though heard again"),
    ];
    for (number, what) in failed {
        let report = seed(number, Look::default());
        assert!(report.violation.is_none(), "seed {number} ({what}): {:?}", report.violation);
    }
}

/// Found and not mended yet.
#[test]
#[ignore = "a founding goes round in circles: a node resigns and asks every few milliseconds, and at last one of three decides alone"]
fn seeds_that_fail_still() {
    let report = seed(7_700_000_798, Look::default());
    assert!(report.violation.is_none(), "{:?}", report.violation);
}

#[test]
#[ignore = "takes minutes: cargo test --release -p slowmo-chaos --test simulation -- --ignored a_thousand_nodes"]
fn a_thousand_nodes() {
    let report = search::seed(1, &(1000..=1000), Look::default());
    assert!(report.violation.is_none(), "{:?}", report.violation);
    assert!(report.rounds > 10, "rounds go on: {}", report.rounds);
}

#[test]
fn a_seed_is_the_same_run_every_time() {
    for number in [3, 7, 42] {
        let look = Look { keeps_trace: true, verbose: false };
        let (one, other) = (seed(number, look), seed(number, look));
        assert_eq!(one.events, other.events, "seed {number}");
        assert!(one.trace == other.trace, "seed {number}");
    }
}

#[test]
fn a_trace_is_read_as_it_was_written() {
    let report = seed(2, Look { keeps_trace: true, verbose: false });
    for line in report.trace.unwrap() {
        let text = serde_json::to_string(&line).unwrap();
        let read: slowmo_protocol::trace::Line = serde_json::from_str(&text).unwrap();
        assert_eq!(read, line, "{text}");
    }
}
