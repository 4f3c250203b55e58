//! A peer written directly on quinn with its own certificate, which can say what no correct node
//! says.

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, SendStream};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use slowmo::internal::transport::quic::{ClusterKey, Identity};
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::wire::{PROTOCOL_VERSION, Preface};
use std::net::SocketAddr;
use std::sync::Arc;

/// An authenticated stranger.
pub struct RawPeer {
    endpoint: Endpoint,
    key: ClusterKey,
    node: NodeId,
    incarnation: Incarnation,
}

impl RawPeer {
    pub fn new(key: &ClusterKey, node: NodeId, incarnation: Incarnation) -> Self {
        let identity = Identity::issue(key, node, incarnation).unwrap();
        let tls = identity
            .client_tls_for_tests(&format!("slowmo/{PROTOCOL_VERSION}"))
            .unwrap();
        let mut endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        endpoint.set_default_client_config(ClientConfig::new(Arc::new(
            QuicClientConfig::try_from(tls).unwrap(),
        )));
        Self {
            endpoint,
            key: key.clone(),
            node,
            incarnation,
        }
    }

    pub async fn connect(&self, address: SocketAddr) -> Connection {
        self.connect_as(address, "slowmo").await
    }

    /// Connects under a server name, which tells the node what the connection is for.
    pub async fn connect_as(&self, address: SocketAddr, name: &str) -> Connection {
        self.endpoint.connect(address, name).unwrap().await.unwrap()
    }

    /// A connection, if the node accepts this peer's certificate and this peer the node's.
    pub async fn try_connect(&self, address: SocketAddr) -> Option<Connection> {
        self.endpoint.connect(address, "slowmo").unwrap().await.ok()
    }

    /// Whether the node at the other end answers an introduction.
    pub async fn introduced(&self, connection: &Connection) -> bool {
        let Ok(mut stream) = connection.open_uni().await else {
            return false;
        };
        let listen = self.endpoint.local_addr().unwrap();
        let preface = preface(&self.key, self.node, self.incarnation, listen, false);
        let length = (preface.len() as u32).to_le_bytes();
        let _ = stream.write_all(&length).await;
        let _ = stream.write_all(&preface).await;
        connection.accept_uni().await.is_ok()
    }

    /// Sends a preface with any id; the stream stays open.
    pub async fn introduce_as(
        &self,
        connection: &Connection,
        node: NodeId,
        incarnation: Incarnation,
        bulk: bool,
    ) -> SendStream {
        let listen = self.endpoint.local_addr().unwrap();
        let preface = preface(&self.key, node, incarnation, listen, bulk);
        let mut stream = write(connection, &(preface.len() as u32).to_le_bytes()).await;
        stream.write_all(&preface).await.unwrap();
        stream
    }

    /// A connection that the node at `address` has admitted.
    pub async fn admitted(&self, address: SocketAddr, bulk: bool) -> Connection {
        let connection = self.connect(address).await;
        let mut stream = self
            .introduce_as(&connection, self.node, self.incarnation, bulk)
            .await;
        let mut answer = connection.accept_uni().await.unwrap();
        stream.finish().unwrap();
        answer.read_to_end(1000).await.unwrap();
        connection
    }
}

/// Opens a stream with these bytes.
pub async fn write(connection: &Connection, bytes: &[u8]) -> SendStream {
    let mut stream = connection.open_uni().await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

pub fn preface(
    key: &ClusterKey,
    node: NodeId,
    incarnation: Incarnation,
    listen: SocketAddr,
    bulk: bool,
) -> Vec<u8> {
    Preface::V1 {
        cluster: key.cluster_id(),
        node,
        incarnation,
        listen,
        bulk,
    }
    .encode()
    .unwrap()
}

/// PEM files as an operator's own CA would issue them.
pub struct OperatorFiles {
    pub ca: String,
    pub certificate: String,
    pub key: String,
}

pub fn operator_files() -> OperatorFiles {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new([]).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_certificate = ca.self_signed(&ca_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["node.example".to_string()]).unwrap();
    let certificate = certificate
        .signed_by(&key, &Issuer::new(ca, ca_key))
        .unwrap();
    OperatorFiles {
        ca: pem("CERTIFICATE", ca_certificate.der()),
        certificate: pem("CERTIFICATE", certificate.der()),
        key: pem("PRIVATE KEY", &key.serialize_der()),
    }
}

pub fn pem(label: &str, bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let encode = |group: &[u8]| {
        let word = group
            .iter()
            .fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        let digit = |index: usize| {
            if index > group.len() {
                '='
            } else {
                ALPHABET[(word >> (18 - 6 * index)) as usize & 63] as char
            }
        };
        (0..4).map(digit).collect::<String>()
    };
    let lines: Vec<String> = bytes
        .chunks(48)
        .map(|line| line.chunks(3).map(encode).collect())
        .collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    )
}
