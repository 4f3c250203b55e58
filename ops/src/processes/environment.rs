//! The settings of a node process: its program, its environment, and the private folder it shares
//! with the other nodes.

use super::end::GRACE;
use super::host::Host;
use super::lines::Unprinted;
use slowmo::internal::config::load_of;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bound of a node's first GPU index, taken modulo this; the nodes wrap around the machine's GPUs
/// well before.
const GPUS_MAX: usize = 65_536;

/// The node's id, from 1.
pub const NODE_ID: &str = "SLOWMO_NODE_ID";
/// Address on which the node listens; port 0 lets the system choose.
pub const LISTEN: &str = "SLOWMO_LISTEN";
/// Address that the node announces instead of its listening address.
pub const ADVERTISE: &str = "SLOWMO_ADVERTISE";
/// Folder into which the node writes its trace.
pub const TRACE: &str = "SLOWMO_TRACE";
/// Folder in which the nodes find each other's addresses.
pub const RENDEZVOUS: &str = "SLOWMO_RENDEZVOUS";
/// Name of that folder in the launch's private folder.
pub(super) const RENDEZVOUS_FOLDER: &str = "rendezvous";
/// Number of bootstrap members.
pub const MIN_NODES: &str = "SLOWMO_MIN_NODES";
/// File with the cluster key.
pub const CLUSTER_KEY_FILE: &str = "SLOWMO_CLUSTER_KEY_FILE";
/// Devices of the node, and so its number of workers.
pub const DEVICES: &str = "SLOWMO_DEVICES";
/// Kind of device on which the node's workers keep their copies of the model.
pub const DEVICE: &str = "SLOWMO_DEVICE";
/// The GPU of the node's first worker.
pub const FIRST_GPU: &str = "SLOWMO_FIRST_GPU";
/// The GPUs visible to a process, by number or by name.
pub const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// Stops NCCL from writing other GPUs' buffers directly, which the driver's memory pools do not
/// allow.
const NCCL_NO_DIRECT_WRITES: &str = "NCCL_P2P_DIRECT_DISABLE";
/// The node joins a running cluster and never bootstraps one.
pub const JOIN: &str = "SLOWMO_JOIN";
/// Admin socket on which the node listens for its launcher.
pub const ADMIN: &str = "SLOWMO_ADMIN";
/// Addresses of a running cluster.
pub const PEERS: &str = "SLOWMO_PEERS";
/// Address at which the node serves its page and metrics.
pub const HTTP: &str = "SLOWMO_HTTP";
/// File with the token that orders over HTTP must carry.
pub const HTTP_TOKEN_FILE: &str = "SLOWMO_HTTP_TOKEN_FILE";
/// Name of that file in the launch's private folder.
pub(super) const HTTP_TOKEN: &str = "http.token";
/// Process id of the launcher; its nodes end when it ends.
pub const LAUNCHER_PID: &str = slowmo::internal::launcher::LAUNCHER_VARIABLE;

/// Number of nodes that the launcher starts on this machine.
pub const LAUNCHER_NODES: &str = slowmo::internal::launcher::NODES_VARIABLE;

/// Variables in which a user names their own credentials; at most one kind may be set.
const CREDENTIALS: [&str; 5] = [
    "SLOWMO_CLUSTER_KEY",
    CLUSTER_KEY_FILE,
    "SLOWMO_TLS_CA_FILE",
    "SLOWMO_TLS_CERTIFICATE_FILE",
    "SLOWMO_TLS_KEY_FILE",
];
/// Prefix of every variable of a node.
const PREFIX: &str = "SLOWMO_";
/// The log filter, which is always passed on.
const LOG: &str = "SLOWMO_LOG";

/// The program to start, the number of nodes, and the settings of each process.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The binary; looked up in `PATH` when it is a bare name.
    pub program: PathBuf,
    /// Its arguments, the same for every node.
    pub arguments: Vec<OsString>,
    /// Node processes, at most [`super::NODES_MAX`].
    pub nodes: usize,
    /// The lowest node id.
    pub first_id: usize,
    /// Whether the first nodes also join a running cluster.
    pub joins: bool,
    /// Addresses of the running cluster that the nodes join, in place of a private rendezvous
    /// folder.
    pub peers: Option<String>,
    /// Workers of each node; `None` leaves it to the node.
    pub workers: Option<usize>,
    /// GPUs of each node, one per worker, assigned to the nodes in turn.
    pub gpus: Option<usize>,
    /// Port at which the first node serves a page on this machine; the other nodes use free ports.
    pub page: Option<u16>,
    /// File with the cluster key; with `None` the credentials in this process's environment apply,
    /// or else a key is made that lasts as long as the launch.
    pub cluster_key_file: Option<PathBuf>,
    /// Whether the nodes do not see the `SLOWMO_*` variables of this process, except for the log
    /// filter.
    pub isolated: bool,
    /// Time after which the nodes are ended.
    pub time_max: Option<Duration>,
    /// Network namespaces in which the nodes run, in the order of their ids; without any, all run
    /// in this process's namespace and talk over loopback.
    pub hosts: Vec<Host>,
    /// Time that the nodes have to end after a signal to this process, before they are killed.
    pub grace: Duration,
    /// More variables, the same for every node.
    pub environment: Vec<(String, OsString)>,
    /// More variables of single nodes, by id; they take precedence.
    pub environments: BTreeMap<usize, Vec<(String, OsString)>>,
    /// Lines that were read and wait to be printed, if somebody counts them.
    pub unprinted: Arc<Unprinted>,
}

