//! Exceptions: one class per error type of the runtime, with the same sentences. Each instance has
//! `kind`, the name of the error's variant, for programs that tell errors apart.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::fmt::{Debug, Display};

create_exception!(
    slowmo,
    SlowmoError,
    PyException,
    "Base of slowmo's exceptions. `kind` names the reason, the text says what to do."
);
create_exception!(
    slowmo,
    ConfigError,
    SlowmoError,
    "A setting was refused. Nothing was started."
);
create_exception!(
    slowmo,
    SpawnError,
    SlowmoError,
    "The node did not start. Nothing runs and nothing listens."
);
create_exception!(
    slowmo,
    WorkerError,
    SlowmoError,
    "A worker's handle refused a request or cannot be obtained."
);
create_exception!(
    slowmo,
    SynchronizeError,
    SlowmoError,
    "`synchronize` failed. The tensors are unchanged, unless the text says otherwise."
);
create_exception!(
    slowmo,
    StepError,
    SlowmoError,
    "`step` failed. The step counter did not move; the tensors are unchanged, unless the text says \
     otherwise."
);
create_exception!(
    slowmo,
    GradientError,
    SlowmoError,
    "`average_gradients` failed. The gradients are unchanged, or hold the node's mean."
);
create_exception!(
    slowmo,
    TensorError,
    SlowmoError,
    "A tensor cannot be lent. Nothing was read, written or sent."
);
create_exception!(
    slowmo,
    CheckpointError,
    SlowmoError,
    "A checkpoint cannot be read or written."
);
create_exception!(
    slowmo,
    SamplerError,
    SlowmoError,
    "A sampler's settings were refused."
);
create_exception!(
    slowmo,
    ProcessError,
    SlowmoError,
    "The runtime cannot be used in this process, or not now: a fork, a second runtime, two threads."
);

/// Makes an exception of class `E` with the text of an error and the name of its variant.
pub fn exception<E, Error>(error: &Error) -> PyErr
where
    E: pyo3::PyTypeInfo,
    Error: Debug + Display,
{
    let kind = variant(error);
    let made = PyErr::new::<E, _>(error.to_string());
    Python::attach(|py| {
        // An exception takes any attribute.
        _ = made.value(py).setattr("kind", kind);
    });
    made
}

/// The name of an enum's variant, which is the first word of its debug text.
fn variant(error: &impl Debug) -> String {
    let text = format!("{error:?}");
    let end = text.find(|letter: char| !letter.is_alphanumeric());
    text[..end.unwrap_or(text.len())].to_owned()
}

/// Translates one error type of the runtime.
macro_rules! translated {
    ($($function:ident: $error:ty => $class:ty,)*) => {
        $(
            #[doc = concat!("Makes a `", stringify!($class), "`.")]
            pub fn $function(error: $error) -> PyErr {
                exception::<$class, _>(&error)
            }
        )*
    };
}

translated! {
    tensor: slowmo::TensorError => TensorError,
    config: slowmo::ConfigError => ConfigError,
    worker: slowmo::WorkerError => WorkerError,
    synchronize: slowmo::SynchronizeError => SynchronizeError,
    step: slowmo::StepError => StepError,
    gradient: slowmo::GradientError => GradientError,
    checkpoint: slowmo::CheckpointError => CheckpointError,
    sampler: slowmo::SamplerError => SamplerError,
    process: crate::process::Refused => ProcessError,
}

/// Makes a `SpawnError`, or a `ConfigError` if the configuration was the reason.
pub fn spawn(error: slowmo::SpawnError) -> PyErr {
    match error {
        slowmo::SpawnError::Config(error) => config(error),
        error => exception::<SpawnError, _>(&error),
    }
}
