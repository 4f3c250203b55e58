//! Nodes that cannot found a cluster say why. A node that does not fit the others gives up quickly;
//! the others wait as long as `meet_timeout_ms` says, and name it. All are told what to do.

use crate::support::{assert_says, config, in_hub, local_sgd};
use slowmo::internal::Network;
use slowmo::internal::config::ClusterKey;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Config, NamedTensors, Runtime, SpawnError, SynchronizeError, Synchronized};
use slowmo_chaos::cluster;
use std::fs::{File, Permissions};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Far below the other timeouts of the nodes.
const SOON: Duration = Duration::from_secs(6);
/// How long nodes wait for others here.
const MEET_MS: u64 = 1_500;

/// A configuration whose node waits briefly for others.
fn impatient() -> Config {
    Config {
        meet_timeout_ms: Some(MEET_MS),
        ..config()
    }
}

type Outcome = Result<Synchronized, SynchronizeError>;

/// A node that synchronizes `values` parameters and then ends like a program that stops at its
/// first error.
struct Start {
    config: Config,
    network: Option<Network>,
    values: usize,
}

fn begin(start: Start) -> thread::JoinHandle<Outcome> {
    let mut builder = Runtime::builder().config(start.config);
    if let Some(network) = start.network {
        builder = builder.network(network);
    }
    let runtime = builder.spawn().unwrap();
    thread::spawn(move || {
        let mut worker = runtime.worker(0).unwrap();
        let mut parameters = vec![1.5; start.values];
        let outcome = worker.synchronize(&mut parameters);
        if outcome.is_err() {
            assert_eq!(
                parameters,
                vec![1.5; start.values],
                "parameters are unchanged after an error"
            );
        } else {
            worker.leave().unwrap();
        }
        outcome
    })
}

/// Returns the error of each node. All end soon.
fn told(starts: Vec<Start>) -> Vec<String> {
    let begun = Instant::now();
    let threads: Vec<_> = starts.into_iter().map(begin).collect();
    let told = threads
        .into_iter()
        .map(|thread| thread.join().unwrap().unwrap_err().to_string())
        .collect();
    assert!(
        begun.elapsed() < SOON,
        "told after {:?}: {told:?}",
        begun.elapsed()
    );
    told
}

