//! Gossip behind the computation of the next step: mass is kept through the whole stack, rounds
//! agree, errors leave a node whole.

use crate::support::{
    IN_ORDER, Job, Seen, assert_close, bits, noise, on_nodes, overlapped, uneven, until,
};
use slowmo::WireType;
use slowmo::internal::config::{LatePeers, TopologyName};
use slowmo::{Config, Exchange, GradientError, StepError, SynchronizeError, TensorError, Tensors};
use slowmo_chaos::cluster::{Cluster, Link, start};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Values of the models here.
const VALUES: usize = 300;

/// Only gossip, with an exact average every `average_every` steps.
fn gossip(average_every: u64) -> Config {
    Config {
        alpha: 1.0,
        beta: 0.0,
        average_every: Some(average_every),
        ..overlapped(48, 0.0)
    }
}

/// Returns the values that node `index` adds to its model in the first step, and in no other.
fn push(index: usize) -> Vec<f32> {
    uneven(VALUES)
        .iter()
        .map(|value| value * (1.0 + index as f32))
        .collect()
}

/// Trains `nodes` nodes that all move once, at the first step, and then only gossip.
fn spread(nodes: usize, config: Config, seed: u64, steps: usize) -> Vec<Seen> {
    let gradient = Arc::new(|index: usize, step: usize, x: &[f32]| {
        if step == 0 {
            push(index)
        } else {
            vec![0.0; x.len()]
        }
    });
    Job {
        link: Link::Memory(Some(seed)),
        initial: uneven(VALUES),
        steps,
        ..Job::new(nodes, config, gradient)
    }
    .run()
}

/// The model that all nodes' first moves give on average.
fn mean_after_push(nodes: usize) -> Vec<f32> {
    let middle = (0..nodes).map(|index| 1.0 + index as f32).sum::<f32>() / nodes as f32;
    uneven(VALUES)
        .iter()
        .map(|value| value - 0.1 * middle * value)
        .collect()
}

#[test]
fn an_exact_average_is_of_all_mass_whatever_is_in_flight() {
    for (nodes, staleness) in [(2, 1), (3, 1), (4, 2), (5, 1), (5, 3), (8, 1)] {
        for seed in 0..4 {
            let config = Config {
                staleness,
                ..gossip(6)
            };
            let seen = spread(nodes, config, seed, 12);
            for step in [5, 11] {
                assert_close(&seen[0].values[step], &mean_after_push(nodes), 2e-6);
                assert!(
                    seen.iter()
                        .all(|node| bits(&node.values[step]) == bits(&seen[0].values[step])),
                    "step {step}"
                );
                assert!(seen.iter().all(|node| node.reports[step].weight == 1.0));
            }
        }
    }
}

#[test]
fn gossip_alone_brings_the_nodes_together() {
    for topology in [
        TopologyName::Exponential,
        TopologyName::Ring,
        TopologyName::BipartiteExponential,
        TopologyName::Complete,
        TopologyName::BandwidthAware,
    ] {
        // The order by bandwidth is decided with exact averages: here with one after the end.
        let average_every = (topology == TopologyName::BandwidthAware).then_some(1_000);
        let config = Config {
            topology,
            average_every,
            ..gossip(1)
        };
        let seen = spread(6, config, 3, 40);
        for node in &seen {
            assert_close(&node.values[39], &mean_after_push(6), 1e-3);
            assert!(
                node.reports
                    .iter()
                    .all(|report| report.exchange == Exchange::Gossip && report.weight > 0.0)
            );
        }
    }
}

#[test]
fn smaller_messages_bring_them_together_too_and_lose_nothing() {
    for gossip_wire in [WireType::BFloat16, WireType::Int8] {
        for staleness in [0, 1] {
            let seen = spread(
                4,
                Config {
                    gossip_wire,
                    staleness,
                    ..gossip(40)
                },
                1,
                40,
            );
            assert_close(&seen[0].values[39], &mean_after_push(4), 4e-6);
            for node in &seen {
                assert_close(&node.values[38], &mean_after_push(4), 0.02);
            }
        }
    }
}

