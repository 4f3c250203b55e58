//! Special cases of the algorithm's section 4, on real nodes, against the plain form of the
//! algorithm each of them is.

use crate::support::{
    Job, assert_close, bits, config, descend, local_sgd, mean, noise, noisy, outer_only, uneven,
};
use slowmo::Config;
use slowmo::{BaseName, OuterName};

const NODES: usize = 3;
const VALUES: usize = 40;
const STEPS: usize = 24;
const RATE: f32 = 0.1;
/// Largest relative error against a plain form that rounds in another order.
const ERROR_MAX: f32 = 1e-6;

fn job(nodes: usize, config: Config) -> Job {
    Job {
        initial: uneven(VALUES),
        steps: STEPS,
        ..Job::new(nodes, config, noise())
    }
}

/// Runs `job`; at every step given all workers must agree in every bit and be close to `expected`.
fn assert_all_close(job: &Job, expected: &[Option<Vec<f32>>]) {
    let seen = job.values();
    for (step, expected) in expected.iter().enumerate() {
        let Some(expected) = expected else { continue };
        for values in &seen {
            assert_eq!(
                bits(&values[step]),
                bits(&seen[0][step]),
                "all nodes hold the same bits after step {step}"
            );
            assert_close(&values[step], expected, ERROR_MAX);
        }
    }
}

/// The mean over all workers of their gradients at one point.
fn mean_gradient(workers: usize, step: usize, x: &[f32]) -> Vec<f32> {
    mean(
        &(0..workers)
            .map(|worker| noisy(worker, step, x))
            .collect::<Vec<_>>(),
    )
}

/// Replicas that are averaged every `f` steps, each value in the order of operations that the nodes
/// use.
fn local_sgd_by_the_book(f: usize) -> Vec<Vec<Vec<f32>>> {
    let mut replicas = vec![uneven(VALUES); NODES];
    let mut seen = vec![Vec::new(); NODES];
    for step in 0..STEPS {
        for (worker, x) in replicas.iter_mut().enumerate() {
            let gradients = noisy(worker, step, x);
            descend(x, &gradients, RATE);
        }
        if (step + 1) % f == 0 {
            replicas = vec![mean(&replicas); NODES];
        }
        seen.iter_mut()
            .zip(&replicas)
            .for_each(|(seen, x)| seen.push(x.clone()));
    }
    seen
}

/// Outer rounds of `tau` local steps from one point; `outer(anchor, average)` gives the next point.
fn outer_by_the_book(
    nodes: usize,
    tau: usize,
    mut outer: impl FnMut(&[f32], &[f32]) -> Vec<f32>,
) -> Vec<Option<Vec<f32>>> {
    let mut anchor = uneven(VALUES);
    let mut replicas = vec![anchor.clone(); nodes];
    let mut seen = Vec::new();
    for step in 0..STEPS {
        for (worker, x) in replicas.iter_mut().enumerate() {
            let gradients = noisy(worker, step, x);
            descend(x, &gradients, RATE);
        }
        let closes = (step + 1) % tau == 0;
        if closes {
            anchor = outer(&anchor, &mean(&replicas));
            replicas = vec![anchor.clone(); nodes];
        }
        seen.push(closes.then(|| anchor.clone()));
    }
    seen
}

/// `rule(anchor, average, state)` for each element; the state starts at 0 and lasts.
fn elementwise(rule: impl Fn(f32, f32, &mut f32) -> f32) -> impl FnMut(&[f32], &[f32]) -> Vec<f32> {
    let mut state = vec![0.0f32; VALUES];
    move |anchor, average| {
        let pairs = anchor.iter().zip(average).zip(&mut state);
        pairs
            .map(|((anchor, average), state)| rule(*anchor, *average, state))
            .collect()
    }
}

#[test]
fn averaging_every_step_without_momentum_is_full_batch_sgd() {
    let mut x = uneven(VALUES);
    let expected: Vec<_> = (0..STEPS)
        .map(|step| {
            let gradients = mean_gradient(NODES, step, &x);
            descend(&mut x, &gradients, RATE);
            Some(x.clone())
        })
        .collect();
    assert_all_close(&job(NODES, local_sgd(1, 48, 1.0, 0.0)), &expected);
    let all_reduce = Config {
        base: BaseName::AllReduce,
        frequency: 1,
        beta: 0.0,
        ..config()
    };
    assert_all_close(&job(NODES, all_reduce), &expected);
}

