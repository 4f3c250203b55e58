//! Rounds over groups of nodes with fast links among them, such as sites or racks.
//!
//! In a round of one group every contributor sends its values to the owner of each shard, and the
//! owner sends the new values to every node. If the participants are of several groups (key
//! `group`), values cross between two groups once for each shard, not once for each node:
//!
//! ```text
//! group A                                group B
//!   a1 ─┐                                  ┌─ b1
//!   a2 ─┼─ contribution ─► owner ◄─ sum ── relay ◄─ contribution ─┼─ b2
//!   a3 ─┘                    │                 ▲                  └─ b3
//!                            └── new values ───┘── the same, passed on ──► b1, b2, b3
//! ```
//!
//! - Each group has a *relay* for each owner of another group: one of its contributors, or of its
//!   participants if it has no sum to send. The owners are spread evenly over them.
//! - The relay sums its group's contributions to the owner's shards, in ascending id, and sends
//!   the sum. The owner adds the contributions of its own group and the sums of the others in
//!   ascending id of their senders. So all sums have one order, which the plan fixes.
//! - The relay passes the owner's new values on, as they come, with the owner's signature behind
//!   them: it cannot change them.
//! - A group with one contributor needs no sum, and one with one participant passes nothing on.
//! - Joining nodes get the new values from the owners themselves.
//!
//! Relays follow from the view, the participants, the contributors, the round and the attempt, and
//! change with each of the last two. If a relay dies, or sends one owner what no correct node sends,
//! the attempt fails like that of a dead owner. Later another owner sees what that relay sends, so
//! that two nodes can say so.
//!
//! With `S` groups of `m` nodes an owner gets `S − 1` sums from other groups, in place of
//! `(S − 1)·m` contributions. It also sends its new values `S − 1` times to other groups, not
//! `(S − 1)·m` times. So `1/m` of the bytes cross that would cross without relays.

use crate::ident::{GroupId, NodeId};
use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};

/// Ways of a round's values between groups, as one node sees them. Empty where the participants are
/// of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Relays {
    /// This node's group.
    own: Group,
    /// The relay of this node's group for each owner of another group, ascending by owner.
    of_owners: BTreeMap<NodeId, NodeId>,
    /// If this node is an owner: the relay of each other group, and its group.
    of_others: BTreeMap<NodeId, Group>,
    /// The nodes to which those relays pass this owner's new values on.
    reached: BTreeSet<NodeId>,
}

/// The participants of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Group {
    /// All, ascending.
    participants: Vec<NodeId>,
    /// Those that contribute, ascending.
    contributors: Vec<NodeId>,
}

impl Group {
    /// The relay for the owner of another group that is the `index`-th of those owners, counted on
    /// by the round and the attempt.
    fn relay(&self, index: usize) -> Option<NodeId> {
        let candidates = if self.sums() {
            &self.contributors
        } else {
            &self.participants
        };
        candidates.get(index % candidates.len().max(1)).copied()
    }

    /// Whether a relay sums the contributions of this group.
    fn sums(&self) -> bool {
        self.contributors.len() > 1
    }
}

impl Relays {
    /// The relays that `me` has to do with. `turn` counts rounds and attempts.
    pub fn new(
        me: NodeId,
        view: &View,
        turn: usize,
        participants: &[NodeId],
        contributors: &[NodeId],
        owners: &[NodeId],
    ) -> Self {
        let group_of = |node: NodeId| view.member(node).map(|member| member.group);
        let mut groups: BTreeMap<GroupId, Group> = BTreeMap::new();
        for (id, node) in participants
            .iter()
            .filter_map(|id| Some((group_of(*id)?, *id)))
        {
            groups.entry(id).or_default().participants.push(node);
        }
        for (id, node) in contributors
            .iter()
            .filter_map(|id| Some((group_of(*id)?, *id)))
        {
            groups.entry(id).or_default().contributors.push(node);
        }
        if groups.len() < 2 || participants.binary_search(&me).is_err() {
            return Self::default();
        }
        let Some(mine) = group_of(me) else {
            return Self::default();
        };
        let owners: BTreeMap<NodeId, GroupId> = owners
            .iter()
            .filter_map(|owner| Some((*owner, group_of(*owner)?)))
            .collect();
        let mut of_others = BTreeMap::new();
        let mut reached = BTreeSet::new();
        if owners.contains_key(&me) {
            // The owners before this one, in all and by group.
            let before = owners.range(..me);
            let all = before.clone().count();
            let mut by_group: BTreeMap<GroupId, usize> = BTreeMap::new();
            before.for_each(|(_, id)| *by_group.entry(*id).or_default() += 1);
            for (id, group) in groups.iter().filter(|(id, _)| **id != mine) {
                let index = all - by_group.get(id).copied().unwrap_or_default();
                if let Some(relay) = group.relay(index.wrapping_add(turn)) {
                    let others = group.participants.iter().filter(|node| **node != relay);
                    reached.extend(others.copied());
                    of_others.insert(relay, group.clone());
                }
            }
        }
        let own = groups.remove(&mine).unwrap_or_default();
        let others = owners.iter().filter(|(_, id)| **id != mine);
        let of_owners = others
            .enumerate()
            .filter_map(|(index, (owner, _))| Some((*owner, own.relay(index.wrapping_add(turn))?)))
            .collect();
        Self {
            own,
            of_owners,
            of_others,
            reached,
        }
    }

