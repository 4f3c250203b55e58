//! The signatures that this node has made lately. A node that published two different results of
//! one attempt, or asked for votes for two entries under one term, would prove that it lies,
//! although it only repeated its work with other inputs.

use slowmo_protocol::coordinator::Attempt;
use slowmo_protocol::ident::{Lineage, Round, Term};
use slowmo_protocol::published::{Digest, Signature};
use std::collections::VecDeque;

/// Attempts whose digest is remembered: more than run at once.
const ATTEMPTS_REMEMBERED: usize = 8;

/// The newest things that were signed, oldest first. Rounds may go back where a node moves to
/// another history, so age is not the order of places.
#[derive(Debug)]
struct Remembered<K, V>(VecDeque<(K, V)>);

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: PartialEq, V: Copy> Remembered<K, V> {
    /// Returns the value that was signed at a place, or the one that `sign` makes now.
    fn or_sign(&mut self, place: K, sign: impl FnOnce() -> V) -> V {
        if let Some((_, signed)) = self.0.iter().find(|(known, _)| *known == place) {
            return *signed;
        }
        let signed = sign();
        self.0.push_back((place, signed));
        if self.0.len() > ATTEMPTS_REMEMBERED {
            self.0.pop_front();
        }
        signed
    }
}

/// The digests that this node has signed lately. A second one for the same attempt would prove that
/// this node equivocates.
#[derive(Debug, Default)]
pub struct SignedAttempts(Remembered<Attempt, Digest>);

impl SignedAttempts {
    /// Records a digest; `false` if another one of the same attempt was signed.
    #[must_use]
    pub fn note(&mut self, attempt: Attempt, digest: Digest) -> bool {
        self.0.or_sign(attempt, || digest) == digest
    }
}

/// A place where a leader asks for votes.
type Asking = (Lineage, Round, Term);

/// The entries for which this node asked votes lately, as a leader, with its signatures.
#[derive(Debug, Default)]
pub struct SignedAsks(Remembered<Asking, (Digest, Signature)>);

impl SignedAsks {
    /// The signature of an entry, made once; `None` if another one was signed for the same term.
    pub fn of(
        &mut self,
        place: Asking,
        entry: Digest,
        sign: impl FnOnce() -> Signature,
    ) -> Option<Signature> {
        let (signed, signature) = self.0.or_sign(place, || (entry, sign()));
        (signed == entry).then_some(signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_digests_of_one_attempt_are_never_signed() {
        let attempt = |round| Attempt {
            round: Round(round),
            term: Term::default(),
            number: 0,
            lineage: Lineage(1),
        };
        let one = Digest([1; 32]);
        let other = Digest([2; 32]);
        let mut signed = SignedAttempts::default();
        assert!(signed.note(attempt(0), one));
        assert!(signed.note(attempt(0), one));
        assert!(!signed.note(attempt(0), other));
        for round in 1..100 {
            assert!(signed.note(attempt(round), one));
            assert!(!signed.note(attempt(round), other));
            assert!(signed.0.0.len() <= ATTEMPTS_REMEMBERED);
        }
    }

    #[test]
    fn two_entries_of_one_term_are_never_signed() {
        let place = |round| (Lineage(1), Round(round), Term::default());
        let one = Digest([1; 32]);
        let other = Digest([2; 32]);
        let signature = |byte| Signature::from([byte; 64]);
        let mut asks = SignedAsks::default();
        let first = Some(signature(1));
        assert_eq!(asks.of(place(0), one, || signature(1)), first);
        assert_eq!(asks.of(place(0), one, || signature(9)), first);
        assert_eq!(asks.of(place(0), other, || signature(9)), None);
        for round in 1..100 {
            assert!(asks.of(place(round), one, || signature(1)).is_some());
            assert!(asks.0.0.len() <= ATTEMPTS_REMEMBERED);
        }
    }

    /// A node moves to a history with lower rounds.
    #[test]
    fn a_lower_round_is_remembered() {
        let attempt = |round| Attempt {
            round: Round(round),
            term: Term::default(),
            number: 0,
            lineage: Lineage(1),
        };
        let mut signed = SignedAttempts::default();
        for round in 500..500 + ATTEMPTS_REMEMBERED as u64 {
            assert!(signed.note(attempt(round), Digest([1; 32])));
        }
        assert!(signed.note(attempt(3), Digest([1; 32])));
        assert!(!signed.note(attempt(3), Digest([2; 32])));
    }
}
