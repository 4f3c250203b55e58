//! A node's identity on the network: the cluster key and the certificates derived from it, or the
//! operator's own PEM files.
//!
//! Does no network or file I/O.

use super::cluster_keys::ClusterKeys;
use super::ids::KnockKey;
use super::names::{ClusterName, PeerName};
use super::tls;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use ring::rand::SecureRandom;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer,
};
use rustls::sign::CertifiedKey;
use slowmo_protocol::ident::{ClusterId, Incarnation, NodeId};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Length of a cluster key, in bytes.
pub const CLUSTER_KEY_BYTES: usize = 32;
/// The bytes before the 32 secret bytes in a PKCS#8 file of an Ed25519 key (RFC 8410, section 7).
const ED25519_PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
/// HKDF salt that separates this use of the cluster key from any other.
const DERIVATION_SALT: &[u8] = b"slowmo cluster key 1";
/// Most CA certificates with which a dialer may mark its first packets; each costs one hash of
/// every first packet.
const KNOCKS_MAX: usize = 4;
/// Separates the mark's secret from other digests of a CA certificate.
const KNOCK_LABEL: &[u8] = b"slowmo knock 1";
/// Certificates are valid from January 1 of the first year to January 1 of the second. The range is
/// wide because nodes' clocks may be wrong; trust rests on the key.
const VALID_YEARS: (i32, i32) = (2020, 2120);

/// The secret that all nodes of a cluster share.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; CLUSTER_KEY_BYTES]);

/// The certificates with which a node authenticates, and the roots against which it verifies its
/// peers.
#[derive(Clone)]
pub struct Identity {
    /// This node's certificates, the one that it prefers first.
    pub(super) certified: Vec<Certified>,
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
    pub(super) knocks: Vec<KnockKey>,
}

/// What the operator's own files hold, in PEM.
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

/// Reason why an identity could not be created. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The text does not have the form that `slowmo keygen` writes.
    #[error("a cluster key is {} hexadecimal digits; make one with `slowmo keygen`", CLUSTER_KEY_BYTES * 2)]
    NotAClusterKey,
    /// A key file has other lines than keys and a cluster's id.
    #[error(
        "a key file holds one cluster key, or two while they rotate, each on a line, and after them a line `cluster ID` if slowmo keygen wrote one; take the file that slowmo keygen wrote"
    )]
    NotAKeyFile,
    /// A third key would be added.
    #[error(
        "the file holds two keys already: end that rotation first (slowmo keygen --retire FILE)"
    )]
    RotationUnderWay,
    /// There is no older key.
    #[error("the file holds one key only: begin with slowmo keygen --rotate FILE")]
    NoRotation,
    /// The credential is of another cluster than the one that this process belongs to.
    #[error(
        "it is of {theirs}, this process belongs to {ours}; take the key file that slowmo keygen --rotate wrote; give cluster_name on all nodes, which needs a restart, before a CA is exchanged"
    )]
    AnotherCluster {
        /// The cluster of the new credential.
        theirs: ClusterId,
        /// The cluster of this process.
        ours: ClusterId,
    },
    /// This node's certificate does not carry the name that its peers require.
    #[error(
        "this node's certificate must carry the name {expected} (tls_peer_name), and it carries: {carried}; issue one with that name, or change node_id"
    )]
    WrongName {
        /// The name, or its pattern.
        expected: String,
        /// The names that it carries.
        carried: String,
    },
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes")]
    NoRandomBytes,
    /// A certificate could not be created or read.
    #[error(
        "the {what} is not usable ({reason}); give PEM files of one CA, of a certificate chain for both client and server use, and of its key"
    )]
    Certificate {
        /// The certificate or file concerned.
        what: &'static str,
        /// The reason why it cannot be used.
        reason: String,
    },
}

