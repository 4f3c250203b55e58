//! Devices: where the workers' copies of the model live, and how the workers of a node meet: main
//! memory, or GPUs behind the feature `cuda` (package `slowmo-cuda`), through the same ports.

pub mod cpu;
pub mod host;
mod mixing;
mod open;

pub use open::DeviceError;
pub(crate) use open::{Devices, open};
