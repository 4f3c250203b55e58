//! The trust in manifests. A checkpoint's folder may be shared with others who can write into it: a
//! newest checkpoint that somebody planted there would be resumed by everybody.
//!
//! A node with a cluster key seals each manifest that it writes: HMAC-SHA256 with a key that is
//! derived from the cluster key, while that is rotated from the newest one. It believes manifests
//! with a seal of one of the cluster's keys, and those of
//! its own user, so that checkpoints of an earlier key, or of a launch with a key of its own, can
//! be resumed. Without a cluster key (certificates of an operator's CA, or a single node) it
//! believes those of its own user and of root only. Manifests name values by SHA-256, so whoever
//! cannot write a manifest cannot change values either. Those of the format before name them by
//! XXH3, which shows damage only.
//!
//! A seal covers the whole manifest, so a planted one is read before it is refused: of each other
//! user at most `REFUSED_BYTES_MAX`. One that does not begin as a sealed one is refused by its first
//! bytes.
//!
//! Tools that only show a checkpoint believe everybody, and check digests.

use crate::secret_file::is_own;
use parking_lot::{Mutex, RwLock};
use ring::hmac;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// Opening bytes of a seal, which follows the digest of a manifest.
pub(super) const SEAL_OPENS: &[u8] = b"\"seal\":\"";
/// Bytes after a seal.
pub(super) const SEAL_CLOSES: &[u8] = b"\",";
/// Hexadecimal digits of a seal.
pub(super) const SEAL_DIGITS: usize = 64;
/// Most bytes that are read of one other user's manifests which are then refused, from the start of
/// a node until its keys are renewed, in all folders together: four of the longest manifests, which
/// take less than a second. After that all of that user's manifests are passed over. The last one
/// may exceed it.
pub(super) const REFUSED_BYTES_MAX: u64 = 64 << 20;
/// Most users for which such bytes are counted. Manifests of further users are passed over.
const REFUSED_USERS_MAX: usize = 64;

/// The trust in manifests; see the module. Copies share their keys.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// The cluster's keys: the first one seals, a seal of each is believed.
    keys: Arc<RwLock<Vec<hmac::Key>>>,
    refused: Arc<Mutex<Refused>>,
    everybody: bool,
}

/// The bytes read of manifests that were refused.
#[derive(Debug, Default)]
struct Refused {
    /// Bytes by the id of the user that owns the manifests.
    bytes: BTreeMap<u32, u64>,
    /// Whether the log says that manifests are passed over.
    is_told: bool,
}

/// Believes everybody: for tools.
pub static EVERYBODY: LazyLock<Trust> = LazyLock::new(|| Trust {
    everybody: true,
    ..Trust::default()
});

impl Trust {
    /// Believes the holders of these keys, which were derived for this purpose, and this process's
    /// own user. The first key seals what is written.
    #[must_use]
    pub fn of(keys: &[[u8; 32]]) -> Self {
        let trust = Self::default();
        trust.renew(keys);
        trust
    }

    /// Believes the holders of these keys from now on, instead of those before.
    pub fn renew(&self, keys: &[[u8; 32]]) {
        *self.keys.write() = keys
            .iter()
            .map(|key| hmac::Key::new(hmac::HMAC_SHA256, key))
            .collect();
        // Refused manifests may be sealed with one of the new keys.
        *self.refused.lock() = Refused::default();
    }

    /// Whether everybody is believed.
    pub(super) fn is_everybody(&self) -> bool {
        self.everybody
    }

    /// The seal of a text, in hexadecimal digits; `None` without a key.
    pub(super) fn seal(&self, text: &[u8]) -> Option<String> {
        let tag = hmac::sign(self.keys.read().first()?, text);
        Some(
            tag.as_ref()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        )
    }

    /// Whether a manifest that a user owns is believed; `behind` is its text after the digest.
    pub(super) fn believes(&self, behind: &[u8], owner: u32) -> bool {
        self.needs_no_seal(owner) || self.is_sealed(behind)
    }

    /// Whether manifests that a user owns are believed without a seal.
    pub(super) fn needs_no_seal(&self, owner: u32) -> bool {
        self.everybody || is_own(owner)
    }

