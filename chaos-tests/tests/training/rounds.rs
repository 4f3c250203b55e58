//! `step` and the other calls refuse wrong arguments with a message, and disturb nobody else.

use crate::support::{IN_ORDER, assert_close, assert_says, bits, config, local_sgd, on_nodes, sgp};
use slowmo::{BaseName, OuterName};
use slowmo::{
    Config, Exchange, GradientError, Runtime, StepError, SynchronizeError, Worker, WorkerError,
};
use slowmo_chaos::cluster::Link;
use std::sync::Barrier;
use std::time::{Duration, Instant};

#[test]
fn a_learning_rate_that_cannot_be_divided_by_is_refused_before_anything_is_sent() {
    let seen = on_nodes(
        &[1, 2, 3],
        IN_ORDER,
        &local_sgd(1, 2, 1.0, 0.5),
        |rank, _, mut worker| {
            let mut values = vec![1.0f32, 2.0];
            worker.synchronize(&mut values).unwrap();
            // Not a slow step: the rate is not looked at.
            worker.step(&mut values, f32::NAN).unwrap();
            values
                .iter_mut()
                .for_each(|value| *value -= 0.1 * (rank as f32 + 1.0));
            if rank == 1 {
                let before = values.clone();
                for (rate, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-0.1, "-0.1")] {
                    let error = worker.step(&mut values, rate).unwrap_err();
                    assert!(
                        matches!(error, StepError::LearningRate { step: 1, .. }),
                        "{error:?}"
                    );
                    assert_says(
                        &error.to_string(),
                        &[
                            "step 1 ends an outer round",
                            &format!("but the learning rate is {shown}"),
                            "finite and not below 0",
                        ],
                    );
                    assert_eq!(values, before);
                }
            }
            let report = worker.step(&mut values, 0.1).unwrap();
            assert_eq!(
                (report.step, report.slow_step, report.contributors),
                (1, true, 3)
            );
            worker.leave().unwrap();
            values
        },
    );
    for values in &seen {
        assert_close(values, &[0.8, 1.8], 1e-6);
        assert_eq!(bits(values), bits(&seen[0]));
    }
}

#[test]
fn the_learning_rate_is_not_looked_at_by_optimizers_that_do_not_use_it() {
    let config = Config {
        base: BaseName::None,
        outer: OuterName::Nesterov,
        tau: 1,
        ..config()
    };
    on_nodes(&[1, 2], IN_ORDER, &config, |_, _, mut worker| {
        let mut values = vec![1.0f32];
        worker.synchronize(&mut values).unwrap();
        worker.step(&mut values, 0.0).unwrap();
        worker.leave().unwrap();
    });
}

/// One node has a value that is not finite at the step's exchange, mends it and calls again; the
/// others only wait.
fn assert_a_value_can_be_mended(config: &Config) {
    let seen = on_nodes(&[1, 2, 3], IN_ORDER, config, |rank, _, mut worker| {
        let mut tensors = vec![vec![1.0f32; 3], vec![2.0; 70_000]];
        worker.synchronize(&mut tensors).unwrap();
        for step in 0..4 {
            tensors
                .iter_mut()
                .flatten()
                .for_each(|value| *value -= 0.125 * (rank + step) as f32);
            if rank == 2 {
                let right =
                    std::mem::replace(&mut tensors[1][65_537], [f32::NAN, f32::INFINITY][step % 2]);
                let error = worker.step(&mut tensors, 0.1).unwrap_err();
                assert!(matches!(error, StepError::Freeze { .. }), "{error:?}");
                let value = ["NaN", "inf"][step % 2];
                assert_says(
                    &error.to_string(),
                    &[
                        &format!("step {step}: tensor 1[65537] = {value}"),
                        "check the learning rate",
                    ],
                );
                tensors[1][65_537] = right;
            }
            assert_eq!(worker.step(&mut tensors, 0.1).unwrap().step, step as u64);
        }
        worker.leave().unwrap();
        tensors.concat()
    });
    let average = |values: &[Vec<f32>], index: usize| {
        values.iter().map(|values| values[index]).sum::<f32>() / 3.0
    };
    assert_eq!(
        seen[2][65_537], seen[2][65_536],
        "the mended value is like its neighbours"
    );
    assert!(seen.iter().flatten().all(|value| value.is_finite()));
    assert!((average(&seen, 0) - average(&seen, 100) + 1.0).abs() < 1e-5);
}

#[test]
fn a_value_that_is_not_finite_poisons_no_round_and_can_be_mended() {
    assert_a_value_can_be_mended(&local_sgd(1, 2, 1.0, 0.5));
    assert_a_value_can_be_mended(&sgp(4, 0.5));
}

#[test]
fn bootstrap_parameters_that_are_not_finite_can_be_mended() {
    on_nodes(&[1, 2], IN_ORDER, &config(), |rank, _, mut worker| {
        let mut values = vec![1.0f32, 2.0];
        if rank == 0 {
            values[1] = f32::NAN;
            let error = worker.synchronize(&mut values).unwrap_err();
            assert!(matches!(error, SynchronizeError::Freeze(_)), "{error:?}");
            assert_says(&error.to_string(), &["synchronize: tensor 0[1] = NaN"]);
            values[1] = 2.0;
        }
        worker.synchronize(&mut values).unwrap();
        assert_eq!(values, [1.0, 2.0]);
        worker.leave().unwrap();
    });
}

