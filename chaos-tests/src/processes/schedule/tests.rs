//! Schedules follow from scenario and seed, and keep the bounds. Pure.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::processes::scenario::SHIPPED;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn shipped(name: &str) -> Scenario {
    Scenario::find(name).unwrap().1
}

fn whole(scenario: &Scenario, seed: u64) -> Schedule {
    plan(scenario, seed, span(scenario.duration_s))
}

#[test]
fn a_rolling_restart_drains_everybody_once_in_ascending_order() {
    let steps = whole(&shipped("rolling_restart"), 1).steps;
    let drained: Vec<u64> = steps
        .iter()
        .filter_map(|step| {
            if let What::Fault(Fault::Drain { node }) = step.what {
                Some(node.0)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(drained, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(steps.len(), 16);
}

#[test]
fn another_leader_dies_each_time() {
    let steps = whole(&shipped("leader_kill"), 7).steps;
    let of = |step: &Step| match step.what {
        What::Fault(Fault::Kill { node }) => Some((step.at.0 / 1_000_000, 'k', node.0)),
        What::Fault(Fault::Start { node }) => Some((step.at.0 / 1_000_000, 's', node.0)),
        _ => None,
    };
    let all: Vec<_> = steps.iter().filter_map(of).collect();
    assert_eq!(
        all,
        [
            (10, 'k', 1),
            (25, 'k', 2),
            (30, 's', 1),
            (40, 'k', 1),
            (45, 's', 2),
            (60, 's', 1)
        ]
    );
}

#[test]
fn halves_are_cut_in_both_directions_and_healed() {
    let steps = whole(&shipped("half_cut"), 1).steps;
    let What::Worse { ways, link, .. } = &steps[0].what else {
        panic!("{steps:?}")
    };
    assert!(
        link.cut
            && ways.len() == 2
            && ways[0].from == [1, 2, 3, 4].map(NodeId)
            && ways[1].from == [5, 6, 7, 8].map(NodeId)
    );
    assert!(matches!(
        steps[1].what,
        What::Better {
            layer: 0,
            all_well: true,
            ..
        }
    ));
    assert_eq!(steps[1].at.since(steps[0].at), span(20.0));
}

#[test]
fn a_storm_has_about_125_faults_an_hour() {
    let scenario = shipped("storm");
    let hour = plan(&scenario, 3, span(3600.0 + scenario.warm_up_s));
    let again = |step: &&Step| {
        matches!(
            step.what,
            What::Fault(Fault::Start { .. }) | What::Resume(_) | What::Better { .. }
        )
    };
    let faults = hour.steps.len() - hour.steps.iter().filter(again).count();
    assert!(
        (95..=155).contains(&faults),
        "{faults}, and {} skipped",
        hour.skipped
    );
    assert!(hour.skipped <= 6, "{}", hour.skipped);
}

#[test]
fn something_is_done_each_time_if_anything_can_be_done() {
    for seed in 0..20 {
        for (name, least) in [("spot_market", 10), ("soak", 500)] {
            let schedule = whole(&shipped(name), seed);
            let kills = schedule
                .steps
                .iter()
                .filter(|step| matches!(step.what, What::Fault(Fault::Kill { .. })))
                .count();
            let starts = schedule.steps.len() - kills;
            assert!(
                schedule.skipped == 0 && kills + starts >= least,
                "{name}, seed {seed}: {kills} {starts} {}",
                schedule.skipped
            );
            assert!(
                kills * 4 > starts && starts * 4 > kills,
                "{name}, seed {seed}: {kills} kills, {starts} starts"
            );
        }
    }
}

proptest! {
    /// Of every shipped scenario and seed: the same schedule again, nobody is killed twice in a
    /// row, all is undone by the end, and random faults leave as many nodes running as the scenario
    /// wants.
    #[test]
    fn schedules_are_sound(seed: u64, index in 0..SHIPPED.len()) {
        let scenario = shipped(SHIPPED[index].name);
        let schedule = whole(&scenario, seed);
        prop_assert_eq!(&schedule, &whole(&scenario, seed));
        let mut running: BTreeSet<u64> = (1..=scenario.nodes as u64).collect();
        let mut paused = BTreeSet::new();
        let mut layers = BTreeMap::new();
        for step in &schedule.steps {
            prop_assert!(step.at <= Instant(span(scenario.duration_s).0));
            match &step.what {
                What::Fault(Fault::Kill { node } | Fault::Drain { node }) => {
                    prop_assert!(running.remove(&node.0) && !paused.contains(node));
                    prop_assert!(!scenario.spared.contains(&node.0));
                    prop_assert!(
                        scenario.random.is_empty() || running.len() >= scenario.untouched_min()
                    );
                }
                What::Fault(Fault::Start { node }) => prop_assert!(
                    running.insert(node.0) && running.len() <= scenario.ids_max()
                ),
                What::Fault(Fault::Pause { node, .. }) => prop_assert!(
                    paused.insert(*node) && running.contains(&node.0)
                ),
                What::Resume(node) => prop_assert!(paused.remove(node)),
                What::Worse { layer, ways, .. } => {
                    prop_assert!(
                        ways.iter().all(|way| way.from.iter().all(|id| !way.to.contains(id)))
                    );
                    layers.insert(*layer, ways.clone());
                }
                What::Better { layer, ways, all_well } => {
                    prop_assert_eq!(layers.remove(layer), Some(ways.clone()));
                    prop_assert_eq!(*all_well, layers.is_empty());
                }
                What::Fault(_) => {}
            }
        }
        prop_assert!(paused.is_empty() && layers.is_empty());
    }
}
