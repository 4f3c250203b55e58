//! A node drains while another one, or it itself, is killed at any phase of the round in which it
//! hands over.

use super::drill::{Drill, HELD, config, each, points};
use super::points::{Kind, Point, Trap};
use slowmo::internal::Inspection;

const IDS: [u64; 4] = [2, 3, 5, 8];

/// All are about to begin a round that `leaver` takes part in for the last time.
fn about_to_leave(leaver: u64, replicas: usize, held: u64, traps: &[Trap]) -> Drill {
    let drill = Drill::new(&IDS, &[], config(IDS.len(), replicas), traps);
    drill.hold(&IDS, held);
    drill.until_held(&IDS, held);
    drill.drain(leaver);
    let is_known = |known: &Inspection| {
        drill.has_crashed(leaver) || known.leaving.iter().any(|node| node.0 == leaver)
    };
    drill.until_known(&IDS, "one leaves", is_known);
    drill.release();
    drill
}

fn phases(leaver: u64, replicas: usize, held: u64) -> Vec<(u64, Point)> {
    let drill = about_to_leave(leaver, replicas, held, &[]);
    drill.until_round(held + 2);
    let mut phases: Vec<_> = IDS
        .into_iter()
        .flat_map(|id| {
            points(&drill, id, held + 1)
                .into_iter()
                .map(move |point| (id, point))
        })
        .collect();
    phases.extend(
        points(&drill, leaver, 0)
            .into_iter()
            .filter(|point| point.kind == Kind::Leave)
            .map(|point| (leaver, point)),
    );
    phases
}

/// A node that is killed costs momentum only where its shards have no replica.
fn assert_drains(leaver: u64, replicas: usize, held: u64) {
    each(&phases(leaver, replicas, held), |(victim, point)| {
        let drill = about_to_leave(leaver, replicas, held, &[Trap::crash(*victim, *point)]);
        let killed = drill.until_sprung(held + 1)[0];
        let survivors: Vec<u64> = IDS
            .into_iter()
            .filter(|id| (!killed || id != victim) && *id != leaver)
            .collect();
        let lost = drill.finish(&survivors);
        assert!(
            lost == 0 || replicas == 0,
            "{lost} shards lost their momentum"
        );
        killed
    });
}

#[test]
fn a_node_is_killed_while_one_drains_in_a_plain_average() {
    assert_drains(5, 1, HELD);
}

#[test]
fn a_node_is_killed_while_the_leader_drains_in_a_slow_round() {
    assert_drains(2, 1, HELD + 1);
}

#[test]
fn a_node_is_killed_while_one_drains_whose_shards_have_no_replicas() {
    assert_drains(3, 0, HELD);
}
