//! Error bounds, and that nothing is ever lost: everything against sums in float64.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::mean;
use proptest::prelude::*;

const ROUNDED: [WireType; 2] = [WireType::BFloat16, WireType::Int8];
const ALL: [WireType; 3] = [WireType::Float32, WireType::BFloat16, WireType::Int8];

/// Encodes without a residual; returns the bytes and what they decode to, which must be what the
/// encoder says.
fn trip(wire: WireType, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = vec![0xaa; wire.encoded_bytes(values.len())];
    let mut said = values.to_vec();
    wire.encode_in_place(&mut said, &mut bytes);
    let mut decoded = vec![7.0; values.len()];
    wire.decode(&bytes, &mut decoded);
    let bits = |values: &[f32]| {
        values
            .iter()
            .map(|value| value.to_bits())
            .collect::<Vec<_>>()
    };
    assert!(
        bits(&said) == bits(&decoded) || said.iter().any(|value| value.is_nan()),
        "the encoder knows what the receiver sees"
    );
    (bytes, decoded)
}

/// The largest error that rounding may make in each value.
fn bounds(wire: WireType, values: &[f32]) -> Vec<f64> {
    let largest = |block: &[f32]| {
        block
            .iter()
            .fold(0.0f64, |largest, value| largest.max(f64::from(value.abs())))
    };
    match wire {
        WireType::Float32 => vec![0.0; values.len()],
        // A finite value beyond the largest bfloat16 is at most 2^-8 of itself larger.
        WireType::BFloat16 => values
            .iter()
            .map(|value| f64::from(value.abs()) / 256.0 + 1e-40)
            .collect(),
        WireType::Int8 => values
            .chunks(BLOCK_ELEMENTS)
            .flat_map(|block| {
                vec![
                    (largest(block) / 127.0).max(f64::from(f32::MIN_POSITIVE)) * 0.501;
                    block.len()
                ]
            })
            .collect(),
    }
}

/// Any finite value: all magnitudes, many of them extreme.
fn finite() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => any::<f32>().prop_filter("finite", |value| value.is_finite()),
        4 => -1.0f32..1.0,
        1 => Just(0.0f32),
        1 => prop_oneof![
            Just(f32::MAX),
            Just(f32::MIN),
            Just(f32::MIN_POSITIVE),
            Just(1e-45),
            Just(-3.4e38)
        ],
    ]
}

/// Values as a model has them: no overflow in sums.
fn moderate(length: usize) -> impl Strategy<Value = Vec<f32>> {
    (prop::collection::vec(-1.0f32..1.0, length), -20i32..20).prop_map(|(values, exponent)| {
        let scale = (exponent as f32).exp2();
        values.into_iter().map(|value| value * scale).collect()
    })
}

