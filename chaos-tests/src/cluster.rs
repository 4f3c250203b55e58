//! Several real nodes in one process: real runtimes and actors, over QUIC on loopback or the in-memory transport.

use slowmo::config::ClusterKey;
use slowmo::transport::memory::MemoryHub;
use slowmo::{Config, Network, Runtime, SpawnError};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

/// How the nodes of a cluster reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// QUIC on loopback.
    Quic,
    /// In memory, every arrival delayed as the seed says; without a seed in order.
    Memory(Option<u64>),
}

/// Why a cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A node did not start.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The machine has no free port or no randomness.
    #[error("the machine refused: {0}")]
    Machine(String),
}

/// Starts one node per id with `configure`d settings; ids need not be consecutive.
///
/// # Errors
/// A node did not start; those before it stop.
pub fn start(ids: &[u64], link: Link, configure: &Config) -> Result<Vec<Runtime>, ClusterError> {
    let addresses = addresses(ids.len(), link)?;
    let key = ClusterKey::generate().map_err(|error| ClusterError::Machine(error.to_string()))?;
    let hub = match link {
        Link::Memory(seed) => Some(MemoryHub::new(seed)),
        Link::Quic => None,
    };
    let mut nodes = Vec::new();
    for (index, id) in ids.iter().enumerate() {
        let mut config = Config { node_id: Some(*id), min_nodes: ids.len(), runtime_threads: 1, ..configure.clone() };
        let peers = || addresses.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, address)| *address);
        let mut builder = Runtime::builder();
        match &hub {
            Some(hub) => builder = builder.network(Network { hub: hub.clone(), address: addresses[index], peers: peers().collect() }),
            None => {
                config.listen = addresses[index];
                config.peers = peers().map(|address| address.to_string()).collect();
                config.cluster_key = Some(key.clone());
            }
        }
        nodes.push(builder.config(config).spawn()?);
    }
    Ok(nodes)
}

/// Free loopback ports, or made-up addresses for the in-memory hub.
fn addresses(count: usize, link: Link) -> Result<Vec<SocketAddr>, ClusterError> {
    if link != Link::Quic {
        // Any distinct addresses do: nothing listens there.
        return Ok((0..count).map(|index| SocketAddr::from((Ipv4Addr::LOCALHOST, 40_000 + index as u16))).collect());
    }
    let machine = |error: std::io::Error| ClusterError::Machine(error.to_string());
    let sockets: Result<Vec<_>, _> = (0..count).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))).collect();
    sockets.map_err(machine)?.iter().map(|socket| socket.local_addr().map_err(machine)).collect()
}
