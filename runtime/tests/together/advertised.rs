//! Two nodes that reach each other only through a forwarder, under the address that one of them
//! advertises.

use slowmo::internal::config::ClusterKey;
use slowmo::{Config, Runtime, SpawnError};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

/// Largest UDP payload.
const PAYLOAD_BYTES_MAX: usize = 65_536;

/// Passes what comes to `front` on to `to`, from one socket for each who sent it, and the answers
/// back: a NAT with one forwarded port. Its threads wait for the network and end with the process.
fn forward(front: UdpSocket, to: SocketAddr) {
    let front = Arc::new(front);
    std::thread::spawn(move || {
        let mut sockets = BTreeMap::<SocketAddr, UdpSocket>::new();
        let mut payload = vec![0; PAYLOAD_BYTES_MAX];
        while let Ok((length, from)) = front.recv_from(&mut payload) {
            let socket = sockets.entry(from).or_insert_with(|| {
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                let back = Arc::clone(&front);
                let answers = socket.try_clone().unwrap();
                std::thread::spawn(move || {
                    let mut payload = vec![0; PAYLOAD_BYTES_MAX];
                    while let Ok((length, _)) = answers.recv_from(&mut payload) {
                        _ = back.send_to(&payload[..length], from);
                    }
                });
                socket
            });
            _ = socket.send_to(&payload[..length], to);
        }
    });
}

fn free_port() -> u16 {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn train(config: Config) -> std::thread::JoinHandle<(Vec<String>, Vec<f32>)> {
    let runtime = Runtime::builder().config(config).spawn().unwrap();
    std::thread::spawn(move || {
        let mut worker = runtime.worker(0).unwrap();
        let mut parameters = vec![runtime.node_id() as f32; 3];
        worker.synchronize(&mut parameters).unwrap();
        (0..6).for_each(|_| _ = worker.step(&mut parameters, 0.1).unwrap());
        let addresses = runtime
            .status()
            .members
            .into_iter()
            .map(|member| member.address)
            .collect();
        worker.leave().unwrap();
        (addresses, parameters)
    })
}

#[test]
fn nodes_meet_through_a_forwarder_that_only_the_advertised_address_reaches() {
    let rendezvous = tempfile::tempdir().unwrap();
    let front = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let advertised = front.local_addr().unwrap();
    // Nobody can dial where the second node listens but by luck: it is on an address that is
    // announced nowhere.
    let hidden = SocketAddr::from(([127, 0, 0, 77], free_port()));
    forward(front, hidden);
    let key = ClusterKey::generate().unwrap();
    let common = Config {
        min_nodes: 2,
        cluster_key: Some(key),
        rendezvous: Some(rendezvous.path().to_owned()),
        runtime_threads: Some(1),
        ..Config::default()
    };
    let open = Config {
        node_id: Some(1),
        ..common.clone()
    };
    // The name is resolved.
    let behind = Config {
        node_id: Some(2),
        listen: hidden,
        advertise: Some(format!("localhost:{}", advertised.port())),
        ..common
    };
    let open = train(open);
    let behind = train(behind);
    let (addresses, parameters) = open.join().unwrap();
    assert_eq!(addresses[1], advertised.to_string());
    assert_eq!((addresses, parameters), behind.join().unwrap());
}

#[test]
fn an_address_that_cannot_be_dialed_is_refused() {
    let config = || Config {
        min_nodes: 2,
        cluster_key: Some(ClusterKey::generate().unwrap()),
        ..Config::default()
    };
    for advertise in ["0.0.0.0:7000", "[::1]:7000"] {
        let refused = Runtime::builder().config(Config {
            advertise: Some(advertise.to_owned()),
            peers: vec!["127.0.0.1:9".to_owned()],
            ..config()
        });
        assert!(
            matches!(refused.spawn().unwrap_err(), SpawnError::Advertise { .. }),
            "{advertise}"
        );
    }
    assert!(
        config().with("advertise", "localhost").is_err(),
        "a port is needed"
    );
}
