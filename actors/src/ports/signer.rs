//! The key with which this incarnation of a node signs what it publishes.

use slowmo_protocol::published::{PublicKey, Signature};

/// Signs with this node's key, and checks the signatures of others.
pub trait Signer: Send + Sync {
    /// The public half of this node's key.
    fn public_key(&self) -> PublicKey;

    /// This node's signature of a statement.
    fn sign(&self, statement: &[u8]) -> Signature;

    /// Whether the owner of a key signed a statement.
    fn verifies(&self, key: &PublicKey, statement: &[u8], signature: &Signature) -> bool;
}
