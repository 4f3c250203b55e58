//! Parameters of 16 bits, in lists with float32: between nodes everything goes as if they were
//! float32, and what rounding takes from the training threads is given back.

use crate::support::{
    IN_ORDER, RATE, assert_close, assert_says, descend, in_hub, local_sgd, noisy, on_nodes,
    outer_only, overlapped, sgp, uneven,
};
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Config, Half, NamedTensors, OuterName, StepError, WireType, digest};
use std::path::Path;

/// Lengths of the three tensors: bfloat16 over more than a chunk of 65,536, float32, float16.
const LENGTHS: [usize; 3] = [65_700, 60, 300];
const NODES: [u64; 3] = [3, 14, 15];

/// A model of three types.
#[derive(Clone, Debug, PartialEq)]
struct Mixed {
    brain: Vec<u16>,
    single: Vec<f32>,
    ieee: Vec<u16>,
}

impl Mixed {
    fn of(values: &[f32]) -> Self {
        let (brain, rest) = values.split_at(LENGTHS[0]);
        let (single, ieee) = rest.split_at(LENGTHS[1]);
        Self {
            brain: rounded(Half::BFloat16, brain),
            single: single.to_vec(),
            ieee: rounded(Half::Float16, ieee),
        }
    }

    fn values(&self) -> Vec<f32> {
        let brain = self.brain.iter().map(|bits| Half::BFloat16.widen(*bits));
        let ieee = self.ieee.iter().map(|bits| Half::Float16.widen(*bits));
        brain
            .chain(self.single.iter().copied())
            .chain(ieee)
            .collect()
    }

    fn lend(&mut self) -> NamedTensors<'_> {
        NamedTensors::new()
            .with_half("brain", Half::BFloat16, &mut self.brain)
            .with("single", &mut self.single)
            .with_half("ieee", Half::Float16, &mut self.ieee)
    }
}

fn rounded(half: Half, values: &[f32]) -> Vec<u16> {
    let mut bits = vec![0; values.len()];
    half.round_all(values, &mut bits);
    bits
}

/// Values that all three types hold.
fn even() -> Vec<f32> {
    let count: usize = LENGTHS.iter().sum();
    (0..count)
        .map(|index| (index % 16) as f32 * 0.125)
        .collect()
}

/// How far a node moves the model in its first step, which all three types hold too.
fn push(place: usize) -> f32 {
    0.25 * [1.0, 2.0, 4.0][place]
}

/// The model after each step of a training that moves it in the first one only.
fn pushed(config: &Config, steps: usize) -> Vec<Vec<f32>> {
    let seen = on_nodes(&NODES, IN_ORDER, config, |place, _, mut worker| {
        let mut values = even();
        worker.synchronize(&mut values).unwrap();
        let mut seen = Vec::new();
        for step in 0..steps {
            if step == 0 {
                values.iter_mut().for_each(|value| *value += push(place));
            }
            worker.step(&mut values, RATE).unwrap();
            seen.push(values.clone());
        }
        worker.leave().unwrap();
        seen
    });
    seen.into_iter().next().unwrap()
}

/// The same with a model of three types; what every node saw.
fn pushed_mixed(config: &Config, steps: usize) -> Vec<Vec<Mixed>> {
    on_nodes(&NODES, IN_ORDER, config, |place, _, mut worker| {
        let mut model = Mixed::of(&even());
        worker.synchronize(&mut model.lend()).unwrap();
        let mut seen = Vec::new();
        for step in 0..steps {
            if step == 0 {
                let moved: Vec<f32> = model.values().iter().map(|x| x + push(place)).collect();
                model = Mixed::of(&moved);
            }
            worker.step(&mut model.lend(), RATE).unwrap();
            seen.push(model.clone());
        }
        worker.leave().unwrap();
        seen
    })
}

#[test]
fn what_training_leaves_alone_goes_the_way_of_float32_to_the_bit() {
    let average = local_sgd(1, 3, 1.0, 0.5);
    let configs = [
        average.clone(),
        Config {
            sharded: false,
            ..average.clone()
        },
        Config {
            round_wire: WireType::BFloat16,
            ..average
        },
        outer_only(OuterName::Nesterov, 2, 0.7, 0.9),
    ];
    for config in configs {
        let steps = 12;
        let float32 = pushed(&config, steps);
        let mixed = pushed_mixed(&config, steps);
        let mut inexact = 0;
        for (step, float32) in float32.iter().enumerate() {
            let expected = Mixed::of(float32);
            inexact += usize::from(expected.values() != *float32);
            assert!(mixed[0][step] == expected, "step {step} of {config:?}");
            // Before the first round the nodes' models differ.
            let others = if step > 0 { &mixed[1..] } else { &[] };
            for other in others {
                assert!(other[step] == expected, "step {step} of {config:?}");
            }
        }
        assert!(
            inexact > steps / 2,
            "the types must not hold what is decided"
        );
    }
}

#[test]
fn synchronous_gossip_gives_back_what_rounding_took_too() {
    let config = sgp(4, 0.5);
    let steps = 16;
    let float32 = pushed(&config, steps);
    let mixed = pushed_mixed(&config, steps);
    for (step, float32) in float32.iter().enumerate() {
        assert!(mixed[0][step] == Mixed::of(float32), "step {step}");
    }
}

