//! A node's configuration: typed values from a TOML file, `SLOWMO_*` variables and `--slowmo-*`
//! flags, checked once.
//!
//! | file | holds |
//! |---|---|
//! | [`keys`] | the single table of all keys |
//! | `values` | the types of the values: parsing and formatting |
//! | `allowed` | the values that a key allows |
//! | `credentials` | the credentials given, and the check that they are of one kind |
//! | `discover` | ways to look for other nodes |
//! | `sources` | file, variables and flags; the only part that does I/O |
//! | `error` | reasons for refusing a configuration |

mod allowed;
mod credentials;
mod discover;
mod error;
mod group;
pub mod keys;
mod sources;
#[cfg(test)]
mod tests;
mod values;

pub use crate::transport::quic::{ClusterKey, ClusterName, PeerName};
pub use credentials::Credentials;
pub use discover::Discover;
pub use error::{ConfigError, Origin};
pub use group::GroupName;
pub use slowmo_protocol::algorithm::{LatePeers, TopologyName, WireType};
pub use slowmo_protocol::policy::{Bootstrap, JoinerBuffers, OnMomentumLoss, OnQuorumLoss, Quorum};
pub use sources::{RESERVED_VARIABLES, load_of, user_arguments};
pub use values::{BaseName, Congestion, DeviceName, OuterName, Resume, ResumeSampler, SameHost};

pub(crate) use sources::ignored_variables;
pub(crate) use values::is_host_and_port;

use keys::{KEYS, Key};
use slowmo_protocol::algorithm::{Algorithm, Base, BufferStrategy, Gossip, Outer, OuterOptimizer};
use slowmo_protocol::checkpoint;
use slowmo_protocol::ident::Lineage;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a node waits for the others to meet it, unless `meet_timeout_ms` says otherwise: a
/// person starts one host after the other, and machines and images take minutes to come up.
pub const MEET_TIMEOUT: Duration = Duration::from_secs(600);
/// The same for a node that `slowmo launch` started together with the others.
pub const MEET_TIMEOUT_LAUNCHED: Duration = Duration::from_secs(30);

/// Most threads of the runtime, unless `runtime_threads` says otherwise.
pub const RUNTIME_THREADS_MAX: usize = 4;

