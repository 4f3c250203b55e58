//! How fast values are encoded and decoded, in bytes of float32 that pass. Chunk by chunk, as
//! rounds and gossip do it. Touches memory only. Under `cargo test` it does nothing.

use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::encoding::EncoderInput;
use std::hint::black_box;
use std::time::Instant;

const CHUNK: usize = 65_536;
const CHUNKS: usize = 64;
const REPETITIONS: usize = 15;

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let values: Vec<f32> = (0..CHUNK)
        .map(|i| ((i * 7_919) % 1_000) as f32 * 1e-3 - 0.5)
        .collect();
    let mut copy = vec![0.0; CHUNK];
    best("copy", || {
        black_box(&mut copy).copy_from_slice(black_box(&values))
    });
    for wire in [WireType::Float32, WireType::BFloat16, WireType::Int8] {
        each(wire, &values);
    }
}

fn each(wire: WireType, values: &[f32]) {
    let mut bytes = vec![0; wire.encoded_bytes(CHUNK)];
    let mut residual = vec![0.0; CHUNK];
    let mut target = vec![0.0; CHUNK];
    let reference = vec![0.1; CHUNK];
    best(&format!("{wire:?} encode gossip"), || {
        wire.encode_gossip(black_box(values), &mut residual, 0.5, black_box(&mut bytes))
    });
    best(&format!("{wire:?} encode contribution"), || {
        let contribution = EncoderInput {
            values,
            weight: 1.0,
            reference: &reference,
            residual: Some(&residual),
        };
        wire.encode_contribution(black_box(contribution), &mut bytes, &mut target);
    });
    target.copy_from_slice(values);
    let mut dropped = vec![0.0; CHUNK];
    best(&format!("{wire:?} encode publication"), || {
        wire.encode_publication(
            black_box(&mut target),
            &reference,
            black_box(&mut bytes),
            &mut dropped,
        );
    });
    best(&format!("{wire:?} encode in place"), || {
        wire.encode_in_place(black_box(&mut target), black_box(&mut bytes))
    });
    best(&format!("{wire:?} decode"), || {
        wire.decode(black_box(&bytes), black_box(&mut target))
    });
    best(&format!("{wire:?} mix"), || {
        wire.mix(black_box(&bytes), 0.5, black_box(&mut target))
    });
}

fn best(what: &str, mut run: impl FnMut()) {
    let once = |_| {
        let start = Instant::now();
        (0..CHUNKS).for_each(|_| run());
        start.elapsed().as_secs_f64()
    };
    let seconds = (0..REPETITIONS).map(once).fold(f64::MAX, f64::min);
    println!(
        "{what}: {:.1} GB/s",
        (CHUNKS * CHUNK) as f64 * 4e-9 / seconds
    );
}
