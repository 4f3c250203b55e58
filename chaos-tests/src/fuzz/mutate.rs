//! A small seeded mutator, so that a run without libFuzzer still goes beyond the corpus: the same
//! seed gives the same inputs.

use crate::random::Random;

/// Numbers at which lengths and counters tend to fail.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
/// Longest input that is generated, in bytes.
const BYTES_MAX: usize = 1 << 16;

/// A new input, made of `data` and parts of `other` by one to four changes.
#[must_use]
pub fn mutate(random: &mut Random, data: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    for _ in 0..=random.below(4) {
        change(random, &mut bytes, other);
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    match random.below(8) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.below(256) as u8;
            }
        }
        2 => bytes.truncate(at),
        3 => {
            let until = at + random.below((bytes.len() - at) as u64 + 1) as usize;
            bytes.drain(at..until);
        }
        4 => {
            // Replaces a length or counter of a size that is in use by an edge value.
            let edge = EDGES[random.below(EDGES.len() as u64) as usize].to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4) as usize];
            bytes
                .iter_mut()
                .skip(at)
                .zip(&edge[..width])
                .for_each(|(byte, edge)| *byte = *edge);
        }
        5 => {
            let inserted = (0..1 + random.below(16))
                .map(|_| random.below(256) as u8)
                .collect::<Vec<_>>();
            bytes.splice(at..at, inserted);
        }
        6 => {
            // The rest comes from the other input.
            let from = random.below(other.len() as u64 + 1) as usize;
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => {
            // Repeats a part.
            let until = at + random.below((bytes.len() - at) as u64 + 1) as usize;
            let part = bytes[at..until].to_vec();
            bytes.splice(at..at, part);
        }
    }
}
