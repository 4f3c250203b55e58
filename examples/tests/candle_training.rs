//! A candle model on two nodes: what its variable map lends is what the nodes average.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder, VarMap};
use slowmo::BaseName;
use slowmo::internal::Network;
use slowmo::internal::tensors::flat;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{CandleGradients, CandleVariables, digest};
use slowmo::{Config, Runtime};
use std::net::SocketAddr;
use std::thread;

/// A linear model with random weights, and its variables.
fn model() -> (Linear, CandleVariables) {
    let map = VarMap::new();
    let builder = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    let linear = candle_nn::linear(4, 3, builder.pp("layer")).unwrap();
    (linear, CandleVariables::from_var_map(&map).unwrap())
}

/// Takes three steps of SGD on `½|model(1) − target|²`; the digest of the variables and the model's
/// own output at the end.
fn train(node: &Runtime, target: f32) -> (String, Vec<f32>) {
    let (linear, mut variables) = model();
    let mut worker = node.worker(0).unwrap();
    worker.synchronize(&mut variables).unwrap();
    let input = Tensor::ones((1, 4), DType::F32, &Device::Cpu).unwrap();
    for _ in 0..3 {
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
            let update = (store.get(&variable).unwrap() * 0.05).unwrap();
            variable
                .set(&(variable.as_tensor() - update).unwrap())
                .unwrap();
        }
        worker.step(&mut variables, 0.05).unwrap();
    }
    worker.leave().unwrap();
    let output = linear
        .forward(&input)
        .unwrap()
        .flatten_all()
        .unwrap()
        .to_vec1()
        .unwrap();
    (digest(&variables).unwrap(), output)
}

fn on_two_nodes(config: &Config) -> Vec<(String, Vec<f32>)> {
    let hub = MemoryHub::new(None);
    let address = |id: u64| SocketAddr::from(([127, 0, 0, 1], 44_000 + id as u16));
    let start = |id: u64| {
        let network = Network {
            hub: hub.clone(),
            address: address(id),
            peers: vec![address(3 - id)],
        };
        let config = Config {
            node_id: Some(id),
            min_nodes: 2,
            runtime_threads: 1,
            ..config.clone()
        };
        Runtime::builder()
            .config(config)
            .network(network)
            .spawn()
            .unwrap()
    };
    let threads = [1, 2].map(|id| {
        let node = start(id);
        thread::spawn(move || train(&node, id as f32))
    });
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

#[test]
fn both_nodes_end_with_the_same_variables() {
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
        let seen = on_two_nodes(&config);
        assert_eq!(seen[0], seen[1], "the model sees what the nodes agreed on");
        // Three steps of 0.05·5 towards the mean target of 1.5, from weights that differ from run
        // to run.
        assert!(seen[0].1.iter().all(|output| output.is_finite()));
    }
}

#[test]
fn the_bootstrap_variables_are_the_lowest_id_s() {
    let config = Config {
        frequency: 1 << 20,
        tau: 1 << 20,
        ..Config::default()
    };
    let hub = MemoryHub::new(None);
    let address = |id: u64| SocketAddr::from(([127, 0, 0, 1], 45_000 + id as u16));
    let threads = [1, 2].map(|id| {
        let network = Network {
            hub: hub.clone(),
            address: address(id),
            peers: vec![address(3 - id)],
        };
        let config = Config {
            node_id: Some(id),
            min_nodes: 2,
            ..config.clone()
        };
        let node = Runtime::builder()
            .config(config)
            .network(network)
            .spawn()
            .unwrap();
        thread::spawn(move || {
            let (_, mut variables) = model();
            let before = digest(&variables).unwrap();
            let mut worker = node.worker(0).unwrap();
            worker.synchronize(&mut variables).unwrap();
            worker.leave().unwrap();
            assert_eq!(flat::elements(&variables).unwrap(), 15);
            (before, digest(&variables).unwrap())
        })
    });
    let [first, second] = threads.map(|thread| thread.join().unwrap());
    assert_ne!(first.0, second.0);
    assert_eq!((&first.1, &second.1), (&first.0, &first.0));
}
