//! A node's connection to the others, built from its configuration: credentials, transport,
//! discovery.

use crate::config::{Config, Congestion, Credentials, Discover};
use crate::discovery::{Directory, LookedUp, Source, StaticList, slurm};
use crate::error::SpawnError;
use crate::secret_file;
use crate::transport::memory::MemoryHub;
use crate::transport::quic::{self, ClusterKey, Identity as Credential, QuicSettings, Tuning};
use slowmo_actors::ports::discovery::Discovery;
use slowmo_actors::ports::transport::{Transport, TransportEvent};
use slowmo_protocol::ident::{ClusterId, Incarnation, NodeId};
use std::fs::File;
use std::io::{self, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

/// A network other than QUIC, chosen by the program: in memory, for tests.
#[derive(Clone)]
pub struct Network {
    /// The hub that connects the nodes of one process.
    pub hub: MemoryHub,
    /// This node's address in the hub.
    pub address: SocketAddr,
    /// The other nodes' addresses.
    pub peers: Vec<SocketAddr>,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network")
            .field("address", &self.address)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

/// Largest key or certificate file, in bytes.
const CREDENTIAL_BYTES_MAX: u64 = 1 << 20;
/// The cluster id of a node without credentials, which has no peers.
const ALONE: ClusterId = ClusterId(0);

/// A node's connection to the others.
pub(crate) struct Connected {
    /// The cluster that the node belongs to.
    pub cluster: ClusterId,
    /// The transport that sends the node's messages.
    pub transport: Arc<dyn Transport>,
    /// Events of that transport.
    pub events: mpsc::Receiver<TransportEvent>,
    /// The discovery that finds the other nodes.
    pub discovery: Arc<dyn Discovery>,
}

/// Opens the network that the configuration asks for, or uses the given one.
pub(crate) fn connect(
    config: &Config,
    network: Option<Network>,
    me: (NodeId, Incarnation),
) -> Result<Connected, SpawnError> {
    if let Some(Network {
        hub,
        address,
        peers,
    }) = network
    {
        let (transport, events) = hub.join(me.0, me.1, address);
        return Ok(Connected {
            cluster: ALONE,
            transport,
            events,
            discovery: Arc::new(StaticList::new(peers)),
        });
    }
    let Some((credential, cluster)) = credential(config, me)? else {
        if config.min_nodes > 1
            || !config.peers.is_empty()
            || config.rendezvous.is_some()
            || config.discover.is_some()
        {
            return Err(SpawnError::NoCredentials);
        }
        let (transport, events) = MemoryHub::new(None).join(me.0, me.1, config.listen);
        return Ok(Connected {
            cluster: ALONE,
            transport,
            events,
            discovery: Arc::new(StaticList::default()),
        });
    };
    let discovery = discovery(config)?;
    let mut settings = QuicSettings::new(me.0, me.1, config.listen, credential);
    settings.tuning = tuning(config);
    settings.advertise = advertised(config)?;
    if settings.advertise.is_none() && config.listen.ip().is_unspecified() {
        // Nodes that this one dials see its address; nodes that only hear of it from them do not.
        tracing::warn!(listen = %config.listen, "nodes that join are told this address and cannot dial it: set advertise, or listen at an address of this machine");
    }
    let (transport, events) = quic::bind(settings)?;
    Ok(Connected {
        cluster,
        transport,
        events,
        discovery,
    })
}

/// The cluster key of the configuration, if it has one.
pub(crate) fn cluster_key(config: &Config) -> Result<Option<ClusterKey>, SpawnError> {
    match config.credentials() {
        Credentials::ClusterKey(key) => Ok(Some(key.clone())),
        Credentials::ClusterKeyFile(path) => key_in(path).map(Some),
        Credentials::None | Credentials::Files { .. } => Ok(None),
    }
}

fn key_in(path: &Path) -> Result<ClusterKey, SpawnError> {
    let text = read_secret("cluster_key_file", path)?;
    Ok(String::from_utf8_lossy(&text).parse()?)
}

fn credential(
    config: &Config,
    (node, incarnation): (NodeId, Incarnation),
) -> Result<Option<(Credential, ClusterId)>, SpawnError> {
    let of_key = |key: &ClusterKey| {
        Ok(Some((
            Credential::issue(key, node, incarnation)?,
            key.cluster_id(),
        )))
    };
    match config.credentials() {
        Credentials::None => Ok(None),
        Credentials::ClusterKey(key) => of_key(key),
        Credentials::ClusterKeyFile(path) => of_key(&key_in(path)?),
        Credentials::Files {
            ca,
            certificate,
            key,
        } => {
            let ca = read("tls_ca_file", ca)?;
            let certificate = read("tls_certificate_file", certificate)?;
            let key = read_secret("tls_key_file", key)?;
            let credential = Credential::from_pem(&ca, &certificate, &key)?;
            let cluster = credential.cluster_id();
            Ok(Some((credential, cluster)))
        }
    }
}

/// Reads a file that holds a secret, at most [`CREDENTIAL_BYTES_MAX`].
fn read_secret(key: &'static str, path: &Path) -> Result<Vec<u8>, SpawnError> {
    secret_file::read(path, CREDENTIAL_BYTES_MAX).map_err(|error| SpawnError::File {
        key,
        path: path.to_owned(),
        error,
    })
}

/// Reads a file of certificates, at most [`CREDENTIAL_BYTES_MAX`].
fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, SpawnError> {
    let mut bytes = Vec::new();
    let read = File::open(path)
        .and_then(|file| file.take(CREDENTIAL_BYTES_MAX + 1).read_to_end(&mut bytes));
    let checked = match read {
        Ok(length) if length as u64 > CREDENTIAL_BYTES_MAX => Err(io::Error::other(
            "larger than 1 MiB, no key or certificate is",
        )),
        other => other,
    };
    checked.map(|_| bytes).map_err(|error| SpawnError::File {
        key,
        path: path.to_owned(),
        error,
    })
}

fn discovery(config: &Config) -> Result<Arc<dyn Discovery>, SpawnError> {
    if let Some(folder) = &config.rendezvous {
        if config.listen.ip().is_unspecified() && config.advertise.is_none() {
            return Err(SpawnError::RendezvousUnspecified(config.listen));
        }
        return Ok(Arc::new(Directory::new(folder)));
    }
    if config.peers.is_empty() && config.discover.is_none() && config.min_nodes > 1 {
        return Err(SpawnError::NoPeers(config.min_nodes));
    }
    let mut addresses = Vec::new();
    for peer in &config.peers {
        let resolved = peer.to_socket_addrs().map_err(|error| SpawnError::Peer {
            peer: peer.clone(),
            error,
        })?;
        addresses.extend(resolved.filter(|address| address.is_ipv4() == config.listen.is_ipv4()));
    }
    let source = match &config.discover {
        None => return Ok(Arc::new(StaticList::new(addresses))),
        Some(Discover::Dns(name)) => Source::Name(name.clone()),
        Some(Discover::File(path)) => Source::File(path.clone()),
        Some(Discover::Slurm(port)) => {
            Source::Listed(slurm::names(*port, |name| std::env::var(name).ok())?.into())
        }
    };
    Ok(Arc::new(LookedUp::new(
        source,
        config.listen.is_ipv4(),
        addresses,
    )))
}

/// The address that other nodes are told to dial, resolved once.
fn advertised(config: &Config) -> Result<Option<SocketAddr>, SpawnError> {
    let Some(advertise) = &config.advertise else {
        return Ok(None);
    };
    let wrong = |reason: String| SpawnError::Advertise {
        advertise: advertise.clone(),
        reason,
    };
    let mut resolved = advertise
        .to_socket_addrs()
        .map_err(|error| wrong(error.to_string()))?;
    let usable = resolved.find(|address| {
        address.is_ipv4() == config.listen.is_ipv4() && !address.ip().is_unspecified()
    });
    usable
        .map(Some)
        .ok_or_else(|| wrong("it has no address of the family of listen".to_owned()))
}

fn tuning(config: &Config) -> Tuning {
    let congestion = match config.congestion {
        Congestion::Cubic => quic::Congestion::Cubic,
        Congestion::Bbr => quic::Congestion::Bbr,
        Congestion::NewReno => quic::Congestion::NewReno,
    };
    let idle_timeout = config.idle_timeout();
    let keep_alive = config.keep_alive();
    Tuning {
        mtu_bytes_max: config.mtu_bytes_max,
        congestion,
        idle_timeout,
        keep_alive,
        ..Tuning::default()
    }
}
