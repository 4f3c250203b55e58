//! Many seeded runs of each class, without rounds: those are simulated with whole nodes in
//! `chaos-tests`. `SLOWMO_SEEDS=2000` runs so many of each class, `SLOWMO_SEED=7` one of each.

use super::scenario::{Class, Scenario};
use super::seen::Seen;
use super::world::World;

/// Names the run under way if it does not come to its end.
struct Named {
    scenario: Scenario,
    ended: bool,
}

impl Drop for Named {
    fn drop(&mut self) {
        if !self.ended {
            eprintln!(
                "failed: SLOWMO_SEED={} of {:?}: {:?}",
                self.scenario.seed, self.scenario.class, self.scenario
            );
        }
    }
}

fn one(seed: u64, class: Class) -> Seen {
    let mut named = Named {
        scenario: Scenario::of(seed, class),
        ended: false,
    };
    let mut world = World::new(named.scenario.clone());
    world.run();
    named.ended = true;
    world.seen
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs of each class in every build: few.
pub const RUNS: u64 = 60;

fn many(class: Class) {
    let count = number("SLOWMO_SEEDS").unwrap_or(RUNS);
    let seeds = number("SLOWMO_SEED").map_or(0..count, |seed| seed..seed + 1);
    let mut sum = Seen::default();
    for seed in seeds {
        sum.add(&one(seed, class));
    }
    eprintln!("{class:?}: {sum:?}");
    if number("SLOWMO_SEED").is_none() && count >= RUNS {
        sum.shows(class);
    }
}

#[test]
fn nothing_is_lost_or_late_where_nothing_goes_wrong() {
    many(Class::Quiet);
}

#[test]
fn slow_and_stalling_nodes_lose_nothing() {
    many(Class::Slow);
}

#[test]
fn broken_streams_and_connections_lose_nothing() {
    many(Class::Lossy);
}

#[test]
fn all_mass_is_accounted_for_under_churn() {
    many(Class::Churn);
}

#[test]
fn who_was_taken_for_dead_gives_up_what_was_reclaimed() {
    many(Class::Doubt);
}
