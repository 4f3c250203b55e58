//! One node is killed: a member, the leader, the owner or a replica of any shard.

use super::book::TAU;
use super::drill::{Drill, config, each, points};
use super::points::{Point, Trap};
use slowmo::Config;
use slowmo::WireType;

const IDS: [u64; 4] = [2, 3, 5, 8];

/// Every phase of a round of every node.
fn phases(ids: &[u64], config: &Config, round: u64) -> Vec<(u64, Point)> {
    let drill = Drill::new(ids, &[], config.clone(), &[]);
    drill.until_round(round + 1);
    ids.iter()
        .flat_map(|node| {
            points(&drill, *node, round)
                .into_iter()
                .map(|point| (*node, point))
        })
        .collect()
}

/// How many shards' momentum each death costs.
fn killed(ids: &[u64], config: &Config, round: u64) -> Vec<u64> {
    let phases = phases(ids, config, round);
    let lost = std::sync::Mutex::new(Vec::new());
    assert!(phases.len() > 10 * ids.len(), "{phases:?}");
    each(&phases, |(victim, point)| {
        let drill = Drill::new(ids, &[], config.clone(), &[Trap::crash(*victim, *point)]);
        let killed = drill.until_sprung(round)[0];
        let survivors: Vec<u64> = ids
            .iter()
            .copied()
            .filter(|id| !killed || id != victim)
            .collect();
        let cost = drill.finish(&survivors);
        lost.lock().unwrap().extend(killed.then_some(cost));
        killed
    });
    lost.into_inner().unwrap()
}

/// A node that is killed is started again before anybody noticed.
fn replaced(ids: &[u64], config: &Config, round: u64) {
    each(&phases(ids, config, round), |(victim, point)| {
        let drill = Drill::new(ids, &[], config.clone(), &[Trap::crash(*victim, *point)]);
        let killed = drill.until_sprung(round)[0];
        if killed {
            drill.start(*victim);
        }
        assert_eq!(drill.finish(ids), 0);
        killed
    });
}

/// Step 5 takes the slow step, step 6 does not.
const SLOW: u64 = 3 * TAU;
const AVERAGE: u64 = SLOW + 1;

#[test]
fn a_node_killed_at_any_phase_of_a_slow_round() {
    assert!(
        killed(&IDS, &config(4, 1), SLOW)
            .iter()
            .all(|lost| *lost == 0)
    );
}

#[test]
fn a_node_killed_at_any_phase_of_a_plain_average() {
    assert!(
        killed(&IDS, &config(4, 1), AVERAGE)
            .iter()
            .all(|lost| *lost == 0)
    );
}

#[test]
fn a_node_killed_where_every_shard_has_two_replicas() {
    assert!(
        killed(&IDS[1..], &config(3, 2), SLOW)
            .iter()
            .all(|lost| *lost == 0)
    );
}

#[test]
fn a_node_killed_where_shards_have_no_replicas_costs_their_momentum_only() {
    assert!(
        killed(&IDS[1..], &config(3, 0), SLOW)
            .iter()
            .all(|lost| *lost > 0)
    );
    assert!(
        killed(&IDS[..3], &config(3, 0), AVERAGE)
            .iter()
            .all(|lost| *lost > 0)
    );
}

#[test]
fn a_node_killed_and_started_again_at_once() {
    replaced(&IDS, &config(4, 1), SLOW);
    replaced(&IDS[..3], &config(3, 1), AVERAGE);
}

#[test]
fn a_node_killed_at_any_phase_of_an_encoded_slow_round() {
    for round_wire in [WireType::BFloat16, WireType::Int8] {
        let config = Config {
            round_wire,
            ..config(3, 1)
        };
        assert!(
            killed(&IDS[1..], &config, SLOW)
                .iter()
                .all(|lost| *lost == 0)
        );
    }
}

#[test]
fn a_node_killed_at_any_phase_of_an_encoded_plain_average() {
    let config = Config {
        round_wire: WireType::Int8,
        ..config(4, 1)
    };
    assert!(killed(&IDS, &config, AVERAGE).iter().all(|lost| *lost == 0));
}

#[test]
fn a_node_killed_and_started_again_at_once_in_an_encoded_round() {
    replaced(
        &IDS[..3],
        &Config {
            round_wire: WireType::Int8,
            ..config(3, 1)
        },
        SLOW,
    );
}