#[test]
fn nodes_agree_after_every_outer_round_and_learn() {
    for config in [
        overlapped(4, 0.5),
        Config {
            staleness: 3,
            peers_per_step: 2,
            ..overlapped(6, 0.5)
        },
        Config {
            devices: 2,
            ..overlapped(4, 0.5)
        },
        Config {
            gossip_wire: WireType::Int8,
            round_wire: WireType::BFloat16,
            ..overlapped(4, 0.5)
        },
    ] {
        let tau = config.tau as usize;
        let job = Job {
            initial: uneven(VALUES),
            steps: 24,
            link: Link::Memory(Some(5)),
            ..Job::new(4, config, noise())
        };
        let seen = job.run();
        for step in (tau - 1..24).step_by(tau) {
            assert!(
                seen.iter()
                    .all(|node| bits(&node.values[step]) == bits(&seen[0].values[step])),
                "step {step}"
            );
            assert!(
                seen.iter().all(
                    |node| node.reports[step].contributors == 4 && node.reports[step].slow_step
                )
            );
        }
        let workers = seen.len() / 4;
        for node in seen.chunks(workers) {
            assert!(
                node.iter().all(|worker| worker.values == node[0].values),
                "the workers of a node hold the same model"
            );
        }
    }
}

#[test]
fn a_value_that_is_not_finite_is_not_sent_and_the_node_goes_on_without_it() {
    let models = on_nodes(&[1, 2], IN_ORDER, &gossip(8), |place, _, mut worker| {
        let mut model = uneven(VALUES);
        worker.synchronize(&mut model).unwrap();
        for step in 0..16 {
            if place == 0 && step == 3 {
                let before = std::mem::replace(&mut model[7], f32::NAN);
                let error = worker.step(&mut model, 0.1).unwrap_err();
                assert!(
                    matches!(error, StepError::NotSent { step: 3, .. }),
                    "{error}"
                );
                assert!(error.to_string().contains("[7] = NaN"), "{error}");
                model[7] = before;
            }
            assert_eq!(worker.step(&mut model, 0.1).unwrap().step, step);
        }
        worker.leave().unwrap();
        model
    });
    assert_close(&models[0], &uneven(VALUES), 1e-5);
    assert_eq!(bits(&models[0]), bits(&models[1]));
}

/// How long a node stalls below; steps of the others take a hundredth of it.
const STALL: Duration = Duration::from_millis(500);

