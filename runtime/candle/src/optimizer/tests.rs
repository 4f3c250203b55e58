//! The arithmetic against PyTorch's formulas, candle's own AdamW, and values by hand; what is lent.
#![allow(clippy::unwrap_used)]

use super::{AdamW, Sgd, SgdConfig};
use crate::CandleVariables;
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use candle_nn::optim::{Optimizer, ParamsAdamW};
use slowmo::internal::tensors::flat::{freeze, restore, zero};
use slowmo::{TensorError, Tensors};

const START: [f32; 3] = [0.8, -0.9, 0.5];
const PARAMS: ParamsAdamW = ParamsAdamW {
    lr: 0.01,
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-8,
    weight_decay: 0.1,
};

fn model() -> (Var, CandleVariables) {
    let variable = Var::from_slice(&START, 3, &Device::Cpu).unwrap();
    let list = [("x".to_owned(), variable.clone())];
    (variable, CandleVariables::new(list).unwrap())
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec1().unwrap()
}

/// Gradients of `Σ x⁴/4 + x`, which are never 0 at the start and change from step to step.
fn gradients(variable: &Var) -> GradStore {
    let power = variable.powf(4.0).unwrap().affine(0.25, 0.0).unwrap();
    let loss = (power + variable.as_tensor()).unwrap().sum_all().unwrap();
    loss.backward().unwrap()
}

fn gradient(x: f64) -> f64 {
    x.powi(3) + 1.0
}

/// `torch.optim.AdamW`, in float64: the order of its documentation.
struct TorchAdamW {
    m: f64,
    v: f64,
    t: i32,
}

impl TorchAdamW {
    fn step(&mut self, x: &mut f64, params: &ParamsAdamW) {
        let g = gradient(*x);
        self.t += 1;
        *x -= params.lr * params.weight_decay * *x;
        self.m = params.beta1 * self.m + (1.0 - params.beta1) * g;
        self.v = params.beta2 * self.v + (1.0 - params.beta2) * g * g;
        let m = self.m / (1.0 - params.beta1.powi(self.t));
        let v = self.v / (1.0 - params.beta2.powi(self.t));
        *x -= params.lr * m / (v.sqrt() + params.eps);
    }
}

#[test]
fn adamw_steps_as_pytorch_and_as_candle() {
    let (variable, variables) = model();
    let (theirs, _) = model();
    let mut own = AdamW::of(&variables, PARAMS).unwrap();
    let mut candle = candle_nn::AdamW::new(vec![theirs.clone()], PARAMS).unwrap();
    let mut torch = START.map(|x| {
        (
            f64::from(x),
            TorchAdamW {
                m: 0.0,
                v: 0.0,
                t: 0,
            },
        )
    });
    for _ in 0..20 {
        own.step(&gradients(&variable)).unwrap();
        candle.step(&gradients(&theirs)).unwrap();
        for (x, adam) in &mut torch {
            adam.step(x, &PARAMS);
        }
        assert_eq!(values(&variable), values(&theirs));
        for (value, (x, _)) in values(&variable).into_iter().zip(&torch) {
            assert!((f64::from(value) - x).abs() < 1e-6, "{value} {x}");
        }
    }
    assert_eq!(own.steps(), 20);
}

/// The first step by hand: `m/(1−β₁) = g`, `√(v/(1−β₂)) = |g|`, so `x` moves by the rate against
/// the gradient's sign, after the decay.
#[test]
fn the_first_step_of_adamw_by_hand() {
    let (variable, variables) = model();
    let mut adamw = AdamW::of(&variables, PARAMS).unwrap();
    adamw.step(&gradients(&variable)).unwrap();
    for (value, start) in values(&variable).into_iter().zip(START) {
        let moved = 0.999 * f64::from(start) - 0.01 * gradient(f64::from(start)).signum();
        assert!((f64::from(value) - moved).abs() < 1e-6, "{value} {moved}");
    }
}

/// `torch.optim.SGD` without dampening, in float64.
fn torch_sgd(config: &SgdConfig, steps: usize) -> [f64; 3] {
    START.map(|start| {
        let mut x = f64::from(start);
        let mut buffer = None;
        for _ in 0..steps {
            let mut g = gradient(x) + config.weight_decay * x;
            if config.momentum > 0.0 {
                let next = buffer.map_or(g, |buffer: f64| config.momentum * buffer + g);
                buffer = Some(next);
                g = if config.nesterov {
                    g + config.momentum * next
                } else {
                    next
                };
            }
            x -= config.learning_rate * g;
        }
        x
    })
}

#[test]
fn sgd_steps_as_pytorch() {
    let plain = SgdConfig {
        learning_rate: 0.01,
        ..SgdConfig::default()
    };
    let momentum = SgdConfig {
        momentum: 0.9,
        weight_decay: 0.1,
        ..plain
    };
    let nesterov = SgdConfig {
        nesterov: true,
        ..momentum
    };
    for config in [plain, momentum, nesterov] {
        let (variable, variables) = model();
        let mut sgd = Sgd::of(&variables, config).unwrap();
        for _ in 0..20 {
            sgd.step(&gradients(&variable)).unwrap();
        }
        for (value, x) in values(&variable).into_iter().zip(torch_sgd(&config, 20)) {
            assert!(
                (f64::from(value) - x).abs() < 1e-6,
                "{config:?}: {value} {x}"
            );
        }
        let lent = if config.momentum > 0.0 { 3 } else { 0 };
        assert_eq!(sgd.elements(), Ok(lent));
        assert_eq!(sgd.shapes().unwrap().len(), lent / 3);
    }
}

