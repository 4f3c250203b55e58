//! Ways for training code to pass its values, beyond the plain slices and lists that [`Tensors`]
//! already covers.
//!
//! | file | holds |
//! |---|---|
//! | [`flat`] | freeze, restore, digest: between tensors and one flat vector |
//! | `named` | a list of tensors with names of their own |
//! | `threads` | passes over many values, on a few threads |
//! | `candle` | candle variables and gradients (feature `candle`) |

#[cfg(feature = "candle")]
mod candle;
pub mod flat;
mod named;
pub(crate) mod threads;

#[cfg(feature = "candle")]
pub use candle::{CandleGradients, CandleVariables};
pub use named::NamedTensors;
pub use slowmo_actors::ports::device::{FreezeError, TensorError, Tensors};

pub use flat::{digest, elements, freeze, zero};
