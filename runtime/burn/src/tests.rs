//! A module lends its tensors, and others are loaded into it.
#![allow(clippy::unwrap_used)]

use crate::{ModuleGradients, OptimizerState, StagedModule};
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor};
use slowmo::{TensorError, Tensors};

/// A linear layer with batch norm, and one that the loss leaves out.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: BatchNorm,
    unused: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(3, 2).init(device),
            norm: BatchNormConfig::new(2).init(device),
            unused: LinearConfig::new(1, 1).with_bias(false).init(device),
        }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<1> {
        self.norm
            .forward(self.first.forward(input))
            .powi_scalar(3)
            .sum()
    }

    fn gradients(&self) -> GradientsParams {
        GradientsParams::from_grads(self.forward(rising(&device())).backward(), self)
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn rising(device: &Device) -> Tensor<2> {
    Tensor::from_data([[1.0, 2.0, 4.0], [0.5, 3.0, -1.0], [2.0, 0.0, 7.0]], device)
}

fn names(tensors: &impl Tensors) -> Vec<String> {
    let shapes = tensors.shapes().unwrap().into_iter();
    shapes
        .map(|(name, shape)| format!("{name} {shape:?}"))
        .collect()
}

fn values(tensors: &impl Tensors) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    tensors
        .read(&mut |_, values| all.push(values.to_vec()))
        .unwrap();
    all
}

fn set(tensors: &mut impl Tensors, value: f32) {
    tensors.write(&mut |_, values| values.fill(value)).unwrap();
}

#[test]
fn parameters_are_told_from_running_statistics() {
    let net = Net::new(&device());
    let StagedModule {
        parameters,
        buffers,
    } = StagedModule::of(&net);
    assert_eq!(
        names(&parameters),
        [
            "first.weight [3, 2]",
            "first.bias [2]",
            "norm.gamma [2]",
            "norm.beta [2]",
            "unused.weight [1, 1]"
        ]
    );
    assert_eq!(
        names(&buffers),
        ["norm.running_mean [2]", "norm.running_var [2]"]
    );
    assert_eq!(parameters.elements().unwrap(), 13);
    assert_eq!(values(&buffers), [[0.0; 2], [1.0; 2]]);
}

#[test]
fn a_module_has_what_is_loaded_and_trains_on() {
    let mut net = Net::new(&device());
    let ids = [net.first.weight.id, net.norm.gamma.id];
    // The statistic's update waits for the next forward pass: it must not replace what is loaded.
    net.forward(rising(&device()));
    let mut staged = StagedModule::of(&net);
    assert_ne!(values(&staged.buffers), [[0.0; 2], [1.0; 2]]);
    set(&mut staged.parameters, 0.25);
    set(&mut staged.buffers, 4.0);
    staged.load(&mut net);
    assert_eq!([net.first.weight.id, net.norm.gamma.id], ids);

    let again = StagedModule::of(&net);
    assert!(
        values(&again.parameters)
            .concat()
            .iter()
            .all(|x| *x == 0.25)
    );
    assert_eq!(values(&again.buffers), [[4.0; 2]; 2]);
    net.forward(rising(&device()));
    let moved = values(&StagedModule::of(&net).buffers);
    // Nine tenths of what was loaded, and one of what the batch shows.
    assert!(
        moved[0].iter().all(|mean| (3.5..4.5).contains(mean)),
        "{moved:?}"
    );
    assert_eq!(net.gradients().len(), 4);
}

#[test]
fn a_parameter_without_a_gradient_counts_as_zeros_and_gets_one() {
    let net = Net::new(&device());
    let mut gradients = net.gradients();
    assert!(gradients.get::<2>(net.unused.weight.id).is_none());
    let own = gradients.get::<2>(net.first.weight.id).unwrap();
    let mut lent = ModuleGradients::new(&net, &mut gradients);
    assert_eq!(lent.elements().unwrap(), 13);
    let read = values(&lent);
    assert_eq!(read[0], own.into_data().try_into_vec::<f32>().unwrap());
    assert_eq!(read[4], [0.0]);
    lent.write(&mut |_, values| values.iter_mut().for_each(|value| *value += 1.0))
        .unwrap();
    let expected: Vec<Vec<f32>> = read
        .iter()
        .map(|values| values.iter().map(|value| value + 1.0).collect())
        .collect();
    assert_eq!(values(&lent), expected);
    let given = gradients.get::<2>(net.unused.weight.id).unwrap();
    assert!(!given.is_autodiff(), "as burn's own gradients");
}

