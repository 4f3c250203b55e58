//! A node that is cut off at any phase of a round is passed over, and is a member again, by itself,
//! once it can be reached.

use super::book::TAU;
use super::drill::{Drill, config, each, points};
use super::points::{Act, Point, Trap};
use slowmo::Config;

const IDS: [u64; 4] = [2, 3, 5, 8];

fn assert_returns(round: u64) {
    let config = Config {
        probe_interval_ms: 50,
        suspect_ms: 200,
        ..config(IDS.len(), 1)
    };
    let drill = Drill::new(&IDS, &[], config.clone(), &[]);
    drill.until_round(round + 1);
    let phases: Vec<(u64, Point)> = IDS
        .into_iter()
        .flat_map(|id| {
            points(&drill, id, round)
                .into_iter()
                .map(move |point| (id, point))
        })
        .collect();
    drop(drill);
    each(&phases, |(victim, point)| {
        let drill = Drill::new(
            &IDS,
            &[],
            config.clone(),
            &[Trap {
                node: *victim,
                point: *point,
                act: Act::CutOff,
            }],
        );
        let cut_off = drill.until_sprung(round)[0];
        if cut_off {
            let others: Vec<u64> = IDS.into_iter().filter(|id| id != victim).collect();
            drill.until_steady(&others, 2);
            drill.mend(*victim);
        }
        assert_eq!(drill.finish(&IDS), 0);
        cut_off
    });
}

#[test]
fn a_node_cut_off_at_any_phase_of_a_slow_round_comes_back() {
    assert_returns(3 * TAU);
}
