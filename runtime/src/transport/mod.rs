//! Implementations of the transport port: `quic` between processes, `memory` inside one process,
//! and `faulty`, a wrapper around either.
//!
//! Each implementation delivers bytes and never interprets them. `sessions` holds the code they
//! share: the lifecycle of a peer from its first connection to
//! [`PeerDown`](slowmo_actors::ports::transport::TransportEvent::PeerDown). `pulse` counts a peer's
//! signs of life.

mod accepted;
mod dialing;
#[cfg(feature = "testing")]
pub mod faulty;
pub mod memory;
mod pulse;
pub mod quic;
mod session;
mod sessions;
mod watched;