/// Each node trains on its own gradients; digest and values after the last step, of every node.
fn trained(config: &Config, steps: usize) -> Vec<(String, Vec<f32>)> {
    on_nodes(&NODES, IN_ORDER, config, |place, _, mut worker| {
        let mut model = Mixed::of(&uneven(LENGTHS.iter().sum()));
        worker.synchronize(&mut model.lend()).unwrap();
        for step in 0..steps {
            train(&mut model, place, step);
            worker.step(&mut model.lend(), RATE).unwrap();
        }
        worker.leave().unwrap();
        (digest(&model.lend()).unwrap(), model.values())
    })
}

/// One inner step, rounded as the model's types are.
fn train(model: &mut Mixed, place: usize, step: usize) {
    let mut values = model.values();
    let gradients = noisy(place, step, &values);
    descend(&mut values, &gradients, RATE);
    *model = Mixed::of(&values);
}

#[test]
fn all_nodes_hold_the_same_bits_after_a_round_and_learn_what_float32_learns() {
    // Overlapped gossip mixes what has arrived: two of its runs with float32 differ by up to 0.03.
    for (config, tolerance) in [
        (local_sgd(2, 4, 1.0, 0.5), 0.02),
        (sgp(4, 0.5), 0.02),
        (overlapped(4, 0.5), 0.06),
    ] {
        let steps = 16;
        let nodes = trained(&config, steps);
        for (digest, _) in &nodes {
            assert_eq!(*digest, nodes[0].0, "{config:?}");
        }
        let float32 = on_nodes(&NODES, IN_ORDER, &config, |place, _, mut worker| {
            let mut values = uneven(LENGTHS.iter().sum());
            worker.synchronize(&mut values).unwrap();
            for step in 0..steps {
                let gradients = noisy(place, step, &values);
                descend(&mut values, &gradients, RATE);
                worker.step(&mut values, RATE).unwrap();
            }
            worker.leave().unwrap();
            values
        });
        assert_close(&nodes[0].1, &float32[0], tolerance);
    }
}

#[test]
fn a_value_that_is_not_finite_is_named() {
    on_nodes(
        &[1, 2],
        IN_ORDER,
        &local_sgd(1, 2, 1.0, 0.5),
        |place, _, mut worker| {
            let mut model = Mixed::of(&even());
            worker.synchronize(&mut model.lend()).unwrap();
            if place == 1 {
                for (half, name, index) in [
                    (Half::BFloat16, "brain", 65_600),
                    (Half::Float16, "ieee", 7),
                ] {
                    let bits = match half {
                        Half::BFloat16 => &mut model.brain,
                        Half::Float16 => &mut model.ieee,
                    };
                    let right = std::mem::replace(&mut bits[index], half.round(f32::INFINITY));
                    let error = worker.step(&mut model.lend(), RATE).unwrap_err();
                    assert!(matches!(error, StepError::Freeze { .. }), "{error:?}");
                    assert_says(&error.to_string(), &[&format!("{name}[{index}] = inf")]);
                    let bits = match half {
                        Half::BFloat16 => &mut model.brain,
                        Half::Float16 => &mut model.ieee,
                    };
                    bits[index] = right;
                }
            }
            worker.step(&mut model.lend(), RATE).unwrap();
            worker.leave().unwrap();
        },
    );
}

/// Trains up to step `end` with a checkpoint at every outer round; what the last step left on every
/// node.
fn up_to(end: u64, folder: Option<&Path>) -> Vec<Mixed> {
    let config = Config {
        checkpoints: folder.map(Path::to_owned),
        checkpoint_every: folder.map(|_| 1),
        ..local_sgd(1, 4, 1.0, 0.5)
    };
    on_nodes(&NODES, IN_ORDER, &config, |place, _, mut worker| {
        let mut model = Mixed::of(&uneven(LENGTHS.iter().sum()));
        let first = worker.synchronize(&mut model.lend()).unwrap().step;
        assert_eq!(first > 0, folder.is_some() && end > 8, "resumes");
        for step in first..end {
            train(&mut model, place, step as usize);
            worker.step(&mut model.lend(), RATE).unwrap();
        }
        worker.leave().unwrap();
        model
    })
}

/// A checkpoint holds the decided float32 values, from which every node writes its tensors again
/// and knows what rounding took.
#[test]
fn a_resumed_training_has_the_bits_of_one_that_was_not_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    up_to(8, Some(folder.path()));
    let resumed = up_to(16, Some(folder.path()));
    let straight = up_to(16, None);
    assert!(resumed == straight);
}

/// Node 1 lends float32, and node 2 lends as many bfloat16. Both are told that they differ.
#[test]
fn nodes_that_lend_other_types_are_told() {
    let hub = MemoryHub::new(None);
    let config = Config {
        min_nodes: 2,
        meet_timeout_ms: Some(1_500),
        ..local_sgd(1, 2, 1.0, 0.5)
    };
    let begin = |node: u64| {
        let runtime = in_hub(&hub, node, &[1, 2], &config);
        std::thread::spawn(move || {
            let mut worker = runtime.worker(0).unwrap();
            let mut single = vec![1.0; 100];
            let mut bits = vec![0x3f80; 100];
            let lent = NamedTensors::new();
            let mut lent = match node {
                1 => lent.with("x", &mut single),
                _ => lent.with_half("x", Half::BFloat16, &mut bits),
            };
            worker.synchronize(&mut lent).unwrap_err().to_string()
        })
    };
    let [first, second] = [1, 2].map(begin).map(|thread| thread.join().unwrap());
    assert_says(
        &first,
        &[
            "node 2 has another model: 100 parameters",
            "(100 bf16, 0 f16",
        ],
    );
    assert_says(
        &second,
        &[
            "node 2 has 100 parameters (100 bf16, 0 f16",
            "node 1 has 100 parameters, ",
            "all nodes must train the same model",
        ],
    );
}
