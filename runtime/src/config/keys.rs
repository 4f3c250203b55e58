//! The single table of all keys: name, default, unit, range, meaning, and how a value is formatted
//! and stored. Parsing, help text, documentation and the search for the nearest key all use it.
//! Pure.
//!
//! A row with `true` is a key that all nodes must agree on: `membership::settings` of
//! `slowmo-protocol` compares the nodes' values. A key reaches the actors through `NodeSettings`
//! (`context.rs` of actors), which `runtime/parts.rs` fills.

pub use super::allowed::Allowed;

use super::values::Value;
use super::{Config, ConfigError, Origin};
use slowmo_protocol::algorithm::STALENESS_MAX;
use slowmo_protocol::view::MEMBERS_MAX;
use std::fmt;

/// Longest time that a key may be set to: one day, in milliseconds.
const MILLISECONDS_MAX: u64 = 86_400_000;

/// The keys whose values may change in a running job, in the order of [`KEYS`]; all nodes agree on
/// them at every step ([`slowmo_protocol::changeable`]).
pub const CHANGEABLE: [&str; 6] = [
    "frequency",
    "gossip_wire",
    "round_wire",
    "tau",
    "grace_ms",
    "checkpoint_every",
];

/// One key of the configuration.
pub struct Key {
    /// Name in `snake_case`; the variable is `SLOWMO_<NAME>`, the flag
    /// `--slowmo-<name-with-dashes>`.
    pub name: &'static str,
    /// The value that applies when no source sets the key.
    pub default: &'static str,
    /// The unit; empty if there is none.
    pub unit: &'static str,
    /// The allowed values.
    pub allowed: Allowed,
    /// One-line description of the key.
    pub meaning: &'static str,
    /// Whether all nodes of a cluster must have the same value.
    pub shared: bool,
    pub(super) show: fn(&Config) -> String,
    pub(super) store: fn(&mut Config, &str) -> Option<()>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.name)
    }
}

impl Key {
    /// The key with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The name of the known key closest to a mistyped one.
    #[must_use]
    pub fn nearest(name: &str) -> &'static str {
        let distance = |key: &&Self| strsim::damerau_levenshtein(key.name, name);
        KEYS.iter().min_by_key(distance).map_or("", |key| key.name)
    }

    /// The canonical text of this key's value in `config`, secrets included.
    #[must_use]
    pub(super) fn text(&self, config: &Config) -> String {
        (self.show)(config)
    }

    /// The text of this key's value in `config`; secrets are hidden.
    #[must_use]
    pub fn shown(&self, config: &Config) -> String {
        match self.allowed {
            Allowed::Secret(_) => "(hidden)".to_owned(),
            _ => self.text(config),
        }
    }

    /// Whether its value is a secret.
    pub(super) fn is_secret(&self) -> bool {
        matches!(self.allowed, Allowed::Secret(_))
    }

    /// Whether its value may change in a running job.
    #[must_use]
    pub fn is_changeable(&self) -> bool {
        CHANGEABLE.contains(&self.name)
    }

    /// Checks a value and stores it; on error `config` is unchanged.
    pub(super) fn set(
        &self,
        config: &mut Config,
        text: &str,
        origin: &Origin,
    ) -> Result<(), ConfigError> {
        if let (Allowed::Secret(_), Origin::Flag(flag)) = (&self.allowed, origin) {
            return Err(ConfigError::SecretFlag {
                key: self.name,
                flag: flag.clone(),
            });
        }
        let stored = if self.allowed.contains(text) {
            (self.store)(config, text)
        } else {
            None
        };
        stored.ok_or_else(|| self.refusal(text, origin))
    }

    fn refusal(&self, text: &str, origin: &Origin) -> ConfigError {
        ConfigError::OutOfRange {
            key: self.name,
            value: if self.is_secret() {
                "(hidden)".to_owned()
            } else {
                text.to_owned()
            },
            origin: origin.clone(),
            allowed: self.allowed.to_string(),
        }
    }
}

/// The table of all keys as Markdown, one row per key, for documentation and `--help`.
#[must_use]
pub fn markdown_table() -> String {
    let row = |key: &Key| {
        let Key {
            name,
            default,
            unit,
            allowed,
            meaning,
            shared,
            ..
        } = key;
        let shared = if key.is_changeable() {
            "yes; `slowmo set`"
        } else if *shared {
            "yes"
        } else {
            ""
        };
        format!("| `{name}` | `{default}` | {unit} | {allowed} | {shared} | {meaning} |\n")
    };
    let head = "| key | default | unit | allowed | same on all nodes | meaning |\n\
                |---|---|---|---|---|---|\n";
    KEYS.iter()
        .map(row)
        .fold(head.to_owned(), |table, row| table + &row)
}

