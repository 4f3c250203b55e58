//! A node's connection to the others, built from its configuration: credentials, transport,
//! discovery.

use crate::checkpoints::Trust;
use crate::config::{Config, Congestion, Discover, SameHost};
use crate::credentials::Held;
use crate::discovery::{Directory, LookedUp, Source, StaticList, slurm};
use crate::error::SpawnError;
use crate::transport::memory::MemoryHub;
use crate::transport::quic::{self, QuicSettings, Renewer, Tuning};
use slowmo_actors::ports::discovery::Discovery;
use slowmo_actors::ports::transport::{Transport, TransportEvent};
use slowmo_protocol::ident::{ClusterId, Incarnation, NodeId};
use std::net::{SocketAddr, ToSocketAddrs};
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
    /// The trust in checkpoints: the node believes those of the cluster's key, and of its own user.
    pub trust: Trust,
    /// The credentials, and what gives the transport newer ones.
    pub credentials: Option<(Held, Renewer)>,
}

/// Opens the network that the configuration asks for, or uses the given one.
pub(crate) fn connect(
    config: &Config,
    network: Option<Network>,
    me: (NodeId, Incarnation),
) -> Result<Connected, SpawnError> {
    let only_joins = config.join || config.lineage.is_some();
    let looks =
        !config.peers.is_empty() || config.rendezvous.is_some() || config.discover.is_some();
    if only_joins && !looks && network.is_none() {
        return Err(SpawnError::NothingToJoin);
    }
    let held = Held::open(config, me)?;
    let trust = held
        .as_ref()
        .map_or_else(|| Trust::of(&[]), |held| held.trust.clone());
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
            trust,
            credentials: None,
        });
    }
    let Some(held) = held else {
        if config.min_nodes > 1 || looks {
            return Err(SpawnError::NoCredentials);
        }
        let (transport, events) = MemoryHub::new(None).join(me.0, me.1, config.listen);
        return Ok(Connected {
            cluster: ALONE,
            transport,
            events,
            discovery: Arc::new(StaticList::default()),
            trust,
            credentials: None,
        });
    };
    if config.listen.ip().is_unspecified() && config.advertise.is_none() {
        return Err(SpawnError::ListenUnspecified(config.listen));
    }
    let discovery = discovery(config)?;
    let mut settings = QuicSettings::new(me.0, me.1, config.listen, held.identity.clone());
    settings.tuning = tuning(config);
    settings.advertise = advertised(config)?;
    let ((transport, events), renewer) = quic::bind_renewable(settings)?;
    Ok(Connected {
        cluster: held.identity.cluster_id(),
        transport,
        events,
        discovery,
        trust,
        credentials: Some((held, renewer)),
    })
}

fn discovery(config: &Config) -> Result<Arc<dyn Discovery>, SpawnError> {
    if let Some(folder) = &config.rendezvous {
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
        Congestion::Rate => quic::Congestion::Rate,
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
        same_host: config.same_host == SameHost::Auto,
        ..Tuning::default()
    }
}