/// All settings of a node. [`keys::KEYS`] lists units, defaults and ranges; [`Config::check`]
/// checks fields set by hand.
///
/// ```
/// let config = slowmo::Config { min_nodes: 2, ..Default::default() }.with("tau", 12)?;
/// assert_eq!(config.tau, 12);
/// # Ok::<(), slowmo::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// This node's id; `None` draws a random id at each start.
    pub node_id: Option<u64>,
    /// Address on which the UDP endpoint listens; port 0 picks a free port.
    pub listen: SocketAddr,
    /// Address that other nodes are told to dial, as `host:port`, if it differs from `listen`.
    pub advertise: Option<String>,
    /// Nodes to dial at start, as `host:port`.
    pub peers: Vec<String>,
    /// Folder in which nodes find each other.
    pub rendezvous: Option<PathBuf>,
    /// Further source in which other nodes are looked up.
    pub discover: Option<Discover>,
    /// Number of nodes that must meet before training starts.
    pub min_nodes: usize,
    /// Only join a running cluster, never bootstrap one.
    pub join: bool,
    /// Whether this process may bootstrap a run.
    pub bootstrap: Bootstrap,
    /// File whose existence records that this node is a member of a run.
    pub marker: Option<PathBuf>,
    /// Only join the running cluster of this model history.
    pub lineage: Option<Lineage>,
    /// Largest number of members of the cluster.
    pub max_nodes: usize,
    /// Number of workers of this node, `g`.
    pub devices: u16,
    /// Group of nodes with fast links among them that this node is in.
    pub group: Option<GroupName>,
    /// Device that holds the workers' copies of the model.
    pub device: DeviceName,
    /// The GPU of worker 0; worker `i` has the `i`-th GPU after it, wrapping around.
    pub first_gpu: u16,
    /// The cluster's secret key.
    pub cluster_key: Option<ClusterKey>,
    /// File with the cluster's secret key.
    pub cluster_key_file: Option<PathBuf>,
    /// The operator's own CA (PEM).
    pub tls_ca_file: Option<PathBuf>,
    /// This node's certificate chain (PEM).
    pub tls_certificate_file: Option<PathBuf>,
    /// This node's private key (PEM).
    pub tls_key_file: Option<PathBuf>,
    /// Lists of revoked certificates (PEM).
    pub tls_crl_file: Option<PathBuf>,
    /// The name that each node's certificate must carry.
    pub tls_peer_name: Option<PeerName>,
    /// The cluster's name, with certificates of the operator's own CA.
    pub cluster_name: Option<ClusterName>,
    /// Base algorithm between outer rounds.
    pub base: BaseName,
    /// LocalSGD's `f`: inner steps from one exact average to the next.
    pub frequency: u64,
    /// SGP's `p`: number of out-peers of one gossip.
    pub peers_per_step: u32,
    /// Number of steps that a gossip message may be late before a node waits for it; 0 is
    /// synchronous.
    pub staleness: u32,
    /// Gossip topology.
    pub topology: TopologyName,
    /// Handling of peers that are more than `staleness` steps late: wait for them or skip them.
    pub late_peers: LatePeers,
    /// Wire format of gossip messages.
    pub gossip_wire: WireType,
    /// Wire format of parameters in rounds.
    pub round_wire: WireType,
    /// Outer optimizer.
    pub outer: OuterName,
    /// `τ`: number of inner steps per outer round.
    pub tau: u64,
    /// SlowMo's slow learning rate `α`.
    pub alpha: f32,
    /// SlowMo's slow momentum `β`.
    pub beta: f32,
    /// Outer learning rate `η` of Nesterov and BMUF.
    pub eta: f32,
    /// Outer momentum `μ` of Nesterov and BMUF.
    pub mu: f32,
    /// Interval in inner steps of exact averages without momentum; `None` is off.
    pub average_every: Option<u64>,
    /// Whether SGP's slow steps skip the exact average.
    pub no_average: bool,
    /// Whether anchor and momentum are sharded over the nodes.
    pub sharded: bool,
    /// Number of additional holders of each shard, `R`.
    pub replicas: usize,
    /// Handling of the base optimizer's buffers in a round.
    pub buffers: BufferStrategy,
    /// Quorum for deciding a round: a majority of the voters, or the survivors.
    pub quorum: Quorum,
    /// Longest time that a round waits for a live straggler, in milliseconds.
    pub grace_ms: u64,
    /// Reaction to the loss of a quorum.
    pub on_quorum_loss: OnQuorumLoss,
    /// Time that survivors wait for members that may be alive, in milliseconds, before they
    /// continue in a history of their own.
    pub fork_after_ms: u64,
    /// Reaction to the loss of all holders of a shard: reset its momentum or stop.
    pub on_momentum_loss: OnMomentumLoss,
    /// Initial base-optimizer buffers of a joiner: zeros, or a copy of a member's.
    pub joiner_buffers: JoinerBuffers,
    /// Interval at which a peer is probed for liveness, in milliseconds.
    pub probe_interval_ms: u64,
    /// Time for which an unresponsive peer is suspected before it counts as dead, in milliseconds.
    pub suspect_ms: u64,
    /// Unix socket of this node's admin endpoint.
    pub admin: Option<PathBuf>,
    /// Address on which this node serves metrics and status over HTTP.
    pub http: Option<SocketAddr>,
    /// File with the token that commands over HTTP must carry.
    pub http_token_file: Option<PathBuf>,
    /// Folder for the trace of this node's actions.
    pub trace: Option<PathBuf>,
    /// Folder for the flight recorder: the node's last events are written there on failure, at
    /// SIGUSR1 and on request.
    pub flight: Option<PathBuf>,
    /// Folder for the checkpoints.
    pub checkpoints: Option<PathBuf>,
    /// Number of outer rounds (exact averages, without an outer optimizer) from one checkpoint to
    /// the next.
    pub checkpoint_every: Option<u64>,
    /// Number of complete checkpoints that are kept.
    pub checkpoint_keep_last: usize,
    /// Checkpoint from which a bootstrap resumes.
    pub resume: Resume,
    /// Whether a bootstrap that resumes goes on with the checkpoint's samples, or begins anew.
    pub resume_sampler: ResumeSampler,
    /// Whether SIGTERM drains this node.
    pub drain_on_sigterm: bool,
    /// Longest time that an address is dialed before it is reported as silent, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Longest time that the node waits for others to meet it, in milliseconds; `None` is 10
    /// minutes, or 30 s if a launcher started this process.
    pub meet_timeout_ms: Option<u64>,
    /// Longest time that a node that was a member waits to be admitted again, and that a restarted
    /// one looks for its run, in milliseconds.
    pub rejoin_timeout_ms: u64,
    /// Longest time that a round may take before it fails, in milliseconds.
    pub round_timeout_ms: u64,
    /// Silence after which a connection is given up, in milliseconds.
    pub idle_timeout_ms: u64,
    /// Keep-alive interval of an idle connection, in milliseconds; below `idle_timeout_ms`.
    pub keep_alive_ms: u64,
    /// Largest UDP payload that path discovery tries, in bytes.
    pub mtu_bytes_max: u16,
    /// Congestion control of the connections.
    pub congestion: Congestion,
    /// How values and control frames travel between nodes of one machine.
    pub same_host: SameHost,
    /// Number of threads of the runtime that moves the data; `None` for this process's share of the
    /// machine's processors.
    pub runtime_threads: Option<usize>,
}

