//! A node's identity on the network: the cluster key and the certificates derived from it, or the
//! operator's own PEM files.
//!
//! Does no network or file I/O.

use super::certificate::{
    certificate_params, expiry_of, name_in, names_in, parse_peer_name, peer_name, provider,
    unusable,
};
use super::cluster_keys::{ClusterKey, ClusterKeys};
use super::identity_error::IdentityError;
use super::ids::MarkKey;
use super::names::{ClusterName, PeerName};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer,
};
use rustls::sign::CertifiedKey;
use slowmo_protocol::ident::{ClusterId, Incarnation, NodeId};
use std::fmt;
use std::sync::Arc;

/// Most CA certificates with which a dialer may mark its first packets; each costs one hash of
/// every first packet.
const MARKS_MAX: usize = 4;
/// Separates the mark's secret from other digests of a CA certificate.
const MARK_LABEL: &[u8] = b"slowmo mark 1";

/// The certificates with which a node authenticates, and the roots against which it verifies its
/// peers.
#[derive(Clone)]
pub struct Identity {
    /// This node's certificates, the one that it prefers first.
    pub(super) certified: Vec<Certified>,
    /// The key pair of all certificates under cluster keys: peers know this process by it.
    key_pair: Option<Arc<KeyPair>>,
    /// The CAs that are accepted.
    pub(super) roots: Arc<RootCertStore>,
    /// The CA of the newest cluster key. Connections under an older one are renewed; `None` if all
    /// CAs are equal.
    pub(super) newest: Option<Arc<RootCertStore>>,
    /// Lists of certificates that their CAs have revoked.
    pub(super) revoked: Vec<CertificateRevocationListDer<'static>>,
    /// When the first certificate of an operator's chain expires, in seconds since 1970.
    expires_at: Option<i64>,
    pub(super) cluster: ClusterId,
    /// Whether certificates carry node id and incarnation; false for the operator's own files.
    pub(super) named: bool,
    /// The name that a peer's certificate must carry, in place of that.
    pub(super) peer_name: Option<PeerName>,
    /// Secrets with which first packets are marked; the first one marks those of this node.
    pub(super) marks: Vec<MarkKey>,
}

/// The operator's own files, in PEM.
#[derive(Clone, Copy)]
pub struct OperatorFiles<'a> {
    /// The CAs whose certificates are accepted.
    pub ca: &'a [u8],
    /// The node's chain, usable as client and as server.
    pub certificate: &'a [u8],
    /// Its private key.
    pub key: &'a [u8],
    /// Lists of revoked certificates.
    pub revoked: Option<&'a [u8]>,
}

/// One certificate chain of this node, and its key.
#[derive(Clone)]
pub(super) struct Certified {
    /// The CA that issued it; only a peer that accepts this CA is shown the certificate. `None` if
    /// it is the only one.
    pub authority: Option<CertificateDer<'static>>,
    pub key: Arc<CertifiedKey>,
}