#[test]
fn frozen_parameters_are_lent_with_the_buffers() {
    let mut net = Net::new(&device());
    net.unused = net.unused.no_grad();
    let staged = StagedModule::of(&net);
    assert_eq!(staged.parameters.elements().unwrap(), 12);
    assert_eq!(names(&staged.buffers)[2], "unused.weight [1, 1]");
    staged.load(&mut net);
    assert!(!net.unused.weight.is_require_grad());
}

#[test]
fn a_module_that_does_not_train_is_refused() {
    let plain = Net::new(&Device::flex());
    let trained = Net::new(&device()).valid();
    for net in [plain, trained] {
        let staged = StagedModule::of(&net);
        let told = staged.parameters.elements().unwrap_err().to_string();
        assert!(told.contains("none requires a gradient"), "{told}");
    }
}

#[test]
fn another_type_is_refused_by_name_and_nothing_is_loaded() {
    let mut net = Net::new(&device());
    let doubles = Tensor::ones([3, 2], (&device(), DType::F64));
    net.first.weight = Param::from_tensor(doubles);
    let staged = StagedModule::of(&net);
    let expected = TensorError::NotFloat32 {
        name: "first.weight".to_owned(),
        found: "f64".to_owned(),
    };
    assert_eq!(staged.parameters.read(&mut |_, _| {}), Err(expected));
    let bias = net.first.bias.clone().unwrap().val().into_data();
    staged.load(&mut net);
    assert_eq!(net.first.bias.unwrap().val().into_data(), bias);
    assert_eq!(net.first.weight.dtype(), DType::F64);
}

/// Trains some steps; after each one `between` has the optimizer.
fn trained(
    mut net: Net,
    mut optimizer: ModuleOptimizer,
    mut between: impl FnMut(&mut ModuleOptimizer, &Net),
) -> Vec<Vec<f32>> {
    for _ in 0..4 {
        let gradients = net.gradients();
        net = optimizer.step(0.01, net, gradients);
        between(&mut optimizer, &net);
    }
    values(&StagedModule::of(&net).parameters)
}

#[test]
fn an_optimizer_whose_state_is_lent_trains_as_one_whose_is_not() {
    let net = Net::new(&device());
    let momentum = MomentumConfig::new().with_dampening(0.0);
    for optimizer in [
        AdamWConfig::new().init(),
        SgdConfig::new().with_momentum(Some(momentum)).init(),
        SgdConfig::new().init(),
    ] {
        let alone = trained(net.clone(), optimizer.clone(), |_, _| {});
        let mut lends = optimizer;
        // Made before the first step, as at `synchronize`.
        OptimizerState::of(&mut lends, &net)
            .write(&mut |_, _| {})
            .unwrap();
        let lent = trained(net.clone(), lends, |optimizer, net| {
            let mut state = OptimizerState::of(optimizer, net);
            state.write(&mut |_, _| {}).unwrap();
        });
        assert_eq!(alone, lent);
    }
}

#[test]
fn adam_s_state_is_named_by_parameter_and_loaded() {
    let net = Net::new(&device());
    let mut adamw = AdamWConfig::new().init();
    let mut state = OptimizerState::of(&mut adamw, &net);
    let mut names = Vec::new();
    state
        .read(&mut |name, values| {
            assert!(values.iter().all(|value| *value == 0.0), "{name}");
            names.push(name.to_owned());
        })
        .unwrap();
    assert_eq!(
        names[..4],
        [
            "first.weight.momentum.moment_1",
            "first.weight.momentum.moment_2",
            "first.weight.momentum.time",
            "first.bias.momentum.moment_1"
        ]
    );
    // Two moments of 13 values, and a count of two values for each of five parameters.
    assert_eq!(state.elements().unwrap(), 2 * 13 + 2 * 5);
    set(&mut state, 3.0);
    let again = OptimizerState::of(&mut adamw, &net);
    assert!(values(&again).concat().iter().all(|value| *value == 3.0));
}

#[test]
fn an_optimizer_without_state_lends_nothing() {
    let mut sgd = SgdConfig::new().init();
    let state = OptimizerState::of(&mut sgd, &Net::new(&device()));
    assert_eq!(state.elements().unwrap(), 0);
}
