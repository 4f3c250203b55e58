//! One folder per actor, thin ractor shells around the machines of `slowmo-protocol`, and the ports they speak through.
#![deny(missing_docs)]

pub mod ports;
