//! Training the handwritten digits on any number of nodes: data, shards, model, optimizer and the
//! training loop.

mod data;
mod events;
mod halves;
mod model;
mod parameters;
mod sgd;
mod shards;
mod source;
mod train;

pub use data::{Batch, CLASSES, DataError, Dataset, PIXELS};
pub use events::{EpochSamples, Event, Summary};
pub use halves::{HalfParameters, ParameterType};
pub use model::{Evaluation, Mlp};
pub use parameters::{Parameter, Parameters};
pub use sgd::NesterovSgd;
pub use shards::{Batches, Shards, deal};
pub use source::SourceError;
pub use train::{MOMENTUM, Options, TrainError, Trained, train, train_keeping_model};
