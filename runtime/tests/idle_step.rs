//! The bound on what `step` costs when nothing is due.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use slowmo::{Config, Exchange, Runtime, Tensors};
use std::time::{Duration, Instant};

/// The most that the median call may cost.
const STEP_MAX: Duration = Duration::from_micros(20);
const CALLS: usize = 4_001;

fn median_step<P: Tensors>(parameters: &mut P) -> Duration {
    let config = Config {
        frequency: 1 << 40,
        tau: 1 << 40,
        ..Config::default()
    };
    let runtime = Runtime::builder().config(config).spawn().unwrap();
    let mut worker = runtime.worker(0).unwrap();
    worker.synchronize(parameters).unwrap();
    let mut costs: Vec<Duration> = (0..CALLS)
        .map(|_| {
            let start = Instant::now();
            let report = worker.step(parameters, 0.1).unwrap();
            let cost = start.elapsed();
            assert_eq!(report.exchange, Exchange::Nothing);
            cost
        })
        .collect();
    worker.leave().unwrap();
    costs.sort();
    println!(
        "median {:?}, slowest {:?}",
        costs[CALLS / 2],
        costs[CALLS - 1]
    );
    costs[CALLS / 2]
}

#[test]
fn a_flat_model_of_a_million_parameters() {
    assert!(median_step(&mut vec![0.5f32; 1 << 20]) < STEP_MAX);
}

#[test]
fn a_model_of_as_many_tensors_as_a_resnet_50() {
    assert!(median_step(&mut vec![vec![0.5f32; 1_000]; 161]) < STEP_MAX);
}
