//! Rounds whose parameters travel as bfloat16 or int8: they lead where float32 leads, to the same
//! bits on every node, in fewer bytes, and nothing that rounding drops is lost.

use crate::determinism::assert_same_bits_in_any_order;
use crate::support::{
    Gradient, IN_ORDER, Job, RATE, Seen, bits, descend, local_sgd, noise, outer_only, sgp, uneven,
};
use slowmo::Config;
use slowmo::{OuterName, WireType};
use slowmo_chaos::cluster::start;
use std::sync::{Arc, Barrier};
use std::thread;

/// Values of a model that is cut into many shards of uneven length.
const VALUES: usize = 1_777;
const WIRES: [WireType; 2] = [WireType::BFloat16, WireType::Int8];

fn with(wire: WireType, config: Config) -> Config {
    Config {
        round_wire: wire,
        ..config
    }
}

/// The largest difference of two runs after a step.
fn apart(one: &[Seen], other: &[Seen], step: usize) -> f32 {
    let values = |run: &[Seen]| run[0].values[step].clone();
    values(one)
        .iter()
        .zip(values(other))
        .fold(0.0, |most, (one, other)| most.max((one - other).abs()))
}

fn assert_agree(run: &[Seen], step: usize) {
    for seen in run {
        assert_eq!(
            bits(&seen.values[step]),
            bits(&run[0].values[step]),
            "after step {step}"
        );
    }
}

/// Every worker pulls to a place of its own, always the same.
fn steady() -> Gradient {
    let center =
        |worker: usize, index: usize| ((worker * 131 + index * 7) % 23) as f32 * 0.173 - 1.9;
    Arc::new(move |worker, _, x| {
        x.iter()
            .enumerate()
            .map(|(index, x)| x - center(worker, index))
            .collect()
    })
}

#[test]
fn encoded_rounds_end_where_float32_ends() {
    for config in [
        local_sgd(2, 6, 0.9, 0.5),
        sgp(6, 0.4),
        outer_only(OuterName::Nesterov, 3, 0.7, 0.5),
    ] {
        let job = Job {
            initial: uneven(VALUES),
            steps: 120,
            ..Job::new(4, config.clone(), steady())
        };
        let exact = job.run();
        for wire in WIRES {
            let run = Job {
                config: with(wire, config.clone()),
                ..job.clone()
            }
            .run();
            for step in (5..120).step_by(6) {
                assert_agree(&run, step);
            }
            // A few steps of the wire type, which is relative to how far nodes move in a round:
            // ever less.
            let middle = apart(&run, &exact, 59);
            let end = apart(&run, &exact, 119);
            assert!(
                middle < 0.03 && end < 0.01,
                "{wire:?} with {:?}: {middle} and {end} from float32",
                config.base
            );
            assert_ne!(run[0].values, exact[0].values, "it did travel encoded");
        }
    }
}

#[test]
fn encoded_rounds_are_the_same_bits_in_any_order() {
    for (wire, config) in [
        (WireType::BFloat16, sgp(6, 0.4)),
        (WireType::Int8, local_sgd(2, 6, 0.9, 0.5)),
    ] {
        let config = with(
            wire,
            Config {
                devices: 2,
                ..config
            },
        );
        assert_same_bits_in_any_order(&Job {
            ids: vec![77, 5, 21],
            initial: uneven(VALUES),
            steps: 14,
            ..Job::new(3, config, noise())
        });
    }
}

/// In every block one value jumps to and fro, so that a step of int8 is about a hundredth; the
/// others move by `DRIFT` a step.
const DRIFT: f32 = 2e-4;
const DRIFTS: usize = 800;

fn drifting() -> Gradient {
    Arc::new(|_, step, x| {
        let jump = if step % 2 == 0 { 1.0 } else { -1.0 };
        (0..x.len())
            .map(|index| {
                if index % 5 == 0 {
                    jump / RATE
                } else {
                    -DRIFT / RATE
                }
            })
            .collect()
    })
}