/// The errors of several clusters, all started at once: each waits for its time-out.
fn each_told(clusters: impl Iterator<Item = Vec<Start>>) -> Vec<Vec<String>> {
    let threads: Vec<_> = clusters
        .map(|starts| thread::spawn(move || told(starts)))
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

/// Nodes 1, 2, … in one hub, each configured and sized by itself.
fn in_memory(seed: Option<u64>, nodes: Vec<(Config, usize)>) -> Vec<Start> {
    let hub = MemoryHub::new(seed);
    let ids: Vec<u64> = (1..=nodes.len() as u64).collect();
    let start = |(id, (config, values)): (&u64, (Config, usize))| Start {
        config: Config {
            node_id: Some(*id),
            min_nodes: ids.len(),
            ..config
        },
        network: Some(cluster::in_memory(&hub, *id, &ids)),
        values,
    };
    ids.iter().zip(nodes).map(start).collect()
}

/// Nodes 1, 2, … over QUIC, each with its own key, configured and sized by itself.
fn over_quic(nodes: Vec<(Config, usize, ClusterKey)>) -> Vec<Start> {
    let addresses: Vec<_> = nodes.iter().map(|_| own_address()).collect();
    let start = |(index, (mut config, values, key)): (usize, (Config, usize, ClusterKey))| {
        config.peers = addresses
            .iter()
            .filter(|other| **other != addresses[index])
            .map(SocketAddr::to_string)
            .collect();
        config.node_id = Some(index as u64 + 1);
        config.min_nodes = addresses.len();
        config.listen = addresses[index];
        config.cluster_key = Some(key);
        Start {
            config,
            network: None,
            values,
        }
    };
    nodes.into_iter().enumerate().map(start).collect()
}

/// An address that no other test listens on: peers that are listed must be known before they start.
/// Linux keeps all of 127/8 for the machine itself, so that each process takes its own part;
/// elsewhere a port is free a moment before.
fn own_address() -> SocketAddr {
    static TAKEN: AtomicU8 = AtomicU8::new(2);
    if cfg!(target_os = "linux") {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        return SocketAddr::from((
            [127, high, low, TAKEN.fetch_add(1, Ordering::Relaxed)],
            7_000,
        ));
    }
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
}

fn key(byte: u8) -> ClusterKey {
    ClusterKey::from_bytes([byte; 32])
}

#[test]
fn another_cluster_key() {
    let told = told(over_quic(vec![
        (impatient(), 8, key(1)),
        (config(), 8, key(2)),
    ]));
    let reason = [
        "not issued under this cluster's key",
        "give every node the same cluster_key",
    ];
    assert_says(
        &told[0],
        &[
            "only 1 of min_nodes = 2",
            "is refused",
            reason[0],
            reason[1],
        ],
    );
    assert_says(&told[1], &["no connection to 127.", reason[0], reason[1]]);
}

/// Asserts what two of three nodes that met tell when they give up. Who gives up first leaves the
/// other one alone, which then counts only itself.
fn assert_give_up(told: &[String], parts: &[&str]) {
    for told in told {
        assert_says(told, &["of min_nodes = 3 nodes"]);
        assert_says(told, parts);
    }
    let both = told.iter().any(|told| told.contains("only 2 of"));
    assert!(both, "{told:?}");
}

#[test]
fn one_of_three_has_another_cluster_key() {
    let told = told(over_quic(vec![
        (config(), 8, key(2)),
        (impatient(), 8, key(1)),
        (impatient(), 8, key(1)),
    ]));
    assert_says(&told[0], &["no connection to 127.", "not issued under"]);
    assert_give_up(&told[1..], &["is refused", "not issued under"]);
}

#[test]
fn different_configurations() {
    let ours = Config {
        meet_timeout_ms: Some(MEET_MS),
        ..local_sgd(3, 12, 1.0, 0.5)
    };
    let theirs = local_sgd(2, 12, 1.0, 0.25);
    let runs: Vec<_> = [None, Some(1), Some(2), Some(3)]
        .map(|seed| in_memory(seed, vec![(ours.clone(), 8), (theirs.clone(), 8)]))
        .into();
    let quic = over_quic(vec![(ours, 8, key(1)), (theirs, 8, key(1))]);
    for told in each_told(runs.into_iter().chain([quic])) {
        let both = "were started with different settings";
        assert_says(
            &told[0],
            &[
                "only 1 of min_nodes = 2 nodes",
                "is refused: node 2 has other settings",
                "frequency is 3 here, 2 there",
                "beta is 0.5 here, 0.25 there",
            ],
        );
        assert_says(
            &told[1],
            &[
                both,
                "node 1",
                "node 2",
                "frequency is 2 here, 3 there",
                "beta is 0.25 here, 0.5 there",
                "the same config",
            ],
        );
    }
}

#[test]
fn one_of_three_is_configured_differently() {
    let other = Config {
        replicas: 0,
        ..config()
    };
    let told = told(in_memory(
        Some(4),
        vec![(impatient(), 8), (impatient(), 8), (other, 8)],
    ));
    assert_give_up(
        &told[..2],
        &["node 3 has other settings: replicas is 1 here, 0 there"],
    );
    assert_says(
        &told[2],
        &["node 3 and node ", "replicas is 0 here, 1 there"],
    );
}

#[test]
fn different_parameter_counts() {
    let runs = [None, Some(1), Some(2), Some(3)]
        .map(|seed| in_memory(seed, vec![(impatient(), 100), (config(), 101)]));
    let quic = over_quic(vec![(impatient(), 100, key(1)), (config(), 101, key(1))]);
    for told in each_told(runs.into_iter().chain([quic])) {
        assert_says(
            &told[0],
            &[
                "only 1 of min_nodes = 2 nodes",
                "node 2 has another model: 100 parameters",
                "101 parameters",
            ],
        );
        assert_says(
            &told[1],
            &[
                "node 2 has 101 parameters",
                "node 1 has 100",
                "all nodes must train the same model",
            ],
        );
    }
}

/// Models with as many values may be averaged only if these are the same values.
#[test]
fn tensors_in_another_order() {
    let hub = MemoryHub::new(None);
    let config = Config {
        min_nodes: 2,
        ..impatient()
    };
    let begin = |(node, names): (u64, [&'static str; 2])| {
        let runtime = in_hub(&hub, node, &[1, 2], &config);
        thread::spawn(move || {
            let [mut one, mut other] = [vec![1.0; 50], vec![2.0; 50]];
            let mut lent = NamedTensors::new()
                .with(names[0], &mut one)
                .with(names[1], &mut other);
            let mut worker = runtime.worker(0).unwrap();
            worker.synchronize(&mut lent).unwrap_err().to_string()
        })
    };
    let told = [(1, ["hidden", "output"]), (2, ["output", "hidden"])].map(begin);
    let [first, second] = told.map(|thread| thread.join().unwrap());
    let place = "(the first tensor that differs is number 1)";
    assert_says(&first, &["node 2 has another model: 100 parameters", place]);
    assert_says(
        &second,
        &[
            "names and shapes in the same order",
            place,
            "; here: output [50]",
        ],
    );
}

#[test]
fn an_unreachable_peer() {
    let nobody = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = nobody.local_addr().unwrap().to_string();
    let peers = vec![address.clone()];
    let config = Config {
        min_nodes: 2,
        peers,
        cluster_key: Some(key(1)),
        connect_timeout_ms: 250,
        ..impatient()
    };
    let told = told(vec![Start {
        config,
        network: None,
        values: 8,
    }]);
    assert_says(
        &told[0],
        &[
            "only 1 of min_nodes = 2 nodes appeared within 1500 ms",
            &format!("last failure: no connection to {address} after "),
            "no answer; check that a node listens there and that UDP passes",
        ],
    );
}

#[test]
fn too_few_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        node_id: Some(5),
        min_nodes: 3,
        rendezvous: Some(folder.path().into()),
        cluster_key: Some(key(1)),
        meet_timeout_ms: Some(200),
        ..config()
    };
    let told = told(vec![Start {
        config,
        network: None,
        values: 8,
    }]);
    assert_says(
        &told[0],
        &[
            "only 1 of min_nodes = 3 nodes appeared within 200 ms",
            "node 5",
            "start the others",
            "lower min_nodes",
        ],
    );
}

