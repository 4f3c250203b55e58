//! Makes the trace events of a coordinator. The actor shell decides when; digests are computed on
//! another thread.

use super::shards;
use crate::buffers::VALUE_BYTES;
use crate::data::{Basis, Buffers, ShardState};
use crate::ports::recorder::Later;
use slowmo_protocol::ident::{Lineage, Round, ShardId};
use slowmo_protocol::node::{Applied, Shards};
use slowmo_protocol::trace::{Digest, Event, Held, Start};

/// Zeros for the digest of a zero momentum, which is stored without values.
const ZEROS: [u8; 4096] = [0; 4096];

/// Event of a contribution to `round`, in history `lineage`.
pub fn contributed(
    start: Start,
    (lineage, round): (Lineage, Round),
    weight: f64,
    basis: &Basis,
) -> Event {
    let Basis { after, samples } = basis.clone();
    Event::Contributed {
        start,
        lineage,
        round,
        after,
        weight,
        values: Vec::new(),
        samples,
    }
}

/// Values per sampled chunk, and sampled chunks per model, for a brief digest.
const SAMPLED_VALUES: usize = 1024;
const SAMPLED_CHUNKS: usize = 16;

/// Event of a decided outcome with a digest of a sample of the values, the same sample on every
/// member, and without shards.
pub fn in_brief(start: Start, applied: &Applied<Buffers>) -> Event {
    let elements = applied.plan.layout.elements();
    let mut digest = Digest::default();
    let step = (elements / SAMPLED_CHUNKS).max(SAMPLED_VALUES);
    for first in (0..elements).step_by(step) {
        let sample = SAMPLED_VALUES.min(elements - first);
        applied.values.visit(first, sample, |_, values| {
            digest.update(bytemuck::cast_slice(values))
        });
    }
    applied.event(start, digest.finish(), Vec::new(), Vec::new())
}

/// Event of a decided outcome; shares the values and the state of shards, and hashes them when it
/// is made.
pub fn in_full(start: Start, applied: &Applied<Buffers>, shards: &Shards<Buffers>) -> Later {
    let mut event = applied.event(start, 0, Vec::new(), Vec::new());
    let values = applied.values.clone();
    let elements = applied.plan.layout.elements();
    let states: Vec<(ShardId, ShardState)> = shards
        .all()
        .map(|(shard, state)| (shard, state.clone()))
        .collect();
    let bytes = elements * VALUE_BYTES + shards::bytes(&states);
    let make = move || {
        if let Event::Applied { digest, holds, .. } = &mut event {
            let mut of = Digest::default();
            values.visit(0, elements, |_, values| {
                of.update(bytemuck::cast_slice(values))
            });
            *digest = of.finish();
            *holds = states
                .iter()
                .map(|(shard, state)| held(*shard, state))
                .collect();
        }
        event
    };
    Later {
        bytes,
        make: Box::new(make),
    }
}

fn held(shard: ShardId, state: &ShardState) -> Held {
    let mut digest = Digest::default();
    let anchor: usize = state
        .anchor
        .pieces()
        .map(|(_, chunk)| update(&mut digest, chunk.values()))
        .sum();
    let momentum: usize = state
        .momentum
        .pieces()
        .map(|(_, chunk)| update(&mut digest, chunk.values()))
        .sum();
    let mut zeros = anchor.saturating_sub(momentum) * VALUE_BYTES;
    while zeros > 0 {
        let part = zeros.min(ZEROS.len());
        digest.update(&ZEROS[..part]);
        zeros -= part;
    }
    Held {
        shard,
        digest: digest.finish(),
        anchor: Vec::new(),
        momentum: Vec::new(),
    }
}

/// Adds values to a digest, and returns their number.
fn update(digest: &mut Digest, values: &[f32]) -> usize {
    digest.update(bytemuck::cast_slice(values));
    values.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::{ChunkedBuffer, Pool};

    fn assembled(pieces: &[(usize, &[f32])]) -> ChunkedBuffer {
        let pool = Pool::new();
        let mut assembled = ChunkedBuffer::default();
        for (start, values) in pieces {
            let mut buffer = pool.take(values.len());
            buffer.values_mut().copy_from_slice(values);
            assembled.insert(*start, buffer.freeze());
        }
        assembled
    }

    #[test]
    fn holders_agree_however_their_values_are_cut_and_whether_zeros_are_written_out() {
        let whole = assembled(&[(4, &[1.0, 2.0, 3.0])]);
        let cut = assembled(&[(4, &[1.0]), (5, &[2.0, 3.0])]);
        let digest = |anchor: &ChunkedBuffer, momentum: &ChunkedBuffer| {
            let state = ShardState {
                anchor: anchor.clone(),
                momentum: momentum.clone(),
            };
            held(ShardId(0), &state).digest
        };
        let zeros = assembled(&[(4, &[0.0, 0.0, 0.0])]);
        assert_eq!(
            digest(&whole, &ChunkedBuffer::default()),
            digest(&cut, &zeros)
        );
        assert_ne!(digest(&whole, &zeros), digest(&whole, &whole));
        assert_ne!(
            digest(&whole, &whole),
            digest(&assembled(&[(4, &[1.0, 2.0, 4.0])]), &whole)
        );
    }
}
