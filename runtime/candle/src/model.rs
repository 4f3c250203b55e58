//! A candle model's parameters and buffers, told apart.

use crate::CandleVariables;
use candle_core::{Tensor, Var};
use candle_nn::VarMap;
use slowmo::TensorError;
use std::collections::HashSet;
use std::sync::PoisonError;

/// Last parts of the names of variables that are no parameters: batch norm's statistics, as candle,
/// PyTorch and Keras call them.
pub const BUFFER_NAMES: [&str; 5] = [
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "moving_mean",
    "moving_variance",
];

/// Whether a variable of this name is a buffer: the part behind its last dot is one of
/// [`BUFFER_NAMES`].
#[must_use]
pub fn is_buffer_name(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    BUFFER_NAMES.contains(&last)
}

/// A model as slowmo takes it: parameters, which the optimizer trains, and buffers, which the
/// forward pass keeps up to date (batch norm's running mean and variance).
///
/// In each exact average the parameters are averaged and moved by the slow momentum; between them
/// they may be gossiped. Buffers are averaged exactly, as the plain mean over the nodes that
/// contributed, and nothing else happens to them: a mean of variances is never negative. Nodes that
/// join get both from the others.
///
/// A variable is a buffer
/// - by name, if [`is_buffer_name`] says so ([`CandleModel::from_var_map`]);
/// - by training, if a loss does not depend on it ([`CandleModel::from_loss`]);
/// - or as you say, by a rule of your own ([`CandleModel::split`]).
///
/// A variable that was taken for a parameter and turns out to be a buffer is refused when it is
/// lent, as far as this package sees the gradients: it changes, and has no gradient
/// ([`CandleVariables::unwatched`]).
///
/// ```no_run
/// # use candle_core::{DType, Device};
/// use slowmo::Buffers;
/// use slowmo_candle::CandleModel;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = slowmo::Runtime::builder().config(slowmo::Config::load()?).spawn()?;
/// # let mut worker = runtime.worker(0)?;
/// let map = candle_nn::VarMap::new();
/// let builder = candle_nn::VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
/// let layer = candle_nn::batch_norm(3, 1e-5, builder.pp("norm"))?;
/// let mut model = CandleModel::from_var_map(&map)?;
/// worker.synchronize_with(
///     &mut model.parameters,
///     Buffers { optimizer: &mut (), model: &mut model.buffers },
/// )?;
/// // … and after each optimizer step:
/// worker.step_with(
///     &mut model.parameters,
///     Buffers { optimizer: &mut (), model: &mut model.buffers },
///     0.1,
/// )?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct CandleModel {
    /// The variables that the optimizer trains: lend them as the parameters.
    pub parameters: CandleVariables,
    /// The variables that the forward pass keeps up to date: lend them as
    /// [`slowmo::Buffers::model`].
    pub buffers: CandleVariables,
}

impl CandleModel {
    /// Takes the variables of a map; those that [`is_buffer_name`] names are buffers.
    ///
    /// # Errors
    /// A variable is not float32, bfloat16 or float16, not contiguous, or not in main memory.
    pub fn from_var_map(map: &VarMap) -> Result<Self, TensorError> {
        Self::split(map, |name, _| is_buffer_name(name))
    }

    /// Takes the variables of a map; those that [`is_buffer_name`] names, and those on which `loss`
    /// does not depend, are buffers. Parts of a model that other losses train must be in this one.
    ///
    /// # Errors
    /// A variable is not float32, bfloat16 or float16, not contiguous, or not in main memory.
    pub fn from_loss(map: &VarMap, loss: &Tensor) -> Result<Self, TensorError> {
        let nodes = loss.sorted_nodes();
        let trained: HashSet<_> = nodes.iter().map(|node| node.id()).collect();
        Self::split(map, |name, variable| {
            is_buffer_name(name) || !trained.contains(&variable.id())
        })
    }

    /// Takes the variables of a map; those for which `is_buffer` returns true are buffers.
    ///
    /// # Errors
    /// A variable is not float32, bfloat16 or float16, not contiguous, or not in main memory.
    pub fn split(
        map: &VarMap,
        is_buffer: impl Fn(&str, &Var) -> bool,
    ) -> Result<Self, TensorError> {
        let (buffers, parameters): (Vec<_>, Vec<_>) = listed(map)
            .into_iter()
            .partition(|(name, variable)| is_buffer(name, variable));
        let mut parameters = CandleVariables::new(parameters)?;
        let mut buffers = CandleVariables::new(buffers)?.unwatched();
        parameters.beside(&mut buffers);
        Ok(Self {
            parameters,
            buffers,
        })
    }
}

/// The variables of a map, in any order.
pub(crate) fn listed(map: &VarMap) -> Vec<(String, Var)> {
    let variables = map.data().lock().unwrap_or_else(PoisonError::into_inner);
    variables
        .iter()
        .map(|(name, variable)| (name.clone(), variable.clone()))
        .collect()
}