#[test]
fn what_rounding_drops_adds_up() {
    let plain = local_sgd(1, 1, 1.0, 0.0);
    let slow = local_sgd(1, 1, 1.0, 0.5);
    let lookahead = local_sgd(1, 2, 0.5, 0.0);
    for config in [
        plain,
        slow,
        lookahead,
        outer_only(OuterName::Nesterov, 1, 0.7, 0.8),
        outer_only(OuterName::BmufNbm, 1, 0.7, 0.5),
    ] {
        let job = Job {
            initial: vec![0.5; 300],
            steps: DRIFTS,
            ..Job::new(2, config.clone(), drifting())
        };
        let exact = job.run();
        for wire in WIRES {
            let run = Job {
                config: with(wire, config.clone()),
                ..job.clone()
            }
            .run();
            let found = run[0].values[DRIFTS - 1][1];
            let expected = exact[0].values[DRIFTS - 1][1];
            let off = (found - expected).abs();
            // A few steps of int8, whatever the number of rounds.
            assert!(
                off < 0.04 && expected > 0.55,
                "{wire:?} with {:?} {:?}: {found} against {expected}",
                config.outer,
                config.beta
            );
        }
    }
}

/// Of each group one node drifts, twice as fast as all nodes do on average: a step of what it
/// sends is half a step of its group's sum, so the relay has to keep it.
#[test]
fn what_rounding_of_sums_drops_adds_up() {
    let gradient = drifting();
    let uneven: Gradient = Arc::new(move |worker, step, x| {
        let factor = if worker < 2 { 2.0 } else { 0.0 };
        let scaled = |(index, value)| {
            if index % 5 == 0 {
                value
            } else {
                value * factor
            }
        };
        let values = gradient(worker, step, x);
        values.into_iter().enumerate().map(scaled).collect()
    });
    let job = Job {
        initial: vec![0.5; 300],
        steps: DRIFTS,
        ..Job::new(4, local_sgd(1, 1, 1.0, 0.0), uneven)
    };
    let exact = job.run();
    let expected = exact[0].values[DRIFTS - 1][1];
    for wire in WIRES {
        let in_groups = Config {
            group: Some("half".parse().unwrap()),
            ..job.config.clone()
        };
        let run = Job {
            config: with(wire, in_groups),
            ..job.clone()
        }
        .run();
        assert_agree(&run, DRIFTS - 1);
        let found = run[0].values[DRIFTS - 1][1];
        let off = (found - expected).abs();
        assert!(
            off < 0.04 && expected > 0.55,
            "{wire:?}: {found} against {expected}"
        );
    }
}

/// Bytes that a node sent in rounds, on average.
fn bytes_of(wire: WireType, values: usize, rounds: usize) -> f64 {
    let config = Config {
        replicas: 0,
        ..with(wire, local_sgd(1, 2, 1.0, 0.5))
    };
    let nodes = start(&[3, 5, 9], IN_ORDER, &config).unwrap();
    let founded = Barrier::new(4);
    let done = Barrier::new(4);
    let sent = || {
        nodes
            .iter()
            .map(|node| node.traffic().sent_bytes)
            .sum::<u64>() as f64
    };
    thread::scope(|scope| {
        for node in nodes.iter() {
            let mut worker = node.worker(0).unwrap();
            let founded = &founded;
            let done = &done;
            scope.spawn(move || {
                let mut x = uneven(values);
                let rank = worker.synchronize(&mut x).unwrap().node_rank;
                founded.wait();
                founded.wait();
                for step in 0..rounds {
                    let gradients = crate::support::noisy(rank, step, &x);
                    descend(&mut x, &gradients, RATE);
                    worker.step(&mut x, RATE).unwrap();
                }
                done.wait();
                worker.leave().unwrap();
            });
        }
        founded.wait();
        let before = sent();
        founded.wait();
        done.wait();
        (sent() - before) / (3 * rounds) as f64
    })
}

#[test]
fn encoded_rounds_send_a_half_and_a_quarter() {
    let values = 200_000;
    let float32 = bytes_of(WireType::Float32, values, 6);
    let [bfloat16, int8] = WIRES.map(|wire| bytes_of(wire, values, 6));
    // 2(W−1)/W of the model.
    let expected = 4.0 / 3.0 * 4.0 * values as f64;
    assert!(
        (float32 / expected - 1.0).abs() < 0.02,
        "{float32} against {expected}"
    );
    assert!(
        (bfloat16 / float32 - 0.5).abs() < 0.01,
        "bfloat16: {}",
        bfloat16 / float32
    );
    assert!(
        (int8 / float32 - 260.0 / 1_024.0).abs() < 0.01,
        "int8: {}",
        int8 / float32
    );
}
