//! Mutual TLS 1.3: each side's chain is verified against the cluster's CA; the name in the
//! certificate is checked against the preface.

use super::identity::{Identity, parse_peer_name};
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring as provider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::sync::Arc;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The server name that clients ask for; it is never compared, see [`ClusterVerifier`].
pub(super) const SERVER_NAME: &str = "slowmo";
/// ALPN name offered next to the real protocol, so that nodes of different versions can exchange
/// their versions.
pub(super) const ALPN_VERSION_EXCHANGE: &[u8] = b"slowmo-version";

/// The ALPN name of a protocol version, which is also its name in messages to users.
pub(super) fn version_name(version: u32) -> String {
    format!("slowmo/{version}")
}

/// TLS settings of the accepting and of the dialing side.
pub(super) fn configs(
    identity: &Identity,
    version: u32,
) -> Result<(QuicServerConfig, QuicClientConfig), rustls::Error> {
    let provider = Arc::new(fast_provider());
    let alpn = vec![
        version_name(version).into_bytes(),
        ALPN_VERSION_EXCHANGE.to_vec(),
    ];

    let clients =
        WebPkiClientVerifier::builder_with_provider(identity.roots.clone(), provider.clone())
            .build();
    let clients = clients.map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut server = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(clients)
        .with_single_cert(identity.chain.clone(), identity.key.clone_key())?;
    server.alpn_protocols.clone_from(&alpn);
    server.send_tls13_tickets = 0;

    let client = client_config(identity, alpn)?;
    let unusable = |_| rustls::Error::General("TLS13_AES_128_GCM_SHA256 is missing".into());
    Ok((
        QuicServerConfig::try_from(server).map_err(unusable)?,
        QuicClientConfig::try_from(client).map_err(unusable)?,
    ))
}

/// The dialing side's TLS settings.
pub(super) fn client_config(
    identity: &Identity,
    alpn: Vec<Vec<u8>>,
) -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = Arc::new(fast_provider());
    let algorithms = provider.signature_verification_algorithms;
    let servers = ClusterVerifier {
        roots: identity.roots.clone(),
        algorithms,
    };
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(servers))
        .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())?;
    client.alpn_protocols = alpn;
    client.resumption = rustls::client::Resumption::disabled();
    Ok(client)
}

/// Crypto provider with AES-128 first: QUIC needs it anyway, and it is the cheapest on processors
/// with AES instructions.
fn fast_provider() -> CryptoProvider {
    let mut provider = provider::default_provider();
    provider.cipher_suites = vec![
        provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
        provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
        provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    provider
}

/// Verifies chain, validity and signatures as for any server, except the server's name: nodes are
/// dialed by address, and the id in the certificate is compared with the preface instead.
#[derive(Debug)]
struct ClusterVerifier {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ClusterVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Whether the two sides have only the version exchange in common.
pub(super) fn is_version_exchange(connection: &quinn::Connection) -> bool {
    let data = connection
        .handshake_data()
        .and_then(|data| data.downcast::<HandshakeData>().ok());
    data.and_then(|data| data.protocol).as_deref() == Some(ALPN_VERSION_EXCHANGE)
}

/// The node id and incarnation in the peer's verified certificate, if it carries them.
pub(super) fn certified_name(connection: &quinn::Connection) -> Option<(NodeId, Incarnation)> {
    let chain = connection
        .peer_identity()?
        .downcast::<Vec<CertificateDer<'static>>>()
        .ok()?;
    name_in(chain.first()?)
}

/// The node id and incarnation in a certificate, if it carries them.
pub(super) fn name_in(certificate: &[u8]) -> Option<(NodeId, Incarnation)> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    names
        .value
        .general_names
        .iter()
        .find_map(|name| match name {
            GeneralName::DNSName(name) => parse_peer_name(name),
            _ => None,
        })
}
