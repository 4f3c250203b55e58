//! Buffers that travel with the parameters: the base optimizer's by strategy, the model's at every
//! exact average.

use crate::support::{
    IN_ORDER, assert_close, bits, descend, local_sgd, noisy, on_nodes, sgp, uneven,
};
use slowmo::WireType;
use slowmo::{Buffers, Config, StepError};
use slowmo_chaos::cluster::Link;
use slowmo_protocol::algorithm::BufferStrategy;

const VALUES: usize = 900;
const STEPS: usize = 4;

/// The values that one node holds after a step.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    parameters: Vec<f32>,
    optimizer: f32,
    model: f32,
}

/// Two nodes of ranks 0 and 1, whose buffers both grow by `rank + 1` before each step; node, step.
fn run(config: &Config, link: Link) -> Vec<Vec<Held>> {
    let mut seen = on_nodes(&[8, 2], link, config, |_, _, mut worker| {
        let mut parameters = uneven(VALUES);
        let mut optimizer = vec![0.0; VALUES];
        let mut model = vec![vec![0.0; 3]; 2];
        let buffers = Buffers {
            optimizer: &mut optimizer,
            model: &mut model,
        };
        let found = worker.synchronize_with(&mut parameters, buffers).unwrap();
        let growth = found.node_rank as f32 + 1.0;
        let mut seen = Vec::new();
        for step in 0..STEPS {
            let gradients = noisy(found.node_rank, step, &parameters);
            descend(&mut parameters, &gradients, 0.1);
            optimizer
                .iter_mut()
                .chain(model.iter_mut().flatten())
                .for_each(|value| *value += growth);
            let buffers = Buffers {
                optimizer: &mut optimizer,
                model: &mut model,
            };
            worker.step_with(&mut parameters, buffers, 0.1).unwrap();
            assert!(
                optimizer.iter().all(|value| *value == optimizer[0]),
                "{optimizer:?}"
            );
            assert!(
                model.iter().flatten().all(|value| *value == model[0][0]),
                "{model:?}"
            );
            seen.push(Held {
                parameters: parameters.clone(),
                optimizer: optimizer[0],
                model: model[0][0],
            });
        }
        worker.leave().unwrap();
        seen
    });
    // By rank.
    seen.reverse();
    seen
}

fn with(buffers: BufferStrategy) -> Config {
    Config {
        buffers,
        ..local_sgd(1, 2, 1.0, 0.5)
    }
}

/// Node 0 and node 1 after each step.
fn assert_buffers(seen: &[Vec<Held>], held: impl Fn(&Held) -> f32, expected: [[f32; 2]; STEPS]) {
    for (step, expected) in expected.iter().enumerate() {
        assert_eq!(
            [held(&seen[0][step]), held(&seen[1][step])],
            *expected,
            "after step {step}"
        );
    }
}

#[test]
fn maintained_buffers_stay_each_node_s_own() {
    let seen = run(&with(BufferStrategy::Maintain), IN_ORDER);
    assert_buffers(
        &seen,
        |held| held.optimizer,
        [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0], [4.0, 8.0]],
    );
}

#[test]
fn reset_buffers_are_zero_after_slow_rounds_only() {
    let seen = run(&with(BufferStrategy::Reset), IN_ORDER);
    assert_buffers(
        &seen,
        |held| held.optimizer,
        [[1.0, 2.0], [0.0, 0.0], [1.0, 2.0], [0.0, 0.0]],
    );
}

#[test]
fn averaged_buffers_are_averaged_in_slow_rounds_only() {
    for link in [IN_ORDER, Link::Memory(Some(7)), Link::Quic] {
        let seen = run(&with(BufferStrategy::Average), link);
        assert_buffers(
            &seen,
            |held| held.optimizer,
            [[1.0, 2.0], [3.0, 3.0], [4.0, 5.0], [6.0, 6.0]],
        );
    }
}

#[test]
fn model_buffers_are_averaged_at_every_exact_average() {
    for buffers in [
        BufferStrategy::Maintain,
        BufferStrategy::Reset,
        BufferStrategy::Average,
    ] {
        let seen = run(&with(buffers), IN_ORDER);
        assert_buffers(
            &seen,
            |held| held.model,
            [[1.5, 1.5], [3.0, 3.0], [4.5, 4.5], [6.0, 6.0]],
        );
    }
}

