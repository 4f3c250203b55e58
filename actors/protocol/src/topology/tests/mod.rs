//! Properties of every graph, over tables of sizes.

mod contraction;
mod order;

use super::*;
use crate::ident::NodeId;
use std::collections::BTreeSet;

/// Ids that are no ranks.
fn members(size: usize) -> Vec<NodeId> {
    (0..size as u64).map(|i| NodeId(i * 7 + 3)).collect()
}

const NAMES: [TopologyName; 5] = [
    TopologyName::Exponential,
    TopologyName::Ring,
    TopologyName::BipartiteExponential,
    TopologyName::Complete,
    TopologyName::BandwidthAware,
];

/// Every graph for `W = 1..17` and `p = 1..3`; the order of the bandwidth-aware one is a shuffled
/// one.
fn every_graph(mut check: impl FnMut(TopologyName, &[NodeId], u32, &dyn Topology)) {
    for size in 1..=17usize {
        let members = members(size);
        let mut order = members.clone();
        order.sort_by_key(|id| (id.0 * 5 % 11, id.0));
        for peers_per_step in 1..=3 {
            for name in NAMES {
                let gossip = Gossip {
                    topology: name,
                    peers_per_step,
                    ..Gossip::default()
                };
                check(
                    name,
                    &members,
                    peers_per_step,
                    &*of(&gossip, &members, &order),
                );
            }
        }
    }
}

#[test]
fn nobody_sends_to_itself_or_twice_and_both_ends_agree() {
    every_graph(|name, members, p, graph| {
        for turn in (0..graph.cycle() + 2).chain([u64::MAX - 1, u64::MAX]) {
            let all: Vec<_> = members
                .iter()
                .map(|id| graph.peers(members, *id, turn))
                .collect();
            for (me, peers) in members.iter().zip(&all) {
                for list in [&peers.out, &peers.inward] {
                    assert!(
                        list.is_sorted_by(|a, b| a < b),
                        "{name:?} W={} p={p}: {list:?}",
                        members.len()
                    );
                    assert!(
                        !list.contains(me),
                        "{name:?} W={} p={p}: self loop",
                        members.len()
                    );
                }
                for (other, theirs) in members.iter().zip(&all) {
                    let agree = theirs.inward.contains(me) == peers.out.contains(other);
                    assert!(agree, "{name:?} W={} p={p}: {me} → {other}", members.len());
                }
            }
        }
    });
}

#[test]
fn everybody_has_as_many_peers_as_promised() {
    every_graph(|name, members, p, graph| {
        let others = members.len() - 1;
        let odd_bipartite = name == TopologyName::BipartiteExponential && members.len() % 2 == 1;
        for turn in 0..graph.cycle() {
            let numbers: Vec<_> = members
                .iter()
                .map(|id| graph.peers(members, *id, turn).out.len())
                .collect();
            let most = numbers.iter().copied().max().unwrap_or(0);
            let uneven = numbers.iter().filter(|number| **number != most).count();
            assert!(
                uneven <= if odd_bipartite { p as usize } else { 0 },
                "{name:?} W={} p={p}: {numbers:?}",
                members.len()
            );
            let expected = match name {
                TopologyName::Complete => others,
                _ if members.len() == 1 => 0,
                TopologyName::BipartiteExponential => (p as usize).min(slots_log(members.len())),
                _ => (p as usize).min(others),
            };
            assert_eq!(graph.peers_max(), expected);
            assert_eq!(most, expected, "{name:?} W={} p={p}", members.len());
        }
    });
}

/// `⌈log₂ W⌉`, of `W + 1` if that is odd.
fn slots_log(members: usize) -> usize {
    (members + members % 2).next_power_of_two().ilog2() as usize
}