#[test]
fn an_address_of_an_earlier_run_is_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    let keyed = |byte| Config {
        cluster_key: Some(key(byte)),
        ..config()
    };
    // A node of another cluster listens where one of an earlier run did.
    let other = Runtime::builder().config(keyed(2)).spawn().unwrap();
    std::fs::write(folder.path().join("77"), other.address().to_string()).unwrap();
    let start = |id| Config {
        node_id: Some(id),
        min_nodes: 2,
        rendezvous: Some(folder.path().into()),
        ..keyed(1)
    };
    let first = begin(Start {
        config: start(1),
        network: None,
        values: 8,
    });
    // The other cluster's refusal is known by now.
    thread::sleep(Duration::from_millis(300));
    let second = begin(Start {
        config: start(2),
        network: None,
        values: 8,
    });
    let found = [first, second].map(|thread| thread.join().unwrap().unwrap().nodes);
    assert_eq!(found, [2, 2]);
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["77"], "nodes that stop take their address back");
}

#[test]
fn a_key_that_is_wrong_in_a_rendezvous_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let start = |id, byte| {
        let rendezvous = Some(folder.path().into());
        let cluster_key = Some(key(byte));
        let config = Config {
            node_id: Some(id),
            min_nodes: 2,
            rendezvous,
            cluster_key,
            meet_timeout_ms: Some(500),
            ..config()
        };
        Start {
            config,
            network: None,
            values: 8,
        }
    };
    // Each gives up once it knows that the other one is there, too: the second one perhaps only
    // when the time to meet is over.
    for told in told(vec![start(1, 1), start(2, 2)]) {
        assert_says(&told, &["give every node the same cluster_key"]);
    }
}

