//! Devices: they hold the workers' copies of the model and connect the workers of a node: main
//! memory, or GPUs with the feature `cuda` (package `slowmo-cuda`), through the same ports.

pub mod cpu;
pub mod host;
mod mixing;
mod open;
mod pages;

pub use open::DeviceError;
pub(crate) use open::{Devices, open};
pub(crate) use pages::release_spares;
