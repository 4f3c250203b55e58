//! Schedules in which exact averages and slow rounds follow each other without a gossip between, so
//! that peers run rounds ahead of each other; and gossips with several peers, whose shares do not
//! divide evenly.

use crate::support::{on_nodes, sgp};
use slowmo::{Config, Exchange};
use slowmo_chaos::cluster::Link;

/// Every node's parameter after each of `steps` steps of gradient descent towards its own place
/// among `ids`.
fn descend(ids: &[u64], link: Link, config: &Config, steps: usize) -> Vec<Vec<f32>> {
    on_nodes(ids, link, config, |_, _, mut worker| {
        let mut x = [0.0f32; 5];
        let target = worker.synchronize(&mut x).unwrap().node_rank as f32;
        let mut seen = Vec::new();
        for _ in 0..steps {
            x.iter_mut().for_each(|x| *x -= 0.1 * (*x - target));
            let report = worker.step(&mut x, 0.1).unwrap();
            assert!(report.exchange == Exchange::Nothing || report.contributors > 1);
            assert!(
                (report.weight - 1.0).abs() < 1e-9,
                "a regular graph keeps every weight at one: {}",
                report.weight
            );
            seen.push(x[4]);
        }
        worker.leave().unwrap();
        seen
    })
}

#[test]
fn gossip_with_two_exact_rounds_in_a_row_goes_on() {
    for (tau, average_every) in [(3, 2), (4, 3), (3, 4)] {
        let config = Config {
            average_every: Some(average_every),
            ..sgp(tau, 0.5)
        };
        for seed in 0..6 {
            let seen = descend(&[4, 8, 15, 16], Link::Memory(Some(seed)), &config, 25);
            // Step 24 is closed by an exact round in each of these schedules.
            assert!(
                seen.iter().all(|x| x[23] == seen[0][23]),
                "tau {tau}, average_every {average_every}, seed {seed}"
            );
        }
    }
}

#[test]
fn gossip_with_many_peers_follows_the_float64_oracle() {
    for (nodes, peers) in [(6, 2), (6, 5), (7, 3), (4, 9)] {
        let config = Config {
            alpha: 1.0,
            peers_per_step: peers,
            ..sgp(Config::default().tau, 0.0)
        };
        let ids: Vec<u64> = (0..nodes as u64).map(|id| id * 5 + 2).collect();
        let seen = descend(&ids, Link::Memory(Some(7)), &config, 60);
        let expected = oracle(nodes, peers as usize, 60);
        for (ours, theirs) in seen.iter().flatten().zip(expected.iter().flatten()) {
            assert!(
                (f64::from(*ours) - theirs).abs() < 2e-6,
                "W = {nodes}, p = {peers}: {ours} {theirs}"
            );
        }
    }
}

/// Push-sum on the directed exponential graph in float64, straight from its definition.
fn oracle(nodes: usize, peers: usize, steps: usize) -> Vec<Vec<f64>> {
    let mut hops: Vec<usize> = Vec::new();
    let mut power = 1;
    while power < nodes {
        for hop in (1..=peers).map(|j| j * power % nodes) {
            if hop != 0 && !hops.contains(&hop) {
                hops.push(hop);
            }
        }
        power *= peers + 1;
    }
    let mut x = vec![0.0f64; nodes];
    let mut seen = vec![Vec::new(); nodes];
    let mut cursor = 0;
    for _ in 0..steps {
        x.iter_mut()
            .enumerate()
            .for_each(|(rank, x)| *x -= 0.1 * (*x - rank as f64));
        let now: Vec<usize> = (0..peers.min(hops.len()))
            .map(|entry| hops[(cursor + entry) % hops.len()])
            .collect();
        let share = 1.0 / (now.len() as f64 + 1.0);
        let mixed = |rank: usize| {
            share
                * (x[rank]
                    + now
                        .iter()
                        .map(|hop| x[(rank + nodes - hop) % nodes])
                        .sum::<f64>())
        };
        x = (0..nodes).map(mixed).collect();
        x.iter().zip(&mut seen).for_each(|(x, seen)| seen.push(*x));
        cursor = (cursor + peers) % hops.len();
    }
    seen
}
