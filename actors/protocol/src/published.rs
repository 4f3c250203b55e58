//! Digests of the values that owners publish, and the signatures under them. All receivers of an
//! attempt must hold the same values. Each computes a digest of what every owner published; the
//! *root* stands for all of them, and a round is decided with one root.
//!
//! An owner signs the digest for one attempt, so two digests of one attempt with sound signatures
//! prove that it published different values to different nodes, and nobody else can make such a
//! proof. The key belongs to one incarnation of a node; the view names it.
//!
//! Digests are made of the values as every receiver holds them, float32 in ascending shards, and
//! not of the bytes that travel: a joiner gets float32 where members get differences.
//!
//! A leader signs the digest of the entry that it asks votes for, for one term. Two of them under
//! one term prove that it asked for votes for two entries.
//!
//! `coordinator::machine::comparing` finds the owner of different values, `votes` the leader of two
//! entries. Signatures are made and checked in `coordinator/signing.rs` of actors, through the port
//! `signer`, which `signing.rs` of runtime implements.

use crate::coordinator::{Attempt, Voter};
use crate::ident::{ClusterId, Lineage, NodeId, Round, Term};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Begins what owners sign, so that no signature stands for something else.
const VALUES: &[u8] = b"slowmo: values of an attempt, 1\0";
/// Begins what leaders sign, likewise.
const ASKED: &[u8] = b"slowmo: votes asked for an entry, 1\0";
/// Length of a signature, in bytes.
pub const SIGNATURE_BYTES: usize = 64;

/// A BLAKE3 digest.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

/// The Ed25519 key of one incarnation of a node. The machines only carry it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PublicKey(pub [u8; 32]);

/// An Ed25519 signature, in its two halves.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signature {
    first: [u8; SIGNATURE_BYTES / 2],
    second: [u8; SIGNATURE_BYTES / 2],
}

/// The digest of what an owner published in an attempt, and the owner's signature; or of an entry,
/// and the signature of the leader that asked for votes for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signed {
    /// Digest of the values of all its shards, or of the entry.
    pub digest: Digest,
    /// The signature of [`statement`] or [`ask`].
    pub signature: Signature,
}

impl From<[u8; SIGNATURE_BYTES]> for Signature {
    fn from(bytes: [u8; SIGNATURE_BYTES]) -> Self {
        let mut signature = Self::default();
        let (first, second) = bytes.split_at(SIGNATURE_BYTES / 2);
        signature.first.copy_from_slice(first);
        signature.second.copy_from_slice(second);
        signature
    }
}

impl From<Signature> for [u8; SIGNATURE_BYTES] {
    fn from(signature: Signature) -> Self {
        let mut bytes = [0; SIGNATURE_BYTES];
        let (first, second) = bytes.split_at_mut(SIGNATURE_BYTES / 2);
        first.copy_from_slice(&signature.first);
        second.copy_from_slice(&signature.second);
        bytes
    }
}

/// The bytes that an owner signs.
#[must_use]
pub fn statement(cluster: ClusterId, attempt: Attempt, owner: Voter, digest: Digest) -> Vec<u8> {
    let place = (attempt.lineage, attempt.round, attempt.term);
    let mut bytes = signed_by(VALUES, cluster, place, owner);
    bytes.extend(attempt.number.to_le_bytes());
    bytes.extend(digest.0);
    bytes
}

/// The bytes that a leader signs when it asks for votes for an entry.
#[must_use]
pub fn ask(
    cluster: ClusterId,
    place: (Lineage, Round, Term),
    leader: Voter,
    entry: Digest,
) -> Vec<u8> {
    let mut bytes = signed_by(ASKED, cluster, place, leader);
    bytes.extend(entry.0);
    bytes
}

fn signed_by(
    domain: &[u8],
    cluster: ClusterId,
    (lineage, round, term): (Lineage, Round, Term),
    signer: Voter,
) -> Vec<u8> {
    let mut bytes = domain.to_vec();
    bytes.extend(cluster.0.to_le_bytes());
    bytes.extend(lineage.0.to_le_bytes());
    bytes.extend(round.0.to_le_bytes());
    bytes.extend(term.counter.to_le_bytes());
    bytes.extend(term.node.0.to_le_bytes());
    bytes.extend(signer.node.0.to_le_bytes());
    bytes.extend(signer.incarnation.0.to_le_bytes());
    bytes
}

/// The root of what all owners of an attempt published, ascending.
#[must_use]
pub fn root<'a>(owners: impl IntoIterator<Item = (&'a NodeId, &'a Signed)>) -> Digest {
    let mut hasher = Hasher::default();
    for (owner, signed) in owners {
        hasher.update(&owner.0.to_le_bytes());
        hasher.update(&signed.digest.0);
    }
    hasher.finish()
}

/// Makes the digest of values while they come.
#[derive(Clone, Debug, Default)]
pub struct Hasher(blake3::Hasher);

impl Hasher {
    /// Adds the next bytes. Pieces of some KiB or more are fast.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of everything that was added.
    #[must_use]
    pub fn finish(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

impl std::io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn hexadecimal(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(f, &self.0)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(f, &self.0)
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(f, &self.first)?;
        hexadecimal(f, &self.second)
    }
}

#[cfg(any(test, feature = "testing"))]
impl Signed {
    /// Signs like a simulated owner: the digest of some bytes, without a signature.
    #[must_use]
    pub fn simulated(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        Self {
            digest: hasher.finish(),
            signature: Signature::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::Incarnation;

    fn attempt(number: u32) -> Attempt {
        Attempt {
            round: Round(3),
            term: Term::default(),
            number,
            lineage: Lineage(7),
        }
    }

    #[test]
    fn a_statement_is_of_one_attempt_owner_and_digest() {
        let owner = |node, incarnation| Voter {
            node: NodeId(node),
            incarnation: Incarnation(incarnation),
        };
        let of = |cluster, number, owner, digest| {
            statement(
                ClusterId(cluster),
                attempt(number),
                owner,
                Digest([digest; 32]),
            )
        };
        let all = [
            of(1, 1, owner(1, 1), 1),
            of(2, 1, owner(1, 1), 1),
            of(1, 2, owner(1, 1), 1),
            of(1, 1, owner(2, 1), 1),
            of(1, 1, owner(1, 2), 1),
            of(1, 1, owner(1, 1), 2),
        ];
        let asked = |round, digest| {
            let place = (Lineage(7), Round(round), Term::default());
            ask(ClusterId(1), place, owner(1, 1), Digest([digest; 32]))
        };
        let all = all
            .into_iter()
            .chain([asked(3, 1), asked(4, 1), asked(3, 2)]);
        let all: Vec<Vec<u8>> = all.collect();
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
    }

    #[test]
    fn a_root_is_of_owners_and_their_digests_and_of_no_signature() {
        let one = Signed::simulated(b"1");
        let other = Signed::simulated(b"2");
        let first = NodeId(1);
        let second = NodeId(2);
        let roots = [
            root([(&first, &one)]),
            root([(&second, &one)]),
            root([(&first, &other)]),
            root([(&first, &one), (&second, &other)]),
        ];
        let different: std::collections::BTreeSet<_> = roots.iter().collect();
        assert_eq!(different.len(), roots.len());
        let signed = Signed {
            signature: Signature::from([9; SIGNATURE_BYTES]),
            ..one
        };
        assert_eq!(root([(&first, &signed)]), roots[0]);
        assert_eq!(<[u8; SIGNATURE_BYTES]>::from(signed.signature), [9; 64]);
    }
}
