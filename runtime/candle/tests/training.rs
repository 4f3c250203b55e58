//! A candle model on two nodes: what its variable map lends is what the nodes average.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder, VarMap};
use slowmo::BaseName;
use slowmo::internal::tensors::flat;
use slowmo::{Config, Runtime, digest};
use slowmo_candle::{CandleGradients, CandleVariables};

mod cluster;
use cluster::Cluster;

const STEPS: usize = 3;
const RATE: f32 = 0.05;

/// A linear model with random weights, and its variables.
fn model() -> (Linear, CandleVariables) {
    let map = VarMap::new();
    let builder = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    let linear = candle_nn::linear(4, 3, builder.pp("layer")).unwrap();
    (linear, CandleVariables::from_var_map(&map).unwrap())
}

/// The training as one node saw it.
#[derive(Debug, PartialEq)]
struct Seen {
    /// Digest of the variables at the end.
    digest: String,
    /// The model's own output before the first step.
    before: Vec<f32>,
    /// Its output after the last one.
    after: Vec<f32>,
}

/// The model's output for an input of ones.
fn output(linear: &Linear) -> Vec<f32> {
    let input = Tensor::ones((1, 4), DType::F32, &Device::Cpu).unwrap();
    let output = linear.forward(&input).unwrap();
    output.flatten_all().unwrap().to_vec1().unwrap()
}

/// Takes [`STEPS`] steps of SGD on `½|model(1) − target|²`.
fn train(node: &Runtime, target: f32) -> Seen {
    let (linear, mut variables) = model();
    let mut worker = node.worker(0).unwrap();
    worker.synchronize(&mut variables).unwrap();
    let before = output(&linear);
    let input = Tensor::ones((1, 4), DType::F32, &Device::Cpu).unwrap();
    for _ in 0..STEPS {
        let loss = (linear.forward(&input).unwrap() - f64::from(target))
            .unwrap()
            .sqr()
            .unwrap()
            .sum_all()
            .unwrap();
        let mut store = (loss * 0.5).unwrap().backward().unwrap();
        worker
            .average_gradients(&mut CandleGradients::new(&variables, &mut store))
            .unwrap();
        for variable in variables.to_vars() {
            let update = (store.get(&variable).unwrap() * f64::from(RATE)).unwrap();
            variable
                .set(&(variable.as_tensor() - update).unwrap())
                .unwrap();
        }
        worker.step(&mut variables, RATE).unwrap();
    }
    worker.leave().unwrap();
    Seen {
        digest: digest(&variables).unwrap(),
        before,
        after: output(&linear),
    }
}

/// The nodes' targets are 1 and 2, so that both together descend towards 1.5. An output moves with
/// four weights and a bias, each by the rate times the distance from there.
#[test]
fn both_nodes_end_with_the_same_variables_nearer_to_the_mean_target() {
    let left = (1.0 - RATE * 5.0).powi(STEPS as i32);
    let local_sgd = Config {
        frequency: 1,
        tau: 3,
        ..Config::default()
    };
    let all_reduce = Config {
        base: BaseName::AllReduce,
        beta: 0.0,
        ..Config::default()
    };
    for config in [local_sgd, all_reduce] {
        let seen = Cluster::run(&config, 2, |node| train(node, node.node_id() as f32));
        assert_eq!(seen[0], seen[1], "the model sees what the nodes agreed on");
        for (before, after) in seen[0].before.iter().zip(&seen[0].after) {
            let expected = 1.5 + left * (before - 1.5);
            assert!((after - expected).abs() < 1e-4, "{after}, not {expected}");
        }
    }
}

#[test]
fn the_bootstrap_variables_are_the_lowest_id_s() {
    let config = Config {
        frequency: 1 << 20,
        tau: 1 << 20,
        ..Config::default()
    };
    let digests = Cluster::run(&config, 2, |node| {
        let (_, mut variables) = model();
        let before = digest(&variables).unwrap();
        let mut worker = node.worker(0).unwrap();
        worker.synchronize(&mut variables).unwrap();
        worker.leave().unwrap();
        assert_eq!(flat::elements(&variables).unwrap(), 15);
        (before, digest(&variables).unwrap())
    });
    let [first, second] = &digests[..] else {
        panic!("two nodes");
    };
    assert_ne!(first.0, second.0);
    assert_eq!((&first.1, &second.1), (&first.0, &first.0));
}
