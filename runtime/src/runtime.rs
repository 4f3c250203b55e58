//! Builds a node out of a configuration: identity, transport, discovery, devices, actors.

use crate::admin;
use crate::config::{Config, Congestion, Credentials};
use crate::device::cpu::SharedMemory;
use crate::device::host::HostDevice;
use crate::discovery::{Directory, StaticList};
use crate::error::{SpawnError, WorkerError};
use crate::launcher;
use crate::node::Node;
use crate::recorder::{FileRecorder, UntilCrashed};
use crate::transport::faulty::{self, Faults};
use crate::transport::memory::MemoryHub;
use crate::transport::quic::{self, ClusterKey, Identity as Credential, QuicSettings, Tuning};
use crate::worker::{Session, Worker};
use ractor::Actor;
use slowmo_actors::buffers::Pool;
use slowmo_actors::context::{Actors, MAILBOX_CREDITS_MAX, NodeContext, NodeSettings};
use slowmo_actors::coordinator::Inspection;
use slowmo_actors::node_supervisor::{NodeArguments, NodeSupervisor, NodeSupervisorMessage};
use slowmo_actors::ports::clock::TokioClock;
use slowmo_actors::ports::device::Device;
use slowmo_actors::ports::discovery::Discovery;
use slowmo_actors::ports::recorder::{NoRecorder, Recorder};
use slowmo_actors::ports::transport::{LocalPeer, Traffic, Transport, TransportEvent};
use slowmo_actors::rates::RateBook;
use slowmo_actors::status::StatusBoard;
use slowmo_protocol::ident::{ClusterId, Incarnation, NodeId};
use slowmo_protocol::machine::Identity;
use slowmo_protocol::trace::Start;
use std::fs::File;
use std::io::{self, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, mpsc};

/// Largest key or certificate file.
const CREDENTIAL_BYTES_MAX: u64 = 1 << 20;
/// The cluster of a node without credentials, which has no peers.
const ALONE: ClusterId = ClusterId(0);

/// A node: the actors, the transport and the workers of this process. Lives until it and every worker's handle are dropped.
pub struct Runtime {
    node: Arc<Node>,
    taken: Mutex<Vec<bool>>,
    faults: Option<Faults>,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("node", &self.node.id()).field("address", &self.address()).finish()
    }
}

/// Builds a [`Runtime`].
#[derive(Default)]
pub struct RuntimeBuilder {
    config: Config,
    network: Option<Network>,
    faulty: bool,
    recorder: Option<Arc<dyn Recorder>>,
}

impl std::fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeBuilder").field("config", &self.config).field("network", &self.network).finish_non_exhaustive()
    }
}

/// Another network than QUIC, chosen by the program: in-memory for tests.
#[derive(Clone)]
pub struct Network {
    /// Where the nodes of one process meet.
    pub hub: MemoryHub,
    /// This node's address in the hub.
    pub address: SocketAddr,
    /// The other nodes' addresses.
    pub peers: Vec<SocketAddr>,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("address", &self.address).field("peers", &self.peers).finish_non_exhaustive()
    }
}

impl Runtime {
    /// Starts describing a node.
    #[must_use]
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Takes the handle of worker `index`; each can be taken once.
    ///
    /// # Errors
    /// No such worker, or taken before.
    pub fn worker(&self, index: usize) -> Result<Worker, WorkerError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let devices = taken.len();
        let slot = taken.get_mut(index).ok_or(WorkerError::NoSuchWorker { index, devices })?;
        if std::mem::replace(slot, true) {
            return Err(WorkerError::Taken(index));
        }
        Ok(Worker::new(Session::new(Arc::clone(&self.node), index)))
    }

    /// This node's id.
    #[must_use]
    pub fn node_id(&self) -> u64 {
        self.node.id().0
    }

    /// Where this node listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.node.local().address
    }

    /// Hands over in the next round and leaves: the training loop sees `drained` in a step's report. As SIGTERM and
    /// `slowmo drain` do.
    pub fn drain(&self) {
        self.node.drain();
    }

    /// What this node sees of itself and the cluster, as the admin endpoint tells it.
    #[must_use]
    pub fn status(&self) -> admin::Report {
        self.node.status()
    }

    /// What this node's coordinator holds: for tests. `None` if the node has stopped.
    #[must_use]
    pub fn inspect(&self) -> Option<Inspection> {
        self.node.inspect()
    }

    /// What can be set to go wrong on this node's network; `None` unless it was built [`RuntimeBuilder::faulty`].
    #[must_use]
    pub fn faults(&self) -> Option<&Faults> {
        self.faults.as_ref()
    }

    /// Bytes on the wire so far, headers and acknowledgements included.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.node.traffic()
    }
}

