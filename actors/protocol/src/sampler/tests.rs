//! Every sample of every epoch is used exactly once, whatever joins, leaves and is lost.
// Lists of ranges of which there is sometimes one.
#![allow(clippy::unwrap_used, clippy::panic, clippy::single_range_in_vec_init)]

use super::*;
use crate::ident::{ClusterId, Epoch, GroupId, Incarnation, Lineage, Round, Term};
use crate::machine::{Identity, Place};
use crate::published::PublicKey;
use crate::wire::{ContributionNotice, Frame, Message};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn members(devices: &BTreeMap<u64, u16>) -> Vec<Member> {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 7000));
    let member = |(id, devices): (&u64, &u16)| Member {
        id: NodeId(*id),
        incarnation: Incarnation(1),
        address,
        devices: *devices,
        group: GroupId::default(),
        key: PublicKey::default(),
    };
    devices.iter().map(member).collect()
}

fn settings(samples: u64, batch: u64) -> Settings {
    Settings {
        samples,
        batch,
        seed: 7,
    }
}

fn through_a_frame(progress: &Progress) -> Progress {
    let identity = Identity {
        cluster: ClusterId(1),
        node: NodeId(1),
        incarnation: Incarnation(1),
    };
    let place = Place {
        lineage: Lineage(1),
        epoch: Epoch::BOOTSTRAP,
        round: Round(1),
        term: Term::default(),
        attempt: 0,
    };
    let spec = RoundSpec {
        kind: RoundKind::Slow,
        step: progress.step,
        gamma: 0.1,
        elements: 1,
    };
    let contributed = ContributionNotice {
        spec,
        samples: Some(progress.clone()),
        rates: vec![],
    };
    let bytes = identity
        .frame(place, Message::Contribute(contributed))
        .encode()
        .unwrap();
    let Frame::V1 { message, .. } = Frame::decode(&bytes).unwrap();
    let Message::Contribute(ContributionNotice {
        samples: Some(decoded),
        ..
    }) = *message
    else {
        panic!("{message:?}")
    };
    decoded
}

#[test]
fn an_epochs_order_is_a_permutation_of_its_own() {
    for samples in [1, 2, 3, 5, 16, 17, 1000, 1437] {
        let order = |seed, epoch| {
            (0..samples)
                .map(|place| order::place(seed, epoch, samples, place))
                .collect::<Vec<_>>()
        };
        let mut sorted = order(3, 9);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..samples).collect::<Vec<_>>());
        assert!(
            samples < 16 || (order(3, 9) != order(3, 10) && order(3, 9) != order(4, 9)),
            "{samples}"
        );
    }
    // Places that are neighbours go anywhere: the mean distance in a random order is a third.
    let places: Vec<u64> = (0..1000)
        .map(|place| order::place(1, 0, 1000, place))
        .collect();
    let mean = places
        .windows(2)
        .map(|pair| pair[0].abs_diff(pair[1]))
        .sum::<u64>()
        / 999;
    assert!((300..370).contains(&mean), "{mean}");
}

#[test]
fn a_round_hands_out_batches_by_step_and_worker() {
    let progress = Progress::new(settings(10, 2)).unwrap();
    let members = members(&BTreeMap::from([(3, 1), (5, 2)]));
    let batch = |progress: &Progress, node, index, step| {
        progress.batch(&members, NodeId(node), index, Step(step))
    };
    assert_eq!(batch(&progress, 3, 0, 0), [0..2]);
    assert_eq!(batch(&progress, 5, 1, 0), [4..6]);
    assert_eq!(batch(&progress, 3, 0, 1), [6..8]);
    assert!(batch(&progress, 5, 2, 0).is_empty() && batch(&progress, 4, 0, 0).is_empty());
    let round = DecidedRound {
        until: Step(2),
        contributors: &[NodeId(3)],
        members: &members,
    };
    assert_eq!(progress.used(&round, NodeId(3)), [0..2, 6..8]);
    assert!(progress.used(&round, NodeId(5)).is_empty());
    let next = progress.after(&round);
    assert_eq!(
        (next.pending.clone(), next.front, next.step),
        (vec![2..6, 8..12], 12, Step(2))
    );
    assert_eq!(next.epochs_completed(), 0);
    assert!(batch(&next, 3, 0, 1).is_empty());
    assert_eq!(batch(&next, 5, 1, 2), [8..10]);
    assert_eq!(batch(&next, 5, 1, 3), [14..16]);
    let all = DecidedRound {
        until: Step(3),
        contributors: &[NodeId(3), NodeId(5)],
        members: &members,
    };
    assert_eq!(
        (next.after(&all).pending, next.after(&all).front),
        (vec![10..12], 12)
    );
    assert_eq!(through_a_frame(&next), next);
}

#[test]
fn what_a_round_decides_ends_with_its_own_step() {
    let spec = |kind| RoundSpec {
        kind,
        step: Step(7),
        gamma: 0.0,
        elements: 1,
    };
    assert_eq!(samples_until(&spec(RoundKind::Bootstrap)), Step(7));
    assert_eq!(samples_until(&spec(RoundKind::Gradients)), Step(8));
    assert_eq!(samples_until(&spec(RoundKind::Slow)), Step(8));
}

