//! The trust in manifests. A checkpoint's folder may be shared with others who can write into it: a
//! newest checkpoint that somebody planted there would be resumed by everybody.
//!
//! A node with a cluster key seals each manifest that it writes: HMAC-SHA256 with a key that is
//! derived from the cluster key, while that is rotated from the newest one. It believes manifests
//! with a seal of one of the cluster's keys, and those of
//! its own user, so that checkpoints of an earlier key, or of a launch with a key of its own, can
//! be resumed. Without a cluster key (certificates of an operator's CA, or a single node) it
//! believes those of its own user and of root only. Manifests name values by SHA-256, so whoever
//! cannot write a manifest cannot change values either.
//!
//! Tools that only show a checkpoint believe everybody, and check digests.

use parking_lot::RwLock;
use ring::hmac;
use std::sync::{Arc, LazyLock};

/// Opening bytes of a seal, which follows the digest of a manifest.
pub(super) const SEAL_OPENS: &[u8] = b"\"seal\":\"";
/// Bytes after a seal.
pub(super) const SEAL_CLOSES: &[u8] = b"\",";
/// Hexadecimal digits of a seal.
const SEAL_DIGITS: usize = 64;

/// The trust in manifests; see the module. Copies share their keys.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// The cluster's keys: the first one seals, a seal of each is believed.
    keys: Arc<RwLock<Vec<hmac::Key>>>,
    everybody: bool,
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
        self.everybody || is_own(owner) || self.is_sealed(behind)
    }

    fn is_sealed(&self, behind: &[u8]) -> bool {
        let parts = behind
            .strip_prefix(SEAL_OPENS)
            .and_then(|behind| behind.split_at_checked(SEAL_DIGITS))
            .and_then(|(seal, behind)| Some((seal, behind.strip_prefix(SEAL_CLOSES)?)));
        let Some((seal, text)) = parts else {
            return false;
        };
        let seal = std::str::from_utf8(seal).ok().and_then(bytes_of);
        seal.is_some_and(|seal| {
            self.keys
                .read()
                .iter()
                .any(|key| hmac::verify(key, text, &seal).is_ok())
        })
    }
}

/// Whether a file's owner may be believed without a seal: this process's user, or root, who can do
/// anything.
fn is_own(owner: u32) -> bool {
    owner == 0 || owner == rustix::process::geteuid().as_raw()
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
}
