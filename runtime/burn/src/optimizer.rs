//! The state of burn's optimizers as buffers that travel.

use crate::path::Path;
use crate::refused;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::tensor::{DType, Tensor, TensorData};
use burn_pack::{Reader, Scalar, Writer};
use slowmo::{Counter, TensorError, Tensors};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The end of the key under which a record keeps the number of dimensions of a parameter.
const RANK: &str = ".__rank";

/// The state of a module's optimizer (momentum, Adam's moments and their count), lent as
/// [`slowmo::Buffers::optimizer`]: it then travels to nodes that join and into checkpoints. State
/// that the optimizer has not made yet is made as zeros, because what travels has the same size at
/// every call. With SGD's dampening the first step then counts as a later one.
///
/// [`crate::Modules::step_module_with`] lends it. It is burn's record of the optimizer, copied out
/// and loaded back at each exchange: for that time there are several copies of the state in
/// memory. Optimizers whose state grows (L-BFGS), or holds fractions beside tensors, are refused.
pub struct OptimizerState<'a> {
    optimizer: &'a mut ModuleOptimizer,
    staged: Result<Record, TensorError>,
}

/// A record of burn's, taken apart.
#[derive(Debug, Default)]
struct Record {
    list: Vec<Entry>,
    /// Entries that describe the module and do not travel.
    ranks: BTreeMap<String, Scalar>,
    paths: BTreeMap<String, String>,
}

/// One tensor or count of a parameter's state.
#[derive(Debug)]
struct Entry {
    /// The name that others have for it too: that of the parameter, and the record's own.
    name: String,
    /// The name in the record, which begins with the parameter's id.
    key: String,
    /// The parameter's place in the module.
    place: usize,
    id: u64,
    value: Value,
}

#[derive(Debug)]
enum Value {
    Tensor { values: Vec<f32>, shape: Vec<usize> },
    Count(Counter),
}

impl<'a> OptimizerState<'a> {
    /// Copies the state of a module's optimizer. What cannot be lent is refused when it is, by
    /// name.
    #[must_use]
    pub fn of<M: Module>(optimizer: &'a mut ModuleOptimizer, module: &M) -> Self {
        let mut trained = Trained::default();
        module.visit(&mut trained);
        let staged = complete(optimizer, module, &trained);
        Self { optimizer, staged }
    }

    fn staged(&self) -> Result<&Record, TensorError> {
        self.staged.as_ref().map_err(Clone::clone)
    }
}

/// Without the optimizer, which burn does not show.
impl fmt::Debug for OptimizerState<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptimizerState")
            .field("staged", &self.staged)
            .finish_non_exhaustive()
    }
}

impl Tensors for OptimizerState<'_> {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        self.staged()?.list.iter().try_for_each(|entry| {
            match &entry.value {
                Value::Tensor { values, .. } => visit(&entry.name, values),
                Value::Count(count) => count.read(&mut |_, digits| visit(&entry.name, digits))?,
            }
            Ok(())
        })
    }

    /// Loads the values into the optimizer too.
    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        let staged = self.staged.as_mut().map_err(|error| error.clone())?;
        for entry in &mut staged.list {
            match &mut entry.value {
                Value::Tensor { values, .. } => visit(&entry.name, values),
                Value::Count(count) => count.write(&mut |_, digits| visit(&entry.name, digits))?,
            }
        }
        staged.load(self.optimizer)
    }

    fn elements(&self) -> Result<usize, TensorError> {
        let counts = self.staged()?.list.iter().map(|entry| match &entry.value {
            Value::Tensor { values, .. } => Ok(values.len()),
            Value::Count(count) => count.elements(),
        });
        counts.sum()
    }
}

/// The optimizer's record, with zeros for the parameters of which it has none.
fn complete<M: Module>(
    optimizer: &mut ModuleOptimizer,
    module: &M,
    trained: &Trained,
) -> Result<Record, TensorError> {
    let record = Record::of(optimizer, trained)?;
    let known = record.ids();
    let is_lacking = |id: &u64| !known.contains(id);
    let lacking: BTreeSet<u64> = trained.places.keys().copied().filter(is_lacking).collect();
    if lacking.is_empty() {
        return Ok(record);
    }
    let mut zeros = Zeros {
        of: &lacking,
        gradients: GradientsParams::new(),
    };
    module.visit(&mut zeros);
    // A step at rate 0 makes the state; the module that it returns is the same.
    let _ = optimizer.step(0.0, module.clone(), zeros.gradients);
    let mut record = Record::of(optimizer, trained)?;
    let made = record.list.iter_mut();
    made.filter(|entry| lacking.contains(&entry.id))
        .for_each(|entry| entry.value.reset());
    record.load(optimizer)?;
    Ok(record)
}