#[test]
fn another_length_than_at_synchronize() {
    let seen = on_nodes(
        &[1, 2],
        IN_ORDER,
        &local_sgd(1, 2, 1.0, 0.5),
        |rank, _, mut worker| {
            let mut values = vec![1.0f32; 10];
            worker.synchronize(&mut values).unwrap();
            if rank == 0 {
                for length in [9, 11, 0] {
                    let error = worker.step(&mut vec![1.0f32; length], 0.1).unwrap_err();
                    let expected = StepError::Length {
                        step: 0,
                        what: "parameters",
                        found: length,
                        expected: 10,
                    };
                    assert_eq!(error, expected);
                    assert_says(
                        &error.to_string(),
                        &[
                            &format!("hold {length} values, 10 at synchronize"),
                            "lend the same tensors",
                        ],
                    );
                }
            }
            worker.step(&mut values, 0.1).unwrap();
            worker.leave().unwrap();
            values
        },
    );
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn calls_in_the_wrong_order() {
    let node = Runtime::builder()
        .config(local_sgd(1, 2, 1.0, 0.5))
        .spawn()
        .unwrap();
    assert_eq!(
        node.worker(1).unwrap_err(),
        WorkerError::NoSuchWorker {
            index: 1,
            devices: 1
        }
    );
    assert_says(
        &node.worker(1).unwrap_err().to_string(),
        &["no worker 1", "this node has 1", "raise devices"],
    );
    let mut worker = node.worker(0).unwrap();
    assert_eq!(node.worker(0).unwrap_err(), WorkerError::Taken(0));
    let mut values = [1.0f32; 4];
    let error = worker.step(&mut values, 0.1).unwrap_err();
    assert_eq!(error, StepError::NotSynchronized);
    assert_says(
        &error.to_string(),
        &[
            "step was called before synchronize",
            "call synchronize once",
        ],
    );
    let error = worker.average_gradients(&mut values).unwrap_err();
    assert_eq!(error, GradientError::NotSynchronized);
    assert_says(
        &error.to_string(),
        &["average_gradients was called before synchronize"],
    );
    worker.synchronize(&mut values).unwrap();
    let error = worker.synchronize(&mut values).unwrap_err();
    assert_eq!(error, SynchronizeError::Again);
    assert_says(&error.to_string(), &["once, before its first step"]);
    assert_eq!(
        worker.step(&mut values, 0.1).unwrap().exchange,
        Exchange::Average
    );
    worker.leave().unwrap();
}

/// Both nodes are told what each of them expects, over every kind of network.
fn assert_both_are_told(
    config: &Config,
    parts: &[&str],
    work: impl Fn(usize, &mut Worker, &mut Vec<f32>) -> String + Sync,
) {
    for link in [
        IN_ORDER,
        Link::Memory(Some(1)),
        Link::Memory(Some(2)),
        Link::Quic,
    ] {
        let begun = Instant::now();
        let told = on_nodes(&[1, 2], link, config, |rank, _, mut worker| {
            let mut values = vec![1.0f32; 8];
            worker.synchronize(&mut values).unwrap();
            // The worker is dropped right after the error, as a program that stops would.
            work(rank, &mut worker, &mut values)
        });
        assert!(begun.elapsed() < Duration::from_secs(5));
        for told in &told {
            assert_says(
                told,
                &[
                    &[
                        "node 1",
                        "node 2",
                        "run the same training script with the same schedule",
                    ],
                    parts,
                ]
                .concat(),
            );
        }
    }
}

#[test]
fn different_learning_rates_at_a_slow_step() {
    assert_both_are_told(
        &local_sgd(1, 1, 1.0, 0.5),
        &["learning rate 0.1", "learning rate 0.2"],
        |rank, worker, values| {
            let error = worker.step(values, [0.1, 0.2][rank]).unwrap_err();
            assert_eq!(values, &[1.0; 8]);
            assert!(matches!(error, StepError::Exchange { step: 0, .. }));
            error.to_string()
        },
    );
}

#[test]
fn nodes_that_call_different_operations() {
    let config = Config {
        base: BaseName::AllReduce,
        beta: 0.0,
        ..config()
    };
    assert_both_are_told(
        &config,
        &["Gradients round at step 0", "Gradients round at step 1"],
        |rank, worker, values| {
            if rank == 1 {
                // Skips the gradient mean of its first step.
                worker.step(values, 0.1).unwrap();
            }
            worker.average_gradients(values).unwrap_err().to_string()
        },
    );
}

#[test]
fn gradients_of_different_lengths() {
    let config = Config {
        base: BaseName::AllReduce,
        beta: 0.0,
        ..config()
    };
    assert_both_are_told(
        &config,
        &["of 8 values", "of 7 values"],
        |rank, worker, _| {
            worker
                .average_gradients(&mut vec![1.0f32; 8 - rank])
                .unwrap_err()
                .to_string()
        },
    );
}

#[test]
fn after_an_abandoned_round_every_call_says_why() {
    let waiting = Barrier::new(2);
    on_nodes(
        &[1, 2],
        IN_ORDER,
        &local_sgd(1, 1, 1.0, 0.5),
        |rank, _, mut worker| {
            let mut values = vec![1.0f32; 8];
            worker.synchronize(&mut values).unwrap();
            let first = worker.step(&mut values, [0.1, 0.2][rank]).unwrap_err();
            let second = worker.step(&mut values, 0.1).unwrap_err();
            assert_eq!(first, second);
            waiting.wait();
            worker.leave().unwrap();
        },
    );
}
