//! Stochastic gradient descent with momentum, which travels.

use super::{elements, lend_all, lend_all_mut, numbered, set, shapes, wide, zeros};
use crate::CandleVariables;
use crate::variables::Watcher;
use candle_core::backprop::GradStore;
use candle_core::{Result, Var, bail};
use candle_nn::Optimizer;
use slowmo::{TensorError, Tensors, Values, ValuesMut, read_widened, write_rounded};

/// Settings of [`Sgd`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdConfig {
    /// Learning rate `γ`.
    pub learning_rate: f64,
    /// Momentum `μ`; 0 is plain descent.
    pub momentum: f64,
    /// Whether the momentum looks ahead.
    pub nesterov: bool,
    /// Weight decay `λ`, as a part of the gradient.
    pub weight_decay: f64,
}

impl Default for SgdConfig {
    /// Plain descent with a rate of 0.1.
    fn default() -> Self {
        Self {
            learning_rate: 0.1,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
        }
    }
}

/// Stochastic gradient descent, step by step as PyTorch's without dampening:
///
/// ```text
/// g ← g + λx      u ← μu + g      x ← x − γu      (with Nesterov: x ← x − γ(g + μu))
/// ```
///
/// Lend it as the optimizer's buffers: `u` then travels to nodes that join and into checkpoints.
/// Without momentum it has no state and lends nothing. A variable without a gradient is left as it
/// is. It computes in float32, and so is `u`; `x` is rounded to the variable's type. On a GPU the
/// lent momentum goes through a copy.
#[derive(Debug)]
pub struct Sgd {
    variables: CandleVariables,
    /// Empty without momentum.
    momentum: Vec<Var>,
    config: SgdConfig,
}

impl Sgd {
    /// An optimizer of these variables.
    ///
    /// # Errors
    /// A setting below 0 or not finite, Nesterov without momentum, or no memory on the device.
    pub fn of(variables: &CandleVariables, config: SgdConfig) -> Result<Self> {
        for (name, value) in [
            ("learning_rate", config.learning_rate),
            ("momentum", config.momentum),
            ("weight_decay", config.weight_decay),
        ] {
            if !(0.0..f64::INFINITY).contains(&value) {
                bail!("{name} = {value} is refused: it is finite and not below 0")
            }
        }
        if config.nesterov && config.momentum == 0.0 {
            bail!("nesterov needs a momentum above 0")
        }
        let momentum = if config.momentum > 0.0 {
            zeros(variables)?
        } else {
            Vec::new()
        };
        Ok(Self {
            variables: variables.clone(),
            momentum,
            config,
        })
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &SgdConfig {
        &self.config
    }
}

impl Optimizer for Sgd {
    type Config = SgdConfig;

    /// Like [`Sgd::of`]; the buffers are named by number.
    fn new(variables: Vec<Var>, config: SgdConfig) -> Result<Self> {
        Self::of(&numbered(variables)?, config)
    }

    fn step(&mut self, gradients: &GradStore) -> Result<()> {
        self.variables.watch(gradients, Watcher::Optimizer);
        let SgdConfig {
            learning_rate,
            momentum,
            nesterov,
            weight_decay,
        } = self.config;
        for (place, (_, variable)) in self.variables.iter().enumerate() {
            let Some(gradient) = gradients.get(variable) else {
                continue;
            };
            let mut direction = wide(gradient)?;
            let values = wide(variable)?;
            if weight_decay > 0.0 {
                direction = (direction + (&values * weight_decay)?)?;
            }
            if let Some(velocity) = self.momentum.get(place) {
                let next = ((velocity.as_tensor() * momentum)? + &direction)?;
                velocity.set(&next)?;
                direction = if nesterov {
                    (direction + (next * momentum)?)?
                } else {
                    next
                };
            }
            set(variable, &(values - (direction * learning_rate)?)?)?;
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.config.learning_rate
    }

    fn set_learning_rate(&mut self, rate: f64) {
        self.config.learning_rate = rate;
    }
}

/// The momentum, if there is one.
impl Tensors for Sgd {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> std::result::Result<(), TensorError> {
        read_widened(self, visit)
    }

    fn write(
        &mut self,
        visit: &mut dyn FnMut(&str, &mut [f32]),
    ) -> std::result::Result<(), TensorError> {
        write_rounded(self, visit)
    }

    fn lend(
        &self,
        visit: &mut dyn FnMut(&str, Values<'_>),
    ) -> std::result::Result<(), TensorError> {
        lend_all(&self.variables, &self.momentum, "momentum", visit)
    }

    fn lend_mut(
        &mut self,
        visit: &mut dyn FnMut(&str, ValuesMut<'_>),
    ) -> std::result::Result<(), TensorError> {
        lend_all_mut(&self.variables, &self.momentum, "momentum", visit)
    }

    fn elements(&self) -> std::result::Result<usize, TensorError> {
        let has_none = self.momentum.is_empty();
        Ok(if has_none {
            0
        } else {
            elements(&self.variables)
        })
    }

    fn shapes(&self) -> std::result::Result<Vec<(String, Vec<usize>)>, TensorError> {
        if self.momentum.is_empty() {
            return Ok(Vec::new());
        }
        Ok(shapes(&self.variables, "momentum").collect())
    }
}