#[test]
fn what_is_left_is_bounded() {
    let members = members(&BTreeMap::from([(1, 1), (2, 1), (3, 1)]));
    let progress = Progress::new(settings(100, 1)).unwrap();
    for until in [PENDING_MAX as u64 + 9, u64::MAX] {
        let next = progress.after(&DecidedRound {
            until: Step(until),
            contributors: &[NodeId(1), NodeId(3)],
            members: &members,
        });
        assert_eq!(next.pending.len(), PENDING_MAX);
        assert!(next.skipped >= 9 && next.front <= POSITIONS_MAX);
        assert_eq!(through_a_frame(&next), next);
    }
    let wide = Progress::new(settings(1 << 32, 1 << 32)).unwrap();
    let next = wide.after(&DecidedRound {
        until: Step(u64::MAX),
        contributors: &[NodeId(1)],
        members: &members,
    });
    assert_eq!(through_a_frame(&next), next);
    let nobody = progress.after(&DecidedRound {
        until: Step(u64::MAX),
        contributors: &[],
        members: &members,
    });
    assert_eq!((nobody.pending.len(), nobody.front), (0, 0));
}

#[test]
fn malformed_progress_is_refused() {
    let unchecked = |pending: &[(u64, u64)], front| Unchecked {
        settings: settings(10, 2),
        step: Step(0),
        pending: pending.to_vec(),
        front,
        skipped: 0,
    };
    assert!(Progress::try_from(unchecked(&[(0, 2), (3, 4)], 4)).is_ok());
    let many: Vec<(u64, u64)> = (0..PENDING_MAX as u64 + 1)
        .map(|at| (2 * at, 2 * at + 1))
        .collect();
    for bad in [
        unchecked(&[(2, 2)], 4),
        unchecked(&[(3, 2)], 4),
        unchecked(&[(0, 2), (1, 3)], 4),
        unchecked(&[(0, 2), (2, 3)], 4),
        unchecked(&[(3, 5)], 4),
        unchecked(&[], u64::MAX),
        unchecked(&many, 1 << 20),
    ] {
        assert_eq!(Progress::try_from(bad), Err(SamplerError::Malformed));
    }
    for (samples, batch) in [(0, 1), (1, 0), (u64::MAX, 1), (1, u64::MAX)] {
        assert_eq!(
            Progress::new(settings(samples, batch)),
            Err(SamplerError::Size { samples, batch })
        );
    }
}

/// One decided round: its steps, who joins (with devices), who leaves, who is not a contributor, by
/// bits over the members.
type Event = (u64, Option<(u64, u16)>, u32, u32);

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_sample_of_an_epoch_is_used_exactly_once(
        samples in 1u64..60,
        batch in 1u64..9,
        founders in prop::collection::btree_map(0u64..20, 1u16..3, 1..6),
        events in prop::collection::vec(
            (0u64..9, prop::option::of((0u64..20, 1u16..3)), any::<u32>(), any::<u32>()),
            1..30
        ),
    ) {
        let mut nodes = founders;
        let mut progress = Progress::new(settings(samples, batch)).unwrap();
        // By epoch and sample.
        let mut used: BTreeMap<(u64, u64), u32> = BTreeMap::new();
        let mut step = 0;
        for (steps, joins, leaves, lost) in events as Vec<Event> {
            let view = members(&nodes);
            step += steps;
            let absent = |bits: u32, rank: usize| bits >> (rank % 32) & 1 == 1 && bits >> 31 == 1;
            let contributors: Vec<NodeId> = view
                .iter()
                .enumerate()
                .filter(|(rank, _)| !absent(lost, *rank))
                .map(|(_, member)| member.id)
                .collect();
            let round = DecidedRound {
                until: Step(step),
                contributors: &contributors,
                members: &view,
            };
            for member in view.iter().filter(|member| contributors.contains(&member.id)) {
                let mut handed_out = Vec::new();
                for (step, index) in (progress.step.0..step)
                    .flat_map(|step| (0..member.devices).map(move |index| (step, index)))
                {
                    let batches = progress.batch(&view, member.id, index, Step(step));
                    let positions: Vec<u64> = batches.into_iter().flatten().collect();
                    prop_assert_eq!(positions.len() as u64, batch);
                    positions.iter().for_each(
                        |position| *used.entry(progress.sample(*position)).or_default() += 1
                    );
                    handed_out.extend(positions);
                }
                handed_out.sort_unstable();
                prop_assert_eq!(
                    handed_out,
                    progress.used(&round, member.id).into_iter().flatten().collect::<Vec<_>>()
                );
            }
            progress = through_a_frame(&progress.after(&round));
            prop_assert_eq!(progress.step, Step(step));
            prop_assert_eq!(progress.skipped, 0);
            nodes.extend(joins);
            let leaving: Vec<u64> = nodes
                .keys()
                .enumerate()
                .filter(|(rank, _)| absent(leaves, *rank))
                .map(|(_, id)| *id)
                .collect();
            leaving.iter().take(nodes.len() - 1).for_each(|id| { nodes.remove(id); });
        }
        prop_assert!(used.values().all(|times| *times == 1));
        for epoch in 0..progress.epochs_completed() {
            prop_assert_eq!(used.range((epoch, 0)..(epoch + 1, 0)).count() as u64, samples);
        }
        let left: u64 = progress.pending.iter().map(|range| range.end - range.start).sum();
        prop_assert_eq!(used.len() as u64 + left, progress.front);
    }
}
