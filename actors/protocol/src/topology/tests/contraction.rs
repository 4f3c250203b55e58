//! How much a cycle of each graph brings the members together: products of its mixing matrices.

use super::{every_graph, members};
use crate::algorithm::TopologyName;
use crate::ident::NodeId;
use crate::push_sum::split;
use crate::topology::{BipartiteExponential, Exponential, Topology};

/// Row `i`: how much of each member's start `i` holds.
type Matrix = Vec<Vec<f64>>;

/// Returns the values that everybody holds after `cycles` cycles of push-sum.
fn mixed(graph: &dyn Topology, members: &[NodeId], cycles: u64) -> Matrix {
    let size = members.len();
    let mut held: Matrix = (0..size)
        .map(|i| (0..size).map(|j| f64::from(i == j)).collect())
        .collect();
    for turn in 0..graph.cycle() * cycles {
        let shares: Vec<_> = members
            .iter()
            .map(|me| split(1.0, graph.peers(members, *me, turn).out.len()))
            .collect();
        held = (0..size)
            .map(|i| {
                let inward = graph.peers(members, members[i], turn).inward;
                let from = |j: &usize| {
                    if *j == i {
                        shares[i].kept
                    } else {
                        shares[*j].share
                    }
                };
                let sources: Vec<_> = (0..size)
                    .filter(|j| *j == i || inward.contains(&members[*j]))
                    .collect();
                (0..size)
                    .map(|k| sources.iter().map(|j| from(j) * held[*j][k]).sum())
                    .collect()
            })
            .collect();
    }
    held
}

/// By how much the largest difference between two members' values can have survived, at most: 0
/// when all agree, 1 when some two have nothing in common yet. (Dobrushin's coefficient of the
/// de-biased values.)
fn spread(held: &Matrix) -> f64 {
    let values: Vec<Vec<f64>> = held
        .iter()
        .map(|row| {
            let weight: f64 = row.iter().sum();
            row.iter().map(|value| value / weight).collect()
        })
        .collect();
    let apart =
        |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0;
    values
        .iter()
        .flat_map(|a| values.iter().map(move |b| apart(a, b)))
        .fold(0.0, f64::max)
}

/// The largest factor by which a cycle can leave deviations from the mean, in their root mean
/// square: the largest singular value of the product less the mean, by power iteration.
fn rate(held: &Matrix) -> f64 {
    let size = held.len();
    let less_mean: Matrix = held
        .iter()
        .map(|row| row.iter().map(|value| value - 1.0 / size as f64).collect())
        .collect();
    let norm = |vector: &[f64]| vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    let mut vector: Vec<f64> = (0..size).map(|i| (i as f64 * 1.7 + 1.0).sin()).collect();
    let mut factor = 0.0;
    for _ in 0..300 {
        let forth: Vec<f64> = less_mean
            .iter()
            .map(|row| row.iter().zip(&vector).map(|(a, b)| a * b).sum())
            .collect();
        let back: Vec<f64> = (0..size)
            .map(|j| (0..size).map(|i| less_mean[i][j] * forth[i]).sum())
            .collect();
        let length = norm(&back);
        if length < 1e-14 {
            return 0.0;
        }
        factor = (length / norm(&vector)).sqrt();
        vector = back.iter().map(|value| value / length).collect();
    }
    factor
}

#[test]
fn no_mass_is_made_or_lost() {
    every_graph(|name, members, p, graph| {
        let held = mixed(graph, members, 1);
        for from in 0..members.len() {
            let total: f64 = held.iter().map(|row| row[from]).sum();
            assert!(
                (total - 1.0).abs() < 1e-12,
                "{name:?} W={} p={p}: {total}",
                members.len()
            );
        }
    });
}

#[test]
fn every_graph_brings_the_members_together() {
    every_graph(|name, members, p, graph| {
        let size = members.len();
        // A ring of 17 needs 16 turns before the first two ends have something in common.
        let cycles = if name == TopologyName::Ring {
            size as u64
        } else {
            2
        };
        let left = spread(&mixed(graph, members, cycles));
        assert!(
            left < 0.999,
            "{name:?} W={size} p={p}: {left} after {cycles} cycles"
        );
        let regular =
            name != TopologyName::BipartiteExponential || size.is_multiple_of(2) || p == 1;
        if regular && size > 1 {
            let rate = rate(&mixed(graph, members, 1));
            assert!(rate < 0.995, "{name:?} W={size} p={p}: {rate} a cycle");
        }
    });
}

#[test]
fn the_mean_is_exact_after_a_cycle_with_one_peer_and_a_power_of_two() {
    for size in [2usize, 4, 8, 16] {
        let members = members(size);
        let graphs: [&dyn Topology; 2] = [
            &Exponential::new(size, 1),
            &BipartiteExponential::new(size, 1),
        ];
        for graph in graphs {
            assert_eq!(graph.cycle(), u64::from(size.ilog2()));
            let held = mixed(graph, &members, 1);
            assert!(
                held.iter()
                    .flatten()
                    .all(|value| *value == 1.0 / size as f64),
                "{graph:?}"
            );
        }
    }
}

#[test]
fn rates_of_a_cycle() {
    // W, turns of a cycle, the rate of the exponential graph; the same of the bipartite one. One
    // peer.
    type Rate = (u64, f64);
    let cases: &[(usize, Rate, Rate)] = &[
        (3, (2, 0.25), (2, 0.5)),
        (5, (3, 0.202_254), (3, 0.25)),
        (6, (3, 0.216_506), (3, 0.25)),
        (7, (3, 0.125), (3, 0.353_553)),
        (12, (4, 0.209_129), (4, 0.217)),
        (17, (5, 0.061_436), (5, 0.216)),
    ];
    for (size, exponential, bipartite) in cases {
        let graphs: [(&dyn Topology, _); 2] = [
            (&Exponential::new(*size, 1), exponential),
            (&BipartiteExponential::new(*size, 1), bipartite),
        ];
        for (graph, (turns, expected)) in graphs {
            assert_eq!(graph.cycle(), *turns, "{graph:?}");
            let rate = rate(&mixed(graph, &members(*size), 1));
            assert!(
                (rate - expected).abs() < 5e-4,
                "{graph:?}: {rate}, not {expected}"
            );
        }
    }
}
