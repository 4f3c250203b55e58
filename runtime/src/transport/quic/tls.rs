//! Mutual TLS 1.3: each side's chain is verified against the cluster's CA; the name in the
//! certificate is checked against the preface.

use super::certificate::{key_in, name_in, names_in, provider};
use super::identity::{Certified, Identity};
use super::identity_error::IdentityError;
use crate::transport::session::KeyDigest;
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
};
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::sync::Arc;

/// The server name that clients ask for; it is never compared, see [`AnyName`].
pub(super) const SERVER_NAME: &str = "slowmo";
/// The server name that a client asks for if the connection takes the place of one that it dialed
/// before under another certificate.
pub(super) const RENEWAL_NAME: &str = "renewal.slowmo";
/// ALPN name offered next to the real protocol, so that nodes of different versions can exchange
/// their versions.
pub(super) const ALPN_VERSION_EXCHANGE: &[u8] = b"slowmo-version";

/// The ALPN name of a protocol version, which is also its name in messages to users.
pub(super) fn version_name(version: u32) -> String {
    format!("slowmo/{version}")
}

/// TLS settings of the accepting and of the dialing side, and the judge of peers' certificates.
pub(super) struct Tls {
    pub server: QuicServerConfig,
    pub client: QuicClientConfig,
    pub judge: Judge,
}

impl Tls {
    pub(super) fn of(identity: &Identity, version: u32) -> Result<Self, IdentityError> {
        let unusable = |error: rustls::Error| IdentityError::Certificate {
            what: "certificate or its key",
            reason: error.to_string(),
        };
        let alpn = vec![
            version_name(version).into_bytes(),
            ALPN_VERSION_EXCHANGE.to_vec(),
        ];
        let judge = Judge::of(identity)?;
        let server = server_config(identity, &judge, alpn.clone()).map_err(unusable)?;
        let client = dialing_config(identity, &judge, alpn).map_err(unusable)?;
        let missing = |_| IdentityError::Certificate {
            what: "cryptography",
            reason: "TLS13_AES_128_GCM_SHA256 is missing".into(),
        };
        Ok(Self {
            server: server.try_into().map_err(missing)?,
            client: client.try_into().map_err(missing)?,
            judge,
        })
    }
}

fn server_config(
    identity: &Identity,
    judge: &Judge,
    alpn: Vec<Vec<u8>>,
) -> Result<rustls::ServerConfig, rustls::Error> {
    let mut server = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(judge.dialers.clone())
        .with_cert_resolver(Arc::new(Choice::of(identity)));
    server.alpn_protocols = alpn;
    server.send_tls13_tickets = 0;
    Ok(server)
}

/// The dialing side's TLS settings.
pub(super) fn client_config(
    identity: &Identity,
    alpn: Vec<Vec<u8>>,
) -> Result<rustls::ClientConfig, rustls::Error> {
    let judge = Judge::of(identity).map_err(|error| rustls::Error::General(error.to_string()))?;
    dialing_config(identity, &judge, alpn)
}

fn dialing_config(
    identity: &Identity,
    judge: &Judge,
    alpn: Vec<Vec<u8>>,
) -> Result<rustls::ClientConfig, rustls::Error> {
    let mut client = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(judge.dialed.clone())
        .with_client_cert_resolver(Arc::new(Choice::of(identity)));
    client.alpn_protocols = alpn;
    client.resumption = rustls::client::Resumption::disabled();
    Ok(client)
}

/// The verdict of this node's credential on the certificate of a connection's peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It is not accepted (any more).
    Refused(String),
    /// It is accepted, and was issued under an older key.
    Older,
    /// It is accepted, and there is no better one.
    Current,
}

/// Verifies the certificates of peers, during a handshake and later.
pub(super) struct Judge {
    dialers: Arc<dyn ClientCertVerifier>,
    dialed: Arc<AnyName>,
    newest: Option<AnyName>,
}

impl Judge {
    fn of(identity: &Identity) -> Result<Self, IdentityError> {
        let unusable = |error: rustls::server::VerifierBuilderError| IdentityError::Certificate {
            what: "CA",
            reason: error.to_string(),
        };
        let dialers =
            WebPkiClientVerifier::builder_with_provider(identity.roots.clone(), provider())
                .with_crls(identity.revoked.clone())
                .allow_unknown_revocation_status()
                .build()
                .map_err(unusable)?;
        let newest = identity.newest.clone();
        // With one certificate there is nothing to choose, and many names make a first packet long.
        let hints = newest.is_some().then(|| identity.roots.subjects());
        let revoked = identity.revoked.clone();
        let dialed = AnyName::of(identity.roots.clone(), revoked, hints).map_err(unusable)?;
        Ok(Self {
            dialers,
            dialed: Arc::new(dialed),
            newest: newest
                .map(|newest| AnyName::of(newest, Vec::new(), None))
                .transpose()
                .map_err(unusable)?,
        })
    }

    /// Judges, as of now, the peer of a connection that this node dialed.
    pub(super) fn of_dialed(&self, connection: &quinn::Connection) -> Standing {
        let chain = chain_of(connection).unwrap_or_default();
        let accepted = verified(&chain, |end, others| self.dialed.verify(end, others));
        if let Err(error) = accepted {
            return Standing::Refused(error.to_string());
        }
        let is_newest =
            |newest: &AnyName| verified(&chain, |end, others| newest.verify(end, others)).is_ok();
        if self.newest.as_ref().is_none_or(is_newest) {
            Standing::Current
        } else {
            Standing::Older
        }
    }