#[test]
fn a_peer_that_never_synchronizes() {
    let quick = Config {
        round_timeout_ms: 300,
        grace_ms: 150,
        ..config()
    };
    let mut starts = in_memory(None, vec![(quick.clone(), 8), (quick, 8)]);
    let silent = starts.pop().unwrap();
    let silent = Runtime::builder()
        .config(silent.config)
        .network(silent.network.unwrap())
        .spawn()
        .unwrap();
    let told = told(starts);
    assert_says(
        &told[0],
        &[
            "node 2",
            "did not call synchronize within 300 ms",
            "see their logs",
        ],
    );
    drop(silent);
}

fn refusal(config: Config) -> String {
    let error = Runtime::builder().config(config).spawn().unwrap_err();
    error.to_string()
}

#[test]
fn a_taken_port() {
    let taken = Runtime::builder()
        .config(Config {
            cluster_key: Some(key(1)),
            ..config()
        })
        .spawn()
        .unwrap();
    let config = Config {
        listen: taken.address(),
        cluster_key: Some(key(1)),
        ..config()
    };
    let error = Runtime::builder().config(config).spawn().unwrap_err();
    assert!(matches!(error, SpawnError::Bind(_)), "{error:?}");
    assert_says(
        &error.to_string(),
        &[&taken.address().to_string(), "port 0"],
    );
}

#[test]
fn a_configuration_that_cannot_start() {
    assert_says(
        &refusal(Config {
            min_nodes: 2,
            ..config()
        }),
        &[
            "min_nodes, peers, rendezvous or discover",
            "cluster key",
            "slowmo keygen",
        ],
    );
    let keyed = Config {
        cluster_key: Some(key(1)),
        ..config()
    };
    assert_says(
        &refusal(Config {
            min_nodes: 2,
            ..keyed.clone()
        }),
        &["min_nodes = 2", "peers", "rendezvous"],
    );
    assert_says(
        &refusal(Config {
            join: true,
            ..keyed.clone()
        }),
        &["join = true", "peers", "a node of it"],
    );
    let everywhere = Config {
        rendezvous: Some("/tmp/unused".into()),
        listen: "0.0.0.0:0".parse().unwrap(),
        ..keyed.clone()
    };
    assert_says(
        &refusal(everywhere),
        &[
            "listen = 0.0.0.0:0",
            "set advertise = HOST:PORT",
            "or listen at that address",
        ],
    );
    let unnamed = Config {
        peers: vec!["no-such-host.invalid:7000".to_owned()],
        ..keyed.clone()
    };
    assert_says(
        &refusal(unnamed),
        &["no-such-host.invalid:7000", "check the name in peers"],
    );
    let missing = Config {
        cluster_key_file: Some("/no/such/key".into()),
        ..config()
    };
    assert_says(
        &refusal(missing),
        &["/no/such/key", "check cluster_key_file"],
    );
    assert_says(
        &refusal(Config {
            beta: 1.0,
            ..config()
        }),
        &["beta = 1", "[0, 1)"],
    );
    assert_says(
        &refusal(Config { tau: 0, ..config() }),
        &["tau = 0", "1 or more"],
    );
    assert_says(
        &refusal(Config {
            frequency: 0,
            ..config()
        }),
        &["frequency = 0", "1 or more"],
    );
}

#[test]
fn a_file_that_is_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let private = Permissions::from_mode(0o600);
    std::fs::write(&path, "not a key").unwrap();
    let named = || Config {
        cluster_key_file: Some(path.clone()),
        ..config()
    };
    std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    assert_says(&refusal(named()), &["mode 666", "check cluster_key_file"]);
    std::fs::set_permissions(&path, private).unwrap();
    assert_says(&refusal(named()), &["64 hexadecimal digits", "keygen"]);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(2 << 20)
        .unwrap();
    assert_says(
        &refusal(named()),
        &["larger than", "check cluster_key_file"],
    );
}