impl RuntimeBuilder {
    /// Uses this configuration.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Uses another network than QUIC.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.network = Some(network);
        self
    }

    /// Lets [`Runtime::faults`] cut, delay and throttle what this node sends, watch it, and end the node at once: for tests.
    #[must_use]
    pub fn faulty(mut self) -> Self {
        self.faulty = true;
        self
    }

    /// Keeps what this node does with `recorder` instead of in a file (key `trace`): for tests.
    #[must_use]
    pub fn recorder(mut self, recorder: Arc<dyn Recorder>) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Starts the node: binds its endpoint and looks for its peers in the background. With `min_nodes = 1` and neither peers
    /// nor credentials nothing listens at all.
    ///
    /// # Errors
    /// Bad configuration, unreadable key, port taken, unusable peer address. Nothing runs afterwards.
    pub fn spawn(self) -> Result<Runtime, SpawnError> {
        self.config.check()?;
        if self.config.may_found_twice() {
            let (min_nodes, nodes) = (self.config.min_nodes, self.config.peers.len() + 1);
            tracing::warn!(min_nodes, nodes, "two clusters may be founded: min_nodes is not more than half of this node and its peers");
        }
        launcher::watch();
        let executor = executor(self.config.runtime_threads)?;
        let (admin, drains) = (self.config.admin.clone(), self.config.drain_on_sigterm);
        let (parts, faults) = executor.block_on_plain_thread(self.build())?;
        let (context, collective, supervisor, workers) = parts;
        let admin = match admin {
            Some(path) => Some(executor.serve_admin(path, Arc::clone(&context))?),
            None => None,
        };
        if drains {
            executor.0.spawn(admin::drain_on_sigterm(Arc::clone(&context)));
        }
        let taken = Mutex::new(vec![false; workers.len()]);
        let devices = workers.iter().map(|_| Arc::new(HostDevice) as Arc<dyn Device>).collect();
        let node = Node::new(context, (devices, collective), supervisor, workers, executor.into_inner()).with_admin(admin);
        Ok(Runtime { node: Arc::new(node), taken, faults })
    }

    async fn build(self) -> Result<(Parts, Option<Faults>), SpawnError> {
        let Self { config, network, faulty, recorder } = self;
        let me = (NodeId(config.node_id.map_or_else(random_id, Ok)?), Incarnation(now_micros()));
        let hub = network.as_ref().map(|network| network.hub.clone());
        let Connected { cluster, mut transport, mut events, discovery } = connect(&config, network, me)?;
        let mut faults: Option<Faults> = None;
        if faulty {
            let silent_after = Duration::from_millis(config.idle_timeout_ms);
            let (wrapped, wrapped_events, switches) = faulty::wrap(transport, events, silent_after);
            (transport, events, faults) = (wrapped, wrapped_events, Some(switches));
        }
        let recorder = recorder_of(&config, recorder, me, faults.as_ref())?;
        let settings = settings(&config, Identity { cluster, node: me.0, incarnation: me.1 })?;
        discovery.announce(me.0, transport.local().announced).await?;
        let collective = Arc::new(SharedMemory::new(settings.workers));
        let context = Arc::new(NodeContext {
            settings,
            transport,
            discovery,
            clock: Arc::new(TokioClock::default()),
            pool: Pool::new(),
            actors: Actors::default(),
            status: StatusBoard::new(),
            recorder,
            ended: OnceLock::new(),
            rates: RateBook::default(),
            credits: Arc::new(Semaphore::new(MAILBOX_CREDITS_MAX)),
        });
        let workers = Arc::new(OnceLock::new());
        let arguments = NodeArguments { context: Arc::clone(&context), events, workers: Arc::clone(&workers) };
        let (supervisor, _) = Actor::spawn(None, NodeSupervisor, arguments).await.map_err(|error| SpawnError::System(error.to_string()))?;
        let workers = workers.get().cloned().unwrap_or_default();
        if let Some(faults) = &faults {
            tokio::spawn(die(faults.clone(), hub.map(|hub| (hub, context.transport.local())), supervisor.clone()));
        }
        Ok(((context, collective, supervisor, workers), faults))
    }
}