#[test]
fn a_node_that_stalls_is_done_without_named_and_back_in_time_by_itself() {
    let config = Config {
        late_peers: LatePeers::Skip,
        staleness: 2,
        average_every: None,
        ..gossip(1)
    };
    let Cluster {
        nodes,
        rendezvous: _rendezvous,
    } = start(&[1, 2, 3, 4], Link::Memory(None), &config).unwrap();
    let stalls = &AtomicBool::new(false);
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        for node in &nodes {
            let mut worker = node.worker(0).unwrap();
            let stalled = node.node_id() == 4;
            scope.spawn(move || {
                let mut model = uneven(VALUES);
                worker.synchronize(&mut model).unwrap();
                let mut longest = Duration::ZERO;
                let mut caught_up = false;
                while !over.load(Ordering::SeqCst) {
                    thread::sleep(if stalled && stalls.swap(false, Ordering::SeqCst) {
                        STALL
                    } else {
                        STALL / 100
                    });
                    let begun = Instant::now();
                    caught_up |= worker.step(&mut model, 0.1).unwrap().caught_up;
                    longest = longest.max(begun.elapsed());
                }
                worker.leave().unwrap();
                assert!(
                    longest < STALL / 2,
                    "node {stalled} waited {longest:?} in a step"
                );
                // The others may have drifted apart too: nobody waits.
                assert!(caught_up || !stalled, "who stalled leaves steps out");
                assert_close(&model, &uneven(VALUES), 1e-4);
            });
        }
        let late = |of: usize| {
            nodes[of]
                .status()
                .gossip
                .map_or_else(Vec::new, |gossip| gossip.late)
        };
        until("all gossip", || {
            nodes
                .iter()
                .all(|node| node.status().gossip.is_some_and(|gossip| gossip.step > 5))
        });
        stalls.store(true, Ordering::SeqCst);
        until("it is named", || {
            (0..3).any(|of| {
                late(of)
                    .iter()
                    .any(|late| late.node == 4 && late.skipped && late.steps > 2)
            })
        });
        until("it is back", || (0..4).all(|of| late(of).is_empty()));
        over.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_value_that_is_not_finite_in_a_rounds_first_gossip_stays_what_the_round_made_it() {
    on_nodes(&[1, 2], IN_ORDER, &gossip(8), |place, _, mut worker| {
        let mut model = uneven(VALUES);
        worker.synchronize(&mut model).unwrap();
        for step in 0..16 {
            if place == 0 && step == 8 {
                // The other node's message is here: more than the own weight is mixed.
                thread::sleep(STALL / 2);
                let before = std::mem::replace(&mut model[7], f32::INFINITY);
                let error = worker.step(&mut model, 0.1).unwrap_err();
                assert!(
                    matches!(error, StepError::NotSent { step: 8, .. }),
                    "{error}"
                );
                model[7] = before;
            }
            worker.step(&mut model, 0.1).unwrap();
            assert_close(&model, &uneven(VALUES), 1e-5);
        }
        worker.leave().unwrap();
    });
}

/// A model in two tensors, of which the second cannot be written while it is stuck.
struct Halves {
    values: Vec<f32>,
    stuck: bool,
}

impl Tensors for Halves {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        self.values
            .chunks(VALUES / 2)
            .for_each(|half| visit("half", half));
        Ok(())
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        let written = if self.stuck { 1 } else { 2 };
        self.values
            .chunks_mut(VALUES / 2)
            .take(written)
            .for_each(|half| visit("half", half));
        let stuck = || TensorError::Framework {
            name: "half".to_owned(),
            message: "stuck".to_owned(),
        };
        if self.stuck { Err(stuck()) } else { Ok(()) }
    }
}

#[test]
fn a_node_that_cannot_write_the_bootstrap_parameters_leaves() {
    on_nodes(&[1, 2, 3], IN_ORDER, &gossip(8), |place, _, mut worker| {
        let first = place == 0;
        let mut model = Halves {
            values: uneven(VALUES),
            stuck: first,
        };
        let begun = worker.synchronize(&mut model);
        if first {
            assert!(
                matches!(begun, Err(SynchronizeError::NotWritten(_))),
                "{begun:?}"
            );
            assert_eq!(
                worker.synchronize(&mut model).unwrap_err(),
                SynchronizeError::Broken
            );
            assert_eq!(worker.step(&mut model, 0.1).unwrap_err(), StepError::Broken);
        } else {
            begun.unwrap();
            (0..24).for_each(|_| _ = worker.step(&mut model, 0.1).unwrap());
        }
        worker.leave().unwrap();
    });
}

#[test]
fn a_node_whose_model_cannot_be_written_sends_nothing_more_and_leaves() {
    for staleness in [0, 1] {
        let config = Config {
            staleness,
            grace_ms: 300,
            ..gossip(8)
        };
        on_nodes(&[1, 2, 3], IN_ORDER, &config, |place, node, mut worker| {
            let mut model = Halves {
                values: uneven(VALUES),
                stuck: false,
            };
            worker.synchronize(&mut model).unwrap();
            for step in 0..24 {
                model.stuck = place == 0 && step == 11;
                if model.stuck {
                    let error = worker.step(&mut model, 0.1).unwrap_err();
                    assert!(
                        matches!(error, StepError::NotWritten { step: 11, .. }),
                        "{error}"
                    );
                    assert_eq!(worker.step(&mut model, 0.1).unwrap_err(), StepError::Broken);
                    let error = worker.average_gradients(&mut model.values).unwrap_err();
                    assert_eq!(error, GradientError::Broken);
                    until("what was not sent is on its way no more", || {
                        node.status()
                            .gossip
                            .is_none_or(|gossip| gossip.escrowed <= 0.0)
                    });
                    break;
                }
                worker.step(&mut model, 0.1).unwrap();
            }
            worker.leave().unwrap();
            if place > 0 {
                assert_close(&model.values, &uneven(VALUES), 1e-5);
            }
        });
    }
}