impl ClusterKey {
    /// A fresh random key.
    ///
    /// # Errors
    /// The operating system gave no random bytes.
    pub fn generate() -> Result<Self, IdentityError> {
        let mut bytes = [0; CLUSTER_KEY_BYTES];
        ring::rand::SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| IdentityError::NoRandomBytes)?;
        Ok(Self(bytes))
    }

    /// A key from the given bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; CLUSTER_KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The text form that [`ClusterKey::from_str`] reads: secret, 64 hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The id of the cluster; it reveals nothing about the key.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        ClusterId(u64::from_le_bytes(self.derive(b"cluster id")))
    }

    /// The key that seals the manifests of the cluster's checkpoints; it reveals nothing about the
    /// cluster key.
    #[must_use]
    pub fn checkpoint_key(&self) -> [u8; 32] {
        self.derive(b"checkpoint manifests")
    }

    /// Derives bytes for one purpose (HKDF with SHA-256, RFC 5869).
    fn derive<const LENGTH: usize>(&self, purpose: &[u8]) -> [u8; LENGTH] {
        struct Length(usize);
        impl ring::hkdf::KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let extracted =
            ring::hkdf::Salt::new(ring::hkdf::HKDF_SHA256, DERIVATION_SALT).extract(&self.0);
        let mut derived = [0; LENGTH];
        let purpose = [purpose];
        let expanded = extracted
            .expand(&purpose, Length(LENGTH))
            .and_then(|okm| okm.fill(&mut derived));
        debug_assert!(expanded.is_ok(), "HKDF fails only beyond 255 blocks");
        derived
    }

    fn certificate_authority(
        &self,
    ) -> Result<(Issuer<'static, KeyPair>, CertificateDer<'static>), rcgen::Error> {
        let pkcs8 = [
            &ED25519_PKCS8_PREFIX[..],
            &self.derive::<32>(b"certificate authority"),
        ]
        .concat();
        let key = KeyPair::from_pkcs8_der_and_sign_algo(
            &PrivatePkcs8KeyDer::from(pkcs8),
            &rcgen::PKCS_ED25519,
        )?;
        let mut params =
            certificate_params(&format!("slowmo cluster {:016x}", self.cluster_id().0));
        params.serial_number = Some(1u64.into());
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key)?;
        Ok((Issuer::new(params, key), certificate.der().clone()))
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(hidden)")
    }
}

impl FromStr for ClusterKey {
    type Err = IdentityError;

