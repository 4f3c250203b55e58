//! Ways for training code to pass its values, beyond the plain slices and lists that [`Tensors`]
//! already covers.
//!
//! | file | holds |
//! |---|---|
//! | [`flat`] | freeze, restore, digest: between tensors and one flat vector |
//! | `named` | a list of tensors with names of their own |
//! | `counter` | an optimizer's step counter, as values that travel |
//! | `threads` | passes over many values, on a few threads |

mod counter;
pub mod flat;
mod named;
pub(crate) mod threads;

pub use counter::Counter;
pub use named::NamedTensors;
pub use slowmo_actors::ports::device::{
    FreezeError, Half, TensorError, Tensors, Values, ValuesMut, Written, read_widened,
    write_rounded,
};

pub use flat::{digest, elements, freeze, zero};
