//! A module's values in main memory, from before an exchange until after it.

use crate::path::Path;
use crate::{refused, tensor, values};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;
use slowmo::{TensorError, Tensors};

/// A module as slowmo takes it: parameters, which the optimizer trains, and buffers, which the
/// forward pass keeps up to date (batch norm's running mean and variance).
///
/// Burn shows both to a visitor; only parameters require a gradient. Frozen parameters
/// (`no_grad`) are lent with the buffers, which are averaged exactly and not moved otherwise. The
/// module must be in training mode: otherwise nothing requires a gradient, and lending it is
/// refused.
///
/// [`crate::Modules`] does all of this in one call. With buffers of an optimizer of your own:
///
/// ```no_run
/// use burn::module::Module;
/// use slowmo::{Buffers, StepError, StepReport, Worker};
/// use slowmo_burn::StagedModule;
///
/// fn step<M: Module>(
///     worker: &mut Worker,
///     module: &mut M,
///     momentum: &mut Vec<f32>,
///     rate: f32,
/// ) -> Result<StepReport, StepError> {
///     if !worker.is_due() {
///         return worker.step_alone(rate);
///     }
///     let mut staged = StagedModule::of(module);
///     let buffers = Buffers { optimizer: momentum, model: &mut staged.buffers };
///     let report = worker.step_with(&mut staged.parameters, buffers, rate);
///     staged.load(module);
///     report
/// }
/// ```
#[derive(Debug)]
pub struct StagedModule {
    /// The tensors that the optimizer trains: lend them as the parameters.
    pub parameters: Staged,
    /// The tensors that the forward pass keeps up to date: lend them as [`slowmo::Buffers::model`].
    pub buffers: Staged,
}

/// Copies of tensors, in the order in which the module shows them.
#[derive(Debug, Default)]
pub struct Staged {
    list: Vec<StagedTensor>,
    /// The reason why these tensors cannot be lent; told to whoever reads them.
    refused: Option<TensorError>,
}

#[derive(Debug)]
struct StagedTensor {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl StagedModule {
    /// Copies a module's values. Tensors that cannot be lent (not float32, not readable, none that
    /// requires a gradient) are refused when they are, by name.
    #[must_use]
    pub fn of<M: Module>(module: &M) -> Self {
        // A running statistic's last update waits in the module for the next forward pass, which
        // would replace what is loaded: this makes it the statistic's value.
        let _ = module.valid();
        let mut stage = Stage::default();
        module.visit(&mut stage);
        let Stage {
            mut parameters,
            buffers,
            ..
        } = stage;
        if parameters.list.is_empty() {
            parameters.refuse(refused(
                "of the module",
                "none requires a gradient: lend a module in training mode (Module::train), whose \
                 parameters are on a device with autodiff (Device::autodiff)",
            ));
        }
        Self {
            parameters,
            buffers,
        }
    }

    /// Loads the values into the module from which they were copied, also after an error: the
    /// module is then as the error says. Parameters keep their ids, and with them the optimizer's
    /// state. What was refused is not loaded.
    pub fn load<M: Module>(self, module: &mut M) {
        let lent = self.parameters.checked().and(self.buffers.checked());
        if lent.is_err() {
            return;
        }
        let mut load = Load {
            parameters: self.parameters.list.into_iter(),
            buffers: self.buffers.list.into_iter(),
        };
        // A clone is shallow: the module's own tensors are freed when it is replaced.
        *module = module.clone().map(&mut load);
    }
}

impl Staged {
    fn refuse(&mut self, error: TensorError) {
        self.refused.get_or_insert(error);
    }

    fn checked(&self) -> Result<(), TensorError> {
        self.refused.clone().map_or(Ok(()), Err)
    }
}

impl Tensors for Staged {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        self.checked()?;
        self.list
            .iter()
            .for_each(|one| visit(&one.name, &one.values));
        Ok(())
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        self.checked()?;
        self.list
            .iter_mut()
            .for_each(|one| visit(&one.name, &mut one.values));
        Ok(())
    }

    fn elements(&self) -> Result<usize, TensorError> {
        self.checked()?;
        Ok(self.list.iter().map(|one| one.values.len()).sum())
    }

    fn shapes(&self) -> Result<Vec<(String, Vec<usize>)>, TensorError> {
        self.checked()?;
        let shape = |one: &StagedTensor| (one.name.clone(), one.shape.clone());
        Ok(self.list.iter().map(shape).collect())
    }
}

/// Copies values out of a module.
#[derive(Default)]
struct Stage {
    path: Path,
    parameters: Staged,
    buffers: Staged,
}

impl ModuleVisitor for Stage {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.base();
        let into = if tensor.is_require_grad() {
            &mut self.parameters
        } else {
            &mut self.buffers
        };
        let name = self.path.name();
        let shape = tensor.dims().to_vec();
        match values(&name, tensor) {
            Ok(values) => into.list.push(StagedTensor {
                name,
                shape,
                values,
            }),
            Err(error) => into.refuse(error),
        }
    }
}

/// Moves values into a module.
struct Load {
    parameters: std::vec::IntoIter<StagedTensor>,
    buffers: std::vec::IntoIter<StagedTensor>,
}

impl ModuleMapper for Load {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|old| {
            let is_parameter = old.is_require_grad();
            let from = if is_parameter {
                &mut self.parameters
            } else {
                &mut self.buffers
            };
            match from.next() {
                Some(one) if one.shape == old.dims() => {
                    tensor(one.values, old.dims(), &old.device()).set_require_grad(is_parameter)
                }
                // Of another module.
                _ => old,
            }
        })
    }
}