    /// Whether a manifest that begins like this may be sealed with one of the keys; `behind` is the
    /// beginning of its text after the digest.
    pub(super) fn may_be_sealed(&self, behind: &[u8]) -> bool {
        !self.keys.read().is_empty() && seal_of(behind).is_some()
    }

    fn is_sealed(&self, behind: &[u8]) -> bool {
        seal_of(behind).is_some_and(|(seal, text)| {
            self.keys
                .read()
                .iter()
                .any(|key| hmac::verify(key, text, &seal).is_ok())
        })
    }

    /// Whether a sealed manifest of a user is still read: not much of that user's was refused.
    /// The first one that is not is told in the log.
    pub(super) fn still_reads(&self, owner: u32, manifest: &Path) -> bool {
        let mut refused = self.refused.lock();
        let reads = refused
            .bytes
            .get(&owner)
            .map_or(refused.bytes.len() < REFUSED_USERS_MAX, |bytes| {
                *bytes < REFUSED_BYTES_MAX
            });
        if !reads && !refused.is_told {
            refused.is_told = true;
            tracing::warn!(
                manifest = %manifest.display(),
                owner,
                "another user put so many manifests without a seal of this cluster into the folder \
                 of checkpoints that all of that user's are passed over: remove them, and let only \
                 the cluster's users write there"
            );
        }
        reads
    }

    /// All bytes that were read of manifests which were then refused.
    #[cfg(test)]
    pub(super) fn refused_bytes(&self) -> u64 {
        self.refused.lock().bytes.values().sum()
    }

    /// Counts the bytes that were read of a manifest which was then refused.
    pub(super) fn count_refused(&self, owner: u32, bytes: usize) {
        let mut refused = self.refused.lock();
        if refused.bytes.contains_key(&owner) || refused.bytes.len() < REFUSED_USERS_MAX {
            let sum = refused.bytes.entry(owner).or_default();
            *sum = sum.saturating_add(bytes as u64);
        }
    }
}

/// The seal of a manifest, and what it covers; `None` if there is none. `behind` is the manifest's
/// text after the digest.
fn seal_of(behind: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (seal, text) = behind
        .strip_prefix(SEAL_OPENS)?
        .split_at_checked(SEAL_DIGITS)?;
    let seal = std::str::from_utf8(seal).ok().and_then(bytes_of)?;
    Some((seal, text.strip_prefix(SEAL_CLOSES)?))
}

/// The bytes that hexadecimal digits stand for.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks_exact(2);
    pairs
        .map(|pair| {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_believed_while_its_key_is_there() {
        const TEXT: &[u8] = b"a manifest";
        let sealed = |trust: &Trust| {
            let seal = trust.seal(TEXT).unwrap();
            [SEAL_OPENS, seal.as_bytes(), SEAL_CLOSES, TEXT].concat()
        };
        let trust = Trust::of(&[[1; 32]]);
        let copy = trust.clone();
        let older = sealed(&trust);
        trust.renew(&[[2; 32], [1; 32]]);
        let newer = sealed(&copy);
        assert_ne!(older, newer);
        assert!(copy.is_sealed(&older) && copy.is_sealed(&newer));
        trust.renew(&[[2; 32]]);
        assert!(!copy.is_sealed(&older) && copy.is_sealed(&newer));
        assert!(Trust::of(&[]).seal(TEXT).is_none());
    }

    #[test]
    fn a_user_whose_manifests_were_refused_is_passed_over_and_others_are_not() {
        let manifest = Path::new("node-1.json");
        let trust = Trust::of(&[[1; 32]]);
        trust.count_refused(1001, usize::try_from(REFUSED_BYTES_MAX).unwrap() - 1);
        assert!(trust.still_reads(1001, manifest));
        trust.clone().count_refused(1001, 1);
        assert!(!trust.still_reads(1001, manifest) && trust.still_reads(1002, manifest));
        // With another key they may be believed.
        trust.renew(&[[2; 32]]);
        assert!(trust.still_reads(1001, manifest));
        // The users themselves are bounded.
        (0..1_000).for_each(|owner| trust.count_refused(owner, 1));
        assert!(trust.still_reads(0, manifest) && !trust.still_reads(999, manifest));
        assert_eq!(trust.refused.lock().bytes.len(), REFUSED_USERS_MAX);
    }
}
