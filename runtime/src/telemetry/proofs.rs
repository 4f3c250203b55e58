//! Proofs of orders that nodes pass on to each other: HMAC-SHA256 (RFC 2104) of the order, keyed
//! with the token that orders over HTTP carry. Membership alone does not suffice to give orders.
//!
//! A proof names the cluster, the node and its incarnation. Whoever repeats it can only repeat an
//! order that this incarnation has already got.

use super::access::Token;
use ring::hmac::{HMAC_SHA256, Key, sign, verify};
use slowmo_actors::ports::orders::{ORDER_PROOF_BYTES, Orders};
use slowmo_protocol::ident::{ClusterId, Incarnation, NodeId};

/// The secret of one cluster's orders.
pub(crate) struct Proofs {
    cluster: ClusterId,
    key: Option<Key>,
}

impl Proofs {
    /// Without a token no order is passed on or accepted.
    pub fn new(cluster: ClusterId, token: Option<&Token>) -> Self {
        let key = token.map(|token| Key::new(HMAC_SHA256, token.as_bytes()));
        Self { cluster, key }
    }

    fn drain(&self, node: NodeId, incarnation: Incarnation) -> Vec<u8> {
        let mut order = b"slowmo order: drain\0".to_vec();
        for number in [self.cluster.0, node.0, incarnation.0] {
            order.extend(number.to_le_bytes());
        }
        order
    }
}

impl Orders for Proofs {
    fn prove_drain(
        &self,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Option<[u8; ORDER_PROOF_BYTES]> {
        let tag = sign(self.key.as_ref()?, &self.drain(node, incarnation));
        tag.as_ref().try_into().ok()
    }

    fn proves_drain(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        proof: &[u8; ORDER_PROOF_BYTES],
    ) -> bool {
        self.key
            .as_ref()
            .is_some_and(|key| verify(key, &self.drain(node, incarnation), proof).is_ok())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_one_incarnation_of_one_node_of_one_cluster() {
        let token = |text: &str| Token::new(text).unwrap();
        let of = |cluster, text| Proofs::new(ClusterId(cluster), Some(&token(text)));
        let proofs = of(1, "a token of some length");
        let proof = proofs.prove_drain(NodeId(2), Incarnation(3)).unwrap();
        assert!(proofs.proves_drain(NodeId(2), Incarnation(3), &proof));
        assert!(!proofs.proves_drain(NodeId(3), Incarnation(3), &proof));
        assert!(!proofs.proves_drain(NodeId(2), Incarnation(4), &proof));
        for other in [
            of(2, "a token of some length"),
            of(1, "another token of this length"),
        ] {
            assert!(!other.proves_drain(NodeId(2), Incarnation(3), &proof));
        }
        let none = Proofs::new(ClusterId(1), None);
        assert!(none.prove_drain(NodeId(2), Incarnation(3)).is_none());
        assert!(!none.proves_drain(NodeId(2), Incarnation(3), &proof));
    }
}
