//! Builds a node from a configuration: identity, transport, discovery, devices, actors.

mod parts;
#[cfg(feature = "testing")]
mod testing;

use crate::admin;
use crate::changes::SettingError;
use crate::checkpoints::Checkpoints;
use crate::config::{Config, DeviceName, ignored_variables};
use crate::connection::{Connected, Network, connect};
use crate::credentials;
use crate::device::{self, Devices, release_spares};
use crate::error::{SpawnError, WorkerError};
use crate::executor::{Executor, beside};
use crate::last_report::Reporter;
use crate::launcher;
use crate::marker::Marker;
use crate::node::Node;
use crate::signing::NodeKey;
use crate::status::Status;
use crate::telemetry;
#[cfg(feature = "testing")]
use crate::transport::faulty::Faults;
use crate::worker::{Session, Worker};
use parking_lot::Mutex;
use parts::{checkpoints_of, recorder_of, settings};
use ractor::Actor;
use slowmo_actors::context::{Actors, MAILBOX_CREDITS_MAX, NodeContext};
use slowmo_actors::metrics::Metrics;
use slowmo_actors::node_supervisor::{NodeArguments, NodeSupervisor, NodeSupervisorMessage};
use slowmo_actors::peer_status::PeerStatus;
use slowmo_actors::ports::clock::TokioClock;
use slowmo_actors::ports::signer::Signer;
use slowmo_actors::ports::transport::Traffic;
use slowmo_actors::rates::RateBook;
use slowmo_actors::status::{MemberState, StatusBoard};
use slowmo_actors::unix_time::unix_us;
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::machine::Identity;
use slowmo_protocol::membership::settings::RESUME_KEY;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
#[cfg(feature = "testing")]
use std::time::Duration;
use tokio::sync::Semaphore;

/// A node: the actors, the transport and the workers of this process. It lives until it and every
/// worker's handle are dropped.
pub struct Runtime {
    node: Arc<Node>,
    taken: Mutex<Vec<bool>>,
    #[cfg(feature = "testing")]
    faults: Option<Faults>,
}

/// A node that runs, before it gets its endpoints.
struct Built {
    context: Arc<NodeContext>,
    devices: Devices,
    checkpoints: Arc<Checkpoints>,
    token: Option<telemetry::Token>,
    supervisor: ractor::ActorRef<NodeSupervisorMessage>,
    #[cfg(feature = "testing")]
    faults: Option<Faults>,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime")
            .field("node", &self.node.id())
            .field("address", &self.address())
            .finish()
    }
}

/// Builds a [`Runtime`].
#[derive(Default)]
pub struct RuntimeBuilder {
    config: Config,
    network: Option<Network>,
    #[cfg(feature = "testing")]
    faulty: bool,
}

impl std::fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeBuilder")
            .field("config", &self.config)
            .field("network", &self.network)
            .finish_non_exhaustive()
    }
}

impl Runtime {
    fn of(
        config: &Config,
        built: Built,
        admin: Option<admin::Endpoint>,
        executor: Executor,
    ) -> Result<Self, SpawnError> {
        let Built {
            context,
            devices,
            checkpoints,
            token,
            supervisor,
            ..
        } = built;
        if let Some(admin) = &admin {
            admin.runs(Arc::clone(&context));
        }
        let http = match config.http {
            Some(address) => Some(serve_http(address, token, &context, &executor)?),
            None => None,
        };
        if config.drain_on_sigterm {
            executor
                .handle()
                .spawn(admin::drain_on_sigterm(Arc::clone(&context)));
        }
        // Without a handler the signal would end the process.
        executor
            .handle()
            .spawn(admin::dump_on_sigusr1(Arc::clone(&context)));
        // Page-locked memory is kept: a driver takes long to allocate it anew.
        if config.device == DeviceName::Cpu {
            executor
                .handle()
                .spawn(release_spares(Arc::downgrade(&context.pool)));
        }
        let taken = Mutex::new(vec![false; context.settings.workers]);
        // Nobody but a launcher reads the last report.
        let told = config
            .admin
            .as_deref()
            .filter(|_| launcher::has_started_this());
        let node = Node::new(
            context,
            (devices.each, devices.collective),
            checkpoints,
            supervisor,
            executor,
        )
        .with_admin(admin, http)
        .with_marker(Marker::new(config.marker.clone()))
        .with_last_report(Reporter::new(told));
        Ok(Self {
            node: Arc::new(node),
            taken,
            #[cfg(feature = "testing")]
            faults: built.faults,
        })
    }

