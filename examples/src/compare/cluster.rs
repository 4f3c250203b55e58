//! Several nodes in one process, each with its own runtime, over QUIC on loopback.

use crate::digits::{Options, TrainError, Trained, train_keeping_model};
use crate::method::Method;
use crate::oracle::mean;
use slowmo::Config;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

/// The averaged model of a run, and the cost of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterRun {
    /// Mean of the nodes' final parameters.
    pub parameters: Vec<f32>,
    /// Numbers of completed inner steps, each with the mean of the nodes' parameters at that time.
    pub snapshots: Vec<(u64, Vec<f32>)>,
    /// UDP payload bytes sent per node: mean over the nodes.
    pub sent_bytes_per_node: Option<f64>,
    /// Wall time of one inner step of the slowest node, in milliseconds.
    pub step_ms: Option<f64>,
}

/// Trains `nodes` nodes of one worker each to the end.
///
/// # Errors
/// The error of the first failing node.
pub fn run_cluster(
    nodes: usize,
    method: &Method,
    options: &Options,
) -> Result<ClusterRun, TrainError> {
    let rendezvous = tempfile::tempdir().map_err(TrainError::Folder)?;
    let key = throwaway_key();
    let configs = (0..nodes)
        .map(|rank| node_config(rank, nodes, method, rendezvous.path(), &key))
        .collect::<Result<Vec<_>, _>>()?;
    let results: Vec<_> = std::thread::scope(|scope| {
        let train = |config: Config| train_keeping_model(config, options, |_| ());
        let threads: Vec<_> = configs
            .into_iter()
            .map(|config| scope.spawn(move || train(config)))
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let flatten = |(rank, result): (usize, std::thread::Result<_>)| {
        result.map_err(|_| TrainError::Panicked(rank))?
    };
    let trained = results
        .into_iter()
        .enumerate()
        .map(flatten)
        .collect::<Result<Vec<Trained>, TrainError>>()?;
    Ok(average(&trained))
}

fn node_config(
    rank: usize,
    nodes: usize,
    method: &Method,
    rendezvous: &Path,
    key: &str,
) -> Result<Config, TrainError> {
    let mut config = Config {
        rendezvous: Some(rendezvous.to_owned()),
        min_nodes: nodes,
        runtime_threads: Some(1),
        ..Config::default()
    };
    config.set("node_id", &(rank + 1).to_string())?;
    config.set("cluster_key", key)?;
    method.configure(&mut config)?;
    Ok(config)
}

/// A key for one run on loopback, from the random keys of the standard library's hash maps.
fn throwaway_key() -> String {
    (0..4)
        .map(|part: u8| format!("{:016x}", RandomState::new().hash_one(part)))
        .collect()
}

fn average(nodes: &[Trained]) -> ClusterRun {
    let count = nodes.len().max(1) as f64;
    let parameters: Vec<_> = nodes.iter().map(|node| node.parameters.clone()).collect();
    let points = nodes
        .iter()
        .map(|node| node.snapshots.len())
        .min()
        .unwrap_or(0);
    let snapshot = |index: usize| {
        let all: Vec<_> = nodes
            .iter()
            .map(|node| node.snapshots[index].1.clone())
            .collect();
        (nodes[0].snapshots[index].0, mean(&all))
    };
    let slowest_s = nodes
        .iter()
        .map(|node| node.summary.elapsed_s)
        .fold(0.0, f64::max);
    let steps = nodes.first().map_or(1, |node| node.summary.steps.max(1));
    ClusterRun {
        parameters: mean(&parameters),
        snapshots: (0..points).map(snapshot).collect(),
        sent_bytes_per_node: Some(
            nodes
                .iter()
                .map(|node| node.summary.sent_bytes as f64)
                .sum::<f64>()
                / count,
        ),
        step_ms: Some(1e3 * slowest_s / steps as f64),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::method::Methods;

    #[test]
    fn every_method_is_a_valid_configuration() {
        let all = [Methods::Algorithms, Methods::Wires]
            .map(Methods::all)
            .concat();
        assert!(
            all.iter()
                .enumerate()
                .all(|(i, method)| all[..i].iter().all(|other| other.name != method.name)),
            "a name twice"
        );
        for method in all {
            let config =
                node_config(2, 4, &method, Path::new("somewhere"), &throwaway_key()).unwrap();
            config.check().unwrap();
            assert_eq!(
                config.algorithm().unwrap().outer.is_some(),
                method.slow.is_some(),
                "{}",
                method.name
            );
        }
        assert_ne!(throwaway_key(), throwaway_key());
    }
}