    /// The relay that sums this node's contribution to an owner; `None` if it goes to the owner.
    pub fn sums_for(&self, owner: NodeId) -> Option<NodeId> {
        if !self.own.sums() {
            return None;
        }
        self.of_owners.get(&owner).copied()
    }

    /// The owners for which `relay`, of this node's group, sums; ascending.
    pub fn summed_by(&self, relay: NodeId) -> Vec<NodeId> {
        if !self.own.sums() {
            return Vec::new();
        }
        let its_owners = self.of_owners.iter().filter(|(_, by)| **by == relay);
        its_owners.map(|(owner, _)| *owner).collect()
    }

    /// The contributors of this node's group, ascending.
    pub fn group_contributors(&self) -> &[NodeId] {
        &self.own.contributors
    }

    /// For an owner among `contributors`: the nodes whose values it adds up, and how many
    /// contributions each stands for.
    pub fn sources(&self, contributors: &[NodeId]) -> BTreeMap<NodeId, usize> {
        let summed: BTreeSet<NodeId> = self
            .of_others
            .values()
            .filter(|group| group.sums())
            .flat_map(|group| group.contributors.iter().copied())
            .collect();
        let direct = contributors.iter().filter(|node| !summed.contains(node));
        let sums = self.of_others.iter().filter(|(_, group)| group.sums());
        direct
            .map(|node| (*node, 1))
            .chain(sums.map(|(relay, group)| (*relay, group.contributors.len())))
            .collect()
    }

    /// The node that sends the new values of `owner` to `me`.
    pub fn publisher(&self, me: NodeId, owner: NodeId) -> NodeId {
        let relay = self.of_owners.get(&owner).copied();
        relay.filter(|relay| *relay != me).unwrap_or(owner)
    }

    /// The nodes to which `me` passes the new values of `owner` on, ascending.
    pub fn passes_on(&self, me: NodeId, owner: NodeId) -> Vec<NodeId> {
        if self.of_owners.get(&owner) != Some(&me) {
            return Vec::new();
        }
        let others = self.own.participants.iter().filter(|node| **node != me);
        others.copied().collect()
    }