    /// Judges, as of now, a peer that dialed this node.
    pub(super) fn of_dialer(&self, connection: &quinn::Connection) -> Standing {
        let chain = chain_of(connection).unwrap_or_default();
        let accepted = verified(&chain, |end, others| {
            let now = UnixTime::now();
            self.dialers
                .verify_client_cert(end, others, now)
                .map(|_| ())
        });
        match accepted {
            Ok(()) => Standing::Current,
            Err(error) => Standing::Refused(error.to_string()),
        }
    }
}

fn verified(
    chain: &[CertificateDer<'_>],
    verify: impl FnOnce(&CertificateDer<'_>, &[CertificateDer<'_>]) -> Result<(), rustls::Error>,
) -> Result<(), rustls::Error> {
    let (end, others) = chain
        .split_first()
        .ok_or(rustls::Error::NoCertificatesPresented)?;
    verify(end, others)
}

/// Shows a peer the first of this node's certificates that was issued by a CA which the peer
/// accepts; the preferred one to a peer that does not say.
#[derive(Debug)]
struct Choice(Vec<(Option<DistinguishedName>, Arc<CertifiedKey>)>);

impl Choice {
    fn of(identity: &Identity) -> Self {
        let named = |certified: &Certified| {
            let mut authority = RootCertStore::empty();
            authority.add_parsable_certificates(certified.authority.clone());
            (authority.subjects().pop(), certified.key.clone())
        };
        Self(identity.certified.iter().map(named).collect())
    }

    fn choose(&self, accepts: impl Fn(&[u8]) -> bool) -> Option<Arc<CertifiedKey>> {
        let accepted = self.0.iter().find(|(authority, _)| {
            authority
                .as_ref()
                .is_some_and(|authority| accepts(authority.as_ref()))
        });
        accepted
            .or(self.0.first())
            .map(|(_, certified)| certified.clone())
    }
}

impl ResolvesServerCert for Choice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let accepted = hello.certificate_authorities().unwrap_or_default();
        self.choose(|authority| accepted.iter().any(|name| name.as_ref() == authority))
    }
}

impl ResolvesClientCert for Choice {
    fn resolve(
        &self,
        root_hint_subjects: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.choose(|authority| root_hint_subjects.contains(&authority))
    }

    fn has_certs(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Verifies chain, validity and signatures as for any server, except the server's name: nodes are
/// dialed by address, and the id in the certificate is compared with the preface instead.
#[derive(Debug)]
struct AnyName {
    verifier: Arc<WebPkiServerVerifier>,
    /// Names of the CAs that servers are told of, so that they show a certificate of one of them.
    hints: Option<Vec<DistinguishedName>>,
}

impl AnyName {
    fn of(
        roots: Arc<RootCertStore>,
        revoked: Vec<CertificateRevocationListDer<'static>>,
        hints: Option<Vec<DistinguishedName>>,
    ) -> Result<Self, rustls::server::VerifierBuilderError> {
        Ok(Self {
            // A CA without a list has revoked nothing: while a CA is rotated, one of two may have
            // none.
            verifier: WebPkiServerVerifier::builder_with_provider(roots, provider())
                .with_crls(revoked)
                .allow_unknown_revocation_status()
                .build()?,
            hints,
        })
    }

    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), rustls::Error> {
        let name = ServerName::try_from(SERVER_NAME)
            .map_err(|_| rustls::Error::General("the server name is no DNS name".into()))?;
        self.verify_server_cert(end_entity, intermediates, &name, &[], UnixTime::now())
            .map(|_| ())
    }
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.verifier.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        // The name is looked at last, after everything else was found in order.
        match verified {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
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
        self.verifier
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.hints.as_deref()
    }
}

/// Returns the data of a connection's handshake, such as its protocol.
fn handshake_data(connection: &quinn::Connection) -> Option<Box<HandshakeData>> {
    connection.handshake_data()?.downcast().ok()
}

/// The chain that a connection's peer has shown.
fn chain_of(connection: &quinn::Connection) -> Option<Vec<CertificateDer<'static>>> {
    let chain = connection.peer_identity()?.downcast().ok()?;
    Some(*chain)
}

/// Whether the two sides have only the version exchange in common.
pub(super) fn is_version_exchange(connection: &quinn::Connection) -> bool {
    let data = handshake_data(connection);
    data.and_then(|data| data.protocol).as_deref() == Some(ALPN_VERSION_EXCHANGE)
}

/// Whether an accepted connection takes the place of one that its peer dialed before.
pub(super) fn is_renewal(connection: &quinn::Connection) -> bool {
    let data = handshake_data(connection);
    data.and_then(|data| data.server_name).as_deref() == Some(RENEWAL_NAME)
}

/// The node id and incarnation in the peer's verified certificate, if it carries them.
pub(super) fn certified_name(connection: &quinn::Connection) -> Option<(NodeId, Incarnation)> {
    name_in(chain_of(connection)?.first()?)
}

/// A digest of the public key in the peer's verified certificate.
pub(super) fn certified_key(connection: &quinn::Connection) -> Option<KeyDigest> {
    key_in(chain_of(connection)?.first()?)
}

/// The DNS names and URIs in the peer's verified certificate.
pub(super) fn names_of(connection: &quinn::Connection) -> Vec<String> {
    let chain = chain_of(connection).unwrap_or_default();
    chain
        .first()
        .map(|certificate| names_in(certificate))
        .unwrap_or_default()
}