impl Default for Config {
    /// A single node on loopback, with LocalSGD and SlowMo.
    fn default() -> Self {
        Self {
            node_id: None,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: None,
            peers: Vec::new(),
            rendezvous: None,
            discover: None,
            min_nodes: 1,
            join: false,
            bootstrap: Bootstrap::default(),
            marker: None,
            lineage: None,
            max_nodes: 4096,
            devices: 1,
            group: None,
            device: DeviceName::Cpu,
            first_gpu: 0,
            cluster_key: None,
            cluster_key_file: None,
            tls_ca_file: None,
            tls_certificate_file: None,
            tls_key_file: None,
            tls_crl_file: None,
            tls_peer_name: None,
            cluster_name: None,
            base: BaseName::LocalSgd,
            frequency: 3,
            peers_per_step: 1,
            staleness: 1,
            topology: TopologyName::Exponential,
            late_peers: LatePeers::Wait,
            gossip_wire: WireType::Float32,
            round_wire: WireType::Float32,
            outer: OuterName::SlowMo,
            tau: 48,
            alpha: 1.0,
            beta: 0.5,
            eta: 0.7,
            mu: 0.9,
            average_every: None,
            no_average: false,
            sharded: true,
            replicas: 1,
            buffers: BufferStrategy::Maintain,
            quorum: Quorum::Majority,
            grace_ms: 30_000,
            on_quorum_loss: OnQuorumLoss::Wait,
            fork_after_ms: 4_000,
            on_momentum_loss: OnMomentumLoss::Reset,
            joiner_buffers: JoinerBuffers::Copy,
            probe_interval_ms: 200,
            suspect_ms: 1_000,
            admin: None,
            http: None,
            http_token_file: None,
            trace: None,
            flight: None,
            checkpoints: None,
            checkpoint_every: None,
            checkpoint_keep_last: 3,
            resume: Resume::Newest,
            resume_sampler: ResumeSampler::Keep,
            drain_on_sigterm: true,
            connect_timeout_ms: 30_000,
            meet_timeout_ms: None,
            rejoin_timeout_ms: 3_600_000,
            round_timeout_ms: 300_000,
            idle_timeout_ms: 10_000,
            keep_alive_ms: 1_000,
            mtu_bytes_max: 6_400,
            congestion: Congestion::Rate,
            same_host: SameHost::Auto,
            runtime_threads: None,
        }
    }
}

impl Config {
    /// Loads the process's configuration from the file, then `SLOWMO_*` variables, then
    /// `--slowmo-*` flags; later sources override earlier ones.
    ///
    /// # Errors
    /// The file is missing, unreadable or not TOML, a key is unknown, a value is out of range, or
    /// keys exclude each other. A variable that is no key is an error only if its name is nearly
    /// that of one; a node names the others, which it ignores.
    pub fn load() -> Result<Self, ConfigError> {
        sources::load()
    }

