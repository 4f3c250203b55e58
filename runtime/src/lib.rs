//! What a training binary imports: spawn the runtime, synchronize, average gradients, step, leave.
//!
//! This crate wires the actors to real parts: QUIC, CPU devices, configuration, discovery.
#![deny(missing_docs)]

mod api;
pub mod config;
pub mod discovery;
pub mod transport;

pub use api::*;
pub use config::Config;
pub use slowmo_actors::ports::device::{TensorError, Tensors};
pub use slowmo_actors::ports::transport::Traffic;
pub use slowmo_protocol::schedule::Exchange;
