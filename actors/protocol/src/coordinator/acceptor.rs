//! A voter's state for one round (a Paxos acceptor): promise, accept, open. Pure: the coordinator
//! sends the messages.
//!
//! Every round is a separate decree among the voters named by the previous entry. Its lowest term,
//! [`first_term`], belongs to the leader that the previous entry names. Nothing can have been
//! accepted under a lower term, so that leader needs no promises.
//!
//! ```text
//! leader                         voters
//!    │ Prepare(t)     ───────────▶ │   not for the first term
//!    │ ◀──── Promise { accepted, floor } or Overtaken
//!    │ something accepted: Accept(t, that)     nothing: Open(t), then attempts of its own
//!    │ Open(t)        ───────────▶ │   nothing below t can be chosen any more
//!    │ ◀─────────── Opened or Overtaken
//!    │ Accept(t, v)   ───────────▶ │
//!    │ ◀───────── Accepted or Overtaken
//!    │ decided once a quorum of the voters accepted
//! ```
//! This is Paxos with one addition, the *floor*: the highest term that a voter knows to have been
//! open. A value accepted under a term below the highest floor of a quorum was not chosen and is
//! void, so a leader is not bound to it. Nodes may therefore drop the data of attempts of lower
//! terms once a quorum of the voters has acknowledged the floor.

use crate::ident::{NodeId, Term};
use crate::planted::{self, Bug};

/// Largest term counter that is accepted in a frame; keeps a corrupt frame from exhausting the
/// counters.
pub const TERM_COUNTER_MAX: u64 = 1 << 48;

/// The lowest term of a round: counter 0, owned by the leader that the previous entry names. It
/// needs no promises.
#[must_use]
pub fn first_term(leader: NodeId) -> Term {
    Term {
        counter: 0,
        node: leader,
    }
}

/// Acceptor state of one voter for one round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acceptor<V> {
    promised: Term,
    floor: Term,
    accepted: Option<(Term, V)>,
}

/// A voter's answer to a prepare: it no longer accepts anything below the term.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Promise<V> {
    /// The value that the voter accepted last, with its term.
    pub accepted: Option<(Term, V)>,
    /// The highest term that the voter knows to have been open: nothing below it was chosen, and
    /// nothing can be.
    pub floor: Term,
}

/// The term is below one already promised. The acceptor is unchanged; try again above `promised`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a higher term was promised: {promised}")]
pub struct Overtaken {
    /// The highest term promised.
    pub promised: Term,
}

impl<V: Clone> Acceptor<V> {
    /// The initial state, before any message; `first` is the lowest term of the round.
    #[must_use]
    pub fn new(first: Term) -> Self {
        Self {
            promised: first,
            floor: first,
            accepted: None,
        }
    }

    /// The highest term promised.
    #[must_use]
    pub fn promised(&self) -> Term {
        self.promised
    }

    /// The value accepted last, with its term.
    #[must_use]
    pub fn accepted(&self) -> Option<&(Term, V)> {
        self.accepted.as_ref()
    }

    /// Promises to accept nothing below `term`. Asking twice gives the same answer.
    ///
    /// # Errors
    /// [`Overtaken`] if a higher term was promised; unchanged.
    pub fn prepare(&mut self, term: Term) -> Result<Promise<V>, Overtaken> {
        self.raise(term)?;
        Ok(Promise {
            accepted: self.accepted.clone(),
            floor: self.floor,
        })
    }

    /// Accepts `value` under `term`.
    ///
    /// # Errors
    /// [`Overtaken`] if a higher term was promised; unchanged.
    pub fn accept(&mut self, term: Term, value: V) -> Result<(), Overtaken> {
        self.raise(term)?;
        self.accepted = Some((term, value));
        Ok(())
    }

    /// Records that `term` is open: nothing below it was chosen, and nothing can be.
    ///
    /// # Errors
    /// [`Overtaken`] if a higher term was promised; unchanged. An acknowledgement would then allow
    /// data to be dropped that the owner of the higher term may still be bound to.
    pub fn open(&mut self, term: Term) -> Result<(), Overtaken> {
        self.raise(term)?;
        self.floor = self.floor.max(term);
        Ok(())
    }

    fn raise(&mut self, term: Term) -> Result<(), Overtaken> {
        if term < self.promised {
            return Err(Overtaken {
                promised: self.promised,
            });
        }
        self.promised = term;
        Ok(())
    }
}

/// The value that a leader must ask votes for, given the promises of a quorum: the one accepted
/// under the highest term, unless that term lies below the highest floor. `None`: the leader's term
/// is open, and it may attempt any value.
#[must_use]
pub fn bound<'a, V: 'a>(
    promises: impl Iterator<Item = &'a Promise<V>> + Clone,
) -> Option<&'a (Term, V)> {
    let floor = promises.clone().map(|promise| promise.floor).max()?;
    let accepted = promises.filter_map(|promise| promise.accepted.as_ref());
    accepted
        .filter(|(term, _)| *term >= floor || planted::has(Bug::VoidIgnored))
        .max_by_key(|(term, _)| *term)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn term(counter: u64, node: u64) -> Term {
        Term {
            counter,
            node: NodeId(node),
        }
    }

    #[test]
    fn a_lower_term_than_the_promised_one_is_refused_and_changes_nothing() {
        let mut acceptor = Acceptor::new(first_term(NodeId(1)));
        acceptor.prepare(term(2, 3)).unwrap();
        let before = acceptor.clone();
        let refused = Overtaken {
            promised: term(2, 3),
        };
        assert_eq!(acceptor.accept(term(2, 2), 'a'), Err(refused));
        assert_eq!(acceptor.open(term(1, 9)), Err(refused));
        assert_eq!(acceptor.prepare(term(0, 1)), Err(refused));
        assert_eq!(acceptor, before);
    }

    #[test]
    fn what_was_accepted_below_the_highest_floor_is_void_and_at_the_floor_it_is_not() {
        let accepted = |counter, floor| Promise {
            accepted: Some((term(counter, 1), counter)),
            floor: term(floor, 1),
        };
        let nothing = |floor| Promise {
            accepted: None,
            floor: term(floor, 1),
        };
        assert_eq!(bound([accepted(1, 0), nothing(2)].iter()), None);
        assert_eq!(
            bound([accepted(2, 0), nothing(2)].iter()),
            Some(&(term(2, 1), 2))
        );
        assert_eq!(
            bound([accepted(1, 0), accepted(3, 0)].iter()),
            Some(&(term(3, 1), 3))
        );
        assert_eq!(bound([nothing(0), nothing(0)].iter()), None);
    }

    #[test]
    fn a_floor_outlives_a_higher_promise_and_is_told_with_it() {
        let mut acceptor = Acceptor::new(first_term(NodeId(1)));
        acceptor.accept(term(0, 1), 'a').unwrap();
        acceptor.open(term(1, 2)).unwrap();
        let promise = acceptor.prepare(term(2, 3)).unwrap();
        assert_eq!(
            promise,
            Promise {
                accepted: Some((term(0, 1), 'a')),
                floor: term(1, 2)
            }
        );
        assert_eq!(bound([promise].iter()), None);
    }
}