    /// Whether a relay passes the new values of this node on to `node`.
    pub fn reaches(&self, node: NodeId) -> bool {
        self.reached.contains(&node)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ident::Epoch;
    use crate::view::Member;
    use crate::view::tests::view;

    /// A view of nodes 1 to `size` in groups as `group` says.
    fn grouped(size: u64, group: impl Fn(u64) -> u32) -> View {
        let ids: Vec<u64> = (1..=size).collect();
        let flat = view(&ids);
        let members = flat.members().iter().map(|member| Member {
            group: GroupId(group(member.id.0)),
            ..member.clone()
        });
        View::new(Epoch::BOOTSTRAP, members.collect()).unwrap()
    }

    fn all(view: &View) -> Vec<NodeId> {
        view.ids().collect()
    }

    /// The relays of every node in a turn, if all participate and the nodes `contribute`.
    fn relays(
        view: &View,
        turn: usize,
        contribute: &[NodeId],
        owners: &[NodeId],
    ) -> BTreeMap<NodeId, Relays> {
        let participants = all(view);
        view.ids()
            .map(|me| {
                (
                    me,
                    Relays::new(me, view, turn, &participants, contribute, owners),
                )
            })
            .collect()
    }

    /// Follows contributions and new values along the relays. Checks that each owner gets every
    /// contribution once, and each node every owner's values once and from the one that it expects.
    /// Returns the streams that cross between groups: those of contributions, and of values.
    fn follow(
        view: &View,
        turn: usize,
        contributors: &[NodeId],
        owners: &[NodeId],
    ) -> (usize, usize) {
        let of = relays(view, turn, contributors, owners);
        let group = |node: NodeId| view.member(node).unwrap().group;
        let crosses = |from: NodeId, to: NodeId| usize::from(group(from) != group(to));
        let (mut sums, mut values) = (0, 0);
        for owner in owners.iter().copied() {
            let sources = of[&owner].sources(contributors);
            let mut counted = 0;
            for (source, contributions) in &sources {
                if *source != owner {
                    sums += crosses(*source, owner);
                }
                if *contributions > 1 {
                    let summed = of[source].group_contributors();
                    assert!(of[source].summed_by(*source).contains(&owner));
                    assert_eq!(summed.len(), *contributions);
                    for node in summed.iter().filter(|node| *node != source) {
                        assert_eq!(of[node].sums_for(owner), Some(*source));
                        sums += crosses(*node, *source);
                    }
                } else {
                    assert_eq!(of[source].sums_for(owner), None);
                }
                counted += contributions;
            }
            assert_eq!(counted, contributors.len(), "{owner}");

            let mut got: BTreeSet<NodeId> = BTreeSet::from([owner]);
            for node in view.ids().filter(|node| *node != owner) {
                if !of[&owner].reaches(node) {
                    assert!(got.insert(node));
                    assert_eq!(of[&node].publisher(node, owner), owner);
                    values += crosses(owner, node);
                    for to in of[&node].passes_on(node, owner) {
                        assert!(got.insert(to), "{to} gets the values of {owner} twice");
                        assert_eq!(of[&to].publisher(to, owner), node);
                        values += crosses(node, to);
                    }
                }
            }
            assert_eq!(got.len(), view.size(), "{owner}");
        }
        (sums, values)
    }

    #[test]
    fn one_group_has_no_relays() {
        let view = grouped(5, |_| 7);
        let nodes = all(&view);
        for (_, relays) in relays(&view, 0, &nodes, &nodes) {
            assert_eq!(relays, Relays::default());
        }
        // Every node sends to every other one.
        assert_eq!(follow(&view, 0, &nodes, &nodes), (0, 0));
    }

    #[test]
    fn an_eighth_crosses_between_two_groups_of_eight() {
        let view = grouped(16, |id| u32::from(id > 8));
        let nodes = all(&view);
        // One level: each of 16 owners has 8 contributors and 8 receivers in the other group.
        assert_eq!(follow(&view, 0, &nodes, &nodes), (16, 16));
        // Each node is the relay for one owner.
        for (node, relays) in relays(&view, 0, &nodes, &nodes) {
            assert_eq!(relays.summed_by(node).len(), 1, "{node}");
        }
    }

    #[test]
    fn groups_of_any_size_with_any_contributors() {
        let groupings: [fn(u64) -> u32; 4] = [
            |id| (id % 3) as u32,
            |id| u32::from(id == 4),
            |id| id as u32,
            |id| (id / 4) as u32,
        ];
        for (size, grouping) in (2..12).flat_map(|size| groupings.map(|of| (size, of))) {
            let view = grouped(size, grouping);
            let nodes = all(&view);
            for pattern in 1..1_u32 << size.min(9) {
                let contributors: Vec<NodeId> = nodes
                    .iter()
                    .copied()
                    .filter(|node| node.0 > 9 || pattern >> (node.0 - 1) & 1 == 1)
                    .collect();
                let owners = &nodes[..nodes.len().div_ceil(2)];
                follow(&view, pattern as usize, &contributors, owners);
            }
        }
    }

    #[test]
    fn the_next_attempt_has_other_relays() {
        let view = grouped(6, |id| (id % 2) as u32);
        let nodes = all(&view);
        let [first, second] = [0, 1].map(|turn| relays(&view, turn, &nodes, &nodes));
        for node in &nodes {
            let [before, after] = [&first, &second].map(|of| of[node].summed_by(*node));
            assert!(before.iter().all(|owner| !after.contains(owner)), "{node}");
        }
    }

    #[test]
    fn a_joining_node_gets_the_values_from_the_owners() {
        let view = grouped(6, |id| u32::from(id > 3));
        let participants: Vec<NodeId> = all(&view)[..5].to_vec();
        let joiner = NodeId(6);
        let relays = Relays::new(
            joiner,
            &view,
            0,
            &participants,
            &participants,
            &participants,
        );
        assert_eq!(relays, Relays::default());
        for owner in &participants {
            let relays = Relays::new(
                *owner,
                &view,
                0,
                &participants,
                &participants,
                &participants,
            );
            assert!(!relays.reaches(joiner));
        }
    }

    /// 4,096 nodes in 64 groups of 64, of which 512 own shards.
    #[test]
    fn four_thousand_nodes_have_few_streams_each() {
        let view = grouped(4_096, |id| (id % 64) as u32);
        let nodes = all(&view);
        let owners: Vec<NodeId> = nodes.iter().copied().step_by(7).take(512).collect();
        let of = relays(&view, 0, &nodes, &owners);
        let mut most = 0;
        for (node, relays) in &of {
            let mine = owners.contains(node);
            let sources = if mine {
                relays.sources(&nodes).len() - 1
            } else {
                0
            };
            let relayed = relays.summed_by(*node).len();
            let summed = if relayed > 0 { 63 } else { 0 };
            most = most.max(sources + relayed + summed);
            assert!(relayed <= 8, "{node} is the relay of {relayed} owners");
        }
        // One level: 4,095 contributions.
        assert!(most <= 63 + 63 + 8 + 63, "{most}");
    }
}
