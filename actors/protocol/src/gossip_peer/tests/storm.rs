//! Many seeded runs of each class. `SLOWMO_SEEDS=2000` runs so many of each; `SLOWMO_SEED=7` one of
//! each, and with `SLOWMO_TRACE=1` and `--nocapture` it prints what happens.

use super::scenario::{Class, Scenario};
use super::seen::{self, Seen};
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
    seen::trace(0, "SCENARIO", &named.scenario);
    let mut world = World::new(named.scenario.clone());
    world.run();
    named.ended = true;
    world.seen
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Few, so that they run with every build.
fn many(class: Class, few: u64) {
    let count = number("SLOWMO_SEEDS").unwrap_or(few);
    let seeds = number("SLOWMO_SEED").map_or(0..count, |seed| seed..seed + 1);
    let mut sum = Seen::default();
    for seed in seeds {
        sum.add(&one(seed, class));
    }
    eprintln!("{class:?}: {sum:?}");
    if number("SLOWMO_SEED").is_none() {
        sum.shows(class);
    }
}

#[test]
fn nothing_is_lost_or_late_where_nothing_goes_wrong() {
    many(Class::Quiet, 100);
}

#[test]
fn slow_and_stalling_nodes_lose_nothing() {
    many(Class::Slow, 100);
}

#[test]
fn broken_streams_and_connections_lose_nothing() {
    many(Class::Lossy, 100);
}

#[test]
fn all_mass_is_accounted_for_under_churn() {
    many(Class::Churn, 150);
}

#[test]
fn who_was_taken_for_dead_gives_up_what_was_reclaimed() {
    many(Class::Doubt, 100);
}

#[test]
fn runs_that_failed_once() {
    // Two nodes took each other for late, and neither sent anything that could be refused.
    one(140, Class::Lossy);
    // All members were late for one that went on without them, faster than messages reached it.
    one(358, Class::Churn);
    // What a peer had skipped was forgotten, because it was told out of order; because it was told
    // step by step.
    one(980, Class::Slow);
    one(302, Class::Slow);
}
