//! Several real nodes in one process: real runtimes and actors, over QUIC on loopback or the
//! in-memory transport.

use slowmo::internal::Network;
use slowmo::internal::config::ClusterKey;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Config, Runtime, SpawnError};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use tempfile::TempDir;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The kind of link between the nodes of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// QUIC on loopback.
    Quic,
    /// In memory; every arrival is delayed as the seed says, or in order without a seed.
    Memory(Option<u64>),
    /// In memory, in order, with faults that can be set through [`Runtime::faults`].
    Faulty,
}

/// The reason why a cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A node did not start.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The machine has no free port or no randomness.
    #[error("the machine refused: {0}")]
    Machine(String),
}

/// Running nodes, and the folder in which nodes over QUIC find each other: keep it until they have
/// synchronized.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes, in the order of the ids given.
    pub nodes: Vec<Runtime>,
    /// The rendezvous folder, removed when it is dropped.
    pub rendezvous: TempDir,
}

impl Deref for Cluster {
    type Target = [Runtime];

    fn deref(&self) -> &[Runtime] {
        &self.nodes
    }
}

/// Starts one node per id with `configure`d settings; ids need not be consecutive. Where a group is
/// configured, the nodes are in two (see [`in_its_half`]).
///
/// # Errors
/// A node did not start; those before it stop.
pub fn start(ids: &[u64], link: Link, configure: &Config) -> Result<Cluster, ClusterError> {
    log_if_asked();
    let machine = |error: String| ClusterError::Machine(error);
    let rendezvous = tempfile::tempdir().map_err(|error| machine(error.to_string()))?;
    let key = ClusterKey::generate().map_err(|error| machine(error.to_string()))?;
    let hub = match link {
        Link::Memory(seed) => Some(MemoryHub::new(seed)),
        Link::Faulty => Some(MemoryHub::new(None)),
        Link::Quic => None,
    };
    // Ids may be far apart: places in the hub are by order.
    let places: Vec<u64> = (0..ids.len() as u64).collect();
    let mut nodes = Vec::new();
    for (index, id) in ids.iter().enumerate() {
        let mut config = Config {
            node_id: Some(*id),
            min_nodes: ids.len(),
            runtime_threads: Some(1),
            ..in_its_half(configure, *id)
        };
        let mut builder = Runtime::builder();
        match &hub {
            Some(hub) => builder = builder.network(in_memory(hub, index as u64, &places)),
            // Free ports: nobody can take one between looking for it and listening.
            None => {
                (config.rendezvous, config.cluster_key) =
                    (Some(rendezvous.path().to_owned()), Some(key.clone()))
            }
        }
        let builder = if link == Link::Faulty {
            builder.faulty()
        } else {
            builder
        };
        nodes.push(builder.config(config).spawn()?);
    }
    Ok(Cluster { nodes, rendezvous })
}

/// The configuration of node `id` of a cluster: where a group is configured, odd ids are in one group
/// and even ids in another one.
#[must_use]
pub fn in_its_half(configure: &Config, id: u64) -> Config {
    let mut config = configure.clone();
    if config.group.is_some() {
        config.group = format!("half-{}", id % 2).parse().ok();
    }
    config
}

/// With a level or levels of modules in `SLOWMO_LOG`, the nodes' log goes to standard error.
fn log_if_asked() {
    let Ok(text) = std::env::var("SLOWMO_LOG") else {
        return;
    };
    match text.parse::<Targets>() {
        Ok(levels) => {
            let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
            // Logging may have been set up already.
            _ = tracing_subscriber::registry()
                .with(lines)
                .with(levels)
                .try_init();
        }
        Err(error) => eprintln!("SLOWMO_LOG={text:?} selects nothing: {error}"),
    }
}

/// A network in which node `id` of a hub knows of `peers`, itself or not among them.
#[must_use]
pub fn in_memory(hub: &MemoryHub, id: u64, peers: &[u64]) -> Network {
    log_if_asked();
    let others = peers.iter().filter(|peer| **peer != id);
    Network {
        hub: hub.clone(),
        address: address(id),
        peers: others.map(|peer| address(*peer)).collect(),
    }
}

/// The address of a node in a hub. Any distinct addresses do, because nothing listens there.
#[must_use]
pub fn address(id: u64) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 40_000 + id as u16))
}
