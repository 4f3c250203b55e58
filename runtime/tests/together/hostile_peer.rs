//! Over QUIC: what an authenticated peer sends that no correct peer would does not end or change
//! the others' training.

use crate::raw_peer::{self, RawPeer};
use slowmo::internal::transport::quic::ClusterKey;
use slowmo::{Config, Runtime};
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::wire::{BULK_HEADER_BYTES_MAX, CONTROL_FRAME_BYTES_MAX};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const KEY: ClusterKey = ClusterKey::from_bytes([3; 32]);
/// Longest wait for a connection to be ended.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a node is given to read what does not end the connection.
const READ_WAIT: Duration = Duration::from_millis(20);

fn node(id: u64, rendezvous: &Path) -> Runtime {
    let config = Config {
        node_id: Some(id),
        min_nodes: 2,
        rendezvous: Some(rendezvous.to_owned()),
        cluster_key: Some(KEY),
        frequency: 1,
        tau: 2,
        runtime_threads: Some(1),
        ..Config::default()
    };
    Runtime::builder().config(config).spawn().unwrap()
}

/// Each kind of nonsense on a connection of its own: what breaks the framing ends it, what only
/// fails to decode does not.
async fn attack(stranger: &RawPeer, address: SocketAddr) {
    for (bulk, bound) in [
        (false, CONTROL_FRAME_BYTES_MAX),
        (true, BULK_HEADER_BYTES_MAX),
    ] {
        for length in [u32::MAX, bound as u32 + 1] {
            let connection = stranger.admitted(address, bulk).await;
            raw_peer::write(&connection, &length.to_le_bytes()).await;
            timeout(PATIENCE, connection.closed())
                .await
                .expect("an oversized message ends the connection");
        }
        for bytes in [
            &[
                9, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            ][..],
            &[5, 0, 0, 0, 1],
            &[0, 0, 0, 0],
        ] {
            let connection = stranger.admitted(address, bulk).await;
            raw_peer::write(&connection, bytes).await;
            sleep(READ_WAIT).await;
        }
    }
}

#[test]
fn training_goes_on_while_an_authenticated_peer_sends_nonsense() {
    let rendezvous = tempfile::tempdir().unwrap();
    let nodes = [1, 2].map(|id| node(id, rendezvous.path()));
    let addresses = [nodes[0].address(), nodes[1].address()];
    let bootstrapped = Barrier::new(3);
    let attacked = Barrier::new(3);
    let seen = thread::scope(|scope| {
        let training = [0, 1].map(|rank| {
            let mut worker = nodes[rank].worker(0).unwrap();
            let bootstrapped = &bootstrapped;
            let attacked = &attacked;
            scope.spawn(move || {
                let mut values = vec![0.0f32; 2_000];
                worker.synchronize(&mut values).unwrap();
                bootstrapped.wait();
                for step in 0..40 {
                    values
                        .iter_mut()
                        .for_each(|value| *value += [1.0, 3.0][rank]);
                    assert_eq!(worker.step(&mut values, 1.0).unwrap().step, step);
                    if step == 20 {
                        attacked.wait();
                    }
                }
                worker.leave().unwrap();
                values
            })
        });
        let executor = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        bootstrapped.wait();
        executor.block_on(async {
            let stranger = RawPeer::new(&KEY, NodeId(99), Incarnation(1));
            attack(&stranger, addresses[0]).await;
            attack(&stranger, addresses[1]).await;
        });
        attacked.wait();
        training.map(|thread| thread.join().unwrap())
    });
    // Blocks of two steps move the average by 4; momentum 0.5 doubles that in the limit: 20 rounds
    // by hand.
    let mut value = 0.0f32;
    let mut update = 0.0f32;
    for _ in 0..20 {
        update = 0.5 * update + 4.0;
        value += update;
    }
    assert!(
        seen.iter()
            .flatten()
            .all(|found| (found - value).abs() < 1e-3),
        "{} against {value}",
        seen[0][0]
    );
    assert_eq!(seen[0], seen[1]);
}