impl Plan {
    /// `nodes` copies of `program` without arguments.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, nodes: usize) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            nodes,
            first_id: 1,
            joins: false,
            peers: None,
            workers: None,
            gpus: None,
            page: None,
            cluster_key_file: None,
            isolated: false,
            time_max: None,
            hosts: Vec::new(),
            grace: GRACE,
            environment: Vec::new(),
            environments: BTreeMap::new(),
            unprinted: Arc::default(),
        }
    }

    /// `nodes` copies of this program, as one of its own commands.
    ///
    /// # Errors
    /// The path of this program cannot be determined.
    pub fn of_this_program<A: Into<OsString>>(
        nodes: usize,
        arguments: impl IntoIterator<Item = A>,
    ) -> std::io::Result<Self> {
        Ok(Self::new(std::env::current_exe()?, nodes).arguments(arguments))
    }

    /// Shields the nodes from this process's settings and ends them after `time_max`.
    #[must_use]
    pub fn isolated(mut self, time_max: Duration) -> Self {
        self.isolated = true;
        self.time_max = Some(time_max);
        self
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

    /// Most members that the cluster may have, as far as the settings say that reach every node:
    /// variables, arguments, and a file that these name. `None` if a node would refuse them; it
    /// tells its reason itself.
    #[must_use]
    pub fn max_nodes(&self) -> Option<usize> {
        let inherited = || std::env::vars_os();
        let hidden = self.hidden_variables(inherited().map(|(name, _)| name));
        let own = self.environment.iter();
        let own = own.map(|(name, value)| (OsString::from(name), value.clone()));
        let variables = inherited()
            .filter(|(name, _)| !hidden.contains(name))
            .chain(own);
        let config = load_of(variables, self.arguments.iter().cloned());
        config.ok().map(|config| config.max_nodes)
    }

    /// All variables of node `node`, in a fixed order; the plan's own come last and take
    /// precedence.
    pub(super) fn variables_of(
        &self,
        node: usize,
        folder: &Path,
        cluster_key_file: Option<&Path>,
    ) -> Vec<(String, OsString)> {
        let mut variables: Vec<(String, OsString)> = vec![
            (NODE_ID.into(), node.to_string().into()),
            (LISTEN.into(), self.listen_address(node).to_string().into()),
            match &self.peers {
                Some(peers) => (PEERS.into(), peers.into()),
                None => (RENDEZVOUS.into(), folder.join(RENDEZVOUS_FOLDER).into()),
            },
            (MIN_NODES.into(), self.nodes.to_string().into()),
            (
                ADMIN.into(),
                folder.join(format!("node-{node}.sock")).into(),
            ),
            (LAUNCHER_PID.into(), std::process::id().to_string().into()),
            (LAUNCHER_NODES.into(), self.nodes.to_string().into()),
        ];
        variables.extend(cluster_key_file.map(|file| (CLUSTER_KEY_FILE.into(), file.into())));
        variables.extend(
            self.workers
                .map(|workers| (DEVICES.into(), workers.to_string().into())),
        );
        if let Some(gpus) = self.gpus {
            let first = node.saturating_sub(self.first_id).saturating_mul(gpus) % GPUS_MAX;
            variables.push((DEVICE.into(), "cuda".into()));
            variables.push((DEVICES.into(), gpus.to_string().into()));
            variables.push((FIRST_GPU.into(), first.to_string().into()));
            // See slowmo-cuda's `nccl`: must be set before anything runs, unless the operator has
            // set it.
            if std::env::var_os(NCCL_NO_DIRECT_WRITES).is_none() {
                variables.push((NCCL_NO_DIRECT_WRITES.into(), "1".into()));
            }
        }
        if let Some(port) = self.page {
            let port = if node == self.first_id { port } else { 0 };
            variables.push((HTTP.into(), format!("127.0.0.1:{port}").into()));
            variables.push((HTTP_TOKEN_FILE.into(), folder.join(HTTP_TOKEN).into()));
        }
        variables.extend(self.environment.iter().cloned());
        variables.extend(self.environments.get(&node).into_iter().flatten().cloned());
        variables
    }

    /// The host of node `node`, if the nodes run in namespaces.
    pub(super) fn host_of(&self, node: usize) -> Option<&Host> {
        self.hosts.get(node.checked_sub(self.first_id)?)
    }

    /// Address on which node `node` listens; the system chooses the port.
    fn listen_address(&self, node: usize) -> SocketAddr {
        let address = self
            .host_of(node)
            .map_or(Ipv4Addr::LOCALHOST.into(), |host| host.address);
        SocketAddr::new(address, 0)
    }

    /// Names among `inherited` that must be hidden from the nodes.
    pub(super) fn hidden_variables(
        &self,
        inherited: impl Iterator<Item = OsString>,
    ) -> Vec<OsString> {
        let is_hidden = |name: &OsString| {
            let Some(name) = name.to_str() else {
                return false;
            };
            let replaced = self.cluster_key_file.is_some() && CREDENTIALS.contains(&name);
            name.starts_with(PREFIX) && name != LOG && (self.isolated || replaced)
        };
        inherited.filter(is_hidden).collect()
    }

    /// Whether the launch must make a cluster key because the user named no credentials.
    pub(super) fn needs_cluster_key(&self, inherited: impl Iterator<Item = OsString>) -> bool {
        let mut inherited = inherited;
        let mut given =
            || inherited.any(|name| CREDENTIALS.iter().any(|credential| name == *credential));
        self.cluster_key_file.is_none() && (self.isolated || !given())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> impl Iterator<Item = OsString> {
        list.iter()
            .map(OsString::from)
            .collect::<Vec<_>>()
            .into_iter()
    }

    #[test]
    fn the_users_credentials_are_respected_and_never_doubled() {
        let inherited = ["HOME", "SLOWMO_LOG", "SLOWMO_TAU", "SLOWMO_CLUSTER_KEY"];
        let plain = Plan::new("x", 2);
        assert!(plain.needs_cluster_key(names(&["HOME", "SLOWMO_TAU"])));
        assert!(!plain.needs_cluster_key(names(&inherited)));
        assert!(plain.hidden_variables(names(&inherited)).is_empty());
        let with_file = Plan {
            cluster_key_file: Some("key".into()),
            ..plain.clone()
        };
        assert!(!with_file.needs_cluster_key(names(&inherited)));
        assert_eq!(
            with_file.hidden_variables(names(&inherited)),
            ["SLOWMO_CLUSTER_KEY"]
        );
        let isolated = plain.isolated(Duration::from_secs(1));
        assert!(isolated.needs_cluster_key(names(&inherited)));
        assert_eq!(
            isolated.hidden_variables(names(&inherited)),
            ["SLOWMO_TAU", "SLOWMO_CLUSTER_KEY"]
        );
    }

    #[test]
    fn a_node_is_told_its_identity() {
        let plan = Plan {
            workers: Some(2),
            ..Plan::new("x", 3).variable("SLOWMO_TAU", "12")
        };
        let told: Vec<_> = plan
            .variables_of(2, Path::new("/f"), Some(Path::new("/k")))
            .into_iter()
            .map(|(name, value)| format!("{name}={}", value.display()))
            .collect();
        let launcher = format!("SLOWMO_LAUNCHER_PID={}", std::process::id());
        let expected = [
            "SLOWMO_NODE_ID=2",
            "SLOWMO_LISTEN=127.0.0.1:0",
            "SLOWMO_RENDEZVOUS=/f/rendezvous",
            "SLOWMO_MIN_NODES=3",
            "SLOWMO_ADMIN=/f/node-2.sock",
            &launcher,
            "SLOWMO_LAUNCHER_NODES=3",
            "SLOWMO_CLUSTER_KEY_FILE=/k",
            "SLOWMO_DEVICES=2",
            "SLOWMO_TAU=12",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn nodes_take_gpus_in_turn() {
        let plan = Plan {
            page: Some(7070),
            ..Plan::new("x", 3)
        };
        let http = |node| {
            plan.variables_of(node, Path::new("/f"), None)
                .into_iter()
                .find(|(name, _)| name == HTTP)
                .unwrap()
                .1
        };
        assert_eq!(
            (http(1), http(2)),
            ("127.0.0.1:7070".into(), "127.0.0.1:0".into())
        );
        let plan = Plan {
            gpus: Some(2),
            first_id: 5,
            ..Plan::new("x", 3)
        };
        let first = |node| {
            let variables = plan.variables_of(node, Path::new("/f"), None);
            let value = |name| {
                variables
                    .iter()
                    .find(|(known, _)| known == name)
                    .map(|(_, value)| value.display().to_string())
            };
            (value(DEVICE), value(DEVICES), value(FIRST_GPU))
        };
        for (node, gpu) in [(5, "0"), (6, "2"), (7, "4")] {
            assert_eq!(
                first(node),
                (Some("cuda".into()), Some("2".into()), Some(gpu.into())),
                "node {node}"
            );
        }
    }
}
