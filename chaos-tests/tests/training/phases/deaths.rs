//! One node is killed: a member, the leader, the owner or a replica of any shard.

use super::drill::{Drill, config, each, points};
use super::points::{Point, Trap};
use std::time::Instant;

const IDS: [u64; 4] = [2, 3, 5, 8];

/// Every phase of a round of every node.
fn phases(round: u64) -> Vec<(u64, Point)> {
    let drill = Drill::new(&IDS, &[], config(IDS.len(), 1), &[]);
    drill.until_round(round + 1);
    let all = |node: u64| points(&drill, node, round).into_iter().map(move |point| (node, point)).collect::<Vec<_>>();
    IDS.into_iter().flat_map(all).collect()
}

fn assert_nothing_is_lost(round: u64, replicas: usize) {
    let begun = Instant::now();
    let phases = phases(round);
    each(&phases, |(victim, point)| {
        let drill = Drill::new(&IDS, &[], config(IDS.len(), replicas), &[Trap::crash(*victim, *point)]);
        drill.until_sprung();
        let survivors: Vec<u64> = IDS.into_iter().filter(|id| id != victim).collect();
        let lost = drill.finish(&survivors);
        assert!(lost == 0 || replicas == 0, "{lost} shards lost their momentum");
    });
    eprintln!("{} cases in {:?}", phases.len(), begun.elapsed());
}

#[test]
fn a_node_killed_at_any_phase_of_a_slow_round() {
    assert_nothing_is_lost(6, 1);
}
