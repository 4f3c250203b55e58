//! The view: an epoch and its members in ascending id. Views change only as part of a decided
//! outcome.
//!
//! Each member has a slot, numbered from 0 without gaps, and keeps it while others come and go: the
//! holders of shards are placed on slots, so that few shards move. Only the next view of an outcome
//! ([`View::succeeded_by`]) reassigns slots.

use crate::ident::{Epoch, GroupId, Incarnation, NodeId};
use crate::published::PublicKey;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;

/// Maximum number of members of a view; bounds every frame that carries one.
pub const MEMBERS_MAX: usize = 4096;

/// One node of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Its id.
    pub id: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Address on which its endpoint listens.
    pub address: SocketAddr,
    /// Number of its workers.
    pub devices: u16,
    /// Its group: sums and new values cross between groups once for each shard.
    pub group: GroupId,
    /// Key that signs what it publishes.
    pub key: PublicKey,
}

/// An epoch and its members, ascending by id: at least one, without duplicates, each with a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked", into = "Unchecked")]
pub struct View {
    epoch: Epoch,
    /// Shared, because every hello and every outcome carries a view.
    members: Arc<[Member]>,
    /// Per slot the rank of its member; ranks are below [`MEMBERS_MAX`], so they fit.
    slots: Arc<[u16]>,
}

/// The wire form of a view, before its order and bounds are checked.
#[derive(Serialize, Deserialize)]
struct Unchecked {
    epoch: Epoch,
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    members: Vec<Member>,
    #[serde(deserialize_with = "crate::wire::bounded::list::<_, _, MEMBERS_MAX>")]
    slots: Vec<u16>,
}

impl TryFrom<Unchecked> for View {
    type Error = ViewError;
    fn try_from(value: Unchecked) -> Result<Self, ViewError> {
        let ascending = value.members.windows(2).all(|pair| pair[0].id < pair[1].id);
        if !ascending {
            return Err(ViewError::NotAscending);
        }
        let view = Self::new(value.epoch, value.members)?;
        let mut sorted = value.slots.clone();
        sorted.sort_unstable();
        if sorted[..] != view.slots[..] {
            return Err(ViewError::Slots);
        }
        Ok(Self {
            slots: value.slots.into(),
            ..view
        })
    }
}

impl From<View> for Unchecked {
    fn from(view: View) -> Self {
        Self {
            epoch: view.epoch,
            members: view.members.to_vec(),
            slots: view.slots.to_vec(),
        }
    }
}

/// Reason why a list of members is not a view.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// A view has at least one member.
    #[error("a view needs at least one member")]
    Empty,
    /// Two members claim the same id; give each node its own `node_id`.
    #[error("two nodes claim the id {0}: give each node its own node_id")]
    Duplicate(u64),
    /// More than [`MEMBERS_MAX`] members.
    #[error("{0} members exceed the bound of {MEMBERS_MAX}")]
    TooMany(usize),
    /// A received view lists its members out of order.
    #[error("the members of a received view are not ascending by id")]
    NotAscending,
    /// A received view does not give each member exactly one slot.
    #[error("a received view does not give each member one slot")]
    Slots,
}

