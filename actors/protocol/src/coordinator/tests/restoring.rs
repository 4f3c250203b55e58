//! A founding that goes on from a checkpoint: owners bring the slow momentum, the other holders are
//! sent it.

use super::*;
use crate::coordinator::{Holders, Publication};
use crate::shards::{Layout, ShardMap};

const ELEMENTS: usize = 10_000;

fn published(view: &View, participants: &[u64], me: u64, restores: bool) -> (Plan, Publication) {
    let layout = Layout::new(ELEMENTS);
    let nodes = ids(participants);
    let map = ShardMap::new(view, &layout, 1);
    let spec = RoundSpec {
        kind: RoundKind::Bootstrap,
        step: Step(96),
        gamma: 0.0,
        elements: ELEMENTS as u64,
    };
    let place = Place {
        lineage: Lineage(7),
        epoch: view.epoch(),
        round: Round::BOOTSTRAP,
        term: Term::default(),
        attempt: 0,
    };
    let plan = Plan::new(
        NodeId(me),
        place,
        spec,
        (nodes[..1].to_vec(), nodes),
        layout,
        view,
        &map,
    )
    .restoring(restores);
    let outcome = Outcome {
        spec,
        ..founded(view, participants[0])
    };
    let holders = Holders {
        layout,
        before: &map,
        after: &map,
        absent: &[],
    };
    let publication = Publication::new(&plan, &outcome, Some(holders));
    (plan, publication)
}

#[test]
fn every_holder_gets_the_momentum_from_its_owner() {
    let view = view(&[1, 2, 3, 4, 5]);
    let map = ShardMap::new(&view, &Layout::new(ELEMENTS), 1);
    // All are there, or a node is gone and other holders stand in for it.
    for participants in [&[1, 2, 3, 4, 5][..], &[1, 2, 4, 5]] {
        let (plan, publication) = published(&view, participants, participants[0], true);
        assert!(
            plan.makes_momentum()
                && publication.renews_anchor
                && !publication.moves_anchor
                && publication.lost.is_empty()
        );
        for shard in Layout::new(ELEMENTS).shards() {
            let owner = participants
                .iter()
                .copied()
                .map(NodeId)
                .find(|node| plan.owned_by(*node).contains(&shard))
                .unwrap();
            let mut has: Vec<NodeId> = vec![owner];
            has.extend(
                publication
                    .moves
                    .iter()
                    .filter(|moved| moved.shards.contains(&shard))
                    .map(|moved| moved.to),
            );
            assert!(
                publication
                    .moves
                    .iter()
                    .all(|moved| !moved.shards.contains(&shard) || moved.from == owner)
            );
            let mut holders = map.holders(shard).to_vec();
            holders.push(owner);
            has.sort_unstable();
            holders.sort_unstable();
            holders.dedup();
            assert_eq!(has, holders, "{shard}");
        }
    }
}

#[test]
fn a_fresh_bootstrap_moves_nothing() {
    let view = view(&[1, 2, 3]);
    let (plan, publication) = published(&view, &[1, 2, 3], 2, false);
    assert!(!plan.makes_momentum() && publication.moves.is_empty());
}

#[test]
fn the_lowest_contributor_sends_its_buffers_to_everybody_who_joins() {
    let view = view(&[1, 2, 3, 4]);
    let (mut plan, publication) = published(&view, &[2, 4], 2, false);
    plan.contributors = ids(&[2, 4]);
    let outcome = founded(&view, 2);
    let publication = publication.with_donation(&plan, &outcome, 7);
    let donors: Vec<Option<NodeId>> = view.ids().map(|node| publication.donor_to(node)).collect();
    let donor = Some(NodeId(2));
    assert_eq!(donors, [donor, None, donor, None]);
}
