//! Errors of a refused configuration, and the origin of a value. Plain data; no I/O.

use slowmo_protocol::algorithm::AlgorithmError;
use std::fmt;
use std::path::PathBuf;

/// The source of a configuration value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Set by the program itself, through a field or [`crate::Config::set`].
    Program,
    /// A line of the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable, by its full name.
    Variable(String),
    /// A process flag, without its value.
    Flag(String),
    /// An order to the running job.
    Order,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program => write!(f, "the program"),
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Order => write!(f, "an order"),
        }
    }
}

/// Reason why a configuration was refused. Nothing was started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// The key is not in the table.
    #[error("unknown key {key} (from {origin}): did you mean {nearest}?")]
    UnknownKey {
        /// The key, as parsed from its source.
        key: String,
        /// The source of the value.
        origin: Origin,
        /// The nearest known key.
        nearest: &'static str,
    },
    /// The key does not allow the value.
    #[error("{key} = {value} (from {origin}): {key} must be {allowed}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The value; `(hidden)` for secrets.
        value: String,
        /// The source of the value.
        origin: Origin,
        /// Description of the values that the key allows.
        allowed: String,
    },
    /// The file has a table, a date or an array that does not hold only strings.
    #[error(
        "{key} (from {origin}) is {found}: write a string, a number, true, false, or an array of \
         strings; keys stand outside of any table"
    )]
    NotAValue {
        /// The key.
        key: String,
        /// The source of the value.
        origin: Origin,
        /// TOML type of the value found.
        found: &'static str,
    },
    /// A flag has no value: it is the last argument, or another flag follows.
    #[error("{flag} has no value: write {flag}=VALUE or {flag} VALUE")]
    MissingValue {
        /// The flag.
        flag: String,
    },
    /// A flag has a secret, which every user of the machine can read in the list of processes.
    #[error(
        "{flag} shows the secret to every user of this machine, in the list of processes: write it \
         into a file with mode 600 and give {key}_file, or set the variable SLOWMO_{}",
        key.to_uppercase()
    )]
    SecretFlag {
        /// The key.
        key: &'static str,
        /// The flag, without its value.
        flag: String,
    },
    /// The file named by `--slowmo-config` or `SLOWMO_CONFIG` does not exist.
    #[error(
        "there is no configuration file {}: check --slowmo-config and SLOWMO_CONFIG",
        path.display()
    )]
    FileMissing {
        /// The file.
        path: PathBuf,
    },
    /// The file exists but cannot be read as text.
    #[error("the configuration file {} cannot be read: {message}", path.display())]
    FileUnreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        message: String,
    },
    /// The file holds a secret, and other users may read or change it.
    #[error("the configuration file {} holds a secret ({key}), but {fault}", path.display())]
    FileWithSecret {
        /// The file.
        path: PathBuf,
        /// The key of the secret.
        key: &'static str,
        /// The fault of the file's mode or owner, and what to do.
        fault: String,
    },
    /// The file is not TOML.
    #[error("{} line {line} is not valid TOML: {message}", path.display())]
    FileSyntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The error of the parser.
        message: String,
    },
    /// Some, but not all, of the operator's own PEM files are given.
    #[error(
        "{missing} is missing: give tls_ca_file, tls_certificate_file and tls_key_file together, \
         or none of them"
    )]
    TlsIncomplete {
        /// The first missing key.
        missing: &'static str,
    },
    /// A key is given that is only about the operator's own PEM files.
    #[error(
        "{key} needs tls_ca_file, tls_certificate_file and tls_key_file: give them, or remove it"
    )]
    NeedsTlsFiles {
        /// The key.
        key: &'static str,
    },
    /// Two ways to authenticate are given at once.
    #[error("{one} and {other} exclude each other: remove one of them")]
    TwoCredentials {
        /// The first key.
        one: &'static str,
        /// The second key.
        other: &'static str,
    },
    /// The training would start with more nodes than the cluster may have.
    #[error(
        "min_nodes = {min_nodes} is more than max_nodes = {max_nodes}: raise max_nodes, or lower \
         min_nodes (slowmo launch sets it to its --nodes)"
    )]
    MoreThanFit {
        /// The key's value.
        min_nodes: usize,
        /// The key's value.
        max_nodes: usize,
    },
    /// The keep-alive interval is not below the idle timeout, so that peers would be given up
    /// between two signs of life.
    #[error(
        "keep_alive_ms = {keep_alive_ms} must be below idle_timeout_ms = {idle_timeout_ms}: \
         otherwise connections to healthy peers time out"
    )]
    KeepAliveTooLong {
        /// The key's value, in milliseconds.
        keep_alive_ms: u64,
        /// The key's value, in milliseconds.
        idle_timeout_ms: u64,
    },
    /// A round would fail before its time of grace is over.
    #[error(
        "grace_ms = {grace_ms} is more than half of round_timeout_ms = {round_timeout_ms}: set \
         grace_ms to at most {grace_max}, or round_timeout_ms to at least {}",
        grace_ms.saturating_mul(2)
    )]
    GraceTooLong {
        /// The key's value, in milliseconds.
        grace_ms: u64,
        /// The largest value that fits, in milliseconds.
        grace_max: u64,
        /// The key's value, in milliseconds.
        round_timeout_ms: u64,
    },
    /// Two ways to find nodes that exclude each other are given.
    #[error(
        "rendezvous and discover exclude each other: remove one of them (peers can be combined \
         with discover)"
    )]
    TwoDiscoveries,
    /// Trace and flight recorder would write the same files in one folder.
    #[error(
        "trace and flight name the same folder, so a dump would replace the trace: use two folders"
    )]
    OneFolderForTwo,
    /// Checkpoints are enabled, but no folder for them is given.
    #[error("checkpoint_every needs checkpoints: name a folder that all nodes reach")]
    NoCheckpointFolder,
    /// The node must resume, but no folder of checkpoints is given.
    #[error("resume = required needs checkpoints: name the folder to resume from")]
    NothingToResume,
    /// Checkpoints are enabled, but with this algorithm the parameters and slow momentum are never
    /// the same on all nodes.
    #[error(
        "checkpoint_every needs rounds after which all nodes have the same parameters: an outer \
         optimizer, local_sgd or average_every; with sharded = false a tau that is a multiple of \
         frequency, or SGP without no_average"
    )]
    NothingToKeep,
    /// The algorithm's settings are invalid.
    #[error(transparent)]
    Algorithm(#[from] AlgorithmError),
}
