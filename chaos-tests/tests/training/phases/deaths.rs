//! One node is killed: a member, the leader, the owner or a replica of any shard.

use super::book::TAU;
use super::drill::{Drill, config, each, points};
use super::points::{Point, Trap};

const IDS: [u64; 4] = [2, 3, 5, 8];

/// Every phase of a round of every node.
fn phases(ids: &[u64], replicas: usize, round: u64) -> Vec<(u64, Point)> {
    let drill = Drill::new(ids, &[], config(ids.len(), replicas), &[]);
    drill.until_round(round + 1);
    ids.iter().flat_map(|node| points(&drill, *node, round).into_iter().map(|point| (*node, point))).collect()
}

/// How many shards' momentum each death costs.
fn killed(ids: &[u64], replicas: usize, round: u64) -> Vec<u64> {
    let (phases, lost) = (phases(ids, replicas, round), std::sync::Mutex::new(Vec::new()));
    assert!(phases.len() > 10 * ids.len(), "{phases:?}");
    each(&phases, |(victim, point)| {
        let drill = Drill::new(ids, &[], config(ids.len(), replicas), &[Trap::crash(*victim, *point)]);
        let killed = drill.until_sprung(round)[0];
        let survivors: Vec<u64> = ids.iter().copied().filter(|id| !killed || id != victim).collect();
        let cost = drill.finish(&survivors);
        lost.lock().unwrap().extend(killed.then_some(cost));
        killed
    });
    lost.into_inner().unwrap()
}

/// A node that is killed is started again before anybody noticed.
fn replaced(ids: &[u64], replicas: usize, round: u64) {
    each(&phases(ids, replicas, round), |(victim, point)| {
        let drill = Drill::new(ids, &[], config(ids.len(), replicas), &[Trap::crash(*victim, *point)]);
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
    assert!(killed(&IDS, 1, SLOW).iter().all(|lost| *lost == 0));
}

#[test]
fn a_node_killed_at_any_phase_of_a_plain_average() {
    assert!(killed(&IDS, 1, AVERAGE).iter().all(|lost| *lost == 0));
}

#[test]
fn a_node_killed_where_every_shard_has_two_replicas() {
    assert!(killed(&IDS[1..], 2, SLOW).iter().all(|lost| *lost == 0));
}

#[test]
fn a_node_killed_where_shards_have_no_replicas_costs_their_momentum_only() {
    assert!(killed(&IDS[1..], 0, SLOW).iter().all(|lost| *lost > 0));
    assert!(killed(&IDS[..3], 0, AVERAGE).iter().all(|lost| *lost > 0));
}

#[test]
fn a_node_killed_and_started_again_at_once() {
    replaced(&IDS, 1, SLOW);
    replaced(&IDS[..3], 1, AVERAGE);
}
