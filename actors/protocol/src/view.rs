//! Who takes part: an epoch and its members in ascending id. Views change only as part of a decided outcome.

use crate::ident::{Epoch, Incarnation, NodeId};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Most members a view may have; bounds every frame that carries one.
pub const MEMBERS_MAX: usize = 4096;

/// One node of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Who it is.
    pub id: NodeId,
    /// Which start of it.
    pub incarnation: Incarnation,
    /// Where its endpoint listens.
    pub address: SocketAddr,
    /// Its workers.
    pub devices: u16,
}

/// An epoch and its members, ascending by id, at least one, each once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked", into = "Unchecked")]
pub struct View {
    epoch: Epoch,
    members: Vec<Member>,
}

/// The wire form of a view, before its order and bounds are checked.
#[derive(Serialize, Deserialize)]
struct Unchecked {
    epoch: Epoch,
    members: Vec<Member>,
}

impl TryFrom<Unchecked> for View {
    type Error = ViewError;
    fn try_from(value: Unchecked) -> Result<Self, ViewError> {
        let ascending = value.members.windows(2).all(|pair| pair[0].id < pair[1].id);
        if !ascending {
            return Err(ViewError::NotAscending);
        }
        Self::new(value.epoch, value.members)
    }
}

impl From<View> for Unchecked {
    fn from(view: View) -> Self {
        Self { epoch: view.epoch, members: view.members }
    }
}

/// Why a list of members is not a view.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// A view has at least one member.
    #[error("a view needs at least one member")]
    Empty,
    /// Two members claim the same id; give each node its own `node_id`.
    #[error("two nodes claim the id {0}: give each node its own node_id")]
    Duplicate(u64),
    /// More than [`MEMBERS_MAX`].
    #[error("{0} members exceed the bound of {MEMBERS_MAX}")]
    TooMany(usize),
    /// A received view lists its members out of order.
    #[error("the members of a received view are not in ascending id")]
    NotAscending,
}

impl View {
    /// Builds a view; sorts the members by id.
    ///
    /// # Errors
    /// No member, too many, or the same id twice.
    pub fn new(epoch: Epoch, mut members: Vec<Member>) -> Result<Self, ViewError> {
        members.sort_by_key(|member| member.id);
        if members.is_empty() {
            return Err(ViewError::Empty);
        }
        if members.len() > MEMBERS_MAX {
            return Err(ViewError::TooMany(members.len()));
        }
        match members.windows(2).find(|pair| pair[0].id == pair[1].id) {
            Some(pair) => Err(ViewError::Duplicate(pair[0].id.0)),
            None => Ok(Self { epoch, members }),
        }
    }

    /// The view's number.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The members in ascending id.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The ids in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().map(|member| member.id)
    }

    /// `W`: how many members.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The place of `node` among the ascending ids. Ranks are for topology and loads, never identities.
    #[must_use]
    pub fn rank(&self, node: NodeId) -> Option<usize> {
        self.members.binary_search_by_key(&node, |member| member.id).ok()
    }

    /// Whether `node` is a member.
    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        self.rank(node).is_some()
    }

    /// The member with this id.
    #[must_use]
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.rank(node).map(|rank| &self.members[rank])
    }

    /// The lowest id: the leader while everybody lives.
    #[must_use]
    pub fn lowest(&self) -> NodeId {
        self.members[0].id
    }

    /// Whether `group` is a quorum: more than half of the members, or exactly half with the lowest id among them.
    #[must_use]
    pub fn is_quorum(&self, group: impl IntoIterator<Item = NodeId>) -> bool {
        let group: std::collections::BTreeSet<_> = group.into_iter().filter(|id| self.contains(*id)).collect();
        let twice = group.len() * 2;
        twice > self.size() || (twice == self.size() && group.contains(&self.lowest()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    /// A view of the given ids, every other field made up.
    pub(crate) fn view(ids: &[u64]) -> View {
        let address = SocketAddr::from(([127, 0, 0, 1], 7000));
        let member = |id: &u64| Member { id: NodeId(*id), incarnation: Incarnation(1), address, devices: 1 };
        View::new(Epoch::FOUNDING, ids.iter().map(member).collect()).unwrap()
    }

    #[test]
    fn quorum_is_a_majority_or_half_with_the_lowest() {
        let cases: &[(&[u64], &[u64], bool)] = &[
            (&[1], &[1], true),
            (&[1, 2], &[1], true),
            (&[1, 2], &[2], false),
            (&[1, 2, 3], &[2], false),
            (&[1, 2, 3], &[2, 3], true),
            (&[1, 2, 3, 4], &[1, 3], true),
            (&[1, 2, 3, 4], &[2, 3], false),
            (&[1, 2, 3, 4], &[2, 3, 4], true),
            (&[3, 9, 27], &[1, 2, 9], false),
        ];
        for (members, group, expected) in cases {
            let ids = group.iter().copied().map(NodeId);
            assert_eq!(view(members).is_quorum(ids), *expected, "{members:?} {group:?}");
        }
    }

    #[test]
    fn two_disjoint_groups_are_never_both_a_quorum() {
        for size in 1u64..=8 {
            let ids: Vec<u64> = (10..10 + size).collect();
            let whole = view(&ids);
            for mask in 0u32..1 << size {
                let side = |wanted: u32| ids.iter().enumerate().filter(move |(i, _)| mask >> i & 1 == wanted).map(|(_, id)| NodeId(*id));
                assert!(!(whole.is_quorum(side(0)) && whole.is_quorum(side(1))), "{size} {mask:b}");
            }
        }
    }

    #[test]
    fn duplicates_and_empty_are_refused() {
        let address = SocketAddr::from(([127, 0, 0, 1], 7000));
        let member = Member { id: NodeId(4), incarnation: Incarnation(1), address, devices: 1 };
        assert_eq!(View::new(Epoch(1), vec![]), Err(ViewError::Empty));
        assert_eq!(View::new(Epoch(1), vec![member.clone(), member]), Err(ViewError::Duplicate(4)));
    }
}