#[test]
fn everybody_hears_of_everybody_over_a_cycle() {
    every_graph(|name, members, p, graph| {
        let joined = |from: NodeId| {
            let mut reached = BTreeSet::from([from]);
            loop {
                let before = reached.len();
                for turn in 0..graph.cycle() {
                    reached.extend(
                        reached
                            .clone()
                            .into_iter()
                            .flat_map(|id| graph.peers(members, id, turn).out),
                    );
                }
                if reached.len() == before {
                    return reached.len();
                }
            }
        };
        // The union of a cycle's edges is strongly connected; and but for the ring one cycle, gone
        // through in order, is nearly enough.
        assert!(
            members.iter().all(|id| joined(*id) == members.len()),
            "{name:?} W={} p={p}",
            members.len()
        );
    });
}

#[test]
fn it_repeats_after_a_cycle_and_not_before() {
    every_graph(|name, members, p, graph| {
        let at = |turn| {
            members
                .iter()
                .map(|id| graph.peers(members, *id, turn))
                .collect::<Vec<_>>()
        };
        for turn in 0..3 * graph.cycle() {
            assert_eq!(
                at(turn),
                at(turn + graph.cycle()),
                "{name:?} W={} p={p}",
                members.len()
            );
        }
        for shorter in 1..graph.cycle() {
            let same = (0..graph.cycle()).all(|turn| at(turn) == at(turn + shorter));
            assert!(
                !same,
                "{name:?} W={} p={p} repeats after {shorter}",
                members.len()
            );
        }
    });
}

#[test]
fn bipartite_exchanges_go_both_ways_between_even_and_odd() {
    every_graph(|name, members, _, graph| {
        if name != TopologyName::BipartiteExponential {
            return;
        }
        for turn in 0..graph.cycle() {
            for (rank, me) in members.iter().enumerate() {
                let peers = graph.peers(members, *me, turn);
                assert_eq!(peers.out, peers.inward);
                let other_half = |id: &NodeId| {
                    members
                        .iter()
                        .position(|member| member == id)
                        .is_some_and(|other| other % 2 != rank % 2)
                };
                assert!(peers.out.iter().all(other_half));
            }
        }
    });
}

#[test]
fn strangers_and_other_views_have_no_peers() {
    every_graph(|name, members, p, graph| {
        assert_eq!(
            graph.peers(members, NodeId(1), 0),
            Peers::default(),
            "{name:?} p={p}"
        );
        let mut more = members.to_vec();
        more.push(NodeId(u64::MAX));
        for others in [&more[..], &members[1..], &[]] {
            let nobody = others
                .iter()
                .all(|id| graph.peers(others, *id, 1) == Peers::default());
            assert!(
                nobody,
                "{name:?} W={} p={p} in a view of {}",
                members.len(),
                others.len()
            );
        }
    });
}

#[test]
fn an_order_that_is_none_stands_for_ascending_ids() {
    let ids = |ids: &[u64]| ids.iter().copied().map(NodeId).collect::<Vec<_>>();
    let members = ids(&[1, 2, 3, 4, 5]);
    let ascending = BandwidthAware::new(&members, 1, &members);
    let orders: [&[u64]; 6] = [
        &[],
        &[5, 4, 3, 2],
        &[5, 4, 3, 2, 2],
        &[5, 4, 3, 2, 6],
        &[5, 4, 3, 2, 1, 1],
        &[0; 5],
    ];
    for order in orders {
        assert_eq!(
            BandwidthAware::new(&members, 1, &ids(order)),
            ascending,
            "{order:?}"
        );
    }
    for me in &members {
        for turn in 0..3 {
            assert_eq!(
                ascending.peers(&members, *me, turn),
                Exponential::new(5, 1).peers(&members, *me, turn)
            );
        }
    }
    let turned = BandwidthAware::new(&members, 1, &ids(&[3, 1, 5, 2, 4]));
    assert_eq!(
        turned.peers(&members, NodeId(3), 0),
        Peers {
            out: ids(&[1]),
            inward: ids(&[4])
        }
    );
    assert_eq!(
        turned.peers(&members, NodeId(3), 1),
        Peers {
            out: ids(&[5]),
            inward: ids(&[2])
        }
    );
}
