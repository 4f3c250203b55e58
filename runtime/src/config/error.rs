//! Why a configuration was refused, and where a value came from. Plain data; touches nothing.

use slowmo_protocol::algorithm::AlgorithmError;
use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
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
    /// An environment variable, by its whole name.
    Variable(String),
    /// A process flag, without its value.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program => write!(f, "the program"),
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// Why a configuration was refused. Nothing was started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A key that no table entry has.
    #[error("unknown key {key} (from {origin}): did you mean {nearest}?")]
    UnknownKey {
        /// The key as understood.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// The nearest known key.
        nearest: &'static str,
    },
    /// A value that its key does not allow.
    #[error("{key} = {value} (from {origin}): {key} must be {allowed}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The value; `(hidden)` for secrets.
        value: String,
        /// Where it stands.
        origin: Origin,
        /// What the key allows.
        allowed: String,
    },
    /// A table, a date or a mixed array in the file.
    #[error(
        "{key} (from {origin}) is {found}: write a string, a number, true, false, or an array of strings; keys are not grouped in tables"
    )]
    NotAValue {
        /// The key.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// What stands there.
        found: &'static str,
    },
    /// A flag at the end, or followed by another flag.
    #[error("{flag} has no value: write {flag}=VALUE or {flag} VALUE")]
    MissingValue {
        /// The flag.
        flag: String,
    },
    /// The file named by `--slowmo-config` or `SLOWMO_CONFIG` does not exist.
    #[error("there is no configuration file {}: check --slowmo-config and SLOWMO_CONFIG", path.display())]
    FileMissing {
        /// The file.
        path: PathBuf,
    },
    /// The file exists but cannot be read as text.
    #[error("the configuration file {} cannot be read: {message}", path.display())]
    FileUnreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        message: String,
    },
    /// The file is not TOML.
    #[error("{} line {line} is not valid TOML: {message}", path.display())]
    FileSyntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What the parser said.
        message: String,
    },
    /// Some, but not all, of the operator's own PEM files.
    #[error(
        "{missing} is missing: give tls_ca_file, tls_certificate_file and tls_key_file together, or none of them"
    )]
    TlsIncomplete {
        /// The first key left out.
        missing: &'static str,
    },
    /// Two ways to authenticate at once.
    #[error("{one} and {other} exclude each other: remove one of them")]
    TwoCredentials {
        /// One key.
        one: &'static str,
        /// The other key.
        other: &'static str,
    },
    /// Peers would be given up between two signs of life.
    #[error(
        "keep_alive_ms = {keep_alive_ms} must be below idle_timeout_ms = {idle_timeout_ms}: otherwise healthy peers are given up"
    )]
    KeepAliveTooLong {
        /// The key's value, in milliseconds.
        keep_alive_ms: u64,
        /// The key's value, in milliseconds.
        idle_timeout_ms: u64,
    },
    /// Two ways to find nodes that do not go together.
    #[error(
        "rendezvous and discover exclude each other: remove one of them (peers may stand beside discover)"
    )]
    TwoDiscoveries,
    /// Two writers of the same files.
    #[error(
        "trace and flight name the same folder, and a dump would replace the trace: give them one each"
    )]
    OneFolderForTwo,
    /// Checkpoints that have nowhere to go.
    #[error("checkpoint_every needs checkpoints: name a folder that all nodes reach")]
    NoCheckpointFolder,
    /// There is no moment at which the nodes' parameters and slow momentum are the same.
    #[error(
        "checkpoint_every needs rounds after which all nodes hold the same: an outer optimizer, local_sgd or average_every; with sharded = false a tau that is a multiple of frequency, or SGP without no_average"
    )]
    NothingToKeep,
    /// The algorithm's own checks.
    #[error(transparent)]
    Algorithm(#[from] AlgorithmError),
}
