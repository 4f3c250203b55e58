//! What a node process is told: its program, its environment, the private folder it shares with the others.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The node's id, from 1.
pub const NODE_ID: &str = "SLOWMO_NODE_ID";
/// Where the node listens; port 0 lets the system choose.
pub const LISTEN: &str = "SLOWMO_LISTEN";
/// Folder in which the nodes find each other's addresses.
pub const RENDEZVOUS: &str = "SLOWMO_RENDEZVOUS";
/// Nodes that found the cluster.
pub const MIN_NODES: &str = "SLOWMO_MIN_NODES";
/// File with the cluster key.
pub const CLUSTER_KEY_FILE: &str = "SLOWMO_CLUSTER_KEY_FILE";
/// Devices, so workers, of the node.
pub const DEVICES: &str = "SLOWMO_DEVICES";
/// Process id of the launcher, with which its nodes end.
pub const LAUNCHER_PID: &str = "SLOWMO_LAUNCHER_PID";

/// What to start, how often, and what each process is told.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The binary; looked up in `PATH` when it is a bare name.
    pub program: PathBuf,
    /// Its arguments, the same for every node.
    pub arguments: Vec<OsString>,
    /// Node processes, at most [`super::NODES_MAX`].
    pub nodes: usize,
    /// Workers of each node; `None` leaves it to the node.
    pub workers: Option<usize>,
    /// The cluster key; `None` makes one that lasts as long as the launch.
    pub cluster_key_file: Option<PathBuf>,
    /// More variables, the same for every node.
    pub environment: Vec<(String, OsString)>,
}

impl Plan {
    /// `nodes` copies of `program` without arguments.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, nodes: usize) -> Self {
        let (arguments, environment) = (Vec::new(), Vec::new());
        Self { program: program.into(), arguments, nodes, workers: None, cluster_key_file: None, environment }
    }

    /// Adds arguments.
    #[must_use]
    pub fn arguments<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Adds a variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Every variable of node `node`, in a fixed order; the plan's own come last and win.
    pub(super) fn variables_of(&self, node: usize, folder: &Path, cluster_key_file: &Path) -> Vec<(String, OsString)> {
        let mut variables: Vec<(String, OsString)> = vec![
            (NODE_ID.into(), node.to_string().into()),
            (LISTEN.into(), "127.0.0.1:0".into()),
            (RENDEZVOUS.into(), folder.into()),
            (MIN_NODES.into(), self.nodes.to_string().into()),
            (CLUSTER_KEY_FILE.into(), cluster_key_file.into()),
            (LAUNCHER_PID.into(), std::process::id().to_string().into()),
        ];
        variables.extend(self.workers.map(|workers| (DEVICES.into(), workers.to_string().into())));
        variables.extend(self.environment.iter().cloned());
        variables
    }
}