    /// Parses 64 hexadecimal digits; surrounding whitespace is ignored.
    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let digits = text.trim().as_bytes();
        if digits.len() != CLUSTER_KEY_BYTES * 2 {
            return Err(IdentityError::NotAClusterKey);
        }
        let mut bytes = [0; CLUSTER_KEY_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let high = (pair[0] as char)
                .to_digit(16)
                .ok_or(IdentityError::NotAClusterKey)?;
            let low = (pair[1] as char)
                .to_digit(16)
                .ok_or(IdentityError::NotAClusterKey)?;
            *byte = (high << 4 | low) as u8;
        }
        Ok(Self(bytes))
    }
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

    /// Issues a certificate under each cluster key's CA. Certificates of an earlier identity whose
    /// key is still there are kept.
    ///
    /// # Errors
    /// The operating system gave no random bytes.
    pub fn issue_all(
        keys: &ClusterKeys,
        node: NodeId,
        incarnation: Incarnation,
        earlier: Option<&Self>,
    ) -> Result<Self, IdentityError> {
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
                    key: Arc::new(issued(&issuer, node, incarnation)?),
                    authority: Some(authority.clone()),
                },
            });
            authorities.push(authority);
        }
        Ok(Self {
            certified,
            newest: Some(roots_of(authorities.first().cloned())?),
            roots: roots_of(authorities)?,
            revoked: Vec::new(),
            expires_at: None,
            cluster: keys.cluster_id(),
            named: true,
            peer_name: None,
            knocks: keys
                .iter()
                .map(|key| KnockKey::new(&key.derive(b"knock")))
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
    /// `peer_name` binds it to the name in its certificate, also that of this node. The cluster's id
    /// is that of `cluster_name`, or a digest of the CA certificates, which must not change then.
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
            let names = chain.first().map(|own| tls::names_in(own));
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
        let knocks = authorities.iter().take(KNOCKS_MAX).map(knock_of).collect();
        Ok(Self {
            expires_at: tls::expiry_of(&chain),
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
            knocks,
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
        super::tls::name_in(certificate)
            .or_else(|| parse_peer_name(std::str::from_utf8(certificate).ok()?))
    }

    /// The certificate that this node prefers.
    pub(super) fn own_certificate(&self) -> Option<&[u8]> {
        let preferred = self.certified.first()?;
        preferred.key.cert.first().map(AsRef::as_ref)
    }

    /// When the first certificate of this node's chain expires, in seconds since 1970; `None` with a
    /// cluster key.
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

/// An error of this certificate or file.
fn unusable<E: fmt::Display>(what: &'static str) -> impl Fn(E) -> IdentityError {
    move |error| IdentityError::Certificate {
        what,
        reason: error.to_string(),
    }
}

/// A certificate for a fresh key pair of a node.
fn issued(
    issuer: &Issuer<'_, KeyPair>,
    node: NodeId,
    incarnation: Incarnation,
) -> Result<CertifiedKey, IdentityError> {
    let key =
        KeyPair::generate_for(&rcgen::PKCS_ED25519).map_err(|_| IdentityError::NoRandomBytes)?;
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
        .signed_by(&key, issuer)
        .map_err(unusable("node's certificate"))?;
    let private = PrivatePkcs8KeyDer::from(key.serialize_der());
    certified(vec![certificate.der().clone()], private.into())
}

/// A chain with its key, if they belong together.
fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, IdentityError> {
    CertifiedKey::from_der(chain, key, &tls::provider()).map_err(unusable("certificate or its key"))
}

/// The DNS name that a node's certificate carries.
pub(super) fn peer_name(node: NodeId, incarnation: Incarnation) -> String {
    format!("n{}.i{}.slowmo", node.0, incarnation.0)
}

/// The inverse of [`peer_name`].
pub(super) fn parse_peer_name(name: &str) -> Option<(NodeId, Incarnation)> {
    let (node, incarnation) = name.strip_suffix(".slowmo")?.split_once('.')?;
    let node = node.strip_prefix('n')?.parse().ok()?;
    let incarnation = incarnation.strip_prefix('i')?.parse().ok()?;
    Some((NodeId(node), Incarnation(incarnation)))
}

fn certificate_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.not_before = rcgen::date_time_ymd(VALID_YEARS.0, 1, 1);
    params.not_after = rcgen::date_time_ymd(VALID_YEARS.1, 1, 1);
    params
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
fn knock_of(authority: &CertificateDer<'_>) -> KnockKey {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    context.update(KNOCK_LABEL);
    context.update(authority);
    let mut secret = [0; 32];
    secret.copy_from_slice(context.finish().as_ref());
    KnockKey::new(&secret)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn cluster_key_survives_its_text_and_stays_hidden() {
        let key = ClusterKey::generate().unwrap();
        let text = format!(" {}\n", key.to_hex());
        assert_eq!(text.parse::<ClusterKey>().unwrap(), key);
        assert_eq!(format!("{key:?}"), "ClusterKey(hidden)");
        for wrong in ["", "12", &"g".repeat(64), &"0".repeat(65)] {
            assert_eq!(
                wrong.parse::<ClusterKey>(),
                Err(IdentityError::NotAClusterKey)
            );
        }
    }

    #[test]
    fn one_key_derives_one_authority() {
        let key = ClusterKey::from_bytes([7; CLUSTER_KEY_BYTES]);
        let other = ClusterKey::from_bytes([8; CLUSTER_KEY_BYTES]);
        assert_eq!(
            key.certificate_authority().unwrap().1,
            key.certificate_authority().unwrap().1
        );
        assert_ne!(
            key.certificate_authority().unwrap().1,
            other.certificate_authority().unwrap().1
        );
        assert_ne!(key.cluster_id(), other.cluster_id());
    }

    #[test]
    fn peer_names_are_read_back() {
        let name = peer_name(NodeId(u64::MAX), Incarnation(3));
        assert_eq!(
            parse_peer_name(&name),
            Some((NodeId(u64::MAX), Incarnation(3)))
        );
        for wrong in [
            "",
            "n1.i2",
            "n1.slowmo",
            "n1.ix.slowmo",
            "n1.i2.slowmo.org",
            "n99999999999999999999.i1.slowmo",
        ] {
            assert_eq!(parse_peer_name(wrong), None, "{wrong}");
        }
    }
}
