//! One folder per actor, thin ractor shells around the machines of `slowmo-protocol`, and the ports
//! they speak through.
//!
//! | folder | actor | one per |
//! |---|---|---|
//! | [`node_supervisor`] | spawns and supervises the rest, routes the network | process |
//! | [`membership`] | meets peers, forms the view, says who was lost | process |
//! | [`worker`] | stands between a training thread and its node | device |
//! | [`aggregator`] | brings the node's workers together | node |
//! | [`gossip_peer`] | push-sum exchange | node |
//! | [`coordinator`] | outer rounds, shards, slow momentum | node |
//!
//! [`status`], [`timeline`] and [`watching`] are what a node shows of itself and knows of others,
//! and decide nothing.
//!
//! [`ports`] are the traits that runtime implements; [`buffers`] and [`data`] are how bulk values
//! move without travelling through a mailbox.
#![deny(missing_docs)]

pub mod aggregator;
pub mod buffers;
mod compute;
pub mod context;
pub mod coordinator;
pub mod data;
mod error;
pub mod gossip_peer;
pub mod meeting;
pub mod membership;
pub mod metrics;
pub mod node_supervisor;
pub mod ports;
pub mod rates;
pub mod status;
#[cfg(test)]
mod testing;
pub mod timeline;
mod timer;
pub mod watching;
pub mod worker;

pub use error::ExchangeError;
