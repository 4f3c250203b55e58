//! How far weights run apart in long runs without rounds, where members are dead, slow, or do
//! without each other.

use super::faults::Fault;
use super::scenario::{MILLI, Scenario};
use super::world::World;
use crate::algorithm::{Gossip, LatePeers};
use crate::push_sum::WEIGHT_MIN;

const STEPS: u64 = 300;

struct Extremes {
    min: f64,
    max: f64,
    /// How far the models are apart in the end.
    spread: f64,
}

/// `dead` members die at once, `slow` ones take three times as long.
fn run(nodes: u64, gossip: Gossip, dead: &[u64], slow: &[u64]) -> Extremes {
    let scenario = Scenario {
        compute: (10 * MILLI, MILLI),
        horizon: u64::MAX / 4,
        ..Scenario::regular(nodes, gossip)
    };
    let mut world = World::new(scenario);
    let ids = world.living();
    slow.iter()
        .for_each(|rank| world.fault(Fault::Slow(ids[*rank as usize], 300)));
    dead.iter()
        .for_each(|rank| world.fault(Fault::Kill(ids[*rank as usize])));
    while world.nodes.values().all(|node| node.step.0 < STEPS) {
        world.next();
    }
    Extremes {
        min: world.seen.weight_min,
        max: world.seen.weight_max,
        spread: world.spread(),
    }
}

fn gossips(peers_per_step: u32) -> [Gossip; 4] {
    let overlapped = |staleness, late_peers| Gossip {
        peers_per_step,
        staleness,
        late_peers,
        ..Gossip::default()
    };
    [
        Gossip::synchronous(peers_per_step),
        overlapped(1, LatePeers::Wait),
        overlapped(1, LatePeers::Skip),
        overlapped(4, LatePeers::Skip),
    ]
}

#[test]
fn weights_stay_within_bounds_where_members_are_dead_or_slow() {
    let sets: [(&str, &[u64], &[u64]); 4] = [
        ("one dead", &[0], &[]),
        ("three dead", &[0, 1, 3], &[]),
        ("one slow", &[], &[1]),
        ("dead and slow", &[2], &[0, 1]),
    ];
    for nodes in [4, 5, 16] {
        for peers in [1, 2] {
            for gossip in gossips(peers) {
                for (name, dead, slow) in sets {
                    let Extremes { min, max, spread } = run(nodes, gossip, dead, slow);
                    eprintln!(
                        "W={nodes} p={peers} s={} {:?} {name}: weights {min:.3} .. {max:.2}, \
                         models apart {spread:.1e}",
                        gossip.staleness, gossip.late_peers
                    );
                    assert!(
                        min >= WEIGHT_MIN / f64::from(peers + 1) && max <= 1.0 + nodes as f64 / 2.0,
                        "{min} {max}"
                    );
                }
            }
        }
    }
}