/// Who keeps what the node does: `given`, or a file where the configuration names a folder.
fn recorder_of(
    config: &Config,
    given: Option<Arc<dyn Recorder>>,
    (node, incarnation): (NodeId, Incarnation),
    faults: Option<&Faults>,
) -> Result<Arc<dyn Recorder>, SpawnError> {
    let inner: Arc<dyn Recorder> = match (given, &config.trace) {
        (Some(given), _) => given,
        (None, Some(folder)) => {
            let opened = FileRecorder::open(folder, Start { node, incarnation });
            Arc::new(opened.map_err(|error| SpawnError::Trace { folder: folder.clone(), error })?)
        }
        (None, None) => Arc::new(NoRecorder),
    };
    Ok(match faults {
        Some(faults) => Arc::new(UntilCrashed { inner, faults: faults.clone() }),
        None => inner,
    })
}

/// A node that crashes is gone from its hub, and whoever waits in it is told that it has stopped.
async fn die(faults: Faults, seat: Option<(MemoryHub, LocalPeer)>, supervisor: ractor::ActorRef<NodeSupervisorMessage>) {
    faults.crashed().await;
    if let Some((hub, node)) = seat {
        hub.vanish(node);
    }
    // It may have stopped already.
    _ = supervisor.cast(NodeSupervisorMessage::Stop);
}

type Parts = (
    Arc<NodeContext>,
    Arc<SharedMemory>,
    ractor::ActorRef<NodeSupervisorMessage>,
    Vec<ractor::ActorRef<slowmo_actors::worker::WorkerMessage>>,
);

/// A node's way to the others.
struct Connected {
    cluster: ClusterId,
    transport: Arc<dyn Transport>,
    events: mpsc::Receiver<TransportEvent>,
    discovery: Arc<dyn Discovery>,
}

fn connect(config: &Config, network: Option<Network>, me: (NodeId, Incarnation)) -> Result<Connected, SpawnError> {
    if let Some(Network { hub, address, peers }) = network {
        let (transport, events) = hub.join(me.0, me.1, address);
        return Ok(Connected { cluster: ALONE, transport, events, discovery: Arc::new(StaticList::new(peers)) });
    }
    let Some((credential, cluster)) = credential(config, me)? else {
        if config.min_nodes > 1 || !config.peers.is_empty() || config.rendezvous.is_some() {
            return Err(SpawnError::NoCredentials);
        }
        let (transport, events) = MemoryHub::new(None).join(me.0, me.1, config.listen);
        return Ok(Connected { cluster: ALONE, transport, events, discovery: Arc::new(StaticList::default()) });
    };
    let discovery = discovery(config)?;
    let mut settings = QuicSettings::new(me.0, me.1, config.listen, credential);
    settings.tuning = tuning(config);
    settings.advertise = advertised(config)?;
    let (transport, events) = quic::bind(settings)?;
    Ok(Connected { cluster, transport, events, discovery })
}

fn credential(config: &Config, (node, incarnation): (NodeId, Incarnation)) -> Result<Option<(Credential, ClusterId)>, SpawnError> {
    let of_key = |key: &ClusterKey| Ok(Some((Credential::issue(key, node, incarnation)?, key.cluster_id())));
    match config.credentials() {
        Credentials::None => Ok(None),
        Credentials::ClusterKey(key) => of_key(key),
        Credentials::ClusterKeyFile(path) => {
            let text = read("cluster_key_file", path)?;
            let key: ClusterKey = String::from_utf8_lossy(&text).parse()?;
            of_key(&key)
        }
        Credentials::Files { ca, certificate, key } => {
            let ca = read("tls_ca_file", ca)?;
            let (certificate, key) = (read("tls_certificate_file", certificate)?, read("tls_key_file", key)?);
            let credential = Credential::from_pem(&ca, &certificate, &key)?;
            let cluster = credential.cluster_id();
            Ok(Some((credential, cluster)))
        }
    }
}

/// Reads a key or certificate file, at most [`CREDENTIAL_BYTES_MAX`].
fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, SpawnError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(CREDENTIAL_BYTES_MAX + 1).read_to_end(&mut bytes));
    let checked = match read {
        Ok(length) if length as u64 > CREDENTIAL_BYTES_MAX => Err(io::Error::other("larger than 1 MiB, no key or certificate is")),
        other => other,
    };
    checked.map(|_| bytes).map_err(|error| SpawnError::File { key, path: path.to_owned(), error })
}

