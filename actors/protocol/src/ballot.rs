//! Promise and accept: one decree a round.
use crate::ident::Ballot;
/// x
#[derive(Clone, Debug)]
pub struct Acceptor<V> {
    promised: Ballot,
    accepted: Option<(Ballot, V)>,
}
impl<V> Default for Acceptor<V> {
    fn default() -> Self {
        Self { promised: Ballot::default(), accepted: None }
    }
}
/// x
#[derive(Clone, Debug)]
pub struct Promise<V> {
    /// x
    pub accepted: Option<(Ballot, V)>,
}
/// x
#[derive(Clone, Debug)]
pub struct Stale {
    /// x
    pub promised: Ballot,
}
impl<V: Clone> Acceptor<V> {
    /// x
    ///
    /// # Errors
    /// x
    pub fn prepare(&mut self, ballot: Ballot) -> Result<Promise<V>, Stale> {
        if ballot < self.promised {
            return Err(Stale { promised: self.promised });
        }
        self.promised = ballot;
        Ok(Promise { accepted: self.accepted.clone() })
    }
    /// x
    ///
    /// # Errors
    /// x
    pub fn accept(&mut self, ballot: Ballot, value: V) -> Result<(), Stale> {
        if ballot < self.promised {
            return Err(Stale { promised: self.promised });
        }
        self.promised = ballot;
        self.accepted = Some((ballot, value));
        Ok(())
    }
    /// x
    pub fn next_decree(&mut self) {
        self.accepted = None;
    }
}
