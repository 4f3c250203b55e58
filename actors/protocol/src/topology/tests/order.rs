//! An order by measured rates saves time, over tables of sites.

use super::members;
use crate::ident::NodeId;
use crate::simulation::Random;
use crate::topology::links::Links;
use crate::topology::{Rate, Rates, hops, order_by_rate, score};

fn ids(ids: impl IntoIterator<Item = u64>) -> Vec<NodeId> {
    ids.into_iter().map(NodeId).collect()
}

/// Rates between all members, told by everybody.
fn rates(members: &[NodeId], rate: impl Fn(u64, u64) -> u32) -> Rates {
    let measured = |from: &NodeId| {
        let others = members.iter().filter(|to| *to != from);
        others
            .map(|to| Rate {
                to: *to,
                kilobytes: rate(from.0, to.0),
            })
            .collect()
    };
    members.iter().map(|from| (*from, measured(from))).collect()
}

#[test]
fn a_link_is_as_fast_as_its_slower_direction() {
    let members = ids(1..4);
    let rate = |to: u64, kilobytes| Rate {
        to: NodeId(to),
        kilobytes,
    };
    let rates = Rates::from([
        (NodeId(1), vec![rate(2, 1_000)]),
        (NodeId(2), vec![rate(1, 10)]),
    ]);
    let links = Links::new(&members, &rates);
    let slower = 1_000_000_000_000 / 10;
    assert_eq!((links.time(0, 1), links.time(1, 0)), (slower, slower));
    assert_eq!(links.time(0, 2), slower, "the mean of those that are known");
}

/// Fast within a site, slow between sites.
fn sites(members: &[NodeId], site: impl Fn(u64) -> u64) -> Rates {
    rates(members, |from, to| {
        if site(from) == site(to) {
            1_000_000
        } else {
            10_000
        }
    })
}

/// The links that cross between sites, by turn.
fn crossings(order: &[NodeId], site: impl Fn(u64) -> u64) -> Vec<usize> {
    let size = order.len();
    let crosses =
        |place: usize, hop: usize| site(order[place].0) != site(order[(place + hop) % size].0);
    hops(size, 1)
        .into_iter()
        .map(|hop| (0..size).filter(|place| crosses(*place, hop)).count())
        .collect()
}

/// How many of the turns have such a link.
fn crossing_turns(order: &[NodeId], site: impl Fn(u64) -> u64) -> usize {
    crossings(order, site)
        .into_iter()
        .filter(|links| *links > 0)
        .count()
}

#[test]
fn turns_that_wait_for_links_between_sites() {
    // Members, equal sites, turns of a cycle, crossing turns with sites in a row, and as ordered.
    let cases = [
        (4, 2, 2, 2, 1),
        (6, 2, 3, 3, 1),
        (8, 2, 3, 3, 1),
        (10, 2, 4, 4, 1),
        (12, 2, 4, 4, 1),
        (16, 2, 4, 4, 1),
        (64, 2, 6, 6, 1),
        (6, 3, 3, 3, 3),
        (9, 3, 4, 4, 4),
        (12, 3, 4, 4, 4),
        (24, 3, 5, 5, 5),
        (8, 4, 3, 3, 2),
        (12, 4, 4, 4, 2),
        (16, 4, 4, 4, 2),
        (64, 4, 6, 6, 2),
        (16, 8, 4, 4, 3),
    ];
    for (size, number, turns, in_a_row, ordered) in cases {
        let members = ids(0..size);
        // Sites in a row of ids, sites dealt in turn, and anyhow.
        let row = |id: u64| id * number / size;
        let turn = |id: u64| id % number;
        let anyhow = |id: u64| ((id * 7 + 3) % size) * number / size;
        assert_eq!(hops(members.len(), 1).len(), turns, "W={size}");
        assert_eq!(
            crossing_turns(&members, row),
            in_a_row,
            "W={size}, {number} sites"
        );
        let ways: [&dyn Fn(u64) -> u64; 3] = [&row, &turn, &anyhow];
        for site in ways {
            let order = order_by_rate(&members, &sites(&members, site));
            assert_eq!(
                crossing_turns(&order, site),
                ordered,
                "W={size}, {number} sites: {order:?}"
            );
        }
    }
}

#[test]
fn two_sites_of_four() {
    let members = ids(1..=8);
    let site = |id: u64| (id - 1) / 4;
    let order = order_by_rate(&members, &sites(&members, site));
    assert_eq!(order, ids([1, 5, 3, 7, 2, 6, 4, 8]));
    assert_eq!(crossings(&order, site), [8, 0, 0]);
    assert_eq!(crossings(&members, site), [2, 4, 8]);
    // Those that are dealt in turn already stay.
    assert_eq!(
        order_by_rate(&members, &sites(&members, |id| id % 2)),
        members
    );
}