/// Defines a row of the table: `key!(field, default, unit, allowed, shared, meaning)`; the default
/// is marked `word:` for fields that may be `None`, and stands for `None`.
macro_rules! key {
    (
        $field:ident,
        $default:literal,
        $unit:literal,
        $allowed:expr,
        $shared:literal,
        $meaning:literal
    ) => {
        key!(@row $field, $default, $unit, $allowed, $shared, $meaning,
            |config| config.$field.show(),
            |config, text| {
                config.$field = Value::parse(text)?;
                Some(())
            })
    };
    (
        $field:ident,
        word: $word:literal,
        $unit:literal,
        $allowed:expr,
        $shared:literal,
        $meaning:literal
    ) => {
        key!(@row $field, $word, $unit, $allowed, $shared, $meaning,
            |config| config.$field.as_ref().map_or_else(|| $word.to_owned(), Value::show),
            |config, text| {
                config.$field = if text == $word { None } else { Some(Value::parse(text)?) };
                Some(())
            })
    };
    (
        @row $field:ident,
        $default:literal,
        $unit:literal,
        $allowed:expr,
        $shared:literal,
        $meaning:literal,
        $show:expr,
        $store:expr
    ) => {
        Key {
            name: stringify!($field),
            default: $default,
            unit: $unit,
            allowed: $allowed,
            meaning: $meaning,
            shared: $shared,
            show: $show,
            store: $store,
        }
    };
}

const SWITCH: Allowed = Allowed::Words(&["true", "false"]);
const OFF_OR_WHOLE: Allowed = Allowed::WholeOr("off", u64::MAX);
const FROM_ONE: Allowed = Allowed::Whole(1, u64::MAX);
const MILLISECONDS: Allowed = Allowed::Whole(1, MILLISECONDS_MAX);
const WIRE: Allowed = Allowed::Words(&["f32", "bf16", "int8"]);
const PATH: Allowed = Allowed::Form("a path, or none");
const NODES: Allowed = Allowed::Whole(1, MEMBERS_MAX as u64);

