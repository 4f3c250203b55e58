//! Whole nodes in virtual time: every machine of every node, with shells that behave like the
//! actors, over a network that behaves like QUIC, and with values small enough to be recomputed by
//! an oracle. One schedule is one run, the same every time. Schedules are drawn from seeds, and
//! those that failed once are kept as files.
//!
//! | file | does |
//! |---|---|
//! | `schedule`, `config` | the configuration and the faults of a run, which decide it |
//! | `generator`, `swarm`, `file` | schedules drawn from seeds, schedules as files |
//! | `world`, `event`, `clock` | processes and one queue of events |
//! | `node` | one process: machines, shells, a training thread |
//! | `network`, `sessions`, `delivery` | connections and what travels on them |
//! | `faults` | carrying out faults |
//! | `going_on`, `ending` | checking that the live nodes continue, and that a training ends |
//! | `watch` | the trace, judged while it is written |
//! | `search`, `shrink` | running many seeds; finding the shortest schedule that fails |
//! | `coverage`, `counters` | what was tried, and the minimum number of times |
//!
//! A run has a safety phase with faults. Then all faults stop: the live nodes continue without the
//! dead. Then the dead come back, and every node must contribute again within a bounded time.

pub mod books;
mod clock;
pub mod config;
pub mod counters;
pub mod coverage;
mod delivery;
mod ending;
mod event;
mod faults;
pub mod file;
pub mod generator;
mod going_on;
pub mod mail;
pub mod network;
pub mod node;
pub mod schedule;
pub mod search;
mod sessions;
pub mod shrink;
mod swarm;
pub mod watch;
mod world;

pub use world::World;

use crate::invariants::{Verdict, Violation};
use coverage::Coverage;
use schedule::{Deed, Schedule};
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::trace::Line;

/// Report of a run.
pub struct Report {
    /// The schedule of the run.
    pub schedule: Schedule,
    /// Deeds that could not be carried out, with their times.
    pub not_done: Vec<(Instant, Deed)>,
    /// The rule that was broken first.
    pub violation: Option<Violation>,
    /// Verdict on every rule.
    pub verdicts: Vec<(&'static str, Verdict)>,
    /// The combinations that the run tried.
    pub coverage: Coverage,
    /// Number of decided rounds.
    pub rounds: u64,
    /// Number of simulated events.
    pub events: u64,
    /// The nodes that were alive in the end, with their activity.
    pub nodes: Vec<String>,
    /// The trace, if it was kept.
    pub trace: Option<Vec<Line>>,
}

/// Interval at which is checked whether a run is over, in microseconds.
const LOOK_EVERY: u64 = 250_000;

/// Options for observing a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Whether to keep the trace.
    pub keeps_trace: bool,
    /// Whether to print every message to standard error.
    pub verbose: bool,
}

/// Runs a schedule.
#[must_use]
pub fn run(schedule: &Schedule, look: Look) -> Report {
    let recovers_within = schedule.config.recovers_within.0;
    let goes_on_within = schedule.config.goes_on_within.map_or(0, |within| within.0);
    let until = schedule.config.horizon + goes_on_within + recovers_within;
    let mut world = World::new(schedule);
    world.watch.verbose = look.verbose;
    world.watch.trace = look.keeps_trace.then(Vec::new);
    match schedule.config.settles {
        Some(settles) => run_until_settled(&mut world, until, settles),
        None => world.run(until),
    }
    if schedule.config.trains_until.is_some() {
        world.judge_ending();
    }
    // A process that was still stopped when the faults ended came back later.
    let quiet = world.watch.history().quiet().map_or(0, |quiet| quiet.0);
    if !world.is_settled() {
        world.run(until.max(quiet + recovers_within));
    }
    let rounds = world.watch.rounds;
    let now = world.now;
    let nodes = world
        .living()
        .map(|process| world.describe(process))
        .collect();
    let World {
        watch,
        coverage,
        events,
        not_done,
        went_on,
        ..
    } = world;
    let (mut verdicts, violation, trace) = watch.finish(now);
    verdicts.extend(going_on::verdicts(went_on, violation.as_ref()));
    Report {
        schedule: schedule.clone(),
        not_done,
        violation,
        verdicts,
        coverage,
        rounds,
        events,
        nodes,
        trace,
    }
}

/// Runs until every live node contributes again, and has had the time to fail.
fn run_until_settled(world: &mut World, until: u64, settles: Span) {
    while world.now < until && world.watch.violation().is_none() {
        world.run((world.now + LOOK_EVERY).min(until));
        let quiet = world.watch.history().quiet();
        if quiet.is_some_and(|quiet| world.now >= quiet.after(settles).0) && world.is_settled() {
            return;
        }
    }
}
