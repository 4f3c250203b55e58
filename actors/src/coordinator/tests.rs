//! Encoded rounds without a network: who reads what, what stays with a node, and what a wrong
//! encoding is.

use super::reduce::{Expected, OwnContribution, gather};
use super::transfer::Broken;
use crate::buffers::{ChunkedBuffer, Frozen, Pool, chunks};
use crate::data::Arrived;
use crate::data::{Coding, Encoder, ErrorFeedback, Sum, Update};
use crate::ports::transport::BulkReceiver;
use crate::testing::Whole;
use bytes::Bytes;
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::coordinator::{Plan, RoundKind, RoundSpec};
use slowmo_protocol::ident::{
    ClusterId, Epoch, GroupId, Incarnation, Lineage, NodeId, Round, ShardId, Step, Term,
};
use slowmo_protocol::machine::{Identity, Place};
use slowmo_protocol::published::PublicKey;
use slowmo_protocol::shards::{Layout, ShardMap};
use slowmo_protocol::sound::{CONTRIBUTION_MAX, Unsound, sum_max};
use slowmo_protocol::view::{Member, View};
use slowmo_protocol::wire::{Bulk, ContributionHeader};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

const PARAMETERS: usize = 900;
const ELEMENTS: usize = 1_000;
const ME: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);

fn place() -> Place {
    Place {
        lineage: Lineage(1),
        epoch: Epoch(1),
        round: Round(3),
        term: Term {
            counter: 1,
            node: ME,
        },
        attempt: 1,
    }
}

fn plan() -> Plan {
    let member = |id| Member {
        id,
        incarnation: Incarnation(1),
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        devices: 1,
        group: GroupId::default(),
        key: PublicKey::default(),
    };
    let view = View::new(Epoch(1), vec![member(ME), member(OTHER)]).unwrap();
    let layout = Layout::new(ELEMENTS);
    let map = ShardMap::new(&view, &layout, 1);
    let spec = RoundSpec {
        kind: RoundKind::Average,
        step: Step(2),
        gamma: 0.1,
        elements: ELEMENTS as u64,
    };
    Plan::new(
        ME,
        place(),
        spec,
        (vec![ME, OTHER], vec![ME, OTHER]),
        layout,
        &view,
        &map,
    )
}

fn values(pool: &Arc<Pool>, value: impl Fn(usize) -> f32) -> Frozen {
    let mut buffer = pool.take(ELEMENTS);
    buffer
        .values_mut()
        .iter_mut()
        .enumerate()
        .for_each(|(index, to)| *to = value(index));
    buffer.freeze()
}

/// Returns the error feedback of a node that has just founded or joined. It is in two pieces, which
/// are cut as no round is.
fn carried(pool: &Arc<Pool>, reference: impl Fn(usize) -> f32) -> ErrorFeedback {
    let whole = values(pool, reference);
    let mut pieces = ChunkedBuffer::default();
    for range in [0..333, 333..ELEMENTS] {
        let mut piece = pool.take(range.len());
        piece
            .values_mut()
            .copy_from_slice(&whole.values()[range.clone()]);
        pieces.insert(range.start, piece.freeze());
    }
    let mut carried = ErrorFeedback::default();
    carried.begin(&pieces);
    carried
}

fn coding(carried: &ErrorFeedback, pool: &Arc<Pool>) -> Coding {
    carried.coding(WireType::Int8, PARAMETERS, pool).unwrap()
}

fn arrived(content: Bulk) -> Arrived {
    let identity = Identity {
        cluster: ClusterId(1),
        node: OTHER,
        incarnation: Incarnation(1),
    };
    let header = identity.header(place());
    Arrived {
        header,
        content,
        stream: Box::new(Whole(Bytes::new())),
    }
}

#[test]
fn a_sum_has_the_weight_of_its_contributions_and_is_encoded_like_them() {
    let expected = Expected {
        wire: WireType::Int8,
        unit_weights: true,
    };
    let counts = BTreeMap::from([(OTHER, 2)]);
    let wires = [WireType::Float32, WireType::Int8];
    for (weight, wire) in [1.0, 2.0, 3.0]
        .into_iter()
        .flat_map(|weight| wires.map(|wire| (weight, wire)))
    {
        let content = Bulk::Partial(ContributionHeader {
            spec: plan().spec,
            weight,
            wire,
        });
        let gathered = gather(ME, None, vec![arrived(content)], &expected, &counts);
        let refused = match (wire, weight) {
            (WireType::Int8, 2.0) => None,
            (WireType::Int8, _) => Some(Broken::Unsound(OTHER, Unsound::Weight(weight))),
            _ => Some(Broken::Stream(OTHER)),
        };
        assert_eq!(gathered.err(), refused);
    }
}

