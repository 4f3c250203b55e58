//! What this node has signed lately: a node that published two different results of one attempt would
//! prove that it equivocates, although it only repeated its work with other inputs.

use slowmo_protocol::coordinator::Attempt;
use slowmo_protocol::published::Digest;
use std::collections::BTreeMap;

/// Attempts whose digest is remembered: more than run at once.
const ATTEMPTS_REMEMBERED: usize = 8;

/// The digests that this node has signed lately. A second one for the same attempt would prove that
/// this node equivocates.
#[derive(Debug, Default)]
pub struct SignedAttempts(BTreeMap<Attempt, Digest>);

impl SignedAttempts {
    /// Records a digest; `false` if another one of the same attempt was signed.
    #[must_use]
    pub fn note(&mut self, attempt: Attempt, digest: Digest) -> bool {
        let same = *self.0.entry(attempt).or_insert(digest) == digest;
        if self.0.len() > ATTEMPTS_REMEMBERED {
            self.0.pop_first();
        }
        same
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slowmo_protocol::ident::{Lineage, Round, Term};

    #[test]
    fn two_digests_of_one_attempt_are_never_signed() {
        let attempt = |round| Attempt {
            round: Round(round),
            term: Term::default(),
            number: 0,
            lineage: Lineage(1),
        };
        let (one, other) = (Digest([1; 32]), Digest([2; 32]));
        let mut signed = SignedAttempts::default();
        assert!(signed.note(attempt(0), one));
        assert!(signed.note(attempt(0), one));
        assert!(!signed.note(attempt(0), other));
        for round in 1..100 {
            assert!(signed.note(attempt(round), one));
            assert!(!signed.note(attempt(round), other));
            assert!(signed.0.len() <= ATTEMPTS_REMEMBERED);
        }
    }
}
