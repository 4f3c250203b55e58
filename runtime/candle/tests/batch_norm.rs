//! A model with batch norm on several nodes: its running statistics are averaged, and never moved
//! by the slow momentum.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use candle_core::{D, DType, Device, Tensor};
use candle_nn::{
    BatchNorm, Conv2d, Conv2dConfig, Linear, Module, ModuleT, Optimizer, SGD, VarBuilder, VarMap,
    batch_norm, conv2d, linear, loss::cross_entropy,
};
use slowmo::{BaseName, Buffers, Config, Runtime, StepError, Tensors};
use slowmo_candle::{CandleGradients, CandleModel, CandleVariables};
use slowmo_examples::digits::{CLASSES, Dataset};
use slowmo_examples::random::{Purpose, generator, unit};

mod cluster;
use cluster::{Cluster, tensors};

const NODES: u64 = 3;
/// Rows and columns of an image.
const SIDE: usize = 8;
const CHANNELS: usize = 8;
/// Values of an image behind the convolution, which takes every second row and column.
const FEATURES: usize = CHANNELS * SIDE * SIDE / 4;
const BATCH: usize = 32;
const STEPS: usize = 96;
const RATE: f64 = 0.1;
const TAU: u64 = 8;
/// Slow momentum, high on purpose.
const BETA: f32 = 0.8;

/// A convolution with batch norm, and a linear layer.
struct Net {
    first: Conv2d,
    norm: BatchNorm,
    second: Linear,
}

impl Net {
    fn new() -> (VarMap, Self) {
        let map = VarMap::new();
        let builder = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let strided = Conv2dConfig {
            padding: 1,
            stride: 2,
            ..Conv2dConfig::default()
        };
        let net = Self {
            first: conv2d(1, CHANNELS, 3, strided, builder.pp("first")).unwrap(),
            norm: batch_norm(CHANNELS, 1e-5, builder.pp("norm")).unwrap(),
            second: linear(FEATURES, CLASSES, builder.pp("second")).unwrap(),
        };
        // Candle cannot seed the CPU's random numbers.
        let mut random = generator(1, Purpose::Weights);
        let mut parameters = CandleModel::from_var_map(&map).unwrap().parameters;
        let mut fill = |name: &str, values: &mut [f32]| {
            if !name.starts_with("norm") {
                values.fill_with(|| 0.2 * (2.0 * unit(&mut random) - 1.0));
            }
        };
        parameters.write(&mut fill).unwrap();
        (map, net)
    }

    /// The part of the model before the linear layer.
    fn features(&self, pixels: &Tensor, train: bool) -> Tensor {
        let images = pixels.reshape(((), 1, SIDE, SIDE)).unwrap();
        let hidden = self.first.forward(&images).unwrap();
        let hidden = self.norm.forward_t(&hidden, train).unwrap();
        hidden.relu().unwrap().flatten_from(1).unwrap()
    }

    fn forward(&self, pixels: &Tensor, train: bool) -> Tensor {
        self.second.forward(&self.features(pixels, train)).unwrap()
    }

    /// The part of the test images that it names right, with the running statistics.
    fn accuracy(&self) -> f32 {
        let (pixels, labels) = tensors(&Dataset::test().unwrap().all());
        let named = self.forward(&pixels, false).argmax(D::Minus1).unwrap();
        let right = named.eq(&labels).unwrap().to_dtype(DType::F32).unwrap();
        right.mean_all().unwrap().to_scalar().unwrap()
    }

    fn variance(&self) -> Vec<f32> {
        self.norm.running_var().to_vec1().unwrap()
    }
}

/// The training as one node saw it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    /// The lowest running variance after any step.
    lowest: f32,
    /// The running variance at the end.
    variance: Vec<f32>,
    /// The lowest accuracy after the second round and later ones.
    worst: f32,
    /// That at the end.
    accuracy: f32,
}

/// Trains; `lend` takes a map's parameters and buffers.
fn train(
    node: &Runtime,
    lend: impl Fn(&VarMap) -> (CandleVariables, CandleVariables),
) -> Result<Seen, StepError> {
    let (map, net) = Net::new();
    let (mut parameters, mut buffers) = lend(&map);
    let mut optimizer = SGD::new(parameters.to_vars(), RATE).unwrap();
    let mut worker = node.worker(0).unwrap();
    let lent = Buffers {
        optimizer: &mut (),
        model: &mut buffers,
    };
    worker.synchronize_with(&mut parameters, lent).unwrap();
    let data = Dataset::train().unwrap();
    let mut lowest = f32::MAX;
    let mut worst = 1f32;
    for step in 0..STEPS {
        // Each node has its own part of the images.
        let first = step * BATCH * NODES as usize + node.node_id() as usize;
        let indices: Vec<_> = (0..BATCH)
            .map(|index| (first + index * NODES as usize) % data.len())
            .collect();
        let (pixels, labels) = tensors(&data.batch(&indices));
        let loss = cross_entropy(&net.forward(&pixels, true), &labels).unwrap();
        let mut gradients = loss.backward().unwrap();
        worker
            .average_gradients(&mut CandleGradients::new(&parameters, &mut gradients))
            .unwrap();
        optimizer.step(&gradients).unwrap();
        let lent = Buffers {
            optimizer: &mut (),
            model: &mut buffers,
        };
        let report = worker.step_with(&mut parameters, lent, RATE as f32)?;
        if report.slow_step && report.step >= 2 * TAU - 1 {
            worst = worst.min(net.accuracy());
        }
        lowest = net.variance().into_iter().fold(lowest, f32::min);
    }
    worker.leave().unwrap();
    Ok(Seen {
        lowest,
        variance: net.variance(),
        worst,
        accuracy: net.accuracy(),
    })
}

