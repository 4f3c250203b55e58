//! Four nodes of one process that train over QUIC while their credentials are replaced.

use slowmo::{Config, Runtime, StepReport};
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const NODES: usize = 4;
const VALUES: usize = 5_000;
const TAU: u64 = 2;
/// A step is computed at least this long, so that four nodes leave the processor to others.
const STEP: Duration = Duration::from_millis(10);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);
/// Rounds after which a cluster counts as training.
const ROUNDS: u64 = 5;

/// A cluster that trains until it is told to end.
pub struct Cluster {
    pub nodes: Vec<Arc<Runtime>>,
    training: Vec<JoinHandle<Vec<StepReport>>>,
    end: Arc<AtomicU64>,
    _rendezvous: TempDir,
}

impl Cluster {
    /// Starts nodes 1 to 4, each with what `credentials` adds to its configuration.
    pub fn train(credentials: impl Fn(usize, &mut Config)) -> Self {
        let rendezvous = tempfile::tempdir().unwrap();
        let start = |index: usize| {
            let mut config = Config {
                node_id: Some(index as u64 + 1),
                min_nodes: NODES,
                rendezvous: Some(rendezvous.path().to_owned()),
                frequency: 1,
                tau: TAU,
                runtime_threads: Some(1),
                ..Config::default()
            };
            credentials(index, &mut config);
            Arc::new(Runtime::builder().config(config).spawn().unwrap())
        };
        let nodes: Vec<_> = (0..NODES).map(start).collect();
        let end = Arc::new(AtomicU64::new(u64::MAX));
        let training = nodes
            .iter()
            .map(|node| {
                let node = node.clone();
                let end = end.clone();
                thread::spawn(move || train(&node, &end))
            })
            .collect();
        let cluster = Self {
            nodes,
            training,
            end,
            _rendezvous: rendezvous,
        };
        cluster.rounds();
        cluster
    }

    /// Waits until every node has decided some more rounds.
    pub fn rounds(&self) {
        let begun: Vec<_> = self.nodes.iter().map(|node| node.status().round).collect();
        self.wait("rounds go on", |node, index| {
            node.status().round >= begun[index] + ROUNDS
        });
    }

    /// Waits until every node has told this event so many times.
    pub fn told(&self, what: &str, times: usize) {
        self.wait(what, |node, _| count(node, what) >= times);
    }

    /// How often a node has told an event.
    pub fn times_told(&self, index: usize, what: &str) -> usize {
        count(&self.nodes[index], what)
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Runtime, usize) -> bool) {
        let begun = Instant::now();
        for (index, node) in self.nodes.iter().enumerate() {
            while !is_so(node, index) {
                if begun.elapsed() > PATIENCE {
                    panic!("{what}: not in time on node {index}: {:?}", node.status());
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Ends the training: no node has lost a round, and each round averaged all nodes.
    pub fn end(self) {
        let epochs: Vec<_> = self.nodes.iter().map(|node| node.status().epoch).collect();
        let steps = self.nodes.iter().map(|node| node.status().step);
        self.end
            .store(steps.max().unwrap() + 2 * ROUNDS, Ordering::Release);
        assert!(epochs.iter().all(|epoch| *epoch == epochs[0]), "{epochs:?}");
        for thread in self.training {
            let reports = thread.join().unwrap();
            for (step, report) in reports.iter().enumerate() {
                assert_eq!(report.step, step as u64, "no step was skipped");
                assert!(!report.caught_up, "{report:?}");
                assert_eq!((report.contributors, report.nodes), (NODES, NODES));
                let round = reports[0].round.unwrap() + step as u64;
                assert_eq!(report.round, Some(round), "no round was lost");
            }
        }
    }
}

fn count(node: &Runtime, what: &str) -> usize {
    let events = node.status().events;
    events
        .iter()
        .filter(|event| event.what.contains(what))
        .count()
}

fn train(node: &Runtime, end: &AtomicU64) -> Vec<StepReport> {
    let mut worker = node.worker(0).unwrap();
    let mut values = vec![0.0f32; VALUES];
    worker.synchronize(&mut values).unwrap();
    let mut reports = Vec::new();
    loop {
        values.iter_mut().for_each(|value| *value += 1.0);
        thread::sleep(STEP);
        let report = worker.step(&mut values, 1.0).unwrap();
        reports.push(report);
        if report.step >= end.load(Ordering::Acquire) {
            break;
        }
    }
    worker.leave().unwrap();
    reports
}

/// Puts a file with a secret in place at once.
pub fn put(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    set_permissions(&beside, Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(&beside, path).unwrap();
}