#[test]
fn gossip_leaves_model_buffers_alone() {
    let seen = run(&sgp(4, 0.5), IN_ORDER);
    assert_buffers(
        &seen,
        |held| held.model,
        [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0], [6.0, 6.0]],
    );
}

#[test]
fn buffers_do_not_change_the_parameters() {
    let all = [
        BufferStrategy::Maintain,
        BufferStrategy::Reset,
        BufferStrategy::Average,
    ]
    .map(|buffers| run(&with(buffers), IN_ORDER));
    let parameters = |seen: &[Vec<Held>]| {
        seen.iter()
            .flatten()
            .map(|held| bits(&held.parameters))
            .collect::<Vec<_>>()
    };
    assert_eq!(parameters(&all[0]), parameters(&all[1]));
    assert_eq!(parameters(&all[0]), parameters(&all[2]));
}

#[test]
fn bootstrap_buffers_are_the_lowest_id_s() {
    let config = with(BufferStrategy::Average);
    let seen = on_nodes(&[8, 2], IN_ORDER, &config, |_, node, mut worker| {
        let own = node.node_id() as f32;
        let mut parameters = [own];
        let mut optimizer = [own; 3];
        let mut model = [own; 2];
        let buffers = Buffers {
            optimizer: &mut optimizer,
            model: &mut model,
        };
        worker.synchronize_with(&mut parameters, buffers).unwrap();
        worker.leave().unwrap();
        (parameters, optimizer, model)
    });
    assert_eq!(seen, [([2.0], [2.0; 3], [2.0; 2]); 2]);
}

#[test]
fn other_buffer_lengths_than_at_synchronize_are_named() {
    let node = slowmo::Runtime::builder()
        .config(Config {
            frequency: 1,
            tau: 1,
            ..with(BufferStrategy::Average)
        })
        .spawn()
        .unwrap();
    let mut worker = node.worker(0).unwrap();
    let mut parameters = [1.0f32; 4];
    worker
        .synchronize_with(
            &mut parameters,
            Buffers {
                optimizer: &mut [0.0; 4],
                model: &mut [0.0; 2],
            },
        )
        .unwrap();
    let error = worker
        .step_with(
            &mut parameters,
            Buffers {
                optimizer: &mut [0.0; 4],
                model: &mut [0.0; 3],
            },
            0.1,
        )
        .unwrap_err();
    assert_eq!(
        error,
        StepError::Length {
            step: 0,
            what: "model buffers",
            found: 3,
            expected: 2
        }
    );
    let error = worker
        .step_with(
            &mut parameters,
            Buffers {
                optimizer: &mut (),
                model: &mut [0.0; 2],
            },
            0.1,
        )
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "step 0: the optimizer buffers hold 0 values, 4 at synchronize: lend the same tensors at \
         every call"
    );
    worker
        .step_with(
            &mut parameters,
            Buffers {
                optimizer: &mut [0.0; 4],
                model: &mut [0.0; 2],
            },
            0.1,
        )
        .unwrap();
    worker.leave().unwrap();
}

#[test]
fn buffers_behind_encoded_parameters_travel_as_float32() {
    // Averaged buffers make slow rounds longer than the others, so that both are cut differently.
    for buffers in [BufferStrategy::Average, BufferStrategy::Maintain] {
        let exact = run(&with(buffers), IN_ORDER);
        for round_wire in [WireType::BFloat16, WireType::Int8] {
            let encoded = run(
                &Config {
                    round_wire,
                    ..with(buffers)
                },
                IN_ORDER,
            );
            for (encoded, exact) in encoded.iter().flatten().zip(exact.iter().flatten()) {
                assert_eq!(
                    (encoded.optimizer, encoded.model),
                    (exact.optimizer, exact.model)
                );
                assert_close(&encoded.parameters, &exact.parameters, 0.01);
            }
            assert_ne!(encoded[0][0].parameters, exact[0][0].parameters);
            for (one, other) in encoded[0].iter().zip(&encoded[1]) {
                assert_eq!(bits(&one.parameters), bits(&other.parameters));
            }
        }
    }
}
