//! Tests of running nodes, which mostly wait: in one program they wait at the same time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod advertised;
mod dashboard;
mod documented_keys;
mod hostile_peer;
mod http;
mod http_abuse;
mod key_rotation;
mod nodes;
mod operator;
mod operator_files;
mod quic_addresses;
mod quic_endings;
mod quic_quotas;
mod quic_refusals;
mod quic_renewal;
mod raw_peer;
mod rotating;
mod same_host;
mod starting;
mod telemetry;
mod transport_conformance;
mod transport_liveness;
mod transport_lives;
