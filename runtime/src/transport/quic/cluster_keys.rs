//! The cluster key: what is derived from it, and the file that holds it, or two while they rotate.
//!
//! Does no network or file I/O.

use super::certificate::certificate_params;
use super::identity_error::{CLUSTER_KEY_BYTES, IdentityError};
use rcgen::{BasicConstraints, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use ring::rand::SecureRandom;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use slowmo_protocol::ident::ClusterId;
use std::fmt;
use std::str::FromStr;

/// The bytes before the 32 secret bytes in a PKCS#8 file of an Ed25519 key (RFC 8410, section 7).
const ED25519_PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
/// HKDF salt that separates this use of the cluster key from any other.
const DERIVATION_SALT: &[u8] = b"slowmo cluster key 1";
/// The first word of the line with the cluster's id.
const CLUSTER_WORD: &str = "cluster";
/// Hexadecimal digits of a cluster's id.
const CLUSTER_DIGITS: usize = 16;

/// The secret that all nodes of a cluster share.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; CLUSTER_KEY_BYTES]);

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
    pub(super) fn derive<const LENGTH: usize>(&self, purpose: &[u8]) -> [u8; LENGTH] {
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

    pub(super) fn certificate_authority(
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

/// The keys of a cluster. Certificates of each are accepted; the newest one issues this node's.
///
/// A cluster keeps its id when its key is rotated, because the id stands in every frame: nodes that
/// started before, between and after the steps of a rotation belong to one cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKeys {
    newest: ClusterKey,
    older: Option<ClusterKey>,
    cluster: ClusterId,
}

impl ClusterKeys {
    /// One key, from which the cluster's id is derived.
    #[must_use]
    pub fn of(key: ClusterKey) -> Self {
        Self {
            cluster: key.cluster_id(),
            newest: key,
            older: None,
        }
    }

    /// The id of the cluster; it reveals nothing about the keys.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        self.cluster
    }

    /// The keys, the newest first.
    pub fn iter(&self) -> impl Iterator<Item = &ClusterKey> {
        std::iter::once(&self.newest).chain(&self.older)
    }

    /// The keys with which nodes seal the manifests of checkpoints, the newest first.
    #[must_use]
    pub fn checkpoint_keys(&self) -> Vec<[u8; 32]> {
        self.iter().map(ClusterKey::checkpoint_key).collect()
    }

    /// Adds a newer key: the first step of a rotation.
    ///
    /// # Errors
    /// There are two keys already.
    pub fn rotated(self, newer: ClusterKey) -> Result<Self, IdentityError> {
        if self.older.is_some() {
            return Err(IdentityError::RotationUnderWay);
        }
        Ok(Self {
            newest: newer,
            older: Some(self.newest),
            cluster: self.cluster,
        })
    }

    /// Removes the older key: the last step of a rotation.
    ///
    /// # Errors
    /// There is one key only.
    pub fn retired(self) -> Result<Self, IdentityError> {
        if self.older.is_none() {
            return Err(IdentityError::NoRotation);
        }
        Ok(Self {
            older: None,
            ..self
        })
    }

    /// The text of a key file: secret. [`ClusterKeys::from_str`] reads it.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text: String = self.iter().map(|key| key.to_hex() + "\n").collect();
        if self.cluster != derived(&self.newest, self.older.as_ref()) {
            text.push_str(&format!("{CLUSTER_WORD} {:016x}\n", self.cluster.0));
        }
        text
    }
}

/// The id of a cluster whose file does not tell it: that of its first key, which is the oldest.
fn derived(newest: &ClusterKey, older: Option<&ClusterKey>) -> ClusterId {
    older.unwrap_or(newest).cluster_id()
}

impl fmt::Debug for ClusterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterKeys")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl FromStr for ClusterKeys {
    type Err = IdentityError;

    /// Parses the lines of a key file; empty lines are ignored.
    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let newest: ClusterKey = lines.next().unwrap_or_default().parse()?;
        let mut rest = lines.next();
        let mut older = None;
        if let Some(line) = rest
            && !line.starts_with(CLUSTER_WORD)
        {
            older = Some(line.parse::<ClusterKey>()?);
            rest = lines.next();
        }
        if older.as_ref() == Some(&newest) || lines.next().is_some() {
            return Err(IdentityError::NotAKeyFile);
        }
        let cluster = match rest {
            None => derived(&newest, older.as_ref()),
            Some(line) => cluster_in(line).ok_or(IdentityError::NotAKeyFile)?,
        };
        Ok(Self {
            newest,
            older,
            cluster,
        })
    }
}

fn cluster_in(line: &str) -> Option<ClusterId> {
    let digits = line.strip_prefix(CLUSTER_WORD)?.trim_start();
    let all = digits.len() == CLUSTER_DIGITS && digits.bytes().all(|d| d.is_ascii_hexdigit());
    all.then(|| u64::from_str_radix(digits, 16).ok().map(ClusterId))?
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const OLD: ClusterKey = ClusterKey::from_bytes([1; 32]);
    const NEW: ClusterKey = ClusterKey::from_bytes([2; 32]);
    const NEWER: ClusterKey = ClusterKey::from_bytes([3; 32]);

    fn read(text: &str) -> ClusterKeys {
        text.parse().unwrap()
    }

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
    fn a_cluster_keeps_its_id_over_rotations() {
        let id = OLD.cluster_id();
        let first = read(&OLD.to_hex());
        assert_eq!(first, ClusterKeys::of(OLD));
        let both = read(&first.rotated(NEW).unwrap().to_text());
        assert!(both.iter().eq([&NEW, &OLD]));
        assert_eq!(both.cluster_id(), id);
        assert_eq!(
            both.clone().rotated(NEWER),
            Err(IdentityError::RotationUnderWay)
        );
        let second = read(&both.retired().unwrap().to_text());
        assert!(second.iter().eq([&NEW]));
        assert_eq!(second.cluster_id(), id);
        assert_eq!(second.clone().retired(), Err(IdentityError::NoRotation));
        let third = second
            .rotated(NEWER)
            .and_then(ClusterKeys::retired)
            .unwrap();
        assert_eq!(read(&third.to_text()).cluster_id(), id);
        assert!(!format!("{third:?}").contains(&NEWER.to_hex()));
    }

    #[test]
    fn what_is_no_key_file_is_refused() {
        let old = OLD.to_hex();
        let new = NEW.to_hex();
        for wrong in [
            String::new(),
            format!("{old}\n{old}\n"),
            format!("{new}\n{old}\n{new}\n"),
            format!("{new}\ncluster\n"),
            format!("{new}\ncluster 12\n"),
            format!("{new}\ncluster +23456789abcdef0\n"),
            format!("{new}\ncluster 0123456789abcdef\n{old}\n"),
            format!("{new}\n{}\n", &old[..40]),
        ] {
            assert!(wrong.parse::<ClusterKeys>().is_err(), "{wrong}");
        }
    }
}
