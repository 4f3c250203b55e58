//! Messages without a network: what is read, and what is kept until it is answered.

use super::arithmetic::front;
use super::in_flight::InFlight;
use super::transfer::read;
use crate::buffers::{CHUNK_ELEMENTS, ChunkedBuffer, Pool};
use crate::data::{Arrived, Payload, ReadError};
use crate::testing::Whole;
use bytes::Bytes;
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::gossip_peer::Plan;
use slowmo_protocol::ident::{ClusterId, Epoch, Incarnation, Lineage, NodeId, Round, Step, Term};
use slowmo_protocol::machine::{Identity, Place};
use slowmo_protocol::push_sum::split;
use slowmo_protocol::sound::{GOSSIP_MAX, Unsound};
use slowmo_protocol::time::Instant;
use slowmo_protocol::wire::Bulk;
use std::sync::Arc;

fn place() -> Place {
    Place {
        lineage: Lineage(1),
        epoch: Epoch(1),
        round: Round(3),
        term: Term::default(),
        attempt: 0,
    }
}

fn assembled(pool: &Arc<Pool>, values: &[f32]) -> ChunkedBuffer {
    let mut buffer = pool.take(values.len());
    buffer.values_mut().copy_from_slice(values);
    let mut assembled = ChunkedBuffer::default();
    assembled.insert(0, buffer.freeze());
    assembled
}

fn flat(values: &ChunkedBuffer, elements: usize) -> Vec<f32> {
    let mut flat = vec![f32::NAN; elements];
    values.copy_to(0, &mut flat);
    flat
}

/// A message of these bytes, as it is read: half of it.
async fn received(
    wire: WireType,
    elements: usize,
    bytes: Vec<Bytes>,
) -> Result<Vec<f32>, ReadError> {
    let header = Identity {
        cluster: ClusterId(1),
        node: NodeId(2),
        incarnation: Incarnation(1),
    }
    .header(place());
    let content = Bulk::Gossip {
        step: Step(0),
        weight: 0.5,
        scale: 0.5,
        wire,
    };
    let arrived = Arrived {
        header,
        content,
        stream: Box::new(Whole(bytes.concat().into())),
    };
    read(&Pool::new(), arrived, elements, (wire, 0.5))
        .await
        .map(|values| flat(&values, elements))
}

/// Values that are encoded, as they travel.
fn encoded(wire: WireType, values: &[f32]) -> Vec<Bytes> {
    let mut bytes = vec![0; wire.encoded_bytes(values.len())];
    wire.encode_gossip(values, &mut vec![0.0; values.len()], 0.5, &mut bytes);
    vec![bytes.into()]
}

#[tokio::test]
async fn values_that_are_not_finite_are_not_read() {
    let elements = CHUNK_ELEMENTS + 700;
    for wire in [WireType::Float32, WireType::BFloat16, WireType::Int8] {
        let values: Vec<f32> = (0..elements).map(|index| (index % 5) as f32).collect();
        let halves: Vec<f32> = values.iter().map(|value| value / 2.0).collect();
        let found = received(wire, elements, encoded(wire, &values))
            .await
            .unwrap();
        assert!(
            found
                .iter()
                .zip(&halves)
                .all(|(found, half)| (found - half).abs() <= 0.01),
            "{wire:?}"
        );
        for (at, bad) in [
            (0, f32::NAN),
            (elements - 1, f32::INFINITY),
            (CHUNK_ELEMENTS, f32::NEG_INFINITY),
            (1, 1.1 * GOSSIP_MAX),
        ] {
            let mut values = values.clone();
            values[at] = bad;
            let found = received(wire, elements, encoded(wire, &values)).await;
            // Int8 has one scale a block: one value that is not finite makes the block so.
            let first = if wire == WireType::Int8 && !bad.is_finite() {
                at - at % 256
            } else {
                at
            };
            assert!(
                matches!(
                    found,
                    Err(ReadError::Unsound(Unsound::Value { element, .. })) if element == first
                ),
                "{wire:?}: {found:?}"
            );
        }
    }
    let mut overflows = [f32::MAX.to_le_bytes().to_vec(), vec![0, 127]].concat();
    overflows.resize(WireType::Int8.encoded_bytes(256), 0);
    assert!(matches!(
        received(WireType::Int8, 256, vec![overflows.into()]).await,
        Err(ReadError::Unsound(Unsound::Value { element: 1, .. }))
    ));
    assert!(matches!(
        received(WireType::Float32, 2, encoded(WireType::Float32, &[1.0])).await,
        Err(ReadError::Stream(_))
    ));
}

#[test]
fn a_message_comes_back_as_it_was_encoded_also_if_that_was_later() {
    let pool = Pool::new();
    let mut in_flight = InFlight::default();
    let plan = |step| Plan {
        step: Step(step),
        place: place(),
        out: vec![NodeId(2), NodeId(3)],
        split: split(1.0, 2),
    };
    let payload = Payload::awaited(WireType::Int8);
    in_flight.keep(&plan(7), payload.clone(), Instant(1));
    in_flight.depart(Step(7), Instant(5));
    assert_eq!(
        in_flight.under_way((NodeId(2), Step(7))),
        Some((0, Instant(5)))
    );
    let mut parts = in_flight.take_back(&[(NodeId(3), Step(7))]);
    assert!(
        in_flight.take_back(&[(NodeId(3), Step(7))]).is_empty(),
        "it comes back once"
    );
    parts.extend(in_flight.take_back(&[(NodeId(2), Step(7))]));
    assert_eq!(
        in_flight.under_way((NodeId(2), Step(7))),
        None,
        "nobody is to have it any more"
    );
    in_flight.depart(Step(7), Instant(6));
    let values = [1.0, -0.3, 0.7];
    let mut residual = ChunkedBuffer::default();
    payload.fill(assembled(&pool, &values), &mut residual, 2.0 / 3.0, &pool);
    let owed = flat(&residual, 3);
    for part in parts {
        let sent = flat(&part.values.into_values(&pool), 3);
        for ((value, sent), owed) in values.iter().zip(sent).zip(&owed) {
            assert!((2.0 * part.scale * (value - sent) - owed).abs() < 1e-7);
        }
    }
}

#[test]
fn what_follows_the_parameters_is_cut_off() {
    let pool = Pool::new();
    let mut values = assembled(&pool, &[0.0, 1.0, 2.0]);
    for start in [3, 6] {
        values.extend({
            let mut later = ChunkedBuffer::default();
            let piece = assembled(&pool, &[start as f32, 0.5, 0.25]);
            later.insert(start, piece.piece(0).unwrap().clone());
            later
        });
    }
    for (elements, pieces) in [(9, 3), (7, 3), (6, 2), (4, 2), (1, 1), (0, 0)] {
        let front = front(&pool, &values, elements);
        assert_eq!(
            front
                .pieces()
                .map(|(_, piece)| piece.values().len())
                .sum::<usize>(),
            elements
        );
        assert_eq!(
            (front.pieces().count(), flat(&front, elements)),
            (pieces, flat(&values, elements))
        );
    }
}
