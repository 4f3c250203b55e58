//! The Ed25519 key of one incarnation of a node. It is made at the node's start and never leaves
//! the process.

use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use slowmo_actors::ports::signer::Signer;
use slowmo_protocol::published::{PublicKey, SIGNATURE_BYTES, Signature};

/// Signs with a key of its own.
pub(crate) struct NodeKey {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

impl NodeKey {
    /// A new key.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn generate() -> Result<Self, Unspecified> {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| Unspecified)?;
        let public = PublicKey(
            pair.public_key()
                .as_ref()
                .try_into()
                .map_err(|_| Unspecified)?,
        );
        Ok(Self { pair, public })
    }
}

impl Signer for NodeKey {
    fn public_key(&self) -> PublicKey {
        self.public
    }

    fn sign(&self, statement: &[u8]) -> Signature {
        let signature = self.pair.sign(statement);
        // Its length is that of every Ed25519 signature.
        let bytes = <[u8; SIGNATURE_BYTES]>::try_from(signature.as_ref());
        bytes.map_or_else(|_| Signature::default(), Signature::from)
    }

    fn verifies(&self, key: &PublicKey, statement: &[u8], signature: &Signature) -> bool {
        let bytes = <[u8; SIGNATURE_BYTES]>::from(*signature);
        let key = UnparsedPublicKey::new(&ED25519, key.0);
        key.verify(statement, &bytes).is_ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_of_one_statement_and_key() {
        let one = NodeKey::generate().unwrap();
        let other = NodeKey::generate().unwrap();
        let signature = one.sign(b"values");
        assert!(other.verifies(&one.public_key(), b"values", &signature));
        assert!(!other.verifies(&one.public_key(), b"others", &signature));
        assert!(!other.verifies(&other.public_key(), b"values", &signature));
        assert!(!other.verifies(&PublicKey::default(), b"values", &signature));
        assert!(!other.verifies(&one.public_key(), b"values", &Signature::default()));
    }
}