#[test]
fn a_contribution_in_another_encoding_is_a_broken_stream() {
    let plan = plan();
    let pool = Pool::new();
    for (wire, expected) in [
        (WireType::Float32, WireType::Int8),
        (WireType::Int8, WireType::BFloat16),
        (WireType::Int8, WireType::Int8),
    ] {
        let own = OwnContribution {
            weight: 1.0,
            frozen: values(&pool, |_| 0.0),
            encoder: None,
        };
        let content = Bulk::Contribution(ContributionHeader {
            spec: plan.spec,
            weight: 1.0,
            wire,
        });
        let expected_header = Expected {
            wire: expected,
            unit_weights: true,
        };
        let gathered = gather(
            ME,
            Some(own),
            vec![arrived(content)],
            &expected_header,
            &BTreeMap::new(),
        );
        match gathered {
            Err(broken) => assert_eq!((broken, wire == expected), (Broken::Stream(OTHER), false)),
            Ok((sources, weight)) => assert_eq!((wire, sources.len(), weight), (expected, 2, 2.0)),
        }
    }
}

#[test]
fn a_weight_other_than_one_is_refused_where_nobody_gossips() {
    let plan = plan();
    for (weight, unit_weights, fits) in [
        (1.0, true, true),
        (1.5, true, false),
        (4096.0, true, false),
        (1.5, false, true),
    ] {
        let content = Bulk::Contribution(ContributionHeader {
            spec: plan.spec,
            weight,
            wire: WireType::Float32,
        });
        let expected = Expected {
            wire: WireType::Float32,
            unit_weights,
        };
        let gathered = gather(
            ME,
            None,
            vec![arrived(content)],
            &expected,
            &BTreeMap::new(),
        )
        .map(|(_, sum)| sum);
        let refused = Broken::Unsound(OTHER, Unsound::Weight(weight));
        assert_eq!(gathered.err(), (!fits).then_some(refused));
    }
}

#[tokio::test]
async fn an_owner_reads_of_others_what_it_reads_of_itself() {
    let plan = plan();
    let pool = Pool::new();
    let carried = carried(&pool, |index| 0.01 * index as f32);
    let coding = coding(&carried, &pool);
    let encoder = Encoder::new(
        coding.clone(),
        0.75,
        values(&pool, |index| 0.008 * index as f32 + (index % 7) as f32),
    );
    let mut scratch = coding.scratch();
    for range in plan
        .layout
        .shards()
        .flat_map(|shard| chunks(plan.layout.range(shard)))
    {
        let bytes = encoder.chunk(&range);
        assert_eq!(
            bytes,
            encoder.chunk(&range),
            "another attempt sends the same"
        );
        let mut own = vec![1.0; range.len()];
        let mut read = vec![1.0; range.len()];
        coding.own_difference(
            &encoder,
            &range,
            Sum {
                values: &mut own,
                first: false,
            },
        );
        let mut stream = Whole(bytes);
        coding
            .read_difference(
                &mut stream,
                &range,
                Sum {
                    values: &mut read,
                    first: false,
                },
                &mut scratch,
                CONTRIBUTION_MAX,
            )
            .await
            .unwrap();
        stream.expect_end().await.unwrap();
        assert_eq!(own, read);
        let plain = PARAMETERS.clamp(range.start, range.end)..range.end;
        for index in plain {
            assert_eq!(
                own[index - range.start],
                1.0 + 0.008 * index as f32 + (index % 7) as f32,
                "what follows the parameters is float32"
            );
        }
    }
}