proptest! {
    #[test]
    fn errors_are_bounded_at_every_length(values in prop::collection::vec(finite(), 0..600)) {
        for wire in ALL {
            let (_, decoded) = trip(wire, &values);
            let pairs = values.iter().zip(&decoded);
            for ((value, decoded), bound) in pairs.zip(bounds(wire, &values)) {
                let error = (f64::from(*value) - f64::from(*decoded)).abs();
                prop_assert!(
                    decoded.is_finite() && error <= bound,
                    "{wire:?}: {value:e} became {decoded:e}, {error:e} > {bound:e}"
                );
            }
        }
    }

    #[test]
    fn what_came_out_goes_in_again_as_the_same_bytes(
        values in prop::collection::vec(finite(), 0..600)
    ) {
        for wire in ALL {
            let (bytes, decoded) = trip(wire, &values);
            let (again, same) = trip(wire, &decoded);
            prop_assert_eq!(same, decoded);
            prop_assert_eq!(again, bytes, "{:?}", wire);
        }
    }

    #[test]
    fn blocks_do_not_know_of_each_other(
        values in prop::collection::vec(finite(), 0..600),
        tail in finite()
    ) {
        let (whole, _) = trip(WireType::Int8, &values);
        for (block, bytes) in values.chunks(BLOCK_ELEMENTS).zip(whole.chunks(Int8::BLOCK_BYTES)) {
            prop_assert_eq!(trip(WireType::Int8, block).0, bytes);
        }
        let mut longer = values.clone();
        longer.resize(values.len().next_multiple_of(BLOCK_ELEMENTS), 0.0);
        longer.push(tail);
        let full = values.len() / BLOCK_ELEMENTS * Int8::BLOCK_BYTES;
        prop_assert_eq!(&trip(WireType::Int8, &longer).0[..full], &whole[..full]);
    }

    #[test]
    fn mixing_is_decoding_and_mixing(
        values in moderate(300),
        before in moderate(300),
        scale in 0.0f32..1.0
    ) {
        for wire in ALL {
            let (bytes, decoded) = trip(wire, &values);
            let mut one = before.clone();
            let mut other = before.clone();
            wire.mix(&bytes, scale, &mut one);
            mean::mix(&mut other, &decoded, scale);
            prop_assert_eq!(one, other);
        }
    }

    #[test]
    fn a_gossip_loses_nothing(
        start in moderate(300),
        moves in moderate(300),
        degree in 1u32..4,
        steps in 1usize..60
    ) {
        let factor = degree as f32 / (degree + 1) as f32;
        for wire in ROUNDED {
            let mut numerators = start.clone();
            let mut residual = vec![0.0; 300];
            let mut given = vec![0.0f64; 300];
            let mut sent = vec![0.0f64; 300];
            for _ in 0..steps {
                let decoded = gossip(wire, &numerators, &mut residual, factor);
                for i in 0..300 {
                    given[i] += f64::from(factor) * f64::from(numerators[i]);
                    sent[i] += f64::from(factor) * f64::from(decoded[i]);
                    numerators[i] += moves[i];
                }
            }
            // What an element owes is as large as its block's largest value makes it.
            let magnitude = (0..300).fold(0.0f32, |most, i| {
                most.max(start[i].abs() + steps as f32 * moves[i].abs())
            });
            for i in 0..300 {
                let lost = (given[i] - sent[i] - f64::from(residual[i])).abs();
                prop_assert!(
                    lost <= steps as f64 * f64::from(magnitude) * 1e-7 + 1e-12,
                    "{wire:?}: {lost:e} of {magnitude:e}"
                );
            }
        }
    }

    #[test]
    fn a_contribution_and_its_residual_are_what_was_given(
        values in moderate(300),
        reference in moderate(300),
        owed in moderate(300),
        weight in 0.3f64..2.0,
    ) {
        for wire in ALL {
            let mut bytes = vec![0; wire.encoded_bytes(300)];
            let mut next = vec![9.0; 300];
            let mut decoded = vec![0.0; 300];
            let contribution = EncoderInput {
                values: &values,
                weight,
                reference: &reference,
                residual: Some(&owed),
            };
            wire.encode_contribution(contribution, &mut bytes, &mut next);
            wire.decode(&bytes, &mut decoded);
            let wanted: Vec<f32> =
                (0..300).map(|i| values[i] - weight as f32 * reference[i] + owed[i]).collect();
            for ((i, wanted), bound) in wanted.iter().enumerate().zip(bounds(wire, &wanted)) {
                let lost = f64::from(decoded[i]) + f64::from(next[i]) - f64::from(*wanted);
                prop_assert!(
                    lost.abs() < f64::from(f32::MIN_POSITIVE),
                    "{wire:?}: rounding is exact"
                );
                prop_assert!(f64::from(next[i].abs()) <= bound);
            }
        }
    }

    #[test]
    fn publishing_says_what_it_dropped(values in moderate(300), reference in moderate(300)) {
        for wire in ALL {
            let mut bytes = vec![0; wire.encoded_bytes(300)];
            let mut published = values.clone();
            let mut dropped = vec![9.0; 300];
            let mut received = reference.clone();
            wire.encode_publication(&mut published, &reference, &mut bytes, &mut dropped);
            wire.mix(&bytes, 1.0, &mut received);
            prop_assert_eq!(&received, &published, "sender and receivers hold the same bits");
            for i in 0..300 {
                let lost = f64::from(values[i]) - f64::from(published[i]) - f64::from(dropped[i]);
                prop_assert!(lost.abs() <= f64::from(values[i].abs() + reference[i].abs()) * 1e-7);
            }
        }
    }
}

fn gossip(wire: WireType, numerators: &[f32], residual: &mut [f32], factor: f32) -> Vec<f32> {
    let mut bytes = vec![0; wire.encoded_bytes(numerators.len())];
    let mut decoded = vec![0.0; numerators.len()];
    wire.encode_gossip(numerators, residual, factor, &mut bytes);
    wire.decode(&bytes, &mut decoded);
    decoded
}

#[test]
fn sizes() {
    for (wire, sizes) in [
        (WireType::Float32, [0, 4, 1_024, 1_028, 262_144]),
        (WireType::BFloat16, [0, 2, 512, 514, 131_072]),
        (WireType::Int8, [0, 5, 260, 265, 66_560]),
    ] {
        assert_eq!(
            [0, 1, 256, 257, 65_536].map(|elements| wire.encoded_bytes(elements)),
            sizes
        );
    }
}