#[test]
fn sites_of_sites() {
    // Two regions of two sites of four nodes, in a row: only one turn crosses between regions, one
    // more between sites.
    let members = ids(0..16);
    let rates = rates(&members, |from, to| {
        match (from / 8 == to / 8, from / 4 == to / 4) {
            (_, true) => 1_000_000,
            (true, false) => 100_000,
            (false, false) => 10_000,
        }
    });
    let order = order_by_rate(&members, &rates);
    assert_eq!(crossing_turns(&order, |id| id / 8), 1, "{order:?}");
    assert_eq!(crossing_turns(&order, |id| id / 4), 2, "{order:?}");
}

#[test]
fn unequal_sites_share_as_few_links_as_in_a_row() {
    // Which ids stand in the first site.
    for (size, first) in [(8, 3), (8, 5), (7, 3), (12, 5), (16, 6)] {
        let members = ids(0..size);
        let dealt = |id: u64| u64::from(id * first % size < first);
        let order = order_by_rate(&members, &sites(&members, dealt));
        let mut in_a_row = members.clone();
        in_a_row.sort_by_key(|id| (dealt(id.0), *id));
        let total = |order: &[NodeId]| crossings(order, dealt).into_iter().sum::<usize>();
        assert!(
            crossing_turns(&order, dealt) <= crossing_turns(&in_a_row, dealt),
            "W={size}, {first}"
        );
        assert!(
            total(&order) <= total(&in_a_row),
            "W={size}, {first}: {order:?}"
        );
    }
}

#[test]
fn without_rates_the_order_stays() {
    let members = ids([4, 9, 1, 7, 3]);
    assert_eq!(order_by_rate(&members, &Rates::new()), members);
    let stranger = Rates::from([(
        NodeId(77),
        vec![Rate {
            to: NodeId(4),
            kilobytes: 5,
        }],
    )]);
    assert_eq!(order_by_rate(&members, &stranger), members);
    let to_itself = Rates::from([(
        NodeId(4),
        vec![Rate {
            to: NodeId(4),
            kilobytes: 5,
        }],
    )]);
    assert_eq!(order_by_rate(&members, &to_itself), members);
    assert_eq!(order_by_rate(&[], &Rates::new()), []);
}

#[test]
fn equal_rates_change_nothing_and_one_slow_link_is_avoided() {
    let members = ids(0..7);
    let mut rates = sites(&members, |_| 0);
    assert_eq!(order_by_rate(&members, &rates), members);
    // Only 2 → 3 is slow, which makes the link slow. Of the 21 links the graph's three turns use
    // all, so one turn waits.
    rates
        .get_mut(&NodeId(2))
        .into_iter()
        .flatten()
        .filter(|rate| rate.to == NodeId(3))
        .for_each(|rate| rate.kilobytes = 1000);
    let order = order_by_rate(&members, &rates);
    assert!(score(&order, &rates) <= score(&members, &rates));
    // Of 28 links of eight members, the three turns use 20.
    let members = ids(0..8);
    let rates = self::rates(
        &members,
        |from, to| if from + to == 1 { 1000 } else { 1_000_000 },
    );
    let order = order_by_rate(&members, &rates);
    assert_eq!(score(&order, &rates).slowest, 3 * 1_000_000, "{order:?}");
}

#[test]
fn few_known_links_are_enough() {
    // Only the edges of the exponential graph over ascending ids were measured.
    let members = ids(0..16);
    let site = |id: u64| id / 8;
    let mut rates = sites(&members, site);
    for (from, measured) in &mut rates {
        measured.retain(|rate| [1, 2, 4, 8].contains(&((rate.to.0 + 16 - from.0) % 16)));
    }
    let order = order_by_rate(&members, &rates);
    assert_eq!(crossing_turns(&order, site), 1, "{order:?}");
}

#[test]
fn it_is_a_permutation_never_worse_and_the_same_each_time() {
    let mut random = Random(7);
    for size in 0..40 {
        let members = members(size);
        let rates: Rates = members
            .iter()
            .map(|from| {
                (
                    *from,
                    members
                        .iter()
                        .map(|to| Rate {
                            to: *to,
                            kilobytes: random.below(9_000) as u32,
                        })
                        .collect(),
                )
            })
            .collect();
        let order = order_by_rate(&members, &rates);
        assert_eq!(order.first(), members.first());
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, members);
        assert!(score(&order, &rates) <= score(&members, &rates), "W={size}");
        assert_eq!(order, order_by_rate(&members, &rates));
    }
}

#[test]
fn thousands_of_members_take_bounded_work() {
    for size in [512, crate::view::MEMBERS_MAX as u64] {
        let members = ids(0..size);
        let mut random = Random(3);
        let measured = |random: &mut Random| Rate {
            to: NodeId(random.below(size)),
            kilobytes: 100 + random.below(99_999) as u32,
        };
        let rates: Rates = members
            .iter()
            .map(|from| (*from, (0..64).map(|_| measured(&mut random)).collect()))
            .collect();
        let order = order_by_rate(&members, &rates);
        assert!(score(&order, &rates) <= score(&members, &rates));
    }
}
