//! Nodes with certificates of the operator's own CA: a CA is exchanged while they train, revoked
//! certificates and those of another node are refused.

use crate::http;
use crate::nodes::{PATIENCE, Renewable};
use crate::operator::{EXPIRY_YEAR, Issued, Operator, PEER_NAME, identity};
use crate::rotating::{Cluster, NODES, put};
use slowmo::internal::transport::quic::{Identity, IdentityError};
use slowmo_actors::ports::transport::{DialError, TransportEvent};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::fs::{Permissions, set_permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// From one node's files to the next one's: nodes never change at once.
const BETWEEN: Duration = Duration::from_millis(150);
/// Longer than a connection stays whose certificate is not accepted any more.
const AFTER: Duration = Duration::from_secs(6);
const INCARNATION: Incarnation = Incarnation(7);

fn node(id: u64, identity: Identity) -> Renewable {
    Renewable::new(NodeId(id), INCARNATION, identity)
}

fn dial(from: &Renewable, to: &Renewable) {
    from.transport.connect(to.address(), PATIENCE);
}

#[tokio::test]
async fn a_revoked_certificate_opens_no_session_and_keeps_none() {
    let operator = Operator::new("one");
    let ca = operator.ca();
    let of = |id: u64, revoked: Option<&str>| {
        identity(&ca, &operator.issue_for(id), revoked, Some(PEER_NAME), id).unwrap()
    };
    let first_own = operator.issue_for(1);
    let mut first = node(
        1,
        identity(&ca, &first_own, Some(&operator.revoke(&[9])), None, 1).unwrap(),
    );
    let mut second = node(2, of(2, None));
    let mut revoked = node(9, of(9, None));
    dial(&second, &first);
    dial(&first, &second);
    for node in [&mut first, &mut second] {
        assert!(matches!(node.next().await, TransportEvent::PeerUp { .. }));
    }
    dial(&revoked, &first);
    assert!(matches!(
        revoked.dial_error().await,
        DialError::WrongClusterKey(_)
    ));
    dial(&first, &revoked);
    let error = loop {
        match first.next().await {
            TransportEvent::DialFailed { error, .. } => break error,
            TransportEvent::Refused { .. } => {}
            _ => panic!("a failed dial"),
        }
    };
    assert!(error.to_string().contains("Revoked"), "{error}");

    // The certificate of a node that is connected is revoked.
    let list = operator.revoke(&[9, 2]);
    let renewed = identity(&ca, &first_own, Some(&list), None, 1).unwrap();
    first.renewer.renew(&renewed).unwrap();
    let reason = loop {
        match first.next().await {
            TransportEvent::PeerDown { node, reason, .. } => {
                assert_eq!(node, NodeId(2));
                break reason.to_string();
            }
            TransportEvent::Refused { .. } => {}
            _ => panic!("the session ends"),
        }
    };
    assert!(reason.contains("Revoked"), "{reason}");
}

#[tokio::test]
async fn a_certificate_with_another_name_is_refused() {
    let operator = Operator::new("one");
    let ca = operator.ca();
    let right = identity(&ca, &operator.issue_for(1), None, Some(PEER_NAME), 1).unwrap();
    let mut member = node(1, right);
    let web = operator.issue("www.train.example", 2);
    let mut other = node(2, identity(&ca, &web, None, None, 2).unwrap());
    dial(&other, &member);
    let told = other.dial_error().await.to_string();
    assert!(
        told.contains("must carry the name node-2.train.example"),
        "{told}"
    );
    assert!(told.contains("www.train.example"), "{told}");
    let TransportEvent::Refused { error, .. } = member.next().await else {
        panic!("a refusal");
    };
    assert!(error.to_string().contains("www.train.example"), "{error}");
    assert_eq!(
        identity(&ca, &web, None, Some(PEER_NAME), 2).unwrap_err(),
        IdentityError::WrongName {
            expected: "node-2.train.example".into(),
            carried: "www.train.example".into(),
        }
    );
}

#[tokio::test]
async fn the_certificate_of_one_node_does_not_serve_another_one() {
    let operator = Operator::new("one");
    let ca = operator.ca();
    let third = operator.issue_for(3);
    let right = identity(&ca, &operator.issue_for(1), None, Some(PEER_NAME), 1).unwrap();
    let mut member = node(1, right);
    let mut liar = node(5, identity(&ca, &third, None, None, 5).unwrap());
    dial(&liar, &member);
    let told = liar.dial_error().await.to_string();
    assert!(told.contains("it says it is"), "{told}");
    assert!(told.contains("node-3.train.example"), "{told}");
    dial(&member, &liar);
    while !matches!(member.next().await, TransportEvent::DialFailed { .. }) {}

    let mut honest = node(3, identity(&ca, &third, None, Some(PEER_NAME), 3).unwrap());
    dial(&honest, &member);
    assert!(matches!(honest.next().await, TransportEvent::PeerUp { .. }));
}

/// The files of one node.
struct Files {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn give(&self, issued: &Issued) {
        put(&self.certificate, &issued.certificate);
        // A certificate without its key is not taken.
        put(&self.key, &issued.key);
    }
}

fn metric(address: SocketAddr, name: &str) -> f64 {
    let (status, body) = http::ask(address, "GET /metrics HTTP/1.1");
    assert_eq!(status, 200);
    let line = body.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {body}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn no_round_is_lost_while_the_ca_is_exchanged() {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..NODES)
        .map(|node| {
            let path = |what: &str| folder.path().join(format!("{node}.{what}"));
            Files {
                ca: path("ca"),
                certificate: path("certificate"),
                key: path("key"),
            }
        })
        .collect();
    let old = Operator::new("old");
    let new = Operator::new("new");
    let give_ca = |text: &str, between| {
        for files in &files {
            put(&files.ca, text);
            thread::sleep(between);
        }
    };
    let give_certificates = |operator: &Operator, between| {
        for (node, files) in files.iter().enumerate() {
            files.give(&operator.issue_for(node as u64 + 1));
            thread::sleep(between);
        }
    };
    // Nobody reads the first ones yet.
    give_ca(&old.ca(), Duration::ZERO);
    give_certificates(&old, Duration::ZERO);
    let cluster = Cluster::train(|node, config| {
        config.tls_ca_file = Some(files[node].ca.clone());
        config.tls_certificate_file = Some(files[node].certificate.clone());
        config.tls_key_file = Some(files[node].key.clone());
        config.cluster_name = Some("run-7".parse().unwrap());
        config.tls_peer_name = Some(PEER_NAME.parse().unwrap());
        config.http = (node == 0).then(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    });
    let left = metric(
        cluster.nodes[0].http_address().unwrap(),
        "slowmo_certificate_expiry_seconds",
    );
    let years = f64::from(EXPIRY_YEAR - 2025) * 365.0 * 86_400.0;
    assert!(left > 0.0 && left < years * 1.01, "{left}");

    // A bundle that others may change is told, and changes nothing.
    set_permissions(&files[0].ca, Permissions::from_mode(0o666)).unwrap();
    while cluster.times_told(0, "other users may change it") == 0 {
        thread::sleep(BETWEEN);
    }

    // So is a broken one.
    put(&files[0].ca, "no certificate");
    let broken = "cannot be used, those before stay in use";
    while cluster.times_told(0, broken) == 0 {
        thread::sleep(BETWEEN);
    }

    let taken = "new credentials are in use";
    give_ca(&(old.ca() + &new.ca()), BETWEEN);
    cluster.told(taken, 1);
    give_certificates(&new, BETWEEN);
    cluster.told(taken, 2);
    cluster.rounds();
    give_ca(&new.ca(), BETWEEN);
    cluster.told(taken, 3);

    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    executor.block_on(async {
        let both = old.ca() + &new.ca();
        let late = identity(&both, &old.issue_for(9), None, None, 9).unwrap();
        let mut late = node(9, late);
        late.transport.connect(cluster.nodes[0].address(), PATIENCE);
        assert!(matches!(
            late.dial_error().await,
            DialError::WrongClusterKey(_)
        ));
    });
    thread::sleep(AFTER);
    cluster.rounds();
    cluster.end();
}
