//! The variables of a candle model.

use crate::model::{is_buffer_name, listed};
use crate::{check, lend, lend_mut, refused};
use candle_core::Var;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use slowmo::{TensorError, Tensors, Values, ValuesMut, read_widened, write_rounded};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Steps after which a variable that has had no gradient yet is named. Parts of a model that are
/// trained only sometimes have had one by then, and a first trial is rarely shorter.
const STEPS_UNTIL_TOLD: u32 = 10;

/// Variables ordered by name, so that all nodes agree on the flat order. They share their storage
/// with the model: the model sees what is written here. Each may be float32, bfloat16 or float16
/// ([`slowmo::Half`]); on a GPU all are float32.
///
/// Lent as parameters, they are averaged, gossiped, and moved by the slow momentum. A running
/// statistic must not be: [`crate::CandleModel`] tells them apart. A variable of a list of
/// parameters that changes although the loss gives it no gradient is refused when it is lent
/// ([`CandleVariables::unwatched`] turns that off).
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
    part: Part,
}

/// The part of a model that a list of variables is.
#[derive(Clone, Debug)]
enum Part {
    /// None: the list was not split from a model.
    Whole,
    /// The buffers; the flag is set once they were lent.
    Buffers(Arc<AtomicBool>),
    /// The parameters. The flag is that of the model's buffers, the name that of the first buffer.
    Parameters {
        lent: Arc<AtomicBool>,
        first: String,
    },
}

/// Which variables have had a gradient.
#[derive(Debug)]
struct Watch {
    watcher: Option<Watcher>,
    /// Steps whose gradients were seen.
    steps: u32,
    /// The variables that have had no gradient, by their place in the list.
    without: BTreeMap<usize, Untrained>,
}

/// The part of the program that sees the gradients of each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watcher {
    /// [`crate::CandleGradients`], before the optimizer.
    Gradients,
    /// An optimizer of this package.
    Optimizer,
}

/// The state of a variable that has had no gradient.
#[derive(Clone, Debug, PartialEq)]
enum Untrained {
    /// Nothing was written to it yet.
    Unknown,
    /// Hash of the values that slowmo wrote last.
    Written(u64),
    /// It was given a gradient of zeros, after which an optimizer may change it.
    GivenZeros,
}

impl CandleVariables {
    /// Takes all variables of a map, which must hold parameters alone. A map with batch-norm layers
    /// is for [`crate::CandleModel::from_var_map`].
    ///
    /// # Errors
    /// The name of a variable is that of a buffer ([`crate::is_buffer_name`]), or one is not
    /// float32, bfloat16 or float16, not contiguous, or not in main memory.
    pub fn from_var_map(map: &VarMap) -> Result<Self, TensorError> {
        let list = listed(map);
        if let Some((name, _)) = list.iter().find(|(name, _)| is_buffer_name(name)) {
            return Err(refused(
                name,
                "it is a buffer, which slow momentum would drive away from what was measured, a \
                 variance below zero: take parameters and buffers apart with \
                 CandleModel::from_var_map, and lend the buffers as Buffers::model",
            ));
        }
        Self::new(list)
    }

