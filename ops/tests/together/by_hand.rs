//! Nodes that a user starts by hand on several hosts, without a launcher. The hosts are addresses
//! of the loopback interface.
#![cfg(target_os = "linux")] // other systems have one loopback address

use crate::common::{TRAINING, until, until_holds};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

const SLOWMO: &str = env!("CARGO_BIN_EXE_slowmo");

/// Hosts with a common cluster key; `listen` are their addresses.
struct Hosts {
    folder: TempDir,
    listen: Vec<String>,
}

/// A node's process, killed at the end.
struct Node {
    process: Child,
    admin: PathBuf,
    errors: PathBuf,
}

impl Hosts {
    fn new(count: u8) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listen = (1..=count).map(free_address).collect();
        let hosts = Self { folder, listen };
        hosts.key("cluster.key");
        hosts
    }

    /// Makes a cluster key.
    fn key(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        let made = Command::new(SLOWMO)
            .args(["keygen", "--out"])
            .arg(&path)
            .output();
        assert!(made.unwrap().status.success());
        path
    }

    /// Starts the node of a host, which knows the addresses of the others.
    fn start(&self, host: usize, settings: &[(&str, &str)]) -> Node {
        let others = self.listen.iter().enumerate();
        let others =
            others.filter_map(|(other, address)| (other + 1 != host).then_some(address.as_str()));
        let peers = others.collect::<Vec<_>>().join(",");
        let admin = self.folder.path().join(format!("{host}.sock"));
        let errors = self.folder.path().join(format!("{host}.log"));
        let process = Command::new(SLOWMO)
            .args(TRAINING)
            .env("SLOWMO_NODE_ID", host.to_string())
            .env("SLOWMO_LISTEN", &self.listen[host - 1])
            .env("SLOWMO_PEERS", peers)
            .env("SLOWMO_MIN_NODES", self.listen.len().to_string())
            .env(
                "SLOWMO_CLUSTER_KEY_FILE",
                self.folder.path().join("cluster.key"),
            )
            .env("SLOWMO_ADMIN", &admin)
            .env("SLOWMO_BASE", "none")
            .env("SLOWMO_TAU", "4")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        Node {
            process,
            admin,
            errors,
        }
    }
}

/// A free address of a host.
fn free_address(host: u8) -> String {
    let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, host), 0)).unwrap();
    socket.local_addr().unwrap().to_string()
}

