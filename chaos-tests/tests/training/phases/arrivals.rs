//! A node joins while another one, or it itself, is killed at any phase of the round that admits
//! it.

use super::drill::{Drill, HELD, config, each, points};
use super::points::{Kind, Point, Trap};
use slowmo::Config;
use slowmo::WireType;
use slowmo::internal::Inspection;

const FOUNDERS: [u64; 3] = [3, 5, 8];

/// The founders are about to begin a round that admits `late`, but those that crashed on their way.
fn about_to_admit(late: &[u64], config: &Config, held: u64, traps: &[Trap]) -> Drill {
    let drill = Drill::new(&FOUNDERS, late, config.clone(), traps);
    drill.hold(&FOUNDERS, held);
    drill.until_held(&FOUNDERS, held);
    late.iter().for_each(|id| drill.start(*id));
    let is_ready = |known: &Inspection, id: u64| {
        drill.has_crashed(id) || known.joiners.iter().any(|joiner| joiner.0 == id)
    };
    drill.until_known(&FOUNDERS, "others join", |known| {
        late.iter().all(|id| is_ready(known, *id))
    });
    drill.release();
    drill
}

fn phases(late: &[u64], config: &Config, held: u64) -> Vec<(u64, Point)> {
    let drill = about_to_admit(late, config, held, &[]);
    drill.until_round(held + 2);
    let ids = FOUNDERS.iter().chain(late);
    let mut phases: Vec<_> = ids
        .flat_map(|id| {
            points(&drill, *id, held + 1)
                .into_iter()
                .map(|point| (*id, point))
        })
        .collect();
    for id in late {
        phases.extend(
            points(&drill, *id, 0)
                .into_iter()
                .filter(|point| point.kind == Kind::Join && point.nth < FOUNDERS.len())
                .map(|point| (*id, point)),
        );
        assert!(phases.contains(&(
            *id,
            Point {
                round: held + 1,
                kind: Kind::Ready,
                nth: 0
            }
        )));
    }
    assert!(phases.iter().any(|(_, point)| point.kind == Kind::Admit));
    phases
}

fn assert_joins(late: &[u64], config: &Config, held: u64) {
    each(&phases(late, config, held), |(victim, point)| {
        let drill = about_to_admit(late, config, held, &[Trap::crash(*victim, *point)]);
        let killed = drill.until_sprung(held + 1)[0];
        let mut survivors: Vec<u64> = FOUNDERS
            .iter()
            .chain(late)
            .copied()
            .filter(|id| !killed || id != victim)
            .collect();
        survivors.sort_unstable();
        assert_eq!(drill.finish(&survivors), 0);
        killed
    });
}

#[test]
fn a_node_is_killed_while_one_joins_in_a_plain_average() {
    assert_joins(&[6], &config(FOUNDERS.len(), 1), HELD);
}

#[test]
fn a_node_is_killed_while_one_joins_in_a_slow_round() {
    assert_joins(&[9], &config(FOUNDERS.len(), 1), HELD + 1);
}

#[test]
fn a_node_is_killed_while_the_next_leader_joins() {
    assert_joins(&[1], &config(FOUNDERS.len(), 2), HELD + 1);
}

#[test]
fn a_node_is_killed_while_two_join() {
    assert_joins(&[1, 6], &config(FOUNDERS.len(), 1), HELD);
}

#[test]
fn a_node_is_killed_while_one_joins_in_an_encoded_round() {
    assert_joins(
        &[9],
        &Config {
            round_wire: WireType::Int8,
            ..config(FOUNDERS.len(), 1)
        },
        HELD + 1,
    );
    assert_joins(
        &[6],
        &Config {
            round_wire: WireType::BFloat16,
            ..config(FOUNDERS.len(), 1)
        },
        HELD,
    );
}
