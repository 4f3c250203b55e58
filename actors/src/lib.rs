//! One folder per actor, each a thin ractor shell around a state machine of `slowmo-protocol`, and
//! the ports through which the actors reach the outside.
//!
//! | folder | actor | one per |
//! |---|---|---|
//! | [`node_supervisor`] | spawns and supervises the rest, routes the network | process |
//! | [`membership`] | connects to peers, forms the view, reports lost nodes | process |
//! | [`aggregator`] | combines the requests of the node's workers | node |
//! | [`gossip_peer`] | push-sum exchange | node |
//! | [`coordinator`] | outer rounds, shards, slow momentum | node |
//!
//! [`status`], [`timeline`], [`peer_status`] and [`status_digests`] hold what a node shows of
//! itself and knows of other nodes. They decide nothing.
//!
//! [`messages`] holds what the actors' mailboxes receive, so that no actor imports another one.
//! [`ports`] are the traits that runtime implements; [`buffers`] and [`data`] move bulk values
//! without sending them through a mailbox.
#![deny(missing_docs)]

pub mod aggregator;
pub mod barrier;
pub mod buffers;
mod compute;
pub mod context;
pub mod coordinator;
pub mod data;
mod error;
pub mod gossip_peer;
pub mod membership;
pub mod messages;
pub mod metrics;
pub mod node_supervisor;
pub mod peer_status;
pub mod ports;
pub mod rates;
pub mod signed_attempts;
pub mod status;
pub mod status_digests;
#[cfg(test)]
mod testing;
pub mod timeline;
mod timer;
pub mod unix_time;

pub use error::ExchangeError;
