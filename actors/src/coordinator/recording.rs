//! What a coordinator writes down of itself. Makes events; the shell says when, and somebody else's thread computes digests.

use super::Decision;
use super::shards::{ShardState, ShardStates};
use crate::buffers::{Assembled, VALUE_BYTES};
use crate::ports::recorder::Later;
use crate::worker::Basis;
use slowmo_protocol::coordinator::{Outcome, Plan};
use slowmo_protocol::ident::{Lineage, Round, ShardId};
use slowmo_protocol::trace::{Decided, Digest, Event, Held, Start, Votes};

/// Zeros, to digest a momentum that is zero and has no values.
const ZEROS: [u8; 4096] = [0; 4096];

/// A contribution to `round`, in history `lineage`.
pub fn contributed(start: Start, (lineage, round): (Lineage, Round), weight: f64, basis: Basis) -> Event {
    let Basis { after, samples } = basis;
    Event::Contributed { start, lineage, round, after, weight, values: Vec::new(), samples }
}

/// A decided outcome as this node applies it: what it was decided with, and what it brought.
pub struct Applied<'a> {
    /// This node.
    pub start: Start,
    /// The attempt that brought it.
    pub plan: &'a Plan,
    /// What was decided.
    pub outcome: &'a Outcome,
    /// How.
    pub decision: &'a Decision,
    /// The values that the round made.
    pub values: &'a Assembled,
    /// The shards that the node holds from now on.
    pub states: &'a ShardStates,
}

/// Values of a chunk, and chunks of a model, that a digest in brief is of.
const SAMPLED_VALUES: usize = 1024;
const SAMPLED_CHUNKS: usize = 16;

impl Applied<'_> {
    /// The event with a digest of a sample of the values, the same sample on every member, and nothing of the shards.
    pub fn in_brief(&self) -> Event {
        let (elements, mut digest) = (self.plan.layout.elements(), Digest::default());
        let step = (elements / SAMPLED_CHUNKS).max(SAMPLED_VALUES);
        for start in (0..elements).step_by(step) {
            let sample = SAMPLED_VALUES.min(elements - start);
            self.values.visit(start, sample, |_, values| digest.update(bytemuck::cast_slice(values)));
        }
        Event::Applied {
            start: self.start,
            decided: Box::new(self.decided()),
            digest: digest.finish(),
            values: Vec::new(),
            holds: Vec::new(),
            drained: self.decision.drained,
            votes: self.votes(),
        }
    }

    fn decided(&self) -> Decided {
        let members = self.decision.members.iter().map(|member| Start { node: member.id, incarnation: member.incarnation }).collect();
        Decided::new(self.outcome, self.decision.began_in, members, self.plan.participants.clone())
    }

    fn votes(&self) -> Option<Votes> {
        self.decision.votes.as_ref().map(Votes::from)
    }

    /// The event; shares the values and hashes them when it is made.
    pub fn event(&self) -> Later {
        let (start, decided, drained) = (self.start, Box::new(self.decided()), self.decision.drained);
        let votes = self.votes();
        let (values, states, elements) = (self.values.clone(), self.states.clone(), self.plan.layout.elements());
        let bytes = elements * VALUE_BYTES + states.bytes();
        let make = move || {
            let mut digest = Digest::default();
            values.visit(0, elements, |_, values| digest.update(bytemuck::cast_slice(values)));
            let holds = states.all().map(|(shard, state)| held(shard, state)).collect();
            Event::Applied { start, decided, digest: digest.finish(), values: Vec::new(), holds, drained, votes }
        };
        Later { bytes, make: Box::new(make) }
    }
}

fn held(shard: ShardId, state: &ShardState) -> Held {
    let mut digest = Digest::default();
    let anchor: usize = state.anchor.pieces().map(|(_, chunk)| update(&mut digest, chunk.values())).sum();
    let momentum: usize = state.momentum.pieces().map(|(_, chunk)| update(&mut digest, chunk.values())).sum();
    let mut zeros = anchor.saturating_sub(momentum) * VALUE_BYTES;
    while zeros > 0 {
        let part = zeros.min(ZEROS.len());
        digest.update(&ZEROS[..part]);
        zeros -= part;
    }
    Held { shard, digest: digest.finish(), anchor: Vec::new(), momentum: Vec::new() }
}

/// Takes values into a digest, and says how many.
fn update(digest: &mut Digest, values: &[f32]) -> usize {
    digest.update(bytemuck::cast_slice(values));
    values.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::Pool;

    fn assembled(pieces: &[(usize, &[f32])]) -> Assembled {
        let pool = Pool::new();
        let mut assembled = Assembled::default();
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
        let digest = |anchor: &Assembled, momentum: &Assembled| {
            let state = ShardState { anchor: anchor.clone(), momentum: momentum.clone() };
            held(ShardId(0), &state).digest
        };
        let zeros = assembled(&[(4, &[0.0, 0.0, 0.0])]);
        assert_eq!(digest(&whole, &Assembled::default()), digest(&cut, &zeros));
        assert_ne!(digest(&whole, &zeros), digest(&whole, &whole));
        assert_ne!(digest(&whole, &whole), digest(&assembled(&[(4, &[1.0, 2.0, 4.0])]), &whole));
    }
}
