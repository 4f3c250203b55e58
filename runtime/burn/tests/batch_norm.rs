//! A module with batch norm on several nodes: its running statistics are averaged, and never moved
//! by the slow momentum.
#![allow(clippy::unwrap_used)]

#[path = "../../candle/tests/cluster/mod.rs"]
mod cluster;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use cluster::Cluster;
use slowmo::{BaseName, Config, Runtime};
use slowmo_burn::Modules;
use slowmo_examples::digits::{Batch, CLASSES, Dataset, PIXELS};

const NODES: u64 = 3;
const HIDDEN: usize = 32;
const BATCH: usize = 32;
const STEPS: usize = 96;
const RATE: f64 = 0.1;
const TAU: u64 = 8;
/// Slow momentum, high on purpose: it would carry a variance that falls below zero.
const BETA: f32 = 0.8;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: BatchNorm,
    second: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(PIXELS, HIDDEN).init(device),
            norm: BatchNormConfig::new(HIDDEN).init(device),
            second: LinearConfig::new(HIDDEN, CLASSES).init(device),
        }
    }

    fn forward(&self, pixels: Tensor<2>) -> Tensor<2> {
        let hidden = self.norm.forward(self.first.forward(pixels));
        self.second.forward(relu(hidden))
    }

    /// The part of the test images that it names right, with the running statistics.
    fn accuracy(&self, device: &Device) -> f32 {
        let test = Dataset::test().unwrap();
        let (pixels, labels) = tensors(&test.all(), device);
        let named = self
            .valid()
            .forward(pixels.inner())
            .argmax(1)
            .squeeze_dim(1);
        let right: i64 = named.equal(labels.inner()).int().sum().into_scalar();
        right as f32 / test.len() as f32
    }

    fn variance(&self) -> Vec<f32> {
        let data = self.norm.running_var.value_sync().into_data();
        data.try_into_vec().unwrap()
    }
}

fn tensors(batch: &Batch, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let count = batch.labels.len();
    let labels: Vec<i64> = batch.labels.iter().copied().map(i64::from).collect();
    let pixels = TensorData::new(batch.pixels.clone(), [count, PIXELS]);
    let labels = TensorData::new(labels, [count]);
    (
        Tensor::from_data(pixels, device),
        Tensor::from_data(labels, device),
    )
}

/// The training as one node saw it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    /// The lowest running variance after any step.
    lowest: f32,
    /// The running variance at the end.
    variance: Vec<f32>,
    accuracy: f32,
}

fn train(node: &Runtime) -> Seen {
    let device = Device::flex().autodiff();
    let mut net = Net::new(&device);
    let mut optimizer = SgdConfig::new().init();
    let loss = CrossEntropyLossConfig::new().init(&device);
    let data = Dataset::train().unwrap();
    let mut worker = node.worker(0).unwrap();
    worker.synchronize_module(&mut net).unwrap();
    let mut lowest = f32::MAX;
    for step in 0..STEPS {
        // Each node has its own part of the images.
        let first = step * BATCH * NODES as usize + node.node_id() as usize;
        let images: Vec<_> = (0..BATCH)
            .map(|index| (first + index * NODES as usize) % data.len())
            .collect();
        let (pixels, labels) = tensors(&data.batch(&images), &device);
        let gradients = loss.forward(net.forward(pixels), labels).backward();
        let gradients = GradientsParams::from_grads(gradients, &net);
        net = optimizer.step(RATE, net, gradients);
        worker.step_module(&mut net, RATE).unwrap();
        lowest = net.variance().into_iter().fold(lowest, f32::min);
    }
    worker.leave().unwrap();
    Seen {
        lowest,
        variance: net.variance(),
        accuracy: net.accuracy(&device),
    }
}

#[test]
fn a_module_with_running_statistics_trains_and_no_variance_is_negative() {
    let local_sgd = Config {
        base: BaseName::None,
        tau: TAU,
        beta: BETA,
        ..Config::default()
    };
    let sgp = Config {
        base: BaseName::Sgp,
        staleness: 0,
        ..local_sgd.clone()
    };
    for config in [local_sgd, sgp] {
        let seen = Cluster::run(&config, NODES, train);
        eprintln!("{:?}: {:?}", config.base, seen[0]);
        for node in &seen {
            assert!(node.lowest > 0.0 && node.accuracy > 0.9, "{node:?}");
            assert_eq!(node.variance, seen[0].variance);
            assert_eq!(node.accuracy, seen[0].accuracy);
        }
    }
}