/// All keys, in the order of the documentation and of [`Config::shared_settings`].
pub static KEYS: &[Key] = &[
    key!(
        node_id,
        word: "random",
        "",
        Allowed::Form("random, or a whole number below 2^64"),
        false,
        "id of this node; random at each start unless set"
    ),
    key!(
        listen,
        "127.0.0.1:0",
        "",
        Allowed::Form("an IP address and a port, like 0.0.0.0:7000"),
        false,
        "where this node's UDP endpoint listens; port 0 takes a free one; 0.0.0.0 and [::] need \
         advertise"
    ),
    key!(
        advertise,
        word: "none",
        "",
        Allowed::Form("a host:port, or none"),
        false,
        "address that other nodes dial, if it is not where this one listens: behind a NAT, a \
         forwarded port or a relay"
    ),
    key!(
        peers,
        "",
        "",
        Allowed::Form("a list of at most 4096 host:port, separated by commas"),
        false,
        "nodes to dial at start"
    ),
    key!(
        rendezvous,
        word: "none",
        "",
        PATH,
        false,
        "folder in which the nodes of one machine or shared disk find each other"
    ),
    key!(
        discover,
        word: "none",
        "",
        Allowed::Form("none, dns:NAME:PORT, slurm:PORT or file:PATH"),
        false,
        "where to look for nodes repeatedly: all addresses of a name, the nodes of this Slurm step \
         (each task at PORT plus its SLURM_LOCALID), or a file of host:port lines"
    ),
    key!(
        min_nodes,
        "1",
        "nodes",
        NODES,
        true,
        "training starts when so many nodes have met; with half of all nodes or fewer, nodes that \
         do not reach each other can bootstrap two clusters"
    ),
    key!(
        join,
        "false",
        "",
        SWITCH,
        false,
        "only join a running cluster, never bootstrap one"
    ),
    key!(
        bootstrap,
        "auto",
        "",
        Allowed::Words(&["auto", "yes", "no"]),
        false,
        "whether this process bootstraps the run; exactly one of those that start together must; \
         auto: the one with the smallest address; yes: also after a restart"
    ),
    key!(
        marker,
        word: "none",
        "",
        PATH,
        false,
        "file that this node creates when it becomes a member and removes when it leaves; a node \
         that finds it at its start does not bootstrap before every known address has answered \
         that no run lives there"
    ),
    key!(
        lineage,
        word: "any",
        "",
        Allowed::Form("any, or a model history in 32 hexadecimal digits, as status shows it"),
        false,
        "join only the running cluster of this model history"
    ),
    key!(
        max_nodes,
        "4096",
        "nodes",
        NODES,
        true,
        "most members of the cluster; further nodes are refused"
    ),
    key!(
        devices,
        "1",
        "workers",
        Allowed::Whole(1, 64),
        false,
        "workers of this node, g; each needs a thread that makes the same calls"
    ),
    key!(
        group,
        word: "none",
        "",
        Allowed::Form("none, or up to 64 letters, digits, dots, dashes and underscores"),
        false,
        "name of the site or rack that this node is in; where nodes are in several groups, sums \
         and new values of a round cross between groups once for each shard, not once for each \
         node"
    ),
    key!(
        device,
        "cpu",
        "",
        Allowed::Words(&["cpu", "cuda"]),
        false,
        "where the workers' copies of the model live; cuda needs a program built with the feature \
         cuda"
    ),
    key!(
        first_gpu,
        "0",
        "",
        Allowed::Whole(0, 65_535),
        false,
        "with cuda: the GPU of worker 0; worker i gets the i-th one after it, wrapping around"
    ),
    key!(
        cluster_key,
        word: "none",
        "",
        Allowed::Secret("64 hexadecimal digits, as slowmo keygen writes them"),
        false,
        "the cluster's secret; a file is safer (cluster_key_file)"
    ),
    key!(
        cluster_key_file,
        word: "none",
        "",
        PATH,
        false,
        "file that holds the cluster key, or two while it is rotated; read again when it changes"
    ),
    key!(
        tls_ca_file,
        word: "none",
        "",
        PATH,
        false,
        "the operator's own CA (PEM), instead of a cluster key"
    ),
    key!(
        tls_certificate_file,
        word: "none",
        "",
        PATH,
        false,
        "this node's certificate chain (PEM)"
    ),
    key!(tls_key_file, word: "none", "", PATH, false, "this node's private key (PEM)"),
    key!(
        tls_crl_file,
        word: "none",
        "",
        PATH,
        false,
        "lists of certificates that the CAs have revoked (PEM); a CA without a list has revoked \
         none"
    ),
    key!(
        tls_peer_name,
        word: "none",
        "",
        Allowed::Form("none, or a DNS name or URI in which one * and one {id} may stand"),
        false,
        "with tls_ca_file: the name that each node's certificate must carry; * stands for any \
         characters but a dot and a slash, {id} for the node's id, so that no node can claim to be \
         another one"
    ),
    key!(
        cluster_name,
        word: "none",
        "",
        Allowed::Form("none, or up to 64 letters, digits, dots, dashes and underscores"),
        false,
        "with tls_ca_file: the cluster's name, the same on all nodes; without it the CA file must \
         stay as it is, and be the same everywhere"
    ),
    key!(
        base,
        "local_sgd",
        "",
        Allowed::Words(&["local_sgd", "sgp", "all_reduce", "none"]),
        true,
        "base algorithm between outer rounds"
    ),
    key!(
        frequency,
        "3",
        "inner steps",
        FROM_ONE,
        true,
        "LocalSGD: steps from one exact average to the next, f"
    ),
    key!(
        peers_per_step,
        "1",
        "peers",
        Allowed::Whole(1, MEMBERS_MAX as u64),
        true,
        "SGP: out-peers of one gossip, p"
    ),
    key!(
        staleness,
        "1",
        "steps",
        Allowed::Whole(0, STALENESS_MAX as u64),
        true,
        "SGP: how many steps late a message may be before a node waits for it; messages travel \
         while so many steps are computed; 0 is synchronous"
    ),
    key!(
        topology,
        "exponential",
        "",
        Allowed::Words(&["exponential", "ring", "bipartite", "complete", "bandwidth"]),
        true,
        "SGP: the gossip graph; bandwidth orders the nodes, at exact averages, so that gossip \
         waits least for slow links"
    ),
    key!(
        late_peers,
        "wait",
        "",
        Allowed::Words(&["wait", "skip"]),
        true,
        "SGP: wait (at most grace_ms) for a peer that is more than staleness steps late, or skip it"
    ),
    key!(
        gossip_wire,
        "f32",
        "",
        WIRE,
        true,
        "encoding of gossip messages; what rounding drops is added to the next one"
    ),
    key!(
        round_wire,
        "f32",
        "",
        WIRE,
        true,
        "encoding of parameters in rounds (joiners get f32); what rounding drops is added to the \
         next one"
    ),
    key!(
        outer,
        "slowmo",
        "",
        Allowed::Words(&["slowmo", "nesterov", "bmuf_nbm"]),
        true,
        "outer optimizer; slowmo with alpha 1 and beta 0 is off"
    ),
    key!(
        tau,
        "48",
        "inner steps",
        FROM_ONE,
        true,
        "steps of an outer round, τ"
    ),
    key!(
        alpha,
        "1.0",
        "",
        Allowed::Positive,
        true,
        "SlowMo: slow learning rate, α"
    ),
    key!(
        beta,
        "0.5",
        "",
        Allowed::Fraction,
        true,
        "SlowMo: slow momentum, β"
    ),
    key!(
        eta,
        "0.7",
        "",
        Allowed::Positive,
        true,
        "nesterov, bmuf_nbm: outer learning rate, η"
    ),
    key!(
        mu,
        "0.9",
        "",
        Allowed::Fraction,
        true,
        "nesterov, bmuf_nbm: outer momentum, μ"
    ),
    key!(
        average_every,
        word: "off",
        "inner steps",
        OFF_OR_WHOLE,
        true,
        "steps from one exact average without momentum to the next"
    ),
    key!(
        no_average,
        "false",
        "",
        SWITCH,
        true,
        "SGP: slow steps without an exact average (needs sharded = false)"
    ),
    key!(
        sharded,
        "true",
        "",
        SWITCH,
        true,
        "whether anchor and momentum are divided over the nodes"
    ),
    key!(
        replicas,
        "1",
        "copies",
        Allowed::Whole(0, 3),
        true,
        "copies of each shard besides its owner's, R"
    ),
    key!(
        buffers,
        "maintain",
        "",
        Allowed::Words(&["maintain", "reset", "average"]),
        true,
        "what a round does to the base optimizer's buffers"
    ),
    key!(
        quorum,
        "majority",
        "",
        Allowed::Words(&["majority", "survivors"]),
        true,
        "who may decide a round: more than half of the voters, or the nodes that are alive"
    ),
    key!(
        grace_ms,
        "30000",
        "ms",
        MILLISECONDS,
        true,
        "how long a round waits for a live straggler before it closes without its contribution (at \
         most half of round_timeout_ms; after three misses in a row, rounds wait for it only if \
         its training goes on), and how long gossip waits for a late message"
    ),
    key!(
        on_quorum_loss,
        "wait",
        "",
        Allowed::Words(&["wait", "fork"]),
        true,
        "quorum = majority: wait for a lost quorum, or continue in a history of their own once \
         every other voter was restarted"
    ),
    key!(
        fork_after_ms,
        "4000",
        "ms",
        MILLISECONDS,
        true,
        "quorum = survivors: how long the others wait for members that may be alive before they \
         continue in a history of their own"
    ),
    key!(
        on_momentum_loss,
        "reset",
        "",
        Allowed::Words(&["reset", "stop"]),
        true,
        "if all holders of a shard are lost: its momentum restarts at zero, or the run stops"
    ),
    key!(
        joiner_buffers,
        "copy",
        "",
        Allowed::Words(&["reset", "copy"]),
        true,
        "the base optimizer's buffers of a joiner, if they are lent: a copy of a member's (every \
         node keeps one ready at each round), or zeros"
    ),
    key!(
        probe_interval_ms,
        "200",
        "ms",
        MILLISECONDS,
        false,
        "how often a peer is probed"
    ),
    key!(
        suspect_ms,
        "1000",
        "ms",
        MILLISECONDS,
        false,
        "how long a peer that does not answer is suspected before it is declared dead"
    ),
    key!(
        admin,
        word: "none",
        "",
        PATH,
        false,
        "Unix socket on which this node answers status and takes orders"
    ),
    key!(
        http,
        word: "none",
        "",
        Allowed::Form("an IP address and a port, like 127.0.0.1:9400, or none"),
        false,
        "where this node serves its page, metrics for Prometheus and its status; port 0 takes a \
         free one; an address other than loopback needs http_token_file"
    ),
    key!(
        http_token_file,
        word: "none",
        "",
        PATH,
        false,
        "file with the token that orders over HTTP must carry; without it no order is accepted"
    ),
    key!(
        trace,
        word: "none",
        "",
        Allowed::Form("a path of a folder, or none"),
        false,
        "folder in which each start of this node writes its events, as ID-INCARNATION.jsonl, one \
         JSON object a line"
    ),
    key!(
        flight,
        word: "none",
        "",
        Allowed::Form("a path of a folder, or none"),
        false,
        "folder of the flight recorder: the node's last events are kept in memory and written \
         there when it fails, at SIGUSR1 and on request, for slowmo replay"
    ),
    key!(
        checkpoints,
        word: "none",
        "",
        PATH,
        false,
        "folder of the checkpoints, on a disk that all nodes share"
    ),
    key!(
        checkpoint_every,
        word: "off",
        "outer rounds",
        OFF_OR_WHOLE,
        true,
        "outer rounds from one checkpoint to the next; without an outer optimizer, exact averages"
    ),
    key!(
        checkpoint_keep_last,
        "3",
        "checkpoints",
        Allowed::Whole(1, 1_000_000),
        false,
        "complete checkpoints of a training that are kept; older ones are removed"
    ),
    key!(
        resume,
        "newest",
        "",
        Allowed::Form(
            "newest, required, none, or the name of a checkpoint, as slowmo checkpoint inspect \
             shows it"
        ),
        false,
        "where a bootstrap resumes from: the newest complete checkpoint (if there is none, the \
         given parameters, or with required an error), nothing, or the named checkpoint"
    ),
    key!(
        resume_sampler,
        "keep",
        "",
        Allowed::Words(&["keep", "reset"]),
        false,
        "a bootstrap that resumes: go on with the samples that the checkpoint says are left \
         (refused if the sampler has another data set, batch or seed), or begin the samples anew; \
         parameters and momentum are kept in both cases; equal on all nodes that bootstrap together"
    ),
    key!(
        drain_on_sigterm,
        "true",
        "",
        SWITCH,
        false,
        "SIGTERM drains the node: it hands over in the next round and leaves; a second one ends \
         the process, and so does the first one (exit code 143) before all workers have called \
         synchronize"
    ),
    key!(
        connect_timeout_ms,
        "30000",
        "ms",
        MILLISECONDS,
        false,
        "how long a node tries to reach an address before it reports that nobody answers there; it \
         tries again"
    ),
    key!(
        meet_timeout_ms,
        word: "auto",
        "ms",
        Allowed::WholeOr("auto", MILLISECONDS_MAX),
        false,
        "how long a node waits for min_nodes nodes, or with join for a running cluster, before it \
         gives up; auto: 10 minutes, and 30 s if slowmo launch started it, which starts all at once"
    ),
    key!(
        rejoin_timeout_ms,
        "3600000",
        "ms",
        MILLISECONDS,
        false,
        "how long a node that the others continued without waits to be admitted again, and a \
         restarted one (marker) looks for its run, before it gives up"
    ),
    key!(
        round_timeout_ms,
        "300000",
        "ms",
        MILLISECONDS,
        false,
        "how long a round may take before it fails"
    ),
    key!(
        idle_timeout_ms,
        "10000",
        "ms",
        MILLISECONDS,
        false,
        "silence after which a connection is closed"
    ),
    key!(
        keep_alive_ms,
        "1000",
        "ms",
        MILLISECONDS,
        false,
        "how often an idle connection sends a sign of life; less than idle_timeout_ms"
    ),
    key!(
        mtu_bytes_max,
        "6400",
        "bytes",
        Allowed::Whole(1200, 6500),
        false,
        "largest UDP payload that path MTU discovery tries"
    ),
    key!(
        congestion,
        "rate",
        "",
        Allowed::Words(&["rate", "cubic", "bbr", "new_reno"]),
        false,
        "congestion control; rate measures what the path delivers and keeps it where packets are \
         lost at random"
    ),
    key!(
        same_host,
        "auto",
        "",
        Allowed::Words(&["auto", "off"]),
        false,
        "how values and control frames travel between nodes of one user on one machine: auto takes \
         Unix sockets where it can (Linux), off takes QUIC"
    ),
    key!(
        runtime_threads,
        word: "auto",
        "threads",
        Allowed::WholeOr("auto", 64),
        false,
        "threads of the runtime that moves the data; auto: the machine's processors divided by the \
         processes that slowmo launch or torchrun started on it, from 1 to 4"
    ),
];