/// Two steps of Nesterov by hand on the gradient 1 (`x = 0`, where `x³` adds nothing worth
/// counting): `u = 1, 1.5`, so `x` moves by `0.1·(1 + 0.5·1)` and `0.1·(1 + 0.5·1.5)`.
#[test]
fn nesterov_by_hand() {
    let variable = Var::from_slice(&[0f32], 1, &Device::Cpu).unwrap();
    let variables = CandleVariables::new([("x".to_owned(), variable.clone())]).unwrap();
    let config = SgdConfig {
        momentum: 0.5,
        nesterov: true,
        ..SgdConfig::default()
    };
    let mut sgd = Sgd::of(&variables, config).unwrap();
    for expected in [-0.15f32, -0.325] {
        let store = variable.sum_all().unwrap().backward().unwrap();
        sgd.step(&store).unwrap();
        assert!((values(&variable)[0] - expected).abs() < 1e-7);
    }
}

/// Another node that is given the state goes on as here, bit for bit; without the count it would
/// not.
#[test]
fn the_state_continues_where_it_was_taken() {
    let (variable, variables) = model();
    let mut adamw = AdamW::of(&variables, PARAMS).unwrap();
    for _ in 0..5 {
        adamw.step(&gradients(&variable)).unwrap();
    }
    let names = |tensors: &dyn Tensors| -> Result<Vec<String>, TensorError> {
        let mut names = Vec::new();
        tensors.read(&mut |name, _| names.push(name.to_owned()))?;
        Ok(names)
    };
    let expected = ["x.first_moment", "x.second_moment", "steps"];
    assert_eq!(names(&adamw).unwrap(), expected);
    let shapes: Vec<_> = adamw.shapes().unwrap();
    assert_eq!(shapes[0], ("x.first_moment".to_owned(), vec![3]));

    let mut flat = vec![0.0; adamw.elements().unwrap()];
    assert_eq!(flat.len(), 8);
    freeze(&adamw, &mut flat).unwrap();
    let (other, others) = model();
    other.set(&variable.as_tensor().copy().unwrap()).unwrap();
    let mut joined = AdamW::of(&others, PARAMS).unwrap();
    restore(&flat, &mut joined).unwrap();
    assert_eq!(joined.steps(), 5);
    adamw.step(&gradients(&variable)).unwrap();
    joined.step(&gradients(&other)).unwrap();
    assert_eq!(values(&variable), values(&other));

    // A reset starts Adam anew, with its count.
    zero(&mut joined).unwrap();
    assert_eq!(joined.steps(), 0);
}

#[test]
fn a_variable_without_a_gradient_stays_as_it_is() {
    let used = model().0;
    let unused = model().0;
    let list = [("used", &used), ("unused", &unused)];
    let list = list.map(|(name, variable)| (name.to_owned(), variable.clone()));
    let variables = CandleVariables::new(list).unwrap();
    let momentum = SgdConfig {
        momentum: 0.9,
        weight_decay: 0.1,
        ..SgdConfig::default()
    };
    let mut sgd = Sgd::of(&variables, momentum).unwrap();
    sgd.step(&gradients(&used)).unwrap();
    let mut adamw = AdamW::of(&variables, PARAMS).unwrap();
    adamw.step(&gradients(&used)).unwrap();
    assert_eq!(values(&unused), START);
    assert_ne!(values(&used), START);
    assert_eq!(variables.without_gradient(), ["unused"]);
}

#[test]
fn settings_that_cannot_work_are_refused_by_name() {
    let (variable, variables) = model();
    let refused = |params: ParamsAdamW| AdamW::of(&variables, params).unwrap_err().to_string();
    assert!(
        refused(ParamsAdamW {
            beta2: 1.0,
            ..PARAMS
        })
        .contains("beta2 = 1")
    );
    assert!(
        refused(ParamsAdamW {
            eps: f64::NAN,
            ..PARAMS
        })
        .contains("eps = NaN")
    );
    let refused = |config: SgdConfig| Sgd::of(&variables, config).unwrap_err().to_string();
    let nesterov = SgdConfig {
        nesterov: true,
        ..SgdConfig::default()
    };
    assert!(refused(nesterov).contains("nesterov needs a momentum"));
    let negative = SgdConfig {
        weight_decay: -0.1,
        ..SgdConfig::default()
    };
    assert!(refused(negative).contains("weight_decay = -0.1"));

    // The constructor of candle's trait numbers them.
    let mut numbered = Sgd::new(vec![variable], SgdConfig::default()).unwrap();
    numbered.set_learning_rate(0.5);
    assert_eq!(numbered.learning_rate(), 0.5);
}