fn discovery(config: &Config) -> Result<Arc<dyn Discovery>, SpawnError> {
    if let Some(folder) = &config.rendezvous {
        if config.listen.ip().is_unspecified() && config.advertise.is_none() {
            return Err(SpawnError::RendezvousUnspecified(config.listen));
        }
        return Ok(Arc::new(Directory::new(folder)));
    }
    if config.peers.is_empty() && config.min_nodes > 1 {
        return Err(SpawnError::NoPeers(config.min_nodes));
    }
    let mut addresses = Vec::new();
    for peer in &config.peers {
        let resolved = peer.to_socket_addrs().map_err(|error| SpawnError::Peer { peer: peer.clone(), error })?;
        addresses.extend(resolved.filter(|address| address.is_ipv4() == config.listen.is_ipv4()));
    }
    Ok(Arc::new(StaticList::new(addresses)))
}

/// What other nodes are told to dial, resolved once.
fn advertised(config: &Config) -> Result<Option<SocketAddr>, SpawnError> {
    let Some(advertise) = &config.advertise else { return Ok(None) };
    let wrong = |reason: String| SpawnError::Advertise { advertise: advertise.clone(), reason };
    let mut resolved = advertise.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    let usable = resolved.find(|address| address.is_ipv4() == config.listen.is_ipv4() && !address.ip().is_unspecified());
    usable.map(Some).ok_or_else(|| wrong("it has no address of the family of listen".to_owned()))
}

fn tuning(config: &Config) -> Tuning {
    let congestion = match config.congestion {
        Congestion::Cubic => quic::Congestion::Cubic,
        Congestion::Bbr => quic::Congestion::Bbr,
        Congestion::NewReno => quic::Congestion::NewReno,
    };
    let (idle_timeout, keep_alive) = (config.idle_timeout(), config.keep_alive());
    Tuning { mtu_bytes_max: config.mtu_bytes_max, congestion, idle_timeout, keep_alive, ..Tuning::default() }
}

fn settings(config: &Config, identity: Identity) -> Result<NodeSettings, SpawnError> {
    Ok(NodeSettings {
        identity,
        algorithm: config.algorithm()?,
        replicas: config.replicas,
        workers: usize::from(config.devices),
        min_nodes: config.min_nodes,
        shared: config.shared_settings(),
        max_nodes: config.max_nodes,
        // Whoever brings a history's state founds no other one.
        join: config.join || config.lineage.is_some(),
        lineage: config.lineage,
        quorum: config.quorum,
        joiner_buffers: config.joiner_buffers,
        on_momentum_loss: config.on_momentum_loss,
        grace: Duration::from_millis(config.grace_ms),
        probe_interval: Duration::from_millis(config.probe_interval_ms),
        suspect: Duration::from_millis(config.suspect_ms),
        connect_timeout: config.connect_timeout(),
        round_timeout: config.round_timeout(),
    })
}

/// An executor that builds the node from any thread, also from inside another executor.
struct Executor(tokio::runtime::Runtime);

fn executor(threads: usize) -> Result<Executor, SpawnError> {
    let built = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).thread_name("slowmo").enable_all().build();
    built.map(Executor).map_err(|error| SpawnError::System(error.to_string()))
}

impl Executor {
    fn block_on_plain_thread<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, SpawnError>> + Send + 'static,
    ) -> Result<T, SpawnError> {
        let (done, result) = std::sync::mpsc::channel();
        self.0.spawn(async move {
            // The receiver waits below.
            _ = done.send(work.await);
        });
        result.recv().unwrap_or_else(|_| Err(SpawnError::System("the node's start was cancelled".to_owned())))
    }

    fn serve_admin(&self, path: PathBuf, context: Arc<NodeContext>) -> Result<admin::Endpoint, SpawnError> {
        let _inside = self.0.enter();
        admin::Endpoint::serve(&path, context).map_err(|error| SpawnError::Admin { path, error })
    }

    fn into_inner(self) -> tokio::runtime::Runtime {
        self.0
    }
}

/// A random id that a person can still read out.
fn random_id() -> Result<u64, SpawnError> {
    let mut bytes = [0; 8];
    let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes[..6]);
    filled.map_err(|_| SpawnError::System("no random bytes".to_owned()))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Microseconds since 1970: a later start has a larger incarnation.
fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