#[test]
fn bytes_by_hand() {
    assert_eq!(
        trip(WireType::Float32, &[1.0, -2.0]).0,
        [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]
    );
    // 1 + 2^-8 lies in the middle: to even, which is 1; 1 + 3·2^-8 too: to even, which is 1 + 2^-6.
    let middle = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -0.0, f32::MAX];
    assert_eq!(
        trip(WireType::BFloat16, &middle).0,
        [0x80, 0x3f, 0x82, 0x3f, 0x00, 0x80, 0x7f, 0x7f]
    );
    // Scale 2; halves to even.
    let (bytes, decoded) = trip(WireType::Int8, &[254.0, -254.0, 5.0, 7.0, 0.5, 0.0]);
    assert_eq!(bytes, [0, 0, 0, 0x40, 127, 129, 2, 4, 0, 0]);
    assert_eq!(decoded, [254.0, -254.0, 4.0, 8.0, 0.0, 0.0]);
}

#[test]
fn zeros_stay_zeros_and_tiny_values_stay_in_the_residual() {
    for wire in ROUNDED {
        assert_eq!(trip(wire, &[0.0; 300]).1, [0.0; 300]);
        let tiny = 1_001.3 * f32::MIN_POSITIVE;
        let numerators = [tiny; 300];
        let mut residual = [0.0; 300];
        let sent: f64 = (0..400)
            .map(|_| f64::from(gossip(wire, &numerators, &mut residual, 1.0)[0]))
            .sum();
        let lost = (400.0 * f64::from(tiny) - sent - f64::from(residual[0])).abs();
        assert!(
            lost < 400.0 * f64::from(f32::MIN_POSITIVE),
            "{wire:?}: {lost:e}"
        );
    }
}

#[test]
fn what_a_parameter_owes_that_does_not_move_ends_at_zero() {
    for wire in ROUNDED {
        let mut owed: Vec<f32> = (0..300)
            .map(|index| 1e-3 * (index as f32 - 150.0))
            .collect();
        for _ in 0..40 {
            let mut bytes = vec![0; wire.encoded_bytes(300)];
            let before = owed.clone();
            let contribution = EncoderInput {
                values: &[0.5; 300],
                weight: 1.0,
                reference: &[0.5; 300],
                residual: Some(&before),
            };
            wire.encode_contribution(contribution, &mut bytes, &mut owed);
            assert!(
                owed.iter().all(|owed| !owed.is_subnormal()),
                "numbers that processors are slow with"
            );
        }
        assert_eq!(owed, [0.0; 300], "{wire:?}");
    }
}

#[test]
fn what_is_not_finite_is_seen_as_such() {
    for wrong in [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::from_bits(0x7f80_0001),
        f32::from_bits(0xffff_ffff),
    ] {
        for wire in ALL {
            let mut values = [0.25; 300];
            values[270] = wrong;
            let (_, decoded) = trip(wire, &values);
            assert!(
                !decoded[270].is_finite(),
                "{wire:?}: {wrong} became {}",
                decoded[270]
            );
            assert!(
                decoded[..256]
                    .iter()
                    .all(|value| (value - 0.25).abs() < 1e-3),
                "{wire:?}: the other block is left alone"
            );
            gossip(wire, &values, &mut [0.0; 300], 0.5);
        }
    }
}

#[test]
fn what_is_owed_stays_finite_at_the_end_of_the_range() {
    for wire in [WireType::BFloat16, WireType::Int8] {
        let mut owed = vec![2e38; 3];
        let sent = gossip(wire, &[3e38, -3e38, 1.0], &mut owed, 0.5);
        assert!(
            sent.iter().all(|sent| sent.is_finite()),
            "{wire:?}: {sent:?}"
        );
        assert!(
            owed.iter().all(|owed| owed.is_finite()),
            "{wire:?}: {owed:?}"
        );
        let before = owed.clone();
        gossip(
            wire,
            &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY],
            &mut owed,
            0.5,
        );
        assert_eq!(owed, before, "{wire:?}");
    }
}

#[test]
fn a_thousand_steps_do_not_drift() {
    for wire in ROUNDED {
        // Steps of a thousandth beside a value of one: both types round them away in every single
        // message.
        let mut numerators = [1.0f32, 0.5, -0.25, 1e-3];
        let mut residual = [0.0; 4];
        let mut owed = [0.0f64; 4];
        let mut worst = [0.0f64; 2];
        for step in 0..1_000 {
            let decoded = gossip(wire, &numerators, &mut residual, 0.5);
            for i in 0..4 {
                owed[i] += 0.5 * (f64::from(numerators[i]) - f64::from(decoded[i]));
                worst[usize::from(step >= 500)] =
                    worst[usize::from(step >= 500)].max(owed[i].abs());
                numerators[i] += 1e-6 * (i as f32 + 1.0);
            }
        }
        let step = if wire == WireType::Int8 {
            1.0 / 127.0
        } else {
            1.0 / 128.0
        };
        assert!(
            worst[0] <= 0.51 * step && worst[1] <= worst[0] * 1.1,
            "{wire:?}: {worst:?}"
        );
    }
}

