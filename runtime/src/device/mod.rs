//! Devices: where the workers of this node meet. Main memory only; GPUs follow behind a feature.

pub mod cpu;
