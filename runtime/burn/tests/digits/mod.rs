//! The same perceptron on handwritten digits with burn and with candle: from the same weights, with
//! the same optimizer.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)] // Each test uses a part.

use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use candle_core::DType;
use candle_nn::{Module as _, Optimizer as _, Sequential, VarBuilder, VarMap};
use slowmo::{Buffers, StepReport, Tensors, Worker};
use slowmo_burn::{Modules, StagedModule};
use slowmo_candle::{CandleGradients, CandleModel, Sgd};
use slowmo_examples::digits::{Batch, CLASSES, PIXELS};
use slowmo_examples::random::{Purpose, generator, unit};

pub const RATE: f64 = 0.05;
const MOMENTUM: f64 = 0.9;
const HIDDEN: usize = 32;
/// Inputs and outputs of each layer.
const LAYERS: [(&str, usize, usize); 2] = [("hidden", PIXELS, HIDDEN), ("output", HIDDEN, CLASSES)];

/// The training of one node with one of the frameworks.
pub trait Learner {
    /// Meets the other nodes; returns the first step.
    fn begin(&mut self, worker: &mut Worker) -> u64;
    /// Trains on a batch and completes the step.
    fn step(&mut self, worker: &mut Worker, batch: &Batch) -> StepReport;
    /// The parameters: name and values, weights as `[inputs, outputs]`.
    fn parameters(&self) -> Vec<(String, Vec<f32>)>;
}

/// The weights of a seed, as `[inputs, outputs]`, and the biases.
fn weights(seed: u64) -> Vec<(Vec<f32>, Vec<f32>)> {
    let mut random = generator(seed, Purpose::Weights);
    let mut uniform = |count: usize, inputs: usize| -> Vec<f32> {
        let bound = 1.0 / (inputs as f32).sqrt();
        let mut next = || bound * (2.0 * unit(&mut random) - 1.0);
        (0..count).map(|_| next()).collect()
    };
    let layers = LAYERS.iter();
    layers
        .map(|(_, inputs, outputs)| {
            let weight = uniform(inputs * outputs, *inputs);
            (weight, uniform(*outputs, *inputs))
        })
        .collect()
}

/// Rows become columns.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let column = |column: usize| values.iter().skip(column).step_by(columns);
    (0..columns).flat_map(column).copied().collect()
}

/// The perceptron in burn.
#[derive(Module, Debug)]
pub struct Net {
    hidden: Linear,
    output: Linear,
}

impl Net {
    fn forward(&self, pixels: Tensor<2>) -> Tensor<2> {
        self.output.forward(relu(self.hidden.forward(pixels)))
    }
}

pub struct WithBurn {
    net: Net,
    optimizer: ModuleOptimizer,
    device: Device,
}

impl WithBurn {
    pub fn new(seed: u64) -> Self {
        let device = Device::flex().autodiff();
        let mut layers = weights(seed).into_iter().zip(LAYERS);
        let mut layer = || {
            let ((weight, bias), (_, inputs, outputs)) = layers.next().unwrap();
            let mut linear = LinearConfig::new(inputs, outputs).init(&device);
            let weight = TensorData::new(weight, [inputs, outputs]);
            linear.weight = Param::from_data(weight, &device);
            linear.bias = Some(Param::from_data(TensorData::new(bias, [outputs]), &device));
            linear
        };
        let net = Net {
            hidden: layer(),
            output: layer(),
        };
        let momentum = MomentumConfig::new()
            .with_momentum(MOMENTUM)
            .with_dampening(0.0)
            .with_nesterov(true);
        let optimizer = SgdConfig::new().with_momentum(Some(momentum)).init();
        Self {
            net,
            optimizer,
            device,
        }
    }
}

impl Learner for WithBurn {
    fn begin(&mut self, worker: &mut Worker) -> u64 {
        worker.synchronize_module(&mut self.net).unwrap().step
    }

