//! The golden values of the algorithm's section 9: scalar parabolas from 0, one value a worker and
//! step.

use crate::support::{Job, local_sgd, parabolas, sgp};

/// Largest relative error of a float32 run.
const ERROR_MAX: f64 = 1e-6;

/// Compares with what all workers (one number) or each of them must hold after each step; `None` is
/// not given.
fn assert_golden(job: &Job, expected: &[Option<&[f64]>]) {
    let seen = job.values();
    for (step, expected) in expected.iter().enumerate() {
        let Some(expected) = expected else { continue };
        for (worker, values) in seen.iter().enumerate() {
            let found = f64::from(values[step][0]);
            let expected = expected[worker % expected.len()];
            let error = ((found - expected) / expected).abs();
            assert!(
                error <= ERROR_MAX,
                "worker {worker}, step {}: {found} against {expected}",
                step + 1
            );
        }
    }
}

#[test]
fn two_nodes_of_local_sgd_with_slowmo() {
    let job = Job::new(
        2,
        local_sgd(1, 2, 1.0, 0.5),
        parabolas(&[1.0, 2.0], &[1.0, 3.0]),
    );
    let expected: [&[f64]; 6] = [
        &[0.35],
        &[0.6475],
        &[0.900375],
        &[1.43906875],
        &[1.5732084375],
        &[2.0830115469],
    ];
    assert_golden(&job, &expected.map(Some));
}

#[test]
fn the_learning_rate_is_read_when_the_round_closes() {
    let mut job = Job::new(
        2,
        local_sgd(1, 2, 1.0, 0.5),
        parabolas(&[1.0, 2.0], &[1.0, 3.0]),
    );
    job.rate = |step| if step < 2 { 0.1 } else { 0.01 };
    assert_golden(
        &job,
        &[
            Some(&[0.35]),
            Some(&[0.6475]),
            None,
            Some(&[0.7300706875]),
            None,
            Some(&[0.8190931765]),
        ],
    );
}

#[test]
fn four_nodes_of_gossip_with_slowmo() {
    let mut job = Job::new(4, sgp(2, 0.5), parabolas(&[1.0; 4], &[1.0, 2.0, 3.0, 4.0]));
    job.steps = 4;
    let expected: [&[f64]; 4] = [
        &[0.25, 0.15, 0.25, 0.35],
        &[0.475],
        &[0.6275, 0.7275, 0.6275, 0.7275],
        &[1.09725],
    ];
    assert_golden(&job, &expected.map(Some));
}

#[test]
fn two_nodes_of_two_workers() {
    let mut config = local_sgd(2, 4, 1.0, 0.5);
    config.devices = 2;
    let mut job = Job::new(
        2,
        config,
        parabolas(&[1.0, 2.0, 1.0, 2.0], &[1.0, 2.0, 3.0, 4.0]),
    );
    job.steps = 8;
    let first: [Option<&[f64]>; 4] = [
        Some(&[0.25, 0.25, 0.55, 0.55]),
        Some(&[0.74]),
        Some(&[0.879, 0.879, 1.179, 1.179]),
        Some(&[1.27465]),
    ];
    let second = [None, Some(&[1.660935][..]), None, Some(&[2.57735])];
    assert_golden(&job, &[first, second].concat());
}
