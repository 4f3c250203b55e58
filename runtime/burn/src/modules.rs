//! A worker's calls that take a module.

use crate::{ModuleGradients, OptimizerState, StagedModule};
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use slowmo::{
    Buffers, GradientError, StepError, StepReport, SynchronizeError, Synchronized, Tensors, Worker,
};

/// Calls of a [`Worker`] that take a module of burn: the same as those without `module` in their
/// names, with the module's running statistics as [`Buffers::model`].
///
/// ```no_run
/// use burn::module::Module;
/// use burn::optim::{GradientsParams, ModuleOptimizer};
/// use burn::tensor::Tensor;
/// use slowmo::{Config, Runtime};
/// use slowmo_burn::Modules;
///
/// fn train<M: Module + Sync>(
///     mut module: M,
///     mut optimizer: ModuleOptimizer,
///     loss: impl Fn(&M) -> Tensor<1>,
/// ) -> Result<M, Box<dyn std::error::Error>> {
///     let runtime = Runtime::builder().config(Config::load()?).spawn()?;
///     let mut worker = runtime.worker(0)?;
///     let mut step = worker.synchronize_module(&mut module)?.step;
///     while worker.is_running() && step < 10_000 {
///         let mut gradients = GradientsParams::from_grads(loss(&module).backward(), &module);
///         worker.average_module_gradients(&module, &mut gradients)?;
///         module = optimizer.step(0.01, module, gradients);
///         step = worker.step_module(&mut module, 0.01)?.step + 1;
///     }
///     worker.leave()?;
///     Ok(module)
/// }
/// ```
pub trait Modules {
    /// As [`Worker::synchronize`]: afterwards all nodes have the same module.
    ///
    /// # Errors
    /// As for [`Worker::synchronize`]; a tensor that is not float32, a module of which nothing
    /// requires a gradient. The module is unchanged.
    fn synchronize_module<M: Module>(
        &mut self,
        module: &mut M,
    ) -> Result<Synchronized, SynchronizeError>;

    /// The same with the optimizer's state ([`OptimizerState`]): a node that joins gets a member's
    /// (key `joiner_buffers`), one that resumes the checkpoint's.
    ///
    /// # Errors
    /// As for [`Modules::synchronize_module`]; a state that cannot be lent.
    fn synchronize_module_with<M: Module>(
        &mut self,
        module: &mut M,
        optimizer: &mut ModuleOptimizer,
    ) -> Result<Synchronized, SynchronizeError>;

    /// As [`Worker::average_gradients`]. A parameter without a gradient counts as zeros. Copies
    /// nothing where nothing is to be averaged.
    ///
    /// # Errors
    /// As for [`Worker::average_gradients`].
    fn average_module_gradients<M: Module + Sync>(
        &mut self,
        module: &M,
        gradients: &mut GradientsParams,
    ) -> Result<(), GradientError>;

    /// As [`Worker::step`]. Copies nothing where nothing is due.
    ///
    /// # Errors
    /// As for [`Worker::step`]; the module is unchanged where the error says nothing else.
    fn step_module<M: Module>(
        &mut self,
        module: &mut M,
        learning_rate: f64,
    ) -> Result<StepReport, StepError>;

    /// The same with the optimizer's state, after [`Modules::synchronize_module_with`].
    ///
    /// # Errors
    /// As for [`Modules::step_module`]; a state that cannot be lent.
    fn step_module_with<M: Module>(
        &mut self,
        module: &mut M,
        optimizer: &mut ModuleOptimizer,
        learning_rate: f64,
    ) -> Result<StepReport, StepError>;
}

impl Modules for Worker {
    fn synchronize_module<M: Module>(
        &mut self,
        module: &mut M,
    ) -> Result<Synchronized, SynchronizeError> {
        synchronize(self, module, &mut ())
    }

    fn synchronize_module_with<M: Module>(
        &mut self,
        module: &mut M,
        optimizer: &mut ModuleOptimizer,
    ) -> Result<Synchronized, SynchronizeError> {
        let mut state = OptimizerState::of(optimizer, module);
        synchronize(self, module, &mut state)
    }

    fn average_module_gradients<M: Module + Sync>(
        &mut self,
        module: &M,
        gradients: &mut GradientsParams,
    ) -> Result<(), GradientError> {
        self.average_gradients(&mut ModuleGradients::new(module, gradients))
    }

    fn step_module<M: Module>(
        &mut self,
        module: &mut M,
        learning_rate: f64,
    ) -> Result<StepReport, StepError> {
        if !self.is_due() {
            return self.step_alone(learning_rate as f32);
        }
        step(self, module, &mut (), learning_rate)
    }

    fn step_module_with<M: Module>(
        &mut self,
        module: &mut M,
        optimizer: &mut ModuleOptimizer,
        learning_rate: f64,
    ) -> Result<StepReport, StepError> {
        if !self.is_due() {
            return self.step_alone(learning_rate as f32);
        }
        let mut state = OptimizerState::of(optimizer, module);
        step(self, module, &mut state, learning_rate)
    }
}

fn synchronize<M: Module>(
    worker: &mut Worker,
    module: &mut M,
    optimizer: &mut (dyn Tensors + Send),
) -> Result<Synchronized, SynchronizeError> {
    let mut staged = StagedModule::of(module);
    let buffers = Buffers {
        optimizer,
        model: &mut staged.buffers,
    };
    let synchronized = worker.synchronize_with(&mut staged.parameters, buffers);
    staged.load(module);
    synchronized
}

fn step<M: Module>(
    worker: &mut Worker,
    module: &mut M,
    optimizer: &mut (dyn Tensors + Send),
    learning_rate: f64,
) -> Result<StepReport, StepError> {
    let mut staged = StagedModule::of(module);
    let buffers = Buffers {
        optimizer,
        model: &mut staged.buffers,
    };
    let report = worker.step_with(&mut staged.parameters, buffers, learning_rate as f32);
    staged.load(module);
    report
}
