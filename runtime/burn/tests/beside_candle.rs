//! Burn and candle train the digits from the same weights with the same batches: their parameters
//! stay the same.
#![allow(clippy::unwrap_used)]

#[path = "../../candle/tests/cluster/mod.rs"]
mod cluster;
mod digits;

use cluster::Cluster;
use digits::{Learner, WithBurn, WithCandle};
use slowmo::{BaseName, Config, Runtime};
use slowmo_examples::digits::Dataset;
use std::collections::BTreeMap;

const NODES: u64 = 2;
const STEPS: u64 = 100;
const BATCH: usize = 16;
/// Largest difference of a parameter: rounding of sums in another order.
const APART_MAX: f32 = 1e-5;

type Parameters = BTreeMap<String, Vec<f32>>;

/// Trains a node on every second image; returns its parameters at the beginning and at the end.
fn train(node: &Runtime, mut learner: impl Learner) -> [Parameters; 2] {
    let data = Dataset::train().unwrap();
    let mut worker = node.worker(0).unwrap();
    let mut step = learner.begin(&mut worker);
    let begun = learner.parameters().into_iter().collect();
    while step < STEPS {
        let first = step as usize * BATCH;
        let of_node = |index: usize| index * NODES as usize + node.node_id() as usize;
        let images: Vec<_> = (first..first + BATCH)
            .map(|index| of_node(index) % data.len())
            .collect();
        step = learner.step(&mut worker, &data.batch(&images)).step + 1;
    }
    worker.leave().unwrap();
    [begun, learner.parameters().into_iter().collect()]
}

/// Largest difference of a value.
fn apart(one: &Parameters, other: &Parameters) -> f32 {
    assert!(one.keys().eq(other.keys()), "{:?}", other.keys());
    let pairs = one.values().zip(other.values());
    let values = pairs.flat_map(|(one, other)| {
        assert_eq!(one.len(), other.len());
        one.iter().zip(other)
    });
    values.fold(0.0, |apart, (one, other)| apart.max((one - other).abs()))
}

#[test]
fn burn_and_candle_have_the_same_parameters_after_100_steps() {
    let slow_momentum = Config {
        frequency: 4,
        tau: 12,
        ..Config::default()
    };
    let all_reduce = Config {
        base: BaseName::AllReduce,
        beta: 0.0,
        ..Config::default()
    };
    for config in [slow_momentum, all_reduce] {
        let with_burn = Cluster::run(&config, NODES, |node| train(node, WithBurn::new(1)));
        let with_candle = Cluster::run(&config, NODES, |node| train(node, WithCandle::new(1)));
        for (burn, candle) in with_burn.iter().zip(&with_candle) {
            let begun = apart(&burn[0], &candle[0]);
            let ended = apart(&burn[1], &candle[1]);
            let moved = apart(&burn[0], &burn[1]);
            eprintln!(
                "{:?}: apart {begun:e}, then {ended:e}; moved {moved}",
                config.base
            );
            assert!(begun == 0.0 && ended <= APART_MAX, "{begun} {ended}");
            assert!(moved > 0.1, "something was trained");
        }
    }
}
