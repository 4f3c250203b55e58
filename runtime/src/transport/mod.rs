//! Implementations of the transport port: `quic` between processes, `memory` inside one, `faulty`
//! around either.
//!
//! Each hands out bytes and never looks inside them. What they share, the life of a peer from first
//! contact to [`PeerDown`](slowmo_actors::ports::transport::TransportEvent::PeerDown), is in
//! `sessions`; what proves that it is alive, in `pulse`.

mod accepted;
mod dialing;
pub mod faulty;
pub mod memory;
mod pulse;
pub mod quic;
mod session;
mod sessions;
mod watched;