#[test]
fn all_reduce_is_a_single_process_with_the_mean_gradient_bit_for_bit() {
    let mut x = uneven(VALUES);
    let seen = job(
        NODES,
        Config {
            base: BaseName::AllReduce,
            beta: 0.0,
            ..config()
        },
    )
    .values();
    for step in 0..STEPS {
        let gradients = mean_gradient(NODES, step, &x);
        descend(&mut x, &gradients, RATE);
        seen.iter()
            .for_each(|values| assert_eq!(bits(&values[step]), bits(&x), "step {step}"));
    }
}

#[test]
fn all_reduce_over_nodes_of_two_workers_is_the_mean_over_all_of_them() {
    let mut x = uneven(VALUES);
    let config = Config {
        base: BaseName::AllReduce,
        frequency: 1,
        beta: 0.0,
        devices: 2,
        ..config()
    };
    let expected: Vec<_> = (0..STEPS)
        .map(|step| {
            let gradients = mean_gradient(4, step, &x);
            descend(&mut x, &gradients, RATE);
            Some(x.clone())
        })
        .collect();
    assert_all_close(&job(2, config), &expected);
}

#[test]
fn tau_one_alpha_one_is_sgd_with_momentum() {
    let mut x = uneven(VALUES);
    let mut momentum = vec![0.0f32; VALUES];
    let expected: Vec<_> = (0..STEPS)
        .map(|step| {
            let gradients = mean_gradient(NODES, step, &x);
            momentum
                .iter_mut()
                .zip(&gradients)
                .for_each(|(momentum, gradient)| *momentum = 0.5 * *momentum + gradient);
            descend(&mut x, &momentum, RATE);
            Some(x.clone())
        })
        .collect();
    // Dividing by the rate and multiplying again costs a few roundings a step.
    let job = Job {
        steps: 12,
        ..job(NODES, local_sgd(1, 1, 1.0, 0.5))
    };
    assert_all_close(&job, &expected[..12]);
}

#[test]
fn alpha_one_beta_zero_is_local_sgd_bit_for_bit() {
    let slowmo_off = job(NODES, local_sgd(3, 4, 1.0, 0.0)).values();
    assert_eq!(slowmo_off, local_sgd_by_the_book(3));
    let all_bits = |run: &[Vec<Vec<f32>>]| {
        run.iter()
            .flatten()
            .map(|values| bits(values))
            .collect::<Vec<_>>()
    };
    assert_eq!(all_bits(&slowmo_off), all_bits(&local_sgd_by_the_book(3)));
}

#[test]
fn one_node_without_momentum_is_lookahead() {
    let expected = outer_by_the_book(
        1,
        4,
        elementwise(|slow, fast, _| slow + 0.5 * (fast - slow)),
    );
    for base in [BaseName::None, BaseName::LocalSgd, BaseName::Sgp] {
        let config = Config {
            base,
            frequency: 4,
            tau: 4,
            alpha: 0.5,
            beta: 0.0,
            ..config()
        };
        assert_all_close(&job(1, config), &expected);
    }
}

#[test]
fn momentum_over_local_sgd_is_block_momentum() {
    // BMUF's own form: the block's update is `η·(last update) + ζ·(average − start)`.
    let block_momentum = 0.6;
    let block_rate = 0.8;
    let expected = outer_by_the_book(
        NODES,
        4,
        elementwise(|start, average, update| {
            *update = block_momentum * *update + block_rate * (average - start);
            start + *update
        }),
    );
    assert_all_close(
        &job(NODES, local_sgd(4, 4, block_rate, block_momentum)),
        &expected,
    );
}

#[test]
fn diloco_s_nesterov_over_several_rounds() {
    let eta = 0.7;
    let mu = 0.9;
    let expected = outer_by_the_book(
        NODES,
        4,
        elementwise(|start, average, v| {
            let delta = start - average;
            *v = mu * *v + delta;
            start - eta * (delta + mu * *v)
        }),
    );
    let config = Config {
        frequency: 4,
        ..outer_only(OuterName::Nesterov, 4, eta, mu)
    };
    assert_all_close(&job(NODES, config), &expected);
}

#[test]
fn bmuf_with_nesterov_momentum_over_several_rounds() {
    let eta = 0.8;
    let mu = 0.5;
    let expected = outer_by_the_book(
        NODES,
        3,
        elementwise(|start, average, v| {
            *v = mu * *v + eta * (start - average);
            start - *v - mu * *v
        }),
    );
    let config = Config {
        frequency: 3,
        ..outer_only(OuterName::BmufNbm, 3, eta, mu)
    };
    assert_all_close(&job(NODES, config), &expected);
}

#[test]
fn the_learning_rate_does_not_matter_to_nesterov() {
    let mut job = job(NODES, outer_only(OuterName::Nesterov, 1, 0.7, 0.9));
    job.rate = |_| 0.0;
    job.steps = 3;
    assert_close(&job.values()[0][2], &uneven(VALUES), ERROR_MAX);
}