impl View {
    /// Builds a view; sorts the members by id and assigns slots in this order.
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
            None => {
                // At most `MEMBERS_MAX` members, which fits.
                let slots = (0..members.len() as u16).collect();
                Ok(Self {
                    epoch,
                    members: members.into(),
                    slots,
                })
            }
        }
    }

    /// Builds the view that follows this one. Remaining members keep their slots. New members,
    /// ascending, take the slots of members that left and then slots behind the others. Slots that
    /// are still free go to the members with the last slots.
    ///
    /// # Errors
    /// The same as [`View::new`].
    pub fn succeeded_by(&self, epoch: Epoch, members: Vec<Member>) -> Result<Self, ViewError> {
        let mut next = Self::new(epoch, members)?;
        let mut new = next
            .ids()
            .filter(|id| !self.contains(*id))
            .collect::<Vec<_>>()
            .into_iter();
        let mut in_slot_order: Vec<Option<NodeId>> = self
            .in_slot_order()
            .map(|id| {
                Some(id)
                    .filter(|id| next.contains(*id))
                    .or_else(|| new.next())
            })
            .collect();
        in_slot_order.extend(new.map(Some));
        let (kept, beyond) = in_slot_order.split_at(next.size().min(in_slot_order.len()));
        let mut last = beyond.iter().rev().copied().flatten();
        let in_slot_order: Vec<NodeId> = kept
            .iter()
            .filter_map(|slot| slot.or_else(|| last.next()))
            .collect();
        // At most `MEMBERS_MAX` members, which fits.
        next.slots = in_slot_order
            .iter()
            .filter_map(|id| next.rank(*id))
            .map(|rank| rank as u16)
            .collect();
        Ok(next)
    }

    /// The ids in slot order.
    pub fn in_slot_order(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.slots
            .iter()
            .map(|rank| self.members[usize::from(*rank)].id)
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

    /// `W`: number of members.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The position of `node` among the ascending ids. Ranks are for topology and loads, never
    /// identities.
    #[must_use]
    pub fn rank(&self, node: NodeId) -> Option<usize> {
        self.members
            .binary_search_by_key(&node, |member| member.id)
            .ok()
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

    /// The lowest id: the leader of the bootstrap.
    #[must_use]
    pub fn lowest(&self) -> NodeId {
        self.members[0].id
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    /// A view of the given ids; all other fields are arbitrary.
    pub(crate) fn view(ids: &[u64]) -> View {
        let address = SocketAddr::from(([127, 0, 0, 1], 7000));
        let member = |id: &u64| Member {
            id: NodeId(*id),
            incarnation: Incarnation(1),
            address,
            devices: 1,
            group: GroupId::default(),
            key: PublicKey::default(),
        };
        View::new(Epoch::BOOTSTRAP, ids.iter().map(member).collect()).unwrap()
    }

    #[test]
    fn duplicates_and_empty_are_refused() {
        let address = SocketAddr::from(([127, 0, 0, 1], 7000));
        let member = Member {
            id: NodeId(4),
            incarnation: Incarnation(1),
            address,
            devices: 1,
            group: GroupId::default(),
            key: PublicKey::default(),
        };
        assert_eq!(View::new(Epoch(1), vec![]), Err(ViewError::Empty));
        assert_eq!(
            View::new(Epoch(1), vec![member.clone(), member]),
            Err(ViewError::Duplicate(4))
        );
    }

    #[test]
    fn slots_are_kept_and_handed_on() {
        let slots = |view: &View| view.in_slot_order().map(|id| id.0).collect::<Vec<_>>();
        let next = |view: &View, ids: &[u64]| {
            view.succeeded_by(Epoch(2), super::tests::view(ids).members().to_vec())
                .unwrap()
        };
        let bootstrap = view(&[10, 20, 30, 40]);
        assert_eq!(slots(&bootstrap), [10, 20, 30, 40]);
        assert_eq!(next(&bootstrap, &[10, 20, 30, 40]).slots, bootstrap.slots);
        let joined = next(&bootstrap, &[5, 10, 20, 25, 30, 40]);
        assert_eq!(slots(&joined), [10, 20, 30, 40, 5, 25]);
        assert_eq!(
            slots(&next(&joined, &[5, 10, 25, 30, 40])),
            [10, 25, 30, 40, 5]
        );
        assert_eq!(
            slots(&next(&joined, &[5, 10, 15, 25, 30, 40])),
            [10, 15, 30, 40, 5, 25]
        );
        assert_eq!(slots(&next(&joined, &[5, 40])), [5, 40]);
        assert_eq!(slots(&next(&joined, &[7, 8, 25])), [7, 8, 25]);
        assert_eq!(slots(&next(&joined, &[25])), [25]);
    }

    #[test]
    fn received_slots_are_one_each() {
        let unchecked = |slots: &[u16]| Unchecked {
            epoch: Epoch(1),
            members: view(&[1, 2, 3]).members.to_vec(),
            slots: slots.to_vec(),
        };
        assert_eq!(
            View::try_from(unchecked(&[2, 0, 1]))
                .unwrap()
                .in_slot_order()
                .collect::<Vec<_>>(),
            [NodeId(3), NodeId(1), NodeId(2)]
        );
        for bad in [&[0, 1][..], &[0, 1, 1], &[0, 1, 3], &[0, 1, 2, 2], &[]] {
            assert_eq!(
                View::try_from(unchecked(bad)),
                Err(ViewError::Slots),
                "{bad:?}"
            );
        }
    }
}
