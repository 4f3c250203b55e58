//! AdamW, with moments and step count that travel.

use super::{elements, lend_all, lend_all_mut, numbered, set, shapes, wide, zeros};
use crate::CandleVariables;
use crate::variables::Watcher;
use candle_core::backprop::GradStore;
use candle_core::{Result, Var, bail};
use candle_nn::optim::{Optimizer, ParamsAdamW};
use slowmo::{Counter, TensorError, Tensors, Values, ValuesMut, read_widened, write_rounded};

/// Adam with decoupled weight decay (arXiv 1711.05101), step by step as candle's and PyTorch's:
///
/// ```text
/// m ← β₁m + (1 − β₁)g      v ← β₂v + (1 − β₂)g²      t ← t + 1
/// x ← (1 − γλ)x − γ · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
/// ```
///
/// Lend it as the optimizer's buffers: `m`, `v` and `t` then travel together, to nodes that join
/// and into checkpoints. There is one `t` for all variables; one without a gradient is left as it
/// is. It computes in float32, and so are `m` and `v`; `x` is rounded to the variable's type. On a
/// GPU the lent moments go through a copy.
///
/// ```no_run
/// # use candle_core::{DType, Device};
/// use candle_nn::{Optimizer, ParamsAdamW};
/// use slowmo::Buffers;
/// use slowmo_candle::{AdamW, CandleModel};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let map = candle_nn::VarMap::new();
/// # let runtime = slowmo::Runtime::builder().config(slowmo::Config::load()?).spawn()?;
/// # let mut worker = runtime.worker(0)?;
/// # fn gradients() -> candle_core::backprop::GradStore { unimplemented!() }
/// let mut model = CandleModel::from_var_map(&map)?;
/// let mut optimizer = AdamW::of(&model.parameters, ParamsAdamW::default())?;
/// worker.synchronize_with(
///     &mut model.parameters,
///     Buffers { optimizer: &mut optimizer, model: &mut model.buffers },
/// )?;
/// // In the loop:
/// optimizer.step(&gradients())?;
/// let rate = optimizer.learning_rate() as f32;
/// worker.step_with(
///     &mut model.parameters,
///     Buffers { optimizer: &mut optimizer, model: &mut model.buffers },
///     rate,
/// )?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct AdamW {
    variables: CandleVariables,
    first: Vec<Var>,
    second: Vec<Var>,
    steps: Counter,
    params: ParamsAdamW,
}

impl AdamW {
    /// An optimizer of these variables.
    ///
    /// # Errors
    /// A `β` outside of `[0, 1)`, an `ε` or a rate below 0 or not finite, or no memory on the
    /// device.
    pub fn of(variables: &CandleVariables, params: ParamsAdamW) -> Result<Self> {
        let ParamsAdamW {
            lr,
            beta1,
            beta2,
            eps,
            weight_decay,
        } = params;
        for (name, beta) in [("beta1", beta1), ("beta2", beta2)] {
            if !(0.0..1.0).contains(&beta) {
                bail!("{name} = {beta} is refused: it is at least 0 and less than 1")
            }
        }
        for (name, value) in [("lr", lr), ("eps", eps), ("weight_decay", weight_decay)] {
            if !(0.0..f64::INFINITY).contains(&value) {
                bail!("{name} = {value} is refused: it is finite and not below 0")
            }
        }
        Ok(Self {
            variables: variables.clone(),
            first: zeros(variables)?,
            second: zeros(variables)?,
            steps: Counter::default(),
            params,
        })
    }

    /// Steps taken, `t`: also those before a checkpoint or, with `joiner_buffers = "copy"`, of the
    /// member whose state this node was given.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// The settings.
    #[must_use]
    pub fn params(&self) -> &ParamsAdamW {
        &self.params
    }
}

impl Optimizer for AdamW {
    type Config = ParamsAdamW;

    /// Like [`AdamW::of`]; the buffers are named by number.
    fn new(variables: Vec<Var>, params: ParamsAdamW) -> Result<Self> {
        Self::of(&numbered(variables)?, params)
    }

    fn step(&mut self, gradients: &GradStore) -> Result<()> {
        self.variables.watch(gradients, Watcher::Optimizer);
        self.steps.advance();
        let ParamsAdamW {
            lr,
            beta1,
            beta2,
            eps,
            weight_decay,
        } = self.params;
        let t = i32::try_from(self.steps.get()).unwrap_or(i32::MAX);
        let first_scale = 1.0 / (1.0 - beta1.powi(t));
        let second_scale = 1.0 / (1.0 - beta2.powi(t));
        let moments = self.first.iter().zip(&self.second);
        for ((_, variable), (first, second)) in self.variables.iter().zip(moments) {
            let Some(gradient) = gradients.get(variable) else {
                continue;
            };
            let gradient = &wide(gradient)?;
            let m = ((first.as_tensor() * beta1)? + (gradient * (1.0 - beta1))?)?;
            let v = ((second.as_tensor() * beta2)? + (gradient.sqr()? * (1.0 - beta2))?)?;
            let direction = ((&m * first_scale)? / ((&v * second_scale)?.sqrt()? + eps)?)?;
            let decayed = (wide(variable)? * (1.0 - lr * weight_decay))?;
            set(variable, &(decayed - (direction * lr)?)?)?;
            first.set(&m)?;
            second.set(&v)?;
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.params.lr
    }

    fn set_learning_rate(&mut self, rate: f64) {
        self.params.lr = rate;
    }
}

/// The first moments, the second ones, the step count.
impl Tensors for AdamW {
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
        lend_all(&self.variables, &self.first, "first_moment", visit)?;
        lend_all(&self.variables, &self.second, "second_moment", visit)?;
        self.steps.lend(&mut |_, digits| visit("steps", digits))
    }

    fn lend_mut(
        &mut self,
        visit: &mut dyn FnMut(&str, ValuesMut<'_>),
    ) -> std::result::Result<(), TensorError> {
        lend_all_mut(&self.variables, &self.first, "first_moment", visit)?;
        lend_all_mut(&self.variables, &self.second, "second_moment", visit)?;
        self.steps.lend_mut(&mut |_, digits| visit("steps", digits))
    }

    fn elements(&self) -> std::result::Result<usize, TensorError> {
        Ok(2 * elements(&self.variables) + self.steps.elements()?)
    }

    fn shapes(&self) -> std::result::Result<Vec<(String, Vec<usize>)>, TensorError> {
        let moments =
            shapes(&self.variables, "first_moment").chain(shapes(&self.variables, "second_moment"));
        let steps = ("steps".to_owned(), vec![self.steps.elements()?]);
        Ok(moments.chain([steps]).collect())
    }
}
