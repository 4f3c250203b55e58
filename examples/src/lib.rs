//! Code shared by the numbered training binaries: the handwritten digits and their training loop, a
//! single-process oracle of the same training, the comparison of algorithms, and the splitting of
//! command lines.
//!
//! Imports `slowmo` only, never the actors or the protocol: a user's own binary could do everything
//! here.
#![deny(missing_docs)]

pub mod compare;
pub mod digits;
pub mod flags;
pub mod log;
pub mod method;
pub mod oracle;
pub mod random;
