//! A burn module on handwritten digits as one node of a cluster;
//! `runtime/candle/examples/digits.rs` is the same with candle.
//!
//! In the folder of this package, alone: `cargo run --release --example digits_burn`. Four nodes:
//! `slowmo launch --nodes 4 -- ../candle/target/release/examples/digits_burn --slowmo-tau 12`.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use slowmo::{Config, ElasticSampler, Runtime};
use slowmo_burn::Modules;
use slowmo_examples::digits::{Batch, CLASSES, Dataset, PIXELS};
use slowmo_examples::log;

const HIDDEN: usize = 128;
const BATCH: usize = 16;
const STEPS: u64 = 600;
const LEARNING_RATE: f64 = 0.003;

fn main() -> anyhow::Result<()> {
    log::to_standard_error(log::LevelFilter::WARN)?;
    let train = Dataset::train()?;
    let device = Device::flex().autodiff();
    let mut model = Model::new(&device);
    let mut optimizer = AdamWConfig::new().init();
    let loss = CrossEntropyLossConfig::new().init(&device);

    let runtime = Runtime::builder().config(Config::load()?).spawn()?;
    let mut worker = runtime.worker(0)?;
    // Each sample of an epoch goes to one of the present nodes.
    let mut sampler = ElasticSampler::new(train.len(), BATCH, 0)?;
    worker.attach_sampler(&sampler);
    let mut step = worker
        .synchronize_module_with(&mut model, &mut optimizer)?
        .step;
    while worker.is_running() && step < STEPS {
        let (pixels, labels) = tensors(&train.batch(sampler.next_batch()), &device);
        let loss = loss.forward(model.forward(pixels), labels);
        let mut gradients = GradientsParams::from_grads(loss.backward(), &model);
        worker.average_module_gradients(&model, &mut gradients)?;
        model = optimizer.step(LEARNING_RATE, model, gradients);
        worker.report_loss(f64::from(loss.into_scalar::<f32>()));
        let report = worker.step_module_with(&mut model, &mut optimizer, LEARNING_RATE)?;
        step = report.step + 1;
    }
    worker.leave()?;

    let test = Dataset::test()?;
    let (pixels, labels) = tensors(&test.all(), &device);
    let named = model.forward(pixels).argmax(1).squeeze_dim(1);
    let right: i64 = named.equal(labels).int().sum().into_scalar();
    let accuracy = 100.0 * right as f64 / test.len() as f64;
    println!("accuracy on the test images: {accuracy:.1} %");
    Ok(())
}

/// A perceptron 64-128-10.
#[derive(Module, Debug)]
struct Model {
    hidden: Linear,
    output: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(PIXELS, HIDDEN).init(device),
            output: LinearConfig::new(HIDDEN, CLASSES).init(device),
        }
    }

    fn forward(&self, pixels: Tensor<2>) -> Tensor<2> {
        self.output.forward(relu(self.hidden.forward(pixels)))
    }
}

/// Pixels `[n, 64]` and labels `[n]`.
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
