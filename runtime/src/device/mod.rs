//! Devices: where the workers' copies of the model live, and how the workers of a node meet. Main memory only; GPUs follow
//! behind a feature, through the same ports.

pub mod cpu;
pub mod host;
mod mixing;
