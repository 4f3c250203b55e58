//! Whose manifests a node believes. A checkpoint's folder may be shared with others who can write
//! into it: whoever plants a newest checkpoint there would be resumed by everybody.
//!
//! A node with a cluster key seals each manifest that it writes: HMAC-SHA256 with a key that is
//! derived from the cluster key. It believes manifests with a seal of the cluster, and those of
//! its own user, so that checkpoints of an earlier key, or of a launch with a key of its own, can
//! be resumed. Without a cluster key (certificates of an operator's CA, or a single node) it
//! believes those of its own user and of root only. Manifests name values by SHA-256, so whoever
//! cannot write a manifest cannot change values either.
//!
//! Tools that only show a checkpoint believe everybody, and check digests.

use ring::hmac;

/// Opening bytes of a seal, which follows the digest of a manifest.
pub(super) const SEAL_OPENS: &[u8] = b"\"seal\":\"";
/// Bytes after a seal.
pub(super) const SEAL_CLOSES: &[u8] = b"\",";
/// Hexadecimal digits of a seal.
const SEAL_DIGITS: usize = 64;

/// Whose manifests are believed; see the module.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// The cluster's keys: the first one seals, a seal of each is believed.
    keys: Vec<hmac::Key>,
    everybody: bool,
}

/// Believes everybody: for tools.
pub static EVERYBODY: Trust = Trust {
    keys: Vec::new(),
    everybody: true,
};

impl Trust {
    /// Believes the holders of these keys, which were derived for this purpose, and this process's
    /// own user. The first key seals what is written.
    #[must_use]
    pub fn of(keys: &[[u8; 32]]) -> Self {
        Self {
            keys: keys
                .iter()
                .map(|key| hmac::Key::new(hmac::HMAC_SHA256, key))
                .collect(),
            everybody: false,
        }
    }

    /// Whether everybody is believed.
    pub(super) fn is_everybody(&self) -> bool {
        self.everybody
    }

    /// The seal of a text, in hexadecimal digits; `None` without a key.
    pub(super) fn seal(&self, text: &[u8]) -> Option<String> {
        let tag = hmac::sign(self.keys.first()?, text);
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
