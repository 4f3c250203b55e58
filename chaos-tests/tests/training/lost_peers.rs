//! A node that dies in the middle of a run: the others are told who, soon, instead of waiting for it.

use crate::support::{IN_ORDER, local_sgd, noisy, sgp, uneven};
use slowmo::config::{BaseName, ClusterKey};
use slowmo::launcher::LAUNCHER_VARIABLE;
use slowmo::{Config, Runtime, Worker};
use slowmo_chaos::cluster::{Cluster, Link, start};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long nothing may be heard from a node before it counts as gone, in milliseconds.
const IDLE_TIMEOUT_MS: u64 = 1_500;
/// Set in the environment of the process that is killed: the folder in which it finds its peer.
const NODE_VARIABLE: &str = "CHAOS_TEST_NODE";
const KEY: ClusterKey = ClusterKey::from_bytes([9; 32]);

/// Trains until a call fails; what it said. `steps` ends it earlier, without leaving.
fn train(mut worker: Worker, steps: usize) -> Option<String> {
    let mut values = uneven(600);
    let found = worker.synchronize(&mut values).unwrap();
    for step in 0..steps {
        let mut gradients = noisy(found.node_rank, step, &values);
        let averaged = worker.average_gradients(&mut gradients).map_err(|error| error.to_string());
        if let Err(error) = averaged.and_then(|()| worker.step(&mut values, 0.1).map_err(|error| error.to_string())) {
            // The others may hear of the same loss a moment later than this node's own end.
            thread::sleep(Duration::from_millis(50));
            return Some(error);
        }
        thread::sleep(Duration::from_millis(1));
    }
    None
}

#[test]
fn a_node_that_is_dropped_is_named_to_all_others() {
    let all_reduce = Config { base: BaseName::AllReduce, beta: 0.0, ..crate::support::config() };
    for config in [local_sgd(1, 4, 1.0, 0.5), sgp(6, 0.5), all_reduce] {
        for link in [IN_ORDER, Link::Memory(Some(1)), Link::Quic] {
            let Cluster { nodes, rendezvous: _rendezvous } = start(&[1, 2, 3], link, &config).unwrap();
            let workers: Vec<_> = nodes.iter().map(|node| node.worker(0).unwrap()).collect();
            drop(nodes);
            let begun = Instant::now();
            let threads: Vec<_> = workers
                .into_iter()
                .zip([usize::MAX, 7, usize::MAX])
                .map(|(worker, steps)| thread::spawn(move || train(worker, steps)))
                .collect();
            let told: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(begun.elapsed() < Duration::from_secs(5), "{:?} over {link:?}: {told:?}", config.base);
            for told in [&told[0], &told[2]] {
                let told = told.as_ref().unwrap();
                let says = |part: &str| told.contains(part);
                assert!(says("node 2"), "{:?} over {link:?}: {told}", config.base);
                // A gossip may see its stream break before the connection's end.
                assert!(says("restart the run on the remaining nodes") || says("see that node's log"), "{told}");
            }
        }
    }
}

fn config(id: u64, rendezvous: &Path) -> Config {
    Config {
        node_id: Some(id),
        min_nodes: 2,
        rendezvous: Some(rendezvous.to_owned()),
        cluster_key: Some(KEY),
        idle_timeout_ms: IDLE_TIMEOUT_MS,
        keep_alive_ms: 200,
        ..local_sgd(1, 4, 1.0, 0.5)
    }
}

/// The process that `a_process_that_is_killed_is_named` starts and kills; as a test of its own it does nothing.
#[test]
fn a_node_in_a_process_of_its_own() {
    let Some(rendezvous) = std::env::var_os(NODE_VARIABLE) else { return };
    let node = Runtime::builder().config(config(7, Path::new(&rendezvous))).spawn().unwrap();
    let mut worker = node.worker(0).unwrap();
    worker.synchronize(&mut uneven(600)).unwrap();
    println!("synchronized");
    loop {
        thread::park();
    }
}

#[test]
fn a_process_that_is_killed_is_named() {
    let rendezvous = tempfile::tempdir().unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lost_peers::a_node_in_a_process_of_its_own", "--nocapture"])
        .env(NODE_VARIABLE, rendezvous.path())
        // It ends with this process, also if an assertion fails before it is killed.
        .env(LAUNCHER_VARIABLE, std::process::id().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let node = Runtime::builder().config(config(4, rendezvous.path())).spawn().unwrap();
    let mut worker = node.worker(0).unwrap();
    let mut values = uneven(600);
    worker.synchronize(&mut values).unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("synchronized")));
    process.kill().unwrap();
    process.wait().unwrap();
    let killed = Instant::now();
    let told = worker.step(&mut values, 0.1).unwrap_err().to_string();
    assert!(killed.elapsed() < Duration::from_millis(IDLE_TIMEOUT_MS + 1_500), "told after {:?}", killed.elapsed());
    assert!(told.contains("step 0: ") && told.contains("node 7 is gone; restart the run on the remaining nodes"), "{told}");
    assert_eq!(values, uneven(600));
    assert_eq!(worker.step(&mut values, 0.1).unwrap_err().to_string(), told, "later calls say the same");
}