fn local_sgd() -> Config {
    Config {
        base: BaseName::None,
        tau: TAU,
        beta: BETA,
        ..Config::default()
    }
}

fn everything(map: &VarMap) -> CandleVariables {
    let variables = map.data().lock().unwrap();
    let list = variables
        .iter()
        .map(|(name, var)| (name.clone(), var.clone()));
    CandleVariables::new(list).unwrap()
}

fn nothing() -> CandleVariables {
    CandleVariables::new([]).unwrap()
}

#[test]
fn a_map_with_running_statistics_trains_and_no_variance_is_negative() {
    let sgp = Config {
        base: BaseName::Sgp,
        staleness: 0,
        ..local_sgd()
    };
    for config in [local_sgd(), sgp] {
        let seen = Cluster::run(&config, NODES, |node| {
            train(node, |map| {
                let model = CandleModel::from_var_map(map).unwrap();
                (model.parameters, model.buffers)
            })
            .unwrap()
        });
        eprintln!(
            "{:?}, statistics lent as buffers: {:?}",
            config.base, seen[0]
        );
        for node in &seen {
            assert!(node.lowest > 0.0, "{node:?}");
            assert!(node.worst > 0.4 && node.accuracy > 0.9, "{node:?}");
            assert_eq!(
                node,
                &Seen {
                    lowest: node.lowest,
                    ..seen[0].clone()
                }
            );
        }
    }
}

/// The adapter protects from this: slow momentum overshoots a variance that falls.
#[test]
fn statistics_that_are_lent_as_parameters_become_negative() {
    let seen = Cluster::run(&local_sgd(), NODES, |node| {
        train(node, |map| (everything(map).unwatched(), nothing())).unwrap()
    });
    eprintln!("statistics lent as parameters: {:?}", seen[0]);
    assert!(seen[0].lowest < 0.0 && seen[0].worst < 0.3, "{:?}", seen[0]);
}

#[test]
fn a_map_with_statistics_is_not_taken_for_parameters() {
    let (map, net) = Net::new();
    let refusal = CandleVariables::from_var_map(&map).unwrap_err().to_string();
    assert!(
        refusal.contains("tensor norm.running_") && refusal.contains("CandleModel::from_var_map"),
        "{refusal}"
    );
    let names = |variables: &CandleVariables| -> Vec<String> {
        variables.iter().map(|(name, _)| name.to_owned()).collect()
    };
    let statistics = ["norm.running_mean", "norm.running_var"];
    let by_name = CandleModel::from_var_map(&map).unwrap();
    assert_eq!(names(&by_name.buffers), statistics);
    assert_eq!(by_name.parameters.to_vars().len(), 6);

    // By training: a part of the model that the loss leaves out is no parameter either.
    let (pixels, labels) = tensors(&Dataset::test().unwrap().batch(&[1, 2, 3]));
    let features = net.features(&pixels, true);
    let features = features.narrow(1, 0, CLASSES).unwrap();
    let loss = cross_entropy(&features, &labels).unwrap();
    let by_loss = CandleModel::from_loss(&map, &loss).unwrap();
    let found = names(&by_loss.buffers);
    let expected = [&statistics[..], &["second.bias", "second.weight"]].concat();
    assert_eq!(found, expected);

    // By a rule of one's own.
    let own = CandleModel::split(&map, |name, _| name.starts_with("first")).unwrap();
    assert_eq!(names(&own.buffers), ["first.bias", "first.weight"]);
}

#[test]
fn what_changes_without_a_gradient_is_refused_when_it_is_lent() {
    let errors = Cluster::run(&local_sgd(), 1, |node| {
        train(node, |map| (everything(map), nothing())).unwrap_err()
    });
    let StepError::Freeze { step, error } = &errors[0] else {
        panic!("{:?}", errors[0]);
    };
    let told = error.to_string();
    assert_eq!(*step, 7, "the first exchange");
    assert!(
        told.contains("norm.running_") && told.contains("CandleModel::split"),
        "{told}"
    );
}

/// A variable that gets its first gradient late, and one that an optimizer shrinks because it was
/// given zeros, are parameters.
#[test]
fn parameters_that_are_trained_seldom_are_lent() {
    for gives_zeros in [false, true] {
        let variable =
            |value: f32| candle_core::Var::from_slice(&[value], 1, &Device::Cpu).unwrap();
        let list = ["always", "late", "never"].map(|name| (name.to_owned(), variable(1.0)));
        let [always, late, _] = list.clone().map(|(_, variable)| variable);
        let mut variables = CandleVariables::new(list).unwrap();
        variables.write(&mut |_, _| ()).unwrap();
        for step in 0..30 {
            let mut loss = always.sqr().unwrap();
            if step > 20 {
                loss = (loss + late.sqr().unwrap()).unwrap();
            }
            let mut store = loss.sum_all().unwrap().backward().unwrap();
            let mut gradients = CandleGradients::new(&variables, &mut store);
            if gives_zeros {
                gradients.write(&mut |_, _| ()).unwrap();
            }
            for (_, variable) in variables.iter() {
                if let Some(gradient) = store.get(variable) {
                    let shrunk = (variable.as_tensor() * 0.99).unwrap();
                    variable.set(&(shrunk - gradient * 0.01).unwrap()).unwrap();
                }
            }
            variables.read(&mut |_, _| ()).unwrap();
            variables.write(&mut |_, _| ()).unwrap();
        }
        assert_eq!(variables.without_gradient(), ["never"]);
    }
}