impl Value {
    fn reset(&mut self) {
        match self {
            Self::Tensor { values, .. } => values.fill(0.0),
            Self::Count(count) => *count = Counter::default(),
        }
    }
}

impl Record {
    fn of(optimizer: &ModuleOptimizer, trained: &Trained) -> Result<Self, TensorError> {
        let unreadable = |error: &dyn ToString| refused("of the optimizer", error.to_string());
        let bytes = optimizer.into_bytes().map_err(|error| unreadable(&error))?;
        let reader = Reader::from_bytes(bytes).map_err(|error| unreadable(&error))?;
        let mut record = Self {
            paths: reader.metadata().clone(),
            ..Self::default()
        };
        for (key, scalar) in reader.scalars().clone() {
            if key.ends_with(RANK) {
                record.ranks.insert(key, scalar);
                continue;
            }
            let Ok(count) = u64::try_from(scalar) else {
                return Err(refused(
                    &key,
                    "this number of the optimizer's state is no count, and only counts travel \
                     beside tensors: lend other state, or none (Modules::step_module)",
                ));
            };
            let value = Value::Count(Counter::new(count));
            record.list.extend(trained.entry(key, value));
        }
        let tensors = reader.into_tensors().map_err(|error| unreadable(&error))?;
        for tensor in tensors {
            let parts = tensor.into_parts().map_err(|error| unreadable(&error))?;
            let (key, kind, shape, _, bytes) = parts;
            if kind != DType::F32 {
                return Err(TensorError::NotFloat32 {
                    name: key,
                    found: format!("{kind:?}").to_lowercase(),
                });
            }
            let data = TensorData::from_bytes(bytes, shape.clone(), kind);
            let values = data.try_into_vec().map_err(|error| unreadable(&error))?;
            let shape = shape.to_vec();
            record
                .list
                .extend(trained.entry(key, Value::Tensor { values, shape }));
        }
        record
            .list
            .sort_by(|one, other| (one.place, &one.name).cmp(&(other.place, &other.name)));
        Ok(record)
    }

    /// The parameters of which it has a state.
    fn ids(&self) -> BTreeSet<u64> {
        self.ranks.keys().filter_map(|key| id_of(key)).collect()
    }

    fn load(&self, optimizer: &mut ModuleOptimizer) -> Result<(), TensorError> {
        let mut tensors = Vec::new();
        let mut scalars = self.ranks.clone();
        for entry in &self.list {
            let key = entry.key.clone();
            match &entry.value {
                Value::Tensor { values, shape } => {
                    let data = TensorData::new(values.clone(), shape.clone());
                    let (bytes, shape, kind) = data.into_parts();
                    let id = Some(entry.id);
                    tensors.push(burn_pack::Tensor::new(key, kind, shape, id, bytes));
                }
                Value::Count(count) => {
                    scalars.insert(key, count.get().into());
                }
            }
        }
        let mut writer = Writer::new(tensors);
        for (key, scalar) in scalars {
            writer = writer.with_scalar(&key, scalar);
        }
        for (key, path) in &self.paths {
            writer = writer.with_metadata(key, path);
        }
        let unwritable = |error: &dyn ToString| refused("of the optimizer", error.to_string());
        let bytes = writer.into_bytes().map_err(|error| unwritable(&error))?;
        let record = OptimizerRecord::from_bytes(bytes).map_err(|error| unwritable(&error))?;
        *optimizer = optimizer.clone().load_record(record);
        Ok(())
    }
}

/// The parameter of a key: burn writes its id before the first dot.
fn id_of(key: &str) -> Option<u64> {
    key.split('.').next().and_then(|id| id.parse().ok())
}

/// The parameters that are trained: place and name of each, by id. Ids differ from node to node.
#[derive(Default)]
struct Trained {
    path: Path,
    places: BTreeMap<u64, (usize, String)>,
}

impl Trained {
    /// Returns the record's entry of this key; `None` if it is of no parameter of the module.
    fn entry(&self, key: String, value: Value) -> Option<Entry> {
        let id = id_of(&key)?;
        let (place, name) = self.places.get(&id)?;
        let (_, field) = key.split_once('.')?;
        Some(Entry {
            name: format!("{name}.{field}"),
            place: *place,
            id,
            value,
            key,
        })
    }
}

impl ModuleVisitor for Trained {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            let place = self.places.len();
            self.places
                .insert(param.id.val(), (place, self.path.name()));
        }
    }
}

/// Makes gradients of zeros.
struct Zeros<'a> {
    of: &'a BTreeSet<u64>,
    gradients: GradientsParams,
}

impl ModuleVisitor for Zeros<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() && self.of.contains(&param.id.val()) {
            let device = param.device().without_autodiff();
            let zeros = Tensor::<D>::zeros(param.dims(), (&device, DType::F32));
            self.gradients.register(param.id, zeros);
        }
    }
}
