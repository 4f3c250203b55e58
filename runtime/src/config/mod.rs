//! What a node is told: typed values from a TOML file, `SLOWMO_*` variables and `--slowmo-*` flags,
//! checked once.
//!
//! | file | holds |
//! |---|---|
//! | [`keys`] | the one table of all keys |
//! | `values` | the types of the values, from and to text |
//! | `allowed` | which values a key allows |
//! | `credentials` | which credentials were named, and that they are of one kind |
//! | `discover` | ways to look for the others |
//! | `sources` | file, variables and flags; the only part that reads the process |
//! | `error` | why a configuration was refused |

mod allowed;
mod credentials;
mod discover;
mod error;
pub mod keys;
mod sources;
#[cfg(test)]
mod tests;
mod values;

pub use crate::transport::quic::ClusterKey;
pub use credentials::Credentials;
pub use discover::Discover;
pub use error::{ConfigError, Origin};
pub use slowmo_protocol::algorithm::{LatePeers, TopologyName, WireType};
pub use slowmo_protocol::policy::{Bootstrap, JoinerBuffers, OnMomentumLoss, OnQuorumLoss, Quorum};
pub use sources::{CONFIG_FILE_BYTES_MAX, RESERVED_VARIABLES, user_arguments};
pub use values::{BaseName, Congestion, DeviceName, OuterName, PEERS_MAX, Resume};

pub(crate) use values::is_host_and_port;

use keys::{KEYS, Key};
use slowmo_protocol::algorithm::{Algorithm, Base, BufferStrategy, Gossip, Outer, OuterOptimizer};
use slowmo_protocol::checkpoint;
use slowmo_protocol::ident::Lineage;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything a node can be told. Units, defaults and ranges stand in [`keys::KEYS`];
/// [`Config::check`] checks fields set by hand.
///
/// ```
/// let config = slowmo::Config { min_nodes: 2, ..Default::default() }.with("tau", 12)?;
/// assert_eq!(config.tau, 12);
/// # Ok::<(), slowmo::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Who this node is; `None` draws a random id at each start.
    pub node_id: Option<u64>,
    /// Where the UDP endpoint listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where other nodes are told to dial this one, as `host:port`, if not where it listens.
    pub advertise: Option<String>,
    /// Nodes to dial at start, as `host:port`.
    pub peers: Vec<String>,
    /// Folder in which nodes find each other.
    pub rendezvous: Option<PathBuf>,
    /// Another way to find nodes.
    pub discover: Option<Discover>,
    /// Bootstrapping nodes.
    pub min_nodes: usize,
    /// Join a running cluster only.
    pub join: bool,
    /// Whether this process may found a run.
    pub bootstrap: Bootstrap,
    /// File that says that this node is a member of a run.
    pub marker: Option<PathBuf>,
    /// Join only the cluster of this model history.
    pub lineage: Option<Lineage>,
    /// Most members of the cluster.
    pub max_nodes: usize,
    /// Workers of this node, `g`.
    pub devices: u16,
    /// Where the workers' copies of the model live.
    pub device: DeviceName,
    /// The GPU of worker 0; worker `i` has the `i`-th one after it, counted around.
    pub first_gpu: u16,
    /// The cluster's secret.
    pub cluster_key: Option<ClusterKey>,
    /// File with the cluster's secret.
    pub cluster_key_file: Option<PathBuf>,
    /// The operator's own CA (PEM).
    pub tls_ca_file: Option<PathBuf>,
    /// This node's certificate chain (PEM).
    pub tls_certificate_file: Option<PathBuf>,
    /// This node's private key (PEM).
    pub tls_key_file: Option<PathBuf>,
    /// Base algorithm between outer rounds.
    pub base: BaseName,
    /// LocalSGD's `f`, in inner steps.
    pub frequency: u64,
    /// SGP's out-peers of one gossip, `p`.
    pub peers_per_step: u32,
    /// Steps that a gossip message may be late; 0 is synchronous.
    pub staleness: u32,
    /// Who gossips with whom.
    pub topology: TopologyName,
    /// What happens to peers that are later than `staleness`.
    pub late_peers: LatePeers,
    /// How gossip messages travel.
    pub gossip_wire: WireType,
    /// How parameters travel in rounds.
    pub round_wire: WireType,
    /// Outer optimizer.
    pub outer: OuterName,
    /// `τ`, inner steps of an outer round.
    pub tau: u64,
    /// SlowMo's `α`.
    pub alpha: f32,
    /// SlowMo's `β`.
    pub beta: f32,
    /// Nesterov's and BMUF's `η`.
    pub eta: f32,
    /// Nesterov's and BMUF's `μ`.
    pub mu: f32,
    /// An exact average without momentum every so many inner steps.
    pub average_every: Option<u64>,
    /// SGP's slow steps do not average.
    pub no_average: bool,
    /// Anchor and momentum are divided over the nodes.
    pub sharded: bool,
    /// Further holders of each shard, `R`.
    pub replicas: usize,
    /// What a round does to the base optimizer's buffers.
    pub buffers: BufferStrategy,
    /// Who may decide a round.
    pub quorum: Quorum,
    /// How long a round waits for a live straggler, in milliseconds.
    pub grace_ms: u64,
    /// What happens when the quorum is lost.
    pub on_quorum_loss: OnQuorumLoss,
    /// How long survivors wait for members that may live, in milliseconds.
    pub fork_after_ms: u64,
    /// What happens when all holders of a shard are lost.
    pub on_momentum_loss: OnMomentumLoss,
    /// What a joiner gets of the base optimizer's buffers.
    pub joiner_buffers: JoinerBuffers,
    /// How often a peer is probed for life, in milliseconds.
    pub probe_interval_ms: u64,
    /// How long a silent peer is suspected before it counts as dead, in milliseconds.
    pub suspect_ms: u64,
    /// Unix socket of this node's admin endpoint.
    pub admin: Option<PathBuf>,
    /// Where this node serves metrics and status over HTTP.
    pub http: Option<SocketAddr>,
    /// File with the token that orders over HTTP must bring.
    pub http_token_file: Option<PathBuf>,
    /// Folder in which this node writes down what it does.
    pub trace: Option<PathBuf>,
    /// Folder into which the last events are written when something goes wrong.
    pub flight: Option<PathBuf>,
    /// Folder of the checkpoints.
    pub checkpoints: Option<PathBuf>,
    /// Outer rounds from one checkpoint to the next.
    pub checkpoint_every: Option<u64>,
    /// Whole checkpoints that are kept.
    pub checkpoint_keep_last: usize,
    /// What a founding goes on from.
    pub resume: Resume,
    /// SIGTERM drains this node.
    pub drain_on_sigterm: bool,
    /// How long a peer is tried before it is given up, in milliseconds.
    pub connect_timeout_ms: u64,
    /// How long a round may take, in milliseconds.
    pub round_timeout_ms: u64,
    /// Silence after which a connection is given up, in milliseconds.
    pub idle_timeout_ms: u64,
    /// How often an idle connection shows life, in milliseconds.
    pub keep_alive_ms: u64,
    /// Largest UDP payload that path discovery tries, in bytes.
    pub mtu_bytes_max: u16,
    /// Congestion control of the connections.
    pub congestion: Congestion,
    /// Threads of the runtime that moves the data.
    pub runtime_threads: usize,
}