#[tokio::test]
async fn an_update_is_what_its_owner_has_afterwards() {
    let plan = plan();
    let pool = Pool::new();
    let carried = carried(&pool, |index| 0.01 * index as f32);
    let coding = coding(&carried, &pool);
    for range in plan
        .layout
        .shards()
        .flat_map(|shard| chunks(plan.layout.range(shard)))
    {
        let mut chunk = pool.take(range.len());
        chunk
            .values_mut()
            .iter_mut()
            .enumerate()
            .for_each(|(index, value)| *value = (index % 13) as f32);
        let before = chunk.values().to_vec();
        let update = coding.update(&mut chunk, &range);
        let mut scratch = coding.scratch();
        let sent = update.bytes.clone();
        let (received, bytes) = coding
            .read_update(&mut Whole(update.bytes), &range, &mut scratch)
            .await
            .unwrap();
        assert_eq!(bytes, &sent[..], "what a relay passes on");
        assert_eq!(received.values(), chunk.values());
        for (index, dropped) in update.dropped.values().iter().enumerate() {
            assert!((before[index] - chunk.values()[index] - dropped).abs() < 1e-6);
        }
    }
}

#[tokio::test]
async fn an_owner_reads_of_a_sum_all_but_what_its_relay_keeps() {
    let plan = plan();
    let pool = Pool::new();
    let coding = coding(&carried(&pool, |index| 0.01 * index as f32), &pool);
    let mut scratch = coding.scratch();
    for range in plan
        .layout
        .shards()
        .flat_map(|shard| chunks(plan.layout.range(shard)))
    {
        // Of a magnitude that no single contribution may have.
        let unit = 0.01 * CONTRIBUTION_MAX;
        let mut summed = pool.take(range.len());
        let of = |offset: usize| unit * (110.0 + ((range.start + offset) % 17) as f32);
        (0..range.len()).for_each(|offset| summed.values_mut()[offset] = of(offset));
        let Update { bytes, dropped } = coding.sum(&summed, &range);
        let mut read = vec![0.0; range.len()];
        for (most, is_read) in [(CONTRIBUTION_MAX, false), (sum_max(2), true)] {
            let mut stream = Whole(bytes.clone());
            let sum = Sum {
                values: &mut read,
                first: true,
            };
            let result = coding
                .read_difference(&mut stream, &range, sum, &mut scratch, most)
                .await;
            assert_eq!(result.is_ok(), is_read);
        }
        for (offset, value) in read.iter().enumerate() {
            let kept = dropped.values().get(offset).copied().unwrap_or(0.0);
            let missing = (value + kept - of(offset)).abs();
            assert!(missing <= 1e-6 * of(offset), "{offset}: {missing}");
        }
    }
}

#[test]
fn a_residual_counts_once_the_round_is_decided_with_it() {
    let plan = plan();
    let pool = Pool::new();
    let mut carried = carried(&pool, |_| 0.0);
    let first = |range: std::ops::Range<usize>, coding: &Coding| {
        coding.owes(None, &range).values().to_vec()
    };
    let range = plan.layout.range(ShardId(0));
    let before = coding(&carried, &pool);
    let encoder = Encoder::new(
        before.clone(),
        1.0,
        values(&pool, |index| if index % 2 == 0 { 1.0 } else { 1e-3 }),
    );
    let _sent = encoder.chunk(&range);
    assert!(
        first(range.clone(), &coding(&carried, &pool))
            .iter()
            .all(|owed| *owed == 0.0),
        "the round is not decided"
    );
    let decided = {
        let mut decided = ChunkedBuffer::default();
        decided.insert(0, values(&pool, |_| 0.5));
        decided
    };
    // Decided without it: what was owed stays; then with it, but for the shard that this node
    // published.
    let none = ChunkedBuffer::default();
    carried.renew(&plan, &before, None, &[&none], &decided);
    assert!(
        first(range.clone(), &coding(&carried, &pool))
            .iter()
            .all(|owed| *owed == 0.0)
    );
    let mut part = ChunkedBuffer::default();
    let published = plan.layout.range(ShardId(1));
    let mut owed = pool.take(published.len());
    owed.values_mut().fill(7.0);
    part.insert(published.start, owed.freeze());
    carried.renew(&plan, &before, Some(&encoder), &[&none, &part], &decided);
    let now = coding(&carried, &pool);
    let owed = first(range.clone(), &now);
    assert!(owed[0].abs() < 1e-6 && owed[1].abs() > 5e-4, "{owed:?}");
    assert!(first(published, &now).iter().all(|owed| *owed == 7.0));
    assert!(
        !encoder.is_of(&now),
        "the next round encodes differences from what this one decided"
    );
    assert!(
        ErrorFeedback::default()
            .coding(WireType::Int8, PARAMETERS, &pool)
            .is_none(),
        "a node that has not joined has no reference"
    );
}
