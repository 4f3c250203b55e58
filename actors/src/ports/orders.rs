//! Proofs that an operator gave an order which one node passes on to another.

use slowmo_protocol::ident::{Incarnation, NodeId};

/// Length of a proof, in bytes.
pub use slowmo_protocol::wire::ORDER_PROOF_BYTES;

/// Makes and checks proofs, with a secret that operators give to the nodes that take orders.
pub trait Orders: Send + Sync {
    /// Proof of the order that this incarnation of a node is to drain. `None` if this node has no
    /// such secret.
    fn prove_drain(
        &self,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Option<[u8; ORDER_PROOF_BYTES]>;

    /// Whether the proof is that of this order. A node without the secret accepts none.
    fn proves_drain(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        proof: &[u8; ORDER_PROOF_BYTES],
    ) -> bool;
}