    /// Starts the description of a node.
    #[must_use]
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Takes the handle of worker `index`; each can be taken once.
    ///
    /// # Errors
    /// There is no such worker, or its handle was already taken.
    pub fn worker(&self, index: usize) -> Result<Worker, WorkerError> {
        let mut taken = self.taken.lock();
        let devices = taken.len();
        let slot = taken
            .get_mut(index)
            .ok_or(WorkerError::NoSuchWorker { index, devices })?;
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

    /// The address at which this node listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.node.local().address
    }

    /// The address of this node's HTTP endpoint (key `http`), if it has one.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.node.http_address()
    }

    /// Hands over in the next round and leaves, like SIGTERM and `slowmo drain`: the training loop
    /// sees it in [`Worker::is_running`] and in a step's report.
    pub fn drain(&self) {
        self.node.drain();
    }

    /// Asks for another value of a setting of the whole cluster, like `slowmo set`: the next round
    /// decides it, and all nodes use it from the step after that on. Later rounds and nodes that
    /// join keep it; a bootstrap, also one that resumes, begins with what its nodes are configured
    /// with. If two values are asked for at once, one of them is decided. The status shows the
    /// values in force.
    ///
    /// # Errors
    /// The key is unknown, may not change in a running job or is not used by it, the value is not
    /// allowed, or this node is not a member. Nothing was changed.
    pub fn set(&self, key: &str, value: &str) -> Result<(), SettingError> {
        self.node.set(key, value)
    }

    /// This node's report of itself and the cluster, as the admin endpoint gives it.
    #[must_use]
    pub fn status(&self) -> Status {
        self.node.status()
    }

    /// Bytes on the wire so far, headers and acknowledgements included.
    #[doc(hidden)]
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

    /// Starts the node: binds its endpoint and looks for its peers in the background. With
    /// `min_nodes = 1` and neither peers nor credentials it does not listen at all.
    ///
    /// # Errors
    /// Bad configuration, unreadable key, port taken, unusable peer address. Nothing keeps running
    /// afterwards.
    pub fn spawn(self) -> Result<Runtime, SpawnError> {
        self.check()?;
        launcher::watch();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (self.config).threads(launcher::processes_here(), processors);
        let executor = Executor::new(threads)?;
        let config = self.config.clone();
        let node = NodeId(config.node_id.map_or_else(random_id, Ok)?);
        let status = StatusBoard::new();
        for what in ignored_variables() {
            tracing::warn!("{what}");
            status.event(what);
        }
        status.starting(Some("it opens its devices".to_owned()));
        let admin = match &config.admin {
            Some(path) => {
                let known = (node, config.max_nodes);
                Some(serve_admin(path, known, &status, &executor)?)
            }
            None => None,
        };
        let built = executor.block_on_plain_thread(self.build(node, Arc::clone(&status)))?;
        status.starting(None);
        Runtime::of(&config, built, admin, executor)
    }

    fn check(&self) -> Result<(), SpawnError> {
        self.config.check()?;
        if self.config.may_bootstrap_twice() {
            let min_nodes = self.config.min_nodes;
            let nodes = self.config.peers.len() + 1;
            tracing::warn!(
                min_nodes,
                nodes,
                "two clusters may be bootstrapped: min_nodes is not more than half of this node \
                 and its peers"
            );
        }
        Ok(())
    }

    async fn build(self, node: NodeId, status: Arc<StatusBoard>) -> Result<Built, SpawnError> {
        let Self {
            config, network, ..
        } = self;
        let opened = config.clone();
        let devices = beside(move || device::open(&opened)).await??;
        let incarnation = Incarnation(unix_us());
        let me = (node, incarnation);
        #[cfg(feature = "testing")]
        let hub = network.as_ref().map(|network| network.hub.clone());
        let token = config
            .http_token_file
            .as_deref()
            .map(telemetry::Token::read)
            .transpose()?;
        status.starting(Some(
            "it reads its credentials and opens its port".to_owned(),
        ));
        let opened = config.clone();
        let connected = beside(move || connect(&opened, network, me)).await??;
        let recorder = recorder_of(&config, me)?;
        #[cfg(feature = "testing")]
        let (connected, recorder, faults) = if self.faulty {
            let silent_after = Duration::from_millis(config.idle_timeout_ms);
            let (connected, recorder, faults) = testing::inject(connected, recorder, silent_after);
            (connected, recorder, Some(faults))
        } else {
            (connected, recorder, None)
        };
        let Connected {
            cluster,
            transport,
            events,
            discovery,
            trust,
            credentials,
        } = connected;
        let checkpoints = checkpoints_of(&config, me, trust, &status).await?;
        let mut settings = settings(
            &config,
            Identity {
                cluster,
                node: me.0,
                incarnation: me.1,
            },
        )?;
        if settings.join {
            status.standing(MemberState::Joining);
        } else {
            // Nodes that bootstrap together must continue from the same checkpoint, with the same
            // samples; otherwise the difference is reported.
            let resumed = match checkpoints.resumed() {
                None => "none".to_owned(),
                Some(resumed) if checkpoints.begins_samples_anew() => {
                    format!("{} with resume_sampler = reset", resumed.name())
                }
                Some(resumed) => resumed.name().to_string(),
            };
            settings
                .shared
                .push_str(&format!("{RESUME_KEY} = {resumed}\n"));
        }
        discovery
            .announce(me.0, transport.local().announced)
            .await?;
        let signer = NodeKey::generate()
            .map_err(|_| SpawnError::System("the system gives no random bytes".to_owned()))?;
        let signer: Arc<dyn Signer> = Arc::new(signer);
        #[cfg(feature = "testing")]
        if let Some(faults) = &faults {
            faults.sign_with(Arc::clone(&signer));
        }
        let context = Arc::new(NodeContext {
            settings,
            transport,
            discovery,
            clock: Arc::new(TokioClock::default()),
            pool: Arc::clone(&devices.pool),
            actors: Actors::default(),
            status,
            peers: PeerStatus::default(),
            metrics: Metrics::default(),
            store: Arc::clone(&checkpoints) as _,
            signer,
            signed: Mutex::default(),
            asked: Mutex::default(),
            orders: Arc::new(telemetry::Proofs::new(cluster, token.as_ref())),
            recorder,
            ended: OnceLock::new(),
            rates: RateBook::default(),
            credits: Arc::new(Semaphore::new(MAILBOX_CREDITS_MAX)),
        });
        let arguments = NodeArguments {
            context: Arc::clone(&context),
            events,
        };
        let (supervisor, _) = Actor::spawn(None, NodeSupervisor, arguments)
            .await
            .map_err(|error| SpawnError::System(error.to_string()))?;
        #[cfg(feature = "testing")]
        if let Some(faults) = &faults {
            tokio::spawn(testing::die(
                faults.clone(),
                hub.map(|hub| (hub, context.transport.local())),
                supervisor.clone(),
            ));
        }
        if let Some((held, renewer)) = credentials {
            tokio::spawn(credentials::follow(
                held,
                renewer,
                Arc::clone(&context.status),
            ));
        }
        context.status.runs_on(devices.names.clone());
        Ok(Built {
            context,
            devices,
            checkpoints,
            token,
            supervisor,
            #[cfg(feature = "testing")]
            faults,
        })
    }
}

