//! The cluster key is rotated while four nodes train.

use crate::raw_peer::RawPeer;
use crate::rotating::{Cluster, NODES, put};
use slowmo::internal::transport::quic::{ClusterKey, ClusterKeys};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::thread;
use std::time::Duration;
use tokio::time::timeout;

const OLD: ClusterKey = ClusterKey::from_bytes([1; 32]);
const NEW: ClusterKey = ClusterKey::from_bytes([2; 32]);
/// From one node's file to the next one's: nodes never change at once.
const BETWEEN: Duration = Duration::from_millis(150);
/// Longer than a connection stays whose certificate is not accepted any more.
const AFTER: Duration = Duration::from_secs(6);
/// Longest wait for the answer of a node.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether node 0 admits a holder of a key.
async fn is_admitted(cluster: &Cluster, key: &ClusterKey) -> bool {
    let stranger = RawPeer::new(key, NodeId(99), Incarnation(1));
    let connection = stranger.try_connect(cluster.nodes[0].address()).await;
    let Some(connection) = connection else {
        return false;
    };
    // A server learns after the client that the client's certificate is refused.
    timeout(PATIENCE, stranger.introduced(&connection))
        .await
        .unwrap()
}

#[test]
fn no_round_is_lost_while_the_key_is_rotated() {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..NODES)
        .map(|node| folder.path().join(format!("{node}.key")))
        .collect();
    let first = ClusterKeys::of(OLD);
    let both = first.clone().rotated(NEW).unwrap();
    let last = both.clone().retired().unwrap();
    let give = |keys: &ClusterKeys, between| {
        for file in &files {
            put(file, &keys.to_text());
            thread::sleep(between);
        }
    };
    // Nobody reads the first ones yet.
    give(&first, Duration::ZERO);
    let cluster = Cluster::train(|node, config| {
        config.cluster_key_file = Some(files[node].clone());
    });
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let is_admitted = |key| executor.block_on(is_admitted(&cluster, key));
    assert!(is_admitted(&OLD));

    // A broken file is told, and changes nothing.
    put(&files[0], "no key");
    let broken = "cannot be used, those before stay in use";
    while cluster.times_told(0, broken) == 0 {
        thread::sleep(BETWEEN);
    }
    assert_eq!(cluster.times_told(1, broken), 0);

    give(&both, BETWEEN);
    cluster.told("new credentials are in use", 1);
    cluster.rounds();
    assert!(is_admitted(&OLD), "both keys are accepted");

    give(&last, BETWEEN);
    cluster.told("new credentials are in use", 2);
    assert!(!is_admitted(&OLD), "the older key is refused");
    thread::sleep(AFTER);
    cluster.rounds();
    assert_eq!(cluster.times_told(0, broken), 1, "it was told once");
    cluster.end();
}
