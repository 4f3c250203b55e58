//! How fast models agree where nothing goes wrong: as the graph says.

use super::bench::overlapped;
use super::scenario::{MILLI, Scenario};
use super::world::World;
use crate::algorithm::Gossip;

/// The spread of the models after each gossip.
fn spreads(nodes: u64, gossip: Gossip, delay: u64, steps: u64) -> Vec<f64> {
    let mut world = World::new(Scenario {
        delay_max: delay,
        ..Scenario::regular(nodes, gossip)
    });
    (0..steps)
        .map(|step| {
            while world.nodes.values().any(|node| node.step.0 <= step) {
                world.next();
            }
            assert!(!world.audit.adjusted);
            world.spread()
        })
        .collect()
}

/// By how much the spread shrinks in a step, over many.
fn rate(nodes: u64, gossip: Gossip, delay: u64) -> f64 {
    let from = 6;
    let to = 36;
    let spreads = spreads(nodes, gossip, delay, to + 1);
    (spreads[to as usize] / spreads[from as usize]).powf(1.0 / (to - from) as f64)
}

#[test]
fn a_full_cycle_over_a_power_of_two_is_the_exact_mean() {
    for (nodes, cycle) in [(2, 1), (4, 2), (8, 3), (16, 4)] {
        let spreads = spreads(nodes, Gossip::synchronous(1), 200, cycle);
        assert!(spreads[cycle as usize - 1] < 1e-12, "{nodes}: {spreads:?}");
        // Overlapped, a message is mixed a step later.
        let spreads = self::spreads(nodes, overlapped(1), 200, cycle + 1);
        assert!(
            spreads[cycle as usize] < 1e-12,
            "{nodes} overlapped: {spreads:?}"
        );
    }
}

#[test]
fn three_nodes_contract_to_a_quarter_in_two_steps() {
    let spreads = spreads(3, Gossip::synchronous(1), 200, 12);
    spreads
        .windows(3)
        .for_each(|three| assert!((three[2] / three[0] - 0.25).abs() < 1e-6, "{spreads:?}"));
}

#[test]
fn six_nodes_contract_to_about_a_fifth_in_three_steps() {
    let per_cycle = rate(6, Gossip::synchronous(1), 200).powi(3);
    assert!((0.15..0.25).contains(&per_cycle), "{per_cycle}");
}

#[test]
fn overlapped_and_as_fast_as_the_network_nodes_contract_as_if_synchronous() {
    for nodes in [3, 5, 6, 7] {
        let synchronous = rate(nodes, Gossip::synchronous(1), 200);
        let overlapped = rate(nodes, overlapped(1), 200);
        assert!(
            (synchronous - overlapped).abs() < 0.01,
            "{nodes}: {synchronous} {overlapped}"
        );
    }
}

#[test]
fn messages_that_take_some_steps_slow_contraction_down_by_so_many() {
    for nodes in [2, 3, 4, 6, 8, 13] {
        for (staleness, steps) in [(2, 1), (3, 2), (4, 3)] {
            let delay = steps * 10 * MILLI - 2 * MILLI;
            let fast = rate(nodes, Gossip::synchronous(1), 200).max(0.5);
            let slow = rate(nodes, overlapped(staleness), delay);
            // What is under way comes back that much later, and swings.
            let bound = fast.powf(1.0 / (2.0 * steps as f64 + 3.0));
            assert!(
                slow < bound,
                "{nodes} nodes, {steps} steps late: {slow}, at once {fast}"
            );
        }
    }
}
