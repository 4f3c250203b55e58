//! A round closes without a straggler, while a node is killed at any phase of it.

use super::drill::{Drill, HELD, config, each, points};
use super::points::{Kind, Point, Trap};
use slowmo::Config;

const IDS: [u64; 4] = [2, 3, 5, 8];

/// One is held before a step; the others go on without it after the grace.
fn straggles(straggler: u64, held: u64, traps: &[Trap]) -> Drill {
    let config = Config {
        grace_ms: 40,
        ..config(IDS.len(), 1)
    };
    let drill = Drill::new(&IDS, &[], config, traps);
    drill.hold(&[straggler], held);
    drill
}

fn phases(straggler: u64, held: u64) -> Vec<(u64, Point)> {
    let drill = straggles(straggler, held, &[]);
    drill.until_round(held + 2);
    let phases: Vec<_> = IDS
        .into_iter()
        .flat_map(|id| {
            points(&drill, id, held + 1)
                .into_iter()
                .map(move |point| (id, point))
        })
        .collect();
    // The leader drops the attempt with everybody and begins another one.
    let again = Point {
        round: held + 1,
        kind: Kind::Attempt,
        nth: IDS.len() - 1,
    };
    assert!(phases.contains(&(IDS[0], again)), "{phases:?}");
    phases
}

fn assert_closes(straggler: u64, held: u64) {
    each(&phases(straggler, held), |(victim, point)| {
        let drill = straggles(straggler, held, &[Trap::crash(*victim, *point)]);
        let killed = drill.until_sprung(held + 1)[0];
        drill.until_round(held + 2);
        drill.release();
        let survivors: Vec<u64> = IDS
            .into_iter()
            .filter(|id| !killed || id != victim)
            .collect();
        assert_eq!(drill.finish(&survivors), 0);
        killed
    });
}

#[test]
fn a_node_is_killed_while_a_slow_round_closes_without_another() {
    assert_closes(5, HELD + 1);
}

#[test]
fn a_node_is_killed_while_a_plain_average_closes_without_the_leaders_contribution() {
    assert_closes(2, HELD);
}