#[test]
fn a_token_message_pays_the_residual_of_a_large_one() {
    for wire in ROUNDED {
        let numerators = [1.0f32, 0.3, 0.017];
        let mut residual = [0.0f32; 3];
        gossip(wire, &numerators, &mut residual, 0.5);
        let before = residual;
        let factor = 1.0 / 65_536.0;
        let decoded = gossip(wire, &numerators, &mut residual, factor);
        for i in 0..3 {
            let paid = factor * (decoded[i] - numerators[i]);
            assert!((before[i] - paid - residual[i]).abs() < 1e-8, "{wire:?}");
            assert!(
                residual[i].abs() <= before[i].abs().max(factor),
                "{wire:?}: {} after {}",
                residual[i],
                before[i]
            );
        }
    }
}

#[test]
fn updates_below_a_step_add_up_over_contributions() {
    for wire in ROUNDED {
        let reference = [0.0f32; 2];
        let mut residual = None::<Vec<f32>>;
        let mut sum = [0.0f64; 2];
        for _ in 0..1_000 {
            // Beside a hundred, one in a thousand is below a step of either type.
            let values = [100.0f32, 0.1];
            let mut bytes = vec![0; wire.encoded_bytes(2)];
            let mut next = vec![0.0; 2];
            let mut decoded = [0.0; 2];
            let contribution = EncoderInput {
                values: &values,
                weight: 1.0,
                reference: &reference,
                residual: residual.as_deref(),
            };
            wire.encode_contribution(contribution, &mut bytes, &mut next);
            wire.decode(&bytes, &mut decoded);
            residual = Some(next);
            (0..2).for_each(|i| sum[i] += f64::from(decoded[i]));
        }
        assert!((sum[1] - 100.0).abs() < 0.5, "{wire:?}: {sum:?}");
    }
}

#[test]
fn lengths_that_do_not_match_are_no_panic() {
    for wire in ALL {
        for (values, bytes) in [(300, 0), (300, 3), (300, 300), (0, 10), (600, 261)] {
            let mut bytes = vec![0; bytes];
            let mut floats = vec![1.0; values];
            wire.encode_gossip(&floats.clone(), &mut [0.0; 7], 0.5, &mut bytes);
            let contribution = EncoderInput {
                values: &floats.clone(),
                weight: 1.0,
                reference: &[0.0; 9],
                residual: Some(&[0.0; 2]),
            };
            wire.encode_contribution(contribution, &mut bytes, &mut [0.0; 20]);
            wire.encode_publication(&mut floats, &[0.0; 5], &mut bytes, &mut [0.0; 3]);
            wire.encode_in_place(&mut floats, &mut bytes);
            wire.decode(&bytes, &mut floats);
            wire.mix(&bytes, 0.5, &mut floats);
        }
    }
}

#[test]
fn bytes_beyond_a_bound_are_found_without_decoding_them() {
    for wire in [WireType::Float32, WireType::BFloat16, WireType::Int8] {
        let values: Vec<f32> = (0..700).map(|index| (index % 13) as f32 - 6.0).collect();
        let encoded = |values: &[f32]| {
            let mut bytes = vec![0; wire.encoded_bytes(values.len())];
            wire.encode_in_place(&mut values.to_vec(), &mut bytes);
            bytes
        };
        assert_eq!(wire.first_beyond(&encoded(&values), 6.1), None, "{wire:?}");
        assert_eq!(wire.first_beyond(&[], 1.0), None, "{wire:?}");
        for (at, wrong) in [
            (0, f32::NAN),
            (513, f32::INFINITY),
            (699, f32::NEG_INFINITY),
            (300, 1e30),
        ] {
            let mut values = values.clone();
            values[at] = wrong;
            let (found, value) = wire.first_beyond(&encoded(&values), 1e20).unwrap();
            let expected = if wire == WireType::Int8 {
                at - at % BLOCK_ELEMENTS
            } else {
                at
            };
            assert_eq!(found, expected, "{wire:?}");
            assert!(value.is_nan() || value.abs() > 1e20, "{wire:?}: {value}");
        }
    }
}
