//! Many seeds, on all cores, until one fails.

use super::counters::Counters;
use super::coverage::Coverage;
use super::generator::{self, Kinds};
use super::schedule::Schedule;
use super::{Look, Report, run};
use crate::invariants::Violation;
use parking_lot::Mutex;
use slowmo_protocol::time::Span;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Result of many seeds.
#[derive(Debug, Default)]
pub struct Found {
    /// Number of runs made.
    pub runs: u64,
    /// The combinations that they tried.
    pub coverage: Coverage,
    /// In how many of them each item was seen.
    pub counters: Counters,
    /// Number of decided rounds.
    pub rounds: u64,
    /// Number of simulated events.
    pub events: u64,
    /// Seeds that broke a rule, ascending, with the violation.
    pub failures: Vec<(u64, Violation)>,
}

/// Settings of a search.
#[derive(Clone, Debug)]
pub struct Search {
    /// The seeds.
    pub seeds: Range<u64>,
    /// Number of nodes that a run has at its start.
    pub nodes: RangeInclusive<usize>,
    /// Number of threads.
    pub threads: usize,
    /// Whether to continue after the first failure.
    pub all: bool,
    /// The kinds of faults that are drawn.
    pub kinds: Kinds,
    /// Time within which the live nodes must continue without the dead; `None`: as in the
    /// schedules.
    pub goes_on_within: Option<Span>,
}

impl Search {
    /// A search of these seeds on all cores, with the original kinds of faults.
    #[must_use]
    pub fn usual(seeds: Range<u64>, nodes: RangeInclusive<usize>) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            seeds,
            nodes,
            threads,
            all: false,
            kinds: Kinds::Usual,
            goes_on_within: None,
        }
    }

    /// A search of these seeds to the last, each with the kinds of faults that it draws.
    #[must_use]
    pub fn swarm(seeds: Range<u64>, nodes: RangeInclusive<usize>) -> Self {
        Self {
            all: true,
            kinds: Kinds::Swarm,
            ..Self::usual(seeds, nodes)
        }
    }

    /// A search of these seeds to the last, in each of which the training ends.
    #[must_use]
    pub fn ends(seeds: Range<u64>, nodes: RangeInclusive<usize>) -> Self {
        Self {
            all: true,
            kinds: Kinds::Ends,
            ..Self::usual(seeds, nodes)
        }
    }

    /// The schedule of a seed in this search.
    #[must_use]
    pub fn schedule(&self, seed: u64) -> Schedule {
        let mut schedule = generator::draw(seed, &self.nodes, self.kinds);
        schedule.config.goes_on_within = self.goes_on_within.or(schedule.config.goes_on_within);
        schedule
    }
}

/// Runs one seed.
#[must_use]
pub fn seed(seed: u64, nodes: &RangeInclusive<usize>, look: Look) -> Report {
    run(&Schedule::from_seed(seed, nodes), look)
}

/// Runs all seeds; `progress` is told of every run that is over.
pub fn search(search: &Search, progress: &(dyn Fn(u64) + Sync)) -> Found {
    let next = AtomicU64::new(search.seeds.start);
    let stop = AtomicBool::new(false);
    let found = Mutex::new(Found::default());
    std::thread::scope(|scope| {
        for _ in 0..search.threads.max(1) {
            scope.spawn(|| {
                let mut own = Found::default();
                while !stop.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= search.seeds.end {
                        break;
                    }
                    let report = run(&search.schedule(at), Look::default());
                    own.take(at, &report);
                    if report.violation.is_some() && !search.all {
                        stop.store(true, Ordering::Relaxed);
                    }
                    progress(at);
                }
                found.lock().add(own);
            });
        }
    });
    let mut found = found.into_inner();
    found.failures.sort_by_key(|(seed, _)| *seed);
    found
}

impl Found {
    fn take(&mut self, seed: u64, report: &Report) {
        self.runs += 1;
        self.rounds += report.rounds;
        self.events += report.events;
        self.counters.take(report);
        self.coverage.add(&report.coverage);
        self.failures
            .extend(report.violation.clone().map(|violation| (seed, violation)));
    }

    fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.rounds += other.rounds;
        self.events += other.events;
        self.counters.add(&other.counters);
        self.coverage.add(&other.coverage);
        self.failures.extend(other.failures);
    }
}