    /// Like [`Config::load`], from the given sources: a file's path and text, variables, arguments.
    /// Does no I/O.
    ///
    /// # Errors
    /// As [`Config::load`], except for errors of reading the file.
    pub fn from_sources(
        file_text: Option<(&Path, &str)>,
        variables: impl Iterator<Item = (String, String)>,
        arguments: impl Iterator<Item = String>,
    ) -> Result<Self, ConfigError> {
        sources::merge(file_text, variables, arguments)
    }

    /// Sets one key from its text, with the same checks as any other source.
    ///
    /// # Errors
    /// An unknown key, or a value out of range; `self` is unchanged.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        self.set_from(key, value, &Origin::Program)
    }

    /// Like [`Config::set`], for call chains.
    ///
    /// # Errors
    /// An unknown key, or a value out of range.
    pub fn with(mut self, key: &str, value: impl ToString) -> Result<Self, ConfigError> {
        self.set(key, &value.to_string()).map(|()| self)
    }

    /// Checks every value and every combination, including fields that were set by hand.
    ///
    /// # Errors
    /// The first value or combination that is refused.
    pub fn check(&self) -> Result<(), ConfigError> {
        let algorithm = self.algorithm()?;
        for key in KEYS {
            key.set(&mut self.clone(), &key.text(self), &Origin::Program)?;
        }
        self.check_credentials()?;
        self.check_checkpoints(&algorithm)?;
        if self.trace.is_some() && self.trace == self.flight {
            return Err(ConfigError::OneFolderForTwo);
        }
        if self.rendezvous.is_some() && self.discover.is_some() {
            return Err(ConfigError::TwoDiscoveries);
        }
        if self.min_nodes > self.max_nodes {
            let Self {
                min_nodes,
                max_nodes,
                ..
            } = *self;
            return Err(ConfigError::MoreThanFit {
                min_nodes,
                max_nodes,
            });
        }
        if self.keep_alive_ms >= self.idle_timeout_ms {
            let Self {
                keep_alive_ms,
                idle_timeout_ms,
                ..
            } = *self;
            return Err(ConfigError::KeepAliveTooLong {
                keep_alive_ms,
                idle_timeout_ms,
            });
        }
        self.check_grace()
    }

    fn check_grace(&self) -> Result<(), ConfigError> {
        let grace_max = self.round_timeout_ms / 2;
        if self.grace_ms > grace_max {
            return Err(ConfigError::GraceTooLong {
                grace_ms: self.grace_ms,
                grace_max,
                round_timeout_ms: self.round_timeout_ms,
            });
        }
        Ok(())
    }

    /// Sets one key to what an operator of the running job orders.
    ///
    /// # Errors
    /// An unknown key, or a value out of range; `self` is unchanged.
    pub(crate) fn order(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        self.set_from(key, value, &Origin::Order)
    }

    /// Checks the combinations in which keys that change in a running job take part.
    ///
    /// # Errors
    /// The first combination that is refused.
    pub(crate) fn check_running(&self) -> Result<(), ConfigError> {
        let algorithm = self.algorithm()?;
        if self.checkpoint_every.is_some() && checkpoint::period(&algorithm).is_none() {
            return Err(ConfigError::NothingToKeep);
        }
        self.check_grace()
    }

    fn check_checkpoints(&self, algorithm: &Algorithm) -> Result<(), ConfigError> {
        match (
            self.checkpoint_every,
            &self.checkpoints,
            checkpoint::period(algorithm),
        ) {
            (Some(_), None, _) => Err(ConfigError::NoCheckpointFolder),
            (Some(_), Some(_), None) => Err(ConfigError::NothingToKeep),
            _ => Ok(()),
        }
    }

    /// Whether `min_nodes` of this node and its peers could bootstrap a cluster while others of
    /// them bootstrap another.
    #[must_use]
    pub fn may_bootstrap_twice(&self) -> bool {
        let me = self.listen.to_string();
        let others = self.peers.iter().filter(|peer| **peer != me).count();
        let may_bootstrap = !self.join && self.lineage.is_none();
        may_bootstrap && others > 0 && 2 * self.min_nodes <= others + 1
    }

    /// The training algorithm; SlowMo with `alpha` 1 and `beta` 0 means no outer optimizer.
    ///
    /// # Errors
    /// [`ConfigError::Algorithm`] with the first value out of range.
    pub fn algorithm(&self) -> Result<Algorithm, ConfigError> {
        let base = match self.base {
            BaseName::LocalSgd => Base::LocalSgd {
                frequency: self.frequency,
            },
            BaseName::Sgp => Base::Sgp(self.gossip()),
            BaseName::AllReduce => Base::AllReduce,
            BaseName::None => Base::None,
        };
        let optimizer = match self.outer {
            OuterName::SlowMo => OuterOptimizer::SlowMo {
                alpha: self.alpha,
                beta: self.beta,
            },
            OuterName::Nesterov => OuterOptimizer::Nesterov {
                eta: self.eta,
                mu: self.mu,
            },
            OuterName::BmufNbm => OuterOptimizer::BmufNbm {
                eta: self.eta,
                mu: self.mu,
            },
        };
        let outer = Outer {
            frequency: self.tau,
            optimizer,
            sharded: self.sharded,
            average: !self.no_average,
        };
        let outer = (!optimizer.is_off()).then_some(outer);
        let average_every = self.average_every;
        let buffers = self.buffers;
        let round_wire = self.round_wire;
        let algorithm = Algorithm {
            base,
            outer,
            average_every,
            buffers,
            round_wire,
        };
        algorithm.check()?;
        Ok(algorithm)
    }

    /// The outer optimizer's configuration word.
    pub(crate) fn outer_name(&self) -> String {
        values::Value::show(&self.outer)
    }

    fn gossip(&self) -> Gossip {
        let Self {
            peers_per_step,
            staleness,
            topology,
            late_peers,
            gossip_wire,
            ..
        } = *self;
        Gossip {
            peers_per_step,
            staleness,
            topology,
            late_peers,
            wire: gossip_wire,
        }
    }

    /// The settings that all nodes must share, as `key = value` lines in the order of [`KEYS`];
    /// compare two such texts with [`slowmo_protocol::membership::settings::differing_settings`].
    #[must_use]
    pub fn shared_settings(&self) -> String {
        let line = |key: &Key| format!("{} = {}\n", key.name, key.text(self));
        KEYS.iter().filter(|key| key.shared).map(line).collect()
    }

    /// `connect_timeout_ms` as a duration.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    /// `meet_timeout_ms` as a duration; `launched` says whether a launcher started this process.
    #[must_use]
    pub(crate) fn meet_timeout(&self, launched: bool) -> Duration {
        let otherwise = if launched {
            MEET_TIMEOUT_LAUNCHED
        } else {
            MEET_TIMEOUT
        };
        self.meet_timeout_ms
            .map_or(otherwise, Duration::from_millis)
    }

    /// `runtime_threads`, for one of so many processes that share so many processors.
    #[must_use]
    pub(crate) fn threads(&self, processes: usize, processors: usize) -> usize {
        let share = processors / processes.max(1);
        self.runtime_threads
            .unwrap_or(share.clamp(1, RUNTIME_THREADS_MAX))
    }

    /// `round_timeout_ms` as a duration.
    #[must_use]
    pub fn round_timeout(&self) -> Duration {
        Duration::from_millis(self.round_timeout_ms)
    }

    /// `idle_timeout_ms` as a duration.
    #[must_use]
    pub fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.idle_timeout_ms)
    }

    /// `keep_alive_ms` as a duration.
    #[must_use]
    pub fn keep_alive(&self) -> Duration {
        Duration::from_millis(self.keep_alive_ms)
    }

    fn set_from(&mut self, name: &str, value: &str, origin: &Origin) -> Result<(), ConfigError> {
        match Key::find(name) {
            Some(key) => key.set(self, value, origin),
            None => Err(ConfigError::UnknownKey {
                key: name.to_owned(),
                origin: origin.clone(),
                nearest: Key::nearest(name),
            }),
        }
    }
}
