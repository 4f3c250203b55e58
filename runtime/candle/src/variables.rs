//! The trainable variables of a candle model.

use crate::{check, read, refused, write};
use candle_core::Var;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use slowmo::{TensorError, Tensors};
use std::sync::{Arc, Mutex, PoisonError};

/// Steps after which a variable that has had no gradient yet is named. Parts of a model that are
/// trained only sometimes have had one by then, and a first trial is rarely shorter.
const STEPS_UNTIL_TOLD: u32 = 10;

/// Variables ordered by name, so that all nodes agree on the flat order. They share their storage
/// with the model: the model sees what is written here.
///
/// ```
/// # use candle_core::{DType, Device};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let map = candle_nn::VarMap::new();
/// let builder = candle_nn::VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
/// let layer = candle_nn::linear(3, 2, builder.pp("layer"))?;
/// let variables = slowmo_candle::CandleVariables::from_var_map(&map)?;
/// assert_eq!(slowmo::internal::tensors::flat::elements(&variables)?, 8);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct CandleVariables {
    list: Vec<(String, Var)>,
    watch: Arc<Mutex<Watch>>,
}

/// Which variables have had a gradient; until [`STEPS_UNTIL_TOLD`] only.
#[derive(Debug)]
struct Watch {
    steps: u32,
    /// Places in the list of those that have had none.
    without: Vec<usize>,
}

impl CandleVariables {
    /// Takes all variables of a map.
    ///
    /// # Errors
    /// A variable is not float32, not contiguous, or not in main memory.
    pub fn from_var_map(map: &VarMap) -> Result<Self, TensorError> {
        let variables = map.data().lock().unwrap_or_else(PoisonError::into_inner);
        let list: Vec<_> = variables
            .iter()
            .map(|(name, variable)| (name.clone(), variable.clone()))
            .collect();
        drop(variables);
        Self::new(list)
    }

    /// Takes variables with their names, in any order.
    ///
    /// # Errors
    /// Two variables share a name, or one is not float32, not contiguous, or not in main memory.
    pub fn new(variables: impl IntoIterator<Item = (String, Var)>) -> Result<Self, TensorError> {
        let mut list: Vec<_> = variables.into_iter().collect();
        list.sort_by(|(one, _), (other, _)| one.cmp(other));
        if let Some(pair) = list.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(refused(
                &pair[0].0,
                "two variables share this name: give each its own",
            ));
        }
        for (name, variable) in &list {
            check(name, variable)?;
        }
        let watch = Watch {
            steps: 0,
            without: (0..list.len()).collect(),
        };
        let watch = Arc::new(Mutex::new(watch));
        Ok(Self { list, watch })
    }

    /// The names of the variables that have had no gradient in the first steps, as far as
    /// [`crate::CandleGradients`] has seen: the loss does not depend on them. They are named in a
    /// warning once.
    #[must_use]
    pub fn without_gradient(&self) -> Vec<&str> {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let names = watch
            .without
            .iter()
            .filter_map(|place| self.list.get(*place));
        names.map(|(name, _)| name.as_str()).collect()
    }

    /// Takes note of a step's gradients, and warns at the last step that is watched.
    pub(crate) fn watch(&self, store: &GradStore) {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.steps == STEPS_UNTIL_TOLD || watch.without.is_empty() {
            return;
        }
        watch.steps += 1;
        let missing = |place: &usize| {
            let variable = self.list.get(*place);
            variable.is_some_and(|(_, variable)| store.get(variable).is_none())
        };
        watch.without.retain(missing);
        let ends = watch.steps == STEPS_UNTIL_TOLD && !watch.without.is_empty();
        drop(watch);
        if ends {
            tracing::warn!(
                variables = ?self.without_gradient(),
                "the loss does not depend on these variables: in {STEPS_UNTIL_TOLD} steps they had no gradient, which counts as zeros; connect them to the loss, or lend only what is trained"
            );
        }
    }

    /// The names and variables, ascending by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.list
            .iter()
            .map(|(name, variable)| (name.as_str(), variable))
    }

    /// The variables alone, ascending by name, as candle's optimizers take them.
    #[must_use]
    pub fn to_vars(&self) -> Vec<Var> {
        self.list
            .iter()
            .map(|(_, variable)| variable.clone())
            .collect()
    }
}

impl Tensors for CandleVariables {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        self.list
            .iter()
            .try_for_each(|(name, variable)| read(name, variable, visit))
    }

    fn elements(&self) -> Result<usize, TensorError> {
        let counts = self.list.iter().map(|(_, variable)| variable.elem_count());
        Ok(counts.sum())
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        self.list
            .iter()
            .try_for_each(|(name, variable)| write(name, variable, visit))
    }

    fn shapes(&self) -> Result<Vec<(String, Vec<usize>)>, TensorError> {
        Ok(self
            .list
            .iter()
            .map(|(name, variable)| (name.clone(), variable.dims().to_vec()))
            .collect())
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self) -> Option<&dyn slowmo::internal::OnGpu> {
        self.list
            .iter()
            .all(|(_, variable)| variable.device().is_cuda())
            .then_some(self as _)
    }
}