fn serve_admin(
    path: &Path,
    known: (NodeId, usize),
    board: &Arc<StatusBoard>,
    executor: &Executor,
) -> Result<admin::Endpoint, SpawnError> {
    let _inside = executor.handle().enter();
    admin::Endpoint::serve(path, known, Arc::clone(board)).map_err(|error| SpawnError::Admin {
        path: path.to_owned(),
        error,
    })
}

fn serve_http(
    address: SocketAddr,
    token: Option<telemetry::Token>,
    context: &Arc<NodeContext>,
    executor: &Executor,
) -> Result<telemetry::Endpoint, SpawnError> {
    let _inside = executor.handle().enter();
    let endpoint = telemetry::Endpoint::serve(address, token, Arc::clone(context))?;
    let mut reached = endpoint.address();
    if reached.ip().is_unspecified() {
        reached.set_ip(context.transport.local().announced.ip());
    }
    context.peers.is_served_at(reached);
    tracing::info!(
        page = %format_args!("http://{reached}/"),
        "metrics, status and the page are served"
    );
    Ok(endpoint)
}

/// A random id short enough for a person to read out.
fn random_id() -> Result<u64, SpawnError> {
    let mut bytes = [0; 8];
    let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes[..6]);
    filled.map_err(|_| SpawnError::System("no random bytes".to_owned()))?;
    Ok(u64::from_le_bytes(bytes))
}
