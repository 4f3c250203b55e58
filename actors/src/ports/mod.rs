//! The traits through which the actors reach the outside; implemented in runtime, and in memory for
//! tests.

pub mod clock;
pub mod device;
pub mod discovery;
pub mod orders;
pub mod recorder;
pub mod signer;
pub mod store;
pub mod transport;