impl Node {
    fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap()
    }

    fn status(&self) -> Value {
        let output = status(&self.admin, &["--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        until(what, || {
            assert!(self.is_running(), "it ended: {}", self.errors());
            let status = self.status();
            if wanted(&status) {
                Ok(status)
            } else {
                Err(status.to_string())
            }
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

fn status(socket: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(SLOWMO);
    command.args(["status", "--admin"]).arg(socket);
    command.args(arguments).output().unwrap()
}

fn nodes(status: &Value) -> Vec<(u64, &str)> {
    let rows = status["nodes"].as_array().into_iter().flatten();
    rows.map(|row| {
        let standing = row["standing"].as_str().unwrap_or("no answer");
        (row["node"].as_u64().unwrap(), standing)
    })
    .collect()
}

#[test]
fn the_status_of_one_host_lists_the_whole_cluster() {
    let hosts = Hosts::new(3);
    let mut started: Vec<Node> = (1..=3).map(|host| hosts.start(host, &[])).collect();
    let all = [(1, "member"), (2, "member"), (3, "member")];
    for node in &mut started {
        let told = node.until("all members are listed", |status| nodes(status) == all);
        for row in told["nodes"].as_array().unwrap() {
            assert!(row["round"].as_u64() > Some(0), "{told}");
        }
    }
    let shown = status(&started[1].admin, &[]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    for address in [&hosts.listen[0], &hosts.listen[2]] {
        assert!(shown.contains(address), "{shown}");
    }
    started[2].process.kill().unwrap();
    started[2].process.wait().unwrap();
    let (first, _) = started.split_first_mut().unwrap();
    first.until("the others go on", |status| {
        nodes(status) == [(1, "member"), (2, "member")]
    });
}

/// Waits until a node has ended by itself; its last line of standard error.
fn ended(mut node: Node) -> String {
    until_holds("the node ends", || !node.is_running());
    let errors = node.errors();
    errors.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn hosts_wait_for_each_other_and_say_for_whom() {
    let hosts = Hosts::new(2);
    // An address is silent long before the time to meet is over.
    let quick = [("SLOWMO_CONNECT_TIMEOUT_MS", "500")];
    let mut first = hosts.start(1, &quick);
    until_holds("it warns", || {
        assert!(first.is_running(), "{}", first.errors());
        first.errors().contains("not a member yet")
    });
    let told = first.errors();
    assert!(
        told.contains("1 of min_nodes = 2 nodes have met") && told.contains(&hosts.listen[1]),
        "{told}"
    );
    let _second = hosts.start(2, &quick);
    first.until("they bootstrap", |status| nodes(status).len() == 2);
}

#[test]
fn one_host_with_a_wrong_setting_or_key_ends_and_the_others_wait_for_it() {
    let hosts = Hosts::new(3);
    let key = hosts.key("other.key");
    let key = key.to_str().unwrap();
    for (wrong, reason) in [
        (("SLOWMO_TAU", "5"), "tau is 5 here, 4 there"),
        (
            ("SLOWMO_CLUSTER_KEY_FILE", key),
            "not issued under this cluster's key",
        ),
    ] {
        // The one that bootstraps is wrong.
        let first = hosts.start(1, &[wrong]);
        let mut others = [2, 3].map(|host| hosts.start(host, &[]));
        let last = ended(first);
        assert!(
            last.starts_with("error: ") && last.contains(reason),
            "{last}"
        );
        for other in &mut others {
            let told = other.until("it waits", |status| {
                let waits = status["waiting_for"].as_str().unwrap_or_default();
                waits.contains("is refused")
            });
            let waits = told["waiting_for"].as_str().unwrap();
            assert!(
                waits.starts_with("2 of min_nodes = 3") && waits.contains(&hosts.listen[0]),
                "{waits}"
            );
        }
        let mut first = hosts.start(1, &[]);
        first.until("they bootstrap", |status| nodes(status).len() == 3);
    }
}

#[test]
fn a_host_with_a_wrong_key_ends_where_a_folder_names_the_hosts() {
    let hosts = Hosts::new(3);
    let key = hosts.key("other.key");
    let folder = tempfile::tempdir().unwrap();
    let found = [
        ("SLOWMO_PEERS", ""),
        ("SLOWMO_RENDEZVOUS", folder.path().to_str().unwrap()),
    ];
    let mut others = [1, 2].map(|host| hosts.start(host, &found));
    let wrong = ("SLOWMO_CLUSTER_KEY_FILE", key.to_str().unwrap());
    let last = ended(hosts.start(3, &[found[0], found[1], wrong]));
    assert!(
        last.starts_with("error: ") && last.contains("not issued under this cluster's key"),
        "{last}"
    );
    assert!(others.iter_mut().all(Node::is_running));
    let mut third = hosts.start(3, &found);
    third.until("they bootstrap", |status| nodes(status).len() == 3);
}

#[test]
fn a_joiner_is_told_at_once_what_keeps_it_out() {
    let hosts = Hosts::new(2);
    let key = hosts.key("other.key");
    let mut first = hosts.start(1, &[("SLOWMO_MIN_NODES", "1")]);
    first.until("it is a member", |status| nodes(status) == [(1, "member")]);
    for (setting, reason) in [
        (
            ("SLOWMO_PEERS", ""),
            "needs a running cluster to join: set peers",
        ),
        (
            ("SLOWMO_CLUSTER_KEY_FILE", key.to_str().unwrap()),
            "not issued under this cluster's key",
        ),
        (("SLOWMO_TAU", "5"), "tau is 5 here, 4 there"),
    ] {
        let begun = std::time::Instant::now();
        let last = ended(hosts.start(2, &[("SLOWMO_JOIN", "true"), setting]));
        assert!(
            last.starts_with("error: ") && last.contains(reason),
            "{last}"
        );
        assert!(begun.elapsed().as_secs() < 20, "{last}");
    }
    let told = first.status();
    let events = told["nodes"][0]["events"].to_string();
    assert!(
        events.contains(&format!("refused {}", hosts.listen[1])) && events.contains("tau is 5"),
        "{events}"
    );
}

#[test]
fn a_host_with_the_id_of_a_live_one_is_told_so_soon() {
    let hosts = Hosts::new(3);
    let two = [("SLOWMO_MIN_NODES", "2")];
    let mut first = hosts.start(1, &two);
    let _second = hosts.start(2, &two);
    first.until("they are members", |status| {
        nodes(status) == [(1, "member"), (2, "member")]
    });
    let begun = std::time::Instant::now();
    let last = ended(hosts.start(3, &[two[0], ("SLOWMO_NODE_ID", "2")]));
    assert!(
        last.contains("node 2") && last.contains("give each node its own node_id"),
        "{last}"
    );
    // A peer that does not answer is waited for much longer.
    assert!(begun.elapsed().as_secs() < 15, "{last}");
}

#[test]
fn a_restarted_host_whose_run_is_gone_gives_up_in_the_end() {
    let hosts = Hosts::new(2);
    let marker = hosts.folder.path().join("marker");
    std::fs::write(&marker, "").unwrap();
    let settings = [
        ("SLOWMO_MARKER", marker.to_str().unwrap()),
        ("SLOWMO_REJOIN_TIMEOUT_MS", "2000"),
    ];
    let last = ended(hosts.start(1, &settings));
    assert!(
        last.contains("not admitted to a running cluster within 2000 ms: this node was restarted")
            && last.contains("set bootstrap = yes on one node"),
        "{last}"
    );
}

#[test]
fn a_host_that_is_drained_while_it_waits_ends_well_at_once() {
    let hosts = Hosts::new(2);
    for orders in ["drain", "SIGTERM"] {
        for (join, waits) in [
            ("false", "1 of min_nodes = 2 nodes have met"),
            ("true", "no running cluster was met"),
        ] {
            let mut node = hosts.start(1, &[("SLOWMO_JOIN", join)]);
            node.until("it waits", |status| {
                let told = status["waiting_for"].as_str().unwrap_or_default();
                told.contains(waits)
            });
            let begun = std::time::Instant::now();
            if orders == "drain" {
                let mut order = Command::new(SLOWMO);
                order.args(["drain", "--admin"]).arg(&node.admin);
                let done = order.output().unwrap();
                assert!(done.status.success(), "{done:?}");
            } else {
                let process = Pid::from_raw(node.process.id().cast_signed());
                kill(process, Signal::SIGTERM).unwrap();
            }
            until_holds("it ends", || !node.is_running());
            assert!(begun.elapsed().as_secs() < 10);
            let ended = node.process.wait().unwrap();
            assert!(ended.success(), "{ended}: {}", node.errors());
        }
    }
}

#[test]
fn a_host_that_nobody_can_dial_is_refused() {
    let hosts = Hosts::new(2);
    let last = ended(hosts.start(1, &[("SLOWMO_LISTEN", "0.0.0.0:0")]));
    assert!(
        last.contains("listen = 0.0.0.0:0") && last.contains("set advertise = HOST:PORT"),
        "{last}"
    );
}