impl Default for Config {
    /// One node on its own, on loopback, with LocalSGD and SlowMo.
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
            device: DeviceName::Cpu,
            first_gpu: 0,
            cluster_key: None,
            cluster_key_file: None,
            tls_ca_file: None,
            tls_certificate_file: None,
            tls_key_file: None,
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
            joiner_buffers: JoinerBuffers::Reset,
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
            drain_on_sigterm: true,
            connect_timeout_ms: 30_000,
            round_timeout_ms: 300_000,
            idle_timeout_ms: 10_000,
            keep_alive_ms: 1_000,
            mtu_bytes_max: 6_400,
            congestion: Congestion::Cubic,
            runtime_threads: 2,
        }
    }
}

impl Config {
    /// The process's configuration: file, then `SLOWMO_*` variables, then `--slowmo-*` flags; the
    /// later wins.
    ///
    /// # Errors
    /// The file is missing, unreadable or not TOML; an unknown key; a value out of range; keys that
    /// exclude each other.
    pub fn load() -> Result<Self, ConfigError> {
        sources::load()
    }

    /// [`Config::load`] from given sources: a file's path and text, variables, arguments. Reads
    /// nothing itself.
    ///
    /// # Errors
    /// As [`Config::load`], but for the file's reading.
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

    /// [`Config::set`] for chains.
    ///
    /// # Errors
    /// An unknown key, or a value out of range.
    pub fn with(mut self, key: &str, value: impl ToString) -> Result<Self, ConfigError> {
        self.set(key, &value.to_string()).map(|()| self)
    }

    /// Checks every value and every combination, also of fields that were set by hand.
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
        Ok(())
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

    /// Whether `min_nodes` of this node and its peers may meet and found a cluster while others of
    /// them found another.
    #[must_use]
    pub fn may_found_twice(&self) -> bool {
        let me = self.listen.to_string();
        let others = self.peers.iter().filter(|peer| **peer != me).count();
        let founds = !self.join && self.lineage.is_none();
        founds && others > 0 && 2 * self.min_nodes <= others + 1
    }

    /// The training algorithm; SlowMo with `alpha` 1 and `beta` 0 is off.
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

    /// The outer optimizer's word.
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

    /// The settings that all nodes must share, as `key = value` lines in the table's order; compare
    /// two with [`slowmo_protocol::membership::settings::differing_settings`].
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