    fn step(&mut self, worker: &mut Worker, batch: &Batch) -> StepReport {
        let count = batch.labels.len();
        let pixels = TensorData::new(batch.pixels.clone(), [count, PIXELS]);
        let labels: Vec<i64> = batch.labels.iter().copied().map(i64::from).collect();
        let labels = TensorData::new(labels, [count]);
        let logits = self.net.forward(Tensor::from_data(pixels, &self.device));
        let loss = CrossEntropyLossConfig::new().init(&self.device);
        let loss = loss.forward(logits, Tensor::<1, Int>::from_data(labels, &self.device));
        let mut gradients = GradientsParams::from_grads(loss.backward(), &self.net);
        worker
            .average_module_gradients(&self.net, &mut gradients)
            .unwrap();
        self.net = self.optimizer.step(RATE, self.net.clone(), gradients);
        worker.step_module(&mut self.net, RATE).unwrap()
    }

    fn parameters(&self) -> Vec<(String, Vec<f32>)> {
        let mut all = Vec::new();
        StagedModule::of(&self.net)
            .parameters
            .read(&mut |name, values| all.push((name.to_owned(), values.to_vec())))
            .unwrap();
        all
    }
}

pub struct WithCandle {
    net: Sequential,
    model: CandleModel,
    optimizer: Sgd,
}

impl WithCandle {
    pub fn new(seed: u64) -> Self {
        let map = VarMap::new();
        let device = candle_core::Device::Cpu;
        let builder = VarBuilder::from_varmap(&map, DType::F32, &device);
        let layer = |index: usize| {
            let (name, inputs, outputs) = LAYERS[index];
            candle_nn::linear(inputs, outputs, builder.pp(name)).unwrap()
        };
        let net = candle_nn::seq()
            .add(layer(0))
            .add(candle_nn::Activation::Relu)
            .add(layer(1));
        let mut model = CandleModel::from_var_map(&map).unwrap();
        // Ascending by name: the bias of a layer, then its weight as `[outputs, inputs]`.
        let layers = weights(seed).into_iter().zip(LAYERS);
        let mut all = layers
            .flat_map(|((weight, bias), (_, _, outputs))| [bias, transposed(&weight, outputs)]);
        model
            .parameters
            .write(&mut |_, values| values.copy_from_slice(&all.next().unwrap()))
            .unwrap();
        let config = slowmo_candle::SgdConfig {
            learning_rate: RATE,
            momentum: MOMENTUM,
            nesterov: true,
            ..slowmo_candle::SgdConfig::default()
        };
        let optimizer = Sgd::of(&model.parameters, config).unwrap();
        Self {
            net,
            model,
            optimizer,
        }
    }
}

impl Learner for WithCandle {
    fn begin(&mut self, worker: &mut Worker) -> u64 {
        let buffers = Buffers {
            optimizer: &mut (),
            model: &mut self.model.buffers,
        };
        let parameters = &mut self.model.parameters;
        worker.synchronize_with(parameters, buffers).unwrap().step
    }

    fn step(&mut self, worker: &mut Worker, batch: &Batch) -> StepReport {
        let (pixels, labels) = crate::cluster::tensors(batch);
        let logits = self.net.forward(&pixels).unwrap();
        let loss = candle_nn::loss::cross_entropy(&logits, &labels).unwrap();
        let mut gradients = loss.backward().unwrap();
        worker
            .average_gradients(&mut CandleGradients::new(
                &self.model.parameters,
                &mut gradients,
            ))
            .unwrap();
        self.optimizer.step(&gradients).unwrap();
        let buffers = Buffers {
            optimizer: &mut (),
            model: &mut self.model.buffers,
        };
        let parameters = &mut self.model.parameters;
        worker.step_with(parameters, buffers, RATE as f32).unwrap()
    }

    fn parameters(&self) -> Vec<(String, Vec<f32>)> {
        let mut all = Vec::new();
        self.model
            .parameters
            .read(&mut |name, values| {
                let (layer, part) = name.split_once('.').unwrap();
                let inputs = LAYERS.iter().find(|(name, ..)| *name == layer).unwrap().1;
                let values = match part {
                    "weight" => transposed(values, inputs),
                    _ => values.to_vec(),
                };
                all.push((name.to_owned(), values));
            })
            .unwrap();
        all
    }
}
