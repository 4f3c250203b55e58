//! A node joins while another one, or it itself, is killed at any phase of the round that admits it.

use super::drill::{Drill, HELD, ROUND, config, each, points};
use super::points::{Kind, Point, Trap};

const FOUNDERS: [u64; 3] = [3, 5, 8];

/// The founders are about to begin a round that admits `late`, unless that crashed on its way.
fn about_to_admit(late: u64, replicas: usize, held: u64, traps: &[Trap]) -> Drill {
    let drill = Drill::new(&FOUNDERS, &[late], config(FOUNDERS.len(), replicas), traps);
    drill.hold(&FOUNDERS, held);
    drill.until_held(&FOUNDERS, held);
    drill.start(late);
    let knows = |drill: &Drill, joiners: &[slowmo_protocol::ident::NodeId]| {
        drill.has_crashed(late) || joiners.iter().any(|joiner| joiner.0 == late)
    };
    drill.until_known(&FOUNDERS, "one joins", |known| knows(&drill, &known.joiners));
    drill.release();
    drill
}

fn phases(late: u64, replicas: usize, held: u64) -> Vec<(u64, Point)> {
    let drill = about_to_admit(late, replicas, held, &[]);
    drill.until_round(held + 2);
    let mut phases: Vec<_> =
        FOUNDERS.into_iter().chain([late]).flat_map(|id| points(&drill, id, held + 1).into_iter().map(move |point| (id, point))).collect();
    phases.extend(points(&drill, late, 0).into_iter().filter(|point| point.kind == Kind::Join).map(|point| (late, point)));
    assert!(
        phases.iter().any(|(_, point)| point.kind == Kind::Admit)
            && phases.contains(&(late, Point { round: held + 1, kind: Kind::Prepared, nth: 0 }))
    );
    phases
}

fn assert_joins(late: u64, replicas: usize, held: u64) {
    each(&phases(late, replicas, held), |(victim, point)| {
        let drill = about_to_admit(late, replicas, held, &[Trap::crash(*victim, *point)]);
        drill.until_sprung();
        let mut survivors: Vec<u64> = FOUNDERS.into_iter().chain([late]).filter(|id| id != victim).collect();
        survivors.sort_unstable();
        assert_eq!(drill.finish(&survivors), 0);
    });
}

#[test]
fn a_node_is_killed_while_one_joins_in_a_plain_average() {
    assert_joins(6, 1, HELD);
    assert_eq!(HELD + 1, ROUND);
}

#[test]
fn a_node_is_killed_while_one_joins_in_a_slow_round() {
    assert_joins(9, 1, HELD + 1);
}

#[test]
fn a_node_is_killed_while_the_next_leader_joins() {
    assert_joins(1, 1, HELD);
    assert_joins(1, 2, HELD + 1);
}