    /// Takes variables with their names, in any order.
    ///
    /// # Errors
    /// Two variables share a name, or one is not float32, bfloat16 or float16, not contiguous, or
    /// not in main memory.
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
        let without = (0..list.len()).map(|place| (place, Untrained::Unknown));
        let watch = Watch {
            watcher: None,
            steps: 0,
            without: without.collect(),
        };
        let watch = Arc::new(Mutex::new(watch));
        Ok(Self {
            list,
            watch,
            part: Part::Whole,
        })
    }

    /// Makes these a model's parameters beside its buffers: a warning says if they are lent without
    /// them.
    pub(crate) fn beside(&mut self, buffers: &mut Self) {
        let Some((first, _)) = buffers.list.first() else {
            return;
        };
        let lent = Arc::new(AtomicBool::new(false));
        let first = first.clone();
        buffers.part = Part::Buffers(Arc::clone(&lent));
        self.part = Part::Parameters { lent, first };
    }

    /// Warns once if the model's buffers were not lent before these parameters were described, as
    /// `synchronize_with` does it.
    fn warn_of_buffers(&self) {
        let Part::Parameters { lent, first } = &self.part else {
            return;
        };
        if !lent.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                first,
                "the model's buffers are not lent: each node keeps its own, and nodes that join \
                 and checkpoints have none; lend CandleModel::buffers as Buffers::model"
            );
        }
    }

    /// Takes these variables, and clones of them, as they are: whatever changes without a gradient
    /// is lent, and no variable without a gradient is named.
    #[must_use]
    pub fn unwatched(self) -> Self {
        self.lock().without.clear();
        self
    }

    /// The names of the variables that have had no gradient so far, as far as
    /// [`crate::CandleGradients`] and this package's optimizers have seen: the loss does not depend
    /// on them. They are named in a warning once.
    #[must_use]
    pub fn without_gradient(&self) -> Vec<&str> {
        let watch = self.lock();
        let places = watch.without.keys();
        let names = places.filter_map(|place| self.list.get(*place));
        names.map(|(name, _)| name.as_str()).collect()
    }

    /// Takes note of a step's gradients, and warns after the first steps. Whoever sees them first
    /// counts the steps: an optimizer may see zeros that stand for no gradient.
    pub(crate) fn watch(&self, store: &GradStore, watcher: Watcher) {
        let mut watch = self.lock();
        if watch.without.is_empty() || *watch.watcher.get_or_insert(watcher) != watcher {
            return;
        }
        watch.steps = watch.steps.saturating_add(1);
        watch.without.retain(|place, _| {
            let variable = self.list.get(*place);
            variable.is_some_and(|(_, variable)| store.get(variable).is_none())
        });
        let tells = watch.steps == STEPS_UNTIL_TOLD && !watch.without.is_empty();
        drop(watch);
        if tells {
            tracing::warn!(
                variables = ?self.without_gradient(),
                "the loss does not depend on these variables: in {STEPS_UNTIL_TOLD} steps they had \
                 no gradient, which counts as zeros; connect them to the loss, or lend only what \
                 is trained (buffers as Buffers::model)"
            );
        }
    }

    /// Takes note that a variable was given a gradient of zeros.
    pub(crate) fn given_zeros(&self, place: usize) {
        if let Some(known) = self.lock().without.get_mut(&place) {
            *known = Untrained::GivenZeros;
        }
    }

    /// Takes note of the values that slowmo wrote to a variable.
    fn written(&self, place: usize, variable: &Var) -> Result<(), TensorError> {
        match self.lock().without.get_mut(&place) {
            None | Some(Untrained::GivenZeros) => Ok(()),
            Some(known) => lend("", variable, &mut |_, values| {
                *known = Untrained::Written(hash(values));
            }),
        }
    }

    /// Refuses a variable that has changed since slowmo wrote it, although the loss gave it no
    /// gradient: a statistic, for which slow momentum and push-sum weights have no meaning.
    fn check_trained(
        &self,
        place: usize,
        name: &str,
        values: Values<'_>,
    ) -> Result<(), TensorError> {
        let watch = self.lock();
        if watch.steps == 0 {
            return Ok(());
        }
        let Some(Untrained::Written(before)) = watch.without.get(&place) else {
            return Ok(());
        };
        if *before == hash(values) {
            return Ok(());
        }
        Err(refused(
            name,
            "it changes although the loss gives it no gradient, so it is a buffer, which slow \
             momentum would drive away from what was measured: name it in CandleModel::split and \
             lend it as Buffers::model (or lend it as it is, with CandleVariables::unwatched)",
        ))
    }

    fn lock(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A hash of a variable's bits.
fn hash(values: Values<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(values.bytes());
    hasher.finish()
}

impl Tensors for CandleVariables {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        read_widened(self, visit)
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        write_rounded(self, visit)
    }

    fn lend(&self, visit: &mut dyn FnMut(&str, Values<'_>)) -> Result<(), TensorError> {
        let mut list = self.list.iter().enumerate();
        list.try_for_each(|(place, (name, variable))| {
            let mut checked = Ok(());
            lend(name, variable, &mut |name, values| {
                checked = self.check_trained(place, name, values);
                if checked.is_ok() {
                    visit(name, values);
                }
            })?;
            checked
        })
    }

    fn lend_mut(&mut self, visit: &mut dyn FnMut(&str, ValuesMut<'_>)) -> Result<(), TensorError> {
        let mut list = self.list.iter().enumerate();
        list.try_for_each(|(place, (name, variable))| {
            lend_mut(name, variable, visit)?;
            self.written(place, variable)
        })
    }

    fn elements(&self) -> Result<usize, TensorError> {
        if let Part::Buffers(lent) = &self.part {
            lent.store(true, Ordering::Relaxed);
        }
        let counts = self.list.iter().map(|(_, variable)| variable.elem_count());
        Ok(counts.sum())
    }

    fn shapes(&self) -> Result<Vec<(String, Vec<usize>)>, TensorError> {
        self.warn_of_buffers();
        Ok(self
            .list
            .iter()
            .map(|(name, variable)| (name.clone(), variable.dims().to_vec()))
            .collect())
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self) -> Option<&dyn slowmo::internal::OnGpu> {
        // Nothing lies on no GPU.
        let mut list = self.list.iter();
        let all = list.all(|(_, variable)| variable.device().is_cuda());
        (all && !self.list.is_empty()).then_some(self as _)
    }
}
