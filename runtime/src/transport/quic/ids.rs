//! Connection ids that say something: that the dialer belongs to the cluster, or that this endpoint
//! made the id. A node sorts the first packets of connections by them while strangers flood it.
//! Neither is trusted for more: who a peer is, TLS decides. No I/O.

use quinn::{ConnectionId, ConnectionIdGenerator};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// Random bytes of a marked id.
const MARK_NONCE_BYTES: usize = 12;
/// Bytes of the proof in a marked id. A stranger guesses one of 2^64.
const MARK_PROOF_BYTES: usize = 8;
/// Bytes of a marked id: the longest connection id that QUIC allows.
const MARKED_ID_BYTES: usize = MARK_NONCE_BYTES + MARK_PROOF_BYTES;
/// Random bytes of an id of this endpoint, and bytes of its mark.
const OWN_HALF_BYTES: usize = 4;
/// Bytes of an id of this endpoint.
pub(super) const OWN_ID_BYTES: usize = 2 * OWN_HALF_BYTES;

/// A secret of the cluster with which dialers mark their first packets. Whoever watches the network
/// may repeat a mark; whoever does not know the secret cannot make one.
#[derive(Clone)]
pub(super) struct MarkKey(hmac::Key);

impl MarkKey {
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// A fresh destination id for the first packet of a connection. It is all random if the system
    /// gives no random bytes for it, and then the dialer counts as a stranger.
    pub(super) fn marked_id(&self) -> ConnectionId {
        let mut id = [0; MARKED_ID_BYTES];
        if SystemRandom::new().fill(&mut id).is_ok() {
            let (nonce, proof) = id.split_at_mut(MARK_NONCE_BYTES);
            proof.copy_from_slice(&hmac::sign(&self.0, nonce).as_ref()[..MARK_PROOF_BYTES]);
        }
        ConnectionId::new(&id)
    }

    /// Whether this id was made with this secret.
    pub(super) fn made(&self, id: &[u8]) -> bool {
        id.len() == MARKED_ID_BYTES && {
            let (nonce, proof) = id.split_at(MARK_NONCE_BYTES);
            // The comparison need not take constant time: who finds a mark by timing can do no more
            // with it than who repeats one from the network.
            hmac::sign(&self.0, nonce).as_ref().starts_with(proof)
        }
    }
}

impl std::fmt::Debug for MarkKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MarkKey(hidden)")
    }
}

/// Makes the connection ids of this endpoint, and knows them again without a table.
#[derive(Clone, Debug)]
pub(super) struct OwnIds(Arc<RandomState>);

impl OwnIds {
    pub(super) fn new() -> Self {
        Self(Arc::new(RandomState::new()))
    }

    /// Whether this endpoint made the id.
    pub(super) fn made(&self, id: &[u8]) -> bool {
        id.len() == OWN_ID_BYTES && {
            let (random, mark) = id.split_at(OWN_HALF_BYTES);
            self.mark(random) == mark
        }
    }

    fn mark(&self, random: &[u8]) -> [u8; OWN_HALF_BYTES] {
        // A keyed hash (SipHash) with a key of this process.
        (self.0.hash_one(random) as u32).to_le_bytes()
    }
}

impl ConnectionIdGenerator for OwnIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; OWN_ID_BYTES];
        let (random, mark) = id.split_at_mut(OWN_HALF_BYTES);
        if SystemRandom::new().fill(random).is_err() {
            // Ids of one endpoint need to be different, which quinn ensures, and not secret.
            random.copy_from_slice(&(RandomState::new().hash_one(0) as u32).to_le_bytes());
        }
        mark.copy_from_slice(&self.mark(random));
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        OWN_ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_cluster_marks_ids() {
        let key = MarkKey::new(&[1; 32]);
        let other = MarkKey::new(&[2; 32]);
        let id = key.marked_id();
        assert_ne!(id, key.marked_id());
        assert!(key.made(&id) && !other.made(&id));
        for position in 0..MARKED_ID_BYTES {
            let mut altered = id.to_vec();
            altered[position] ^= 1;
            assert!(!key.made(&altered));
        }
        assert!(!key.made(&[]) && !key.made(&id[..19]));
        assert_eq!(format!("{key:?}"), "MarkKey(hidden)");
    }

    #[test]
    fn an_endpoint_knows_its_own_ids() {
        let mut own = OwnIds::new();
        let id = own.generate_cid();
        assert_eq!(id.len(), own.cid_len());
        assert!(own.made(&id) && own.clone().made(&id) && !OwnIds::new().made(&id));
        assert!(!own.made(&id[..7]) && !own.made(&[]));
    }
}