impl Identity {
    /// Issues a certificate under the cluster key's CA for a fresh key pair of this node.
    ///
    /// # Errors
    /// The operating system gave no random bytes.
    pub fn issue(
        cluster_key: &ClusterKey,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<Self, IdentityError> {
        let keys = ClusterKeys::of(cluster_key.clone());
        Self::issue_all(&keys, node, incarnation, None)
    }

    /// Issues a certificate under each cluster key's CA, all for one key pair: that of the earlier
    /// identity, if there is one, whose certificates under keys that are still there are kept.
    ///
    /// # Errors
    /// The operating system gave no random bytes.
    pub fn issue_all(
        keys: &ClusterKeys,
        node: NodeId,
        incarnation: Incarnation,
        earlier: Option<&Self>,
    ) -> Result<Self, IdentityError> {
        let key_pair = match earlier.and_then(|earlier| earlier.key_pair.clone()) {
            Some(kept) => kept,
            None => Arc::new(generated()?),
        };
        let mut certified = Vec::new();
        let mut authorities = Vec::new();
        for key in keys.iter() {
            let (issuer, authority) = key
                .certificate_authority()
                .map_err(unusable("cluster's CA"))?;
            let kept = earlier.and_then(|earlier| {
                let mut all = earlier.certified.iter();
                all.find(|certified| certified.authority.as_ref() == Some(&authority))
            });
            certified.push(match kept {
                Some(kept) => kept.clone(),
                None => Certified {
                    key: Arc::new(issued(&issuer, &key_pair, node, incarnation)?),
                    authority: Some(authority.clone()),
                },
            });
            authorities.push(authority);
        }
        Ok(Self {
            certified,
            key_pair: Some(key_pair),
            newest: Some(roots_of(authorities.first().cloned())?),
            roots: roots_of(authorities)?,
            revoked: Vec::new(),
            expires_at: None,
            cluster: keys.cluster_id(),
            named: true,
            peer_name: None,
            marks: keys
                .iter()
                .map(|key| MarkKey::new(&key.derive(b"mark")))
                .collect(),
        })
    }

    /// Uses the operator's own certificates, and nothing else of [`OperatorFiles`].
    ///
    /// # Errors
    /// As for [`Identity::of_operator`].
    pub fn from_pem(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let files = OperatorFiles {
            ca,
            certificate,
            key,
            revoked: None,
        };
        Self::of_operator(files, None, None, NodeId(0))
    }

    /// Uses the operator's own certificates. A node's id is the one that it states itself;
    /// `peer_name` binds it to the name in its certificate, also that of this node. The cluster's
    /// id is that of `cluster_name`, or a digest of the CA certificates, which must not change
    /// then.
    ///
    /// # Errors
    /// A file is not PEM or contains nothing usable, or this node's certificate does not carry the
    /// name that the others require.
    pub fn of_operator(
        files: OperatorFiles<'_>,
        cluster_name: Option<&ClusterName>,
        peer_name: Option<&PeerName>,
        node: NodeId,
    ) -> Result<Self, IdentityError> {
        let authorities: Vec<_> = CertificateDer::pem_slice_iter(files.ca)
            .collect::<Result<_, _>>()
            .map_err(unusable("CA file"))?;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(files.certificate)
            .collect::<Result<_, _>>()
            .map_err(unusable("certificate file"))?;
        let key = PrivateKeyDer::from_pem_slice(files.key).map_err(unusable("key file"))?;
        let lists = CertificateRevocationListDer::pem_slice_iter(files.revoked.unwrap_or_default());
        let revoked: Vec<_> = lists
            .collect::<Result<_, _>>()
            .map_err(unusable("revocation list"))?;
        if files.revoked.is_some() && revoked.is_empty() {
            return Err(unusable("revocation list")("it holds no list"));
        }
        if let Some(pattern) = peer_name {
            let names = chain.first().map(|own| names_in(own));
            let names = names.unwrap_or_default();
            if !names.iter().any(|name| pattern.admits(name, node)) {
                return Err(IdentityError::WrongName {
                    expected: pattern.of(node),
                    carried: names.join(", "),
                });
            }
        }
        let cluster =
            cluster_name.map_or_else(|| cluster_of(&authorities), ClusterName::cluster_id);
        let marks = authorities
            .iter()
            .take(MARKS_MAX)
            .map(mark_key_of)
            .collect();
        Ok(Self {
            expires_at: expiry_of(&chain),
            key_pair: None,
            certified: vec![Certified {
                authority: None,
                key: Arc::new(certified(chain, key)?),
            }],
            roots: roots_of(authorities)?,
            newest: None,
            revoked,
            cluster,
            named: false,
            peer_name: peer_name.cloned(),
            marks,
        })
    }

    /// TLS settings of a client with this identity, for tests that talk to a node without a
    /// transport.
    ///
    /// # Errors
    /// The certificate does not match its key.
    #[doc(hidden)]
    pub fn client_tls_for_tests(&self, alpn: &str) -> Result<rustls::ClientConfig, rustls::Error> {
        super::tls::client_config(self, vec![alpn.as_bytes().to_vec()])
    }

    /// The node's own certificate, for tests that read it.
    #[doc(hidden)]
    #[must_use]
    pub fn certificate_for_tests(&self) -> &[u8] {
        self.own_certificate().unwrap_or_default()
    }

    /// The node id and incarnation in a certificate, or in the plain text of such a name, for tests
    /// of malformed certificates.
    #[doc(hidden)]
    #[must_use]
    pub fn name_for_tests(certificate: &[u8]) -> Option<(NodeId, Incarnation)> {
        name_in(certificate).or_else(|| parse_peer_name(std::str::from_utf8(certificate).ok()?))
    }

    /// The certificate that this node prefers.
    pub(super) fn own_certificate(&self) -> Option<&[u8]> {
        let preferred = self.certified.first()?;
        preferred.key.cert.first().map(AsRef::as_ref)
    }

    /// When the first certificate of this node's chain expires, in seconds since 1970; `None` with
    /// a cluster key.
    #[must_use]
    pub fn expires_at(&self) -> Option<i64> {
        self.expires_at
    }

    /// The cluster that this identity belongs to.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        self.cluster
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("cluster", &self.cluster)
            .field("named", &self.named)
            .finish_non_exhaustive()
    }
}

fn generated() -> Result<KeyPair, IdentityError> {
    KeyPair::generate_for(&rcgen::PKCS_ED25519).map_err(|_| IdentityError::NoRandomBytes)
}

/// A certificate for the key pair of a node.
fn issued(
    issuer: &Issuer<'_, KeyPair>,
    key: &KeyPair,
    node: NodeId,
    incarnation: Incarnation,
) -> Result<CertifiedKey, IdentityError> {
    let name = peer_name(node, incarnation);
    let mut params = certificate_params(&name);
    params.subject_alt_names = CertificateParams::new([name])
        .map_err(unusable("node's name"))?
        .subject_alt_names;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let certificate = params
        .signed_by(key, issuer)
        .map_err(unusable("node's certificate"))?;
    let private = PrivatePkcs8KeyDer::from(key.serialize_der());
    certified(vec![certificate.der().clone()], private.into())
}

/// A chain with its key, if they belong together.
fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, IdentityError> {
    CertifiedKey::from_der(chain, key, &provider()).map_err(unusable("certificate or its key"))
}

fn roots_of(
    authorities: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Result<Arc<RootCertStore>, IdentityError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots
            .add(authority)
            .map_err(|error| IdentityError::Certificate {
                what: "CA",
                reason: error.to_string(),
            })?;
    }
    Ok(Arc::new(roots))
}

/// The cluster id for the operator's own files: the first 8 bytes of a SHA-256 digest of the CA
/// certificates.
fn cluster_of(authorities: &[CertificateDer<'_>]) -> ClusterId {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    authorities
        .iter()
        .for_each(|authority| context.update(authority));
    let digest = context.finish();
    let mut id = [0; 8];
    id.copy_from_slice(&digest.as_ref()[..8]);
    ClusterId(u64::from_le_bytes(id))
}

/// With the operator's own files, a first packet is marked with a digest of a CA certificate. That
/// is no secret to somebody who has the file; it keeps out floods of those who do not.
fn mark_key_of(authority: &CertificateDer<'_>) -> MarkKey {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    context.update(MARK_LABEL);
    context.update(authority);
    let mut secret = [0; 32];
    secret.copy_from_slice(context.finish().as_ref());
    MarkKey::new(&secret)
}
