//! Encoding of a round's parameters if they do not travel as float32 (`round_wire`): they travel as
//! differences from the values that the previous round decided (the *reference*), which every
//! member holds. A node keeps its rounding error as a residual and adds it to its next
//! contribution; an owner adds the rounding error of what it publishes to its own residual, and a
//! relay that of the sums which it sends to other groups. A node's own shards are encoded too, so
//! within a group the sum does not depend on which node owns what, and all members end with the
//! same bits ([`slowmo_protocol::encoding`]).
//!
//! The bootstrap, joiners, moved state, buffers and gradients travel as float32. A node that leaves
//! or dies takes its residual with it: at most half a step of the wire type for each message that
//! it rounded in a round. docs/memory.md says how much memory reference and residual take.

use super::received::{ReadError, check, unsound};
use crate::buffers::{Buffer, CHUNK_ELEMENTS, ChunkedBuffer, Frozen, Pool, VALUE_BYTES, chunks};
use crate::ports::transport::{BulkError, BulkReceiver};
use bytes::Bytes;
use parking_lot::Mutex;
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::coordinator::{Plan, RoundKind};
use slowmo_protocol::encoding::EncoderInput;
use slowmo_protocol::mean;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Whether the parameters of a round may be encoded in fewer bytes. The bootstrap round may not,
/// because it has no reference; gradients may not, because they are no parameters.
pub fn is_encoded(kind: RoundKind, wire: WireType) -> bool {
    wire != WireType::Float32 && matches!(kind, RoundKind::Average | RoundKind::Slow)
}

/// State that a node carries from one round to the next: the reference and its residual.
#[derive(Debug, Default)]
pub struct ErrorFeedback {
    reference: Arc<ChunkedBuffer>,
    residual: Arc<ChunkedBuffer>,
}

/// Encoding of one round's values: parameters as differences from the reference, the values after
/// them as float32.
#[derive(Clone, Debug)]
pub struct Coding {
    /// Wire type of the parameters.
    pub wire: WireType,
    parameters: usize,
    reference: Arc<ChunkedBuffer>,
    residual: Arc<ChunkedBuffer>,
    pool: Arc<Pool>,
}

/// This node's encoded contribution to a round; the same bytes and the same residual for every
/// attempt.
#[derive(Debug)]
pub struct Encoder {
    coding: Coding,
    weight: f64,
    frozen: Frozen,
    /// Residual of each chunk if the round is decided with this contribution, by the chunk's first
    /// element.
    owed: Mutex<BTreeMap<usize, Frozen>>,
}

/// An encoded chunk: of new parameters, or of a group's sum.
pub struct Update {
    /// The bytes that travel.
    pub bytes: Bytes,
    /// Rounding error: the parameters minus their decoded values.
    pub dropped: Buffer,
}

impl ErrorFeedback {
    /// Encoding of a round of `parameters` parameters; `None` if the reference for it is missing.
    #[must_use]
    pub fn coding(&self, wire: WireType, parameters: usize, pool: &Arc<Pool>) -> Option<Coding> {
        let reference = Arc::clone(&self.reference);
        let residual = Arc::clone(&self.residual);
        let pool = Arc::clone(pool);
        self.reference.covers(parameters).then_some(Coding {
            wire,
            parameters,
            reference,
            residual,
            pool,
        })
    }

    /// A node that got its model by bootstrapping or joining has no residual.
    pub fn begin(&mut self, values: &ChunkedBuffer) {
        *self = Self {
            reference: Arc::new(values.clone()),
            residual: Arc::default(),
        };
    }

    /// Takes over the decided round that travelled as `coding`. `own` is this node's contribution
    /// if it counts; its encoder has the residual of all shards but those of `parts`, which this
    /// node summed up, as their owner or as a relay.
    pub fn renew(
        &mut self,
        plan: &Plan,
        coding: &Coding,
        own: Option<&Encoder>,
        parts: &[&ChunkedBuffer],
        values: &ChunkedBuffer,
    ) {
        let mut residual = ChunkedBuffer::default();
        for range in plan
            .layout
            .shards()
            .flat_map(|shard| chunks(plan.layout.range(shard)))
        {
            let parameters = coding.parameters_of(&range);
            if !parameters.is_empty() {
                let owed = parts
                    .iter()
                    .find_map(|part| part.piece(range.start).cloned());
                residual.insert(
                    range.start,
                    owed.unwrap_or_else(|| coding.owes(own, &range)),
                );
            }
        }
        *self = Self {
            reference: Arc::new(values.clone()),
            residual: Arc::new(residual),
        };
    }
}

impl Coding {
    /// The elements of `range` that are parameters.
    #[must_use]
    pub fn parameters_of(&self, range: &Range<usize>) -> Range<usize> {
        range.start.min(self.parameters)..range.end.min(self.parameters)
    }

    /// Encoded bytes of the parameters of a chunk.
    fn encoded_bytes(&self, range: &Range<usize>) -> usize {
        self.wire.encoded_bytes(self.parameters_of(range).len())
    }

    /// The values that the previous round decided for the parameters of a chunk.
    #[must_use]
    pub fn reference(&self, range: &Range<usize>) -> Cow<'_, [f32]> {
        gathered(&self.reference, self.parameters_of(range))
    }

    /// Scratch space for the encoded parameters of any chunk.
    #[must_use]
    pub fn scratch(&self) -> Vec<u8> {
        vec![0; self.wire.encoded_bytes(CHUNK_ELEMENTS.min(self.parameters))]
    }

    /// This node's residual for a chunk, without the rounding errors of its own publication and of
    /// the sums that it sends.
    #[must_use]
    pub fn owes(&self, own: Option<&Encoder>, range: &Range<usize>) -> Frozen {
        own.map_or_else(|| self.owed_before(range), |own| own.owes(range))
    }

    /// The residual from before this round: a contribution that does not count changes nothing.
    fn owed_before(&self, range: &Range<usize>) -> Frozen {
        let parameters = self.parameters_of(range);
        let whole = self
            .residual
            .piece(range.start)
            .filter(|piece| piece.values().len() == parameters.len());
        whole.cloned().unwrap_or_else(|| {
            let mut owed = self.pool.zeros(parameters.len());
            self.residual.copy_to(parameters.start, owed.values_mut());
            owed.freeze()
        })
    }

    /// Reads the chunk `range` of a contribution, or of a group's sum, and either stores it in
    /// `sum` or adds it. No correct node sends values of a magnitude above `most`.
    ///
    /// # Errors
    /// The stream broke, or no correct node sends such values.
    pub async fn read_difference(
        &self,
        stream: &mut dyn BulkReceiver,
        range: &Range<usize>,
        sum: Sum<'_>,
        scratch: &mut [u8],
        most: f32,
    ) -> Result<(), ReadError> {
        let parameters = self.parameters_of(range).len();
        let encoded = &mut scratch[..self.encoded_bytes(range)];
        stream.read_exact(encoded).await?;
        if let Some((index, value)) = self.wire.first_beyond(encoded, most) {
            return Err(unsound(range.start + index, value));
        }
        self.decode(encoded, &mut sum.values[..parameters], sum.first);
        if parameters < range.len() {
            let mut plain = self.pool.take(range.len() - parameters);
            stream.read_exact(plain.bytes_mut()).await?;
            check(plain.values(), range.start + parameters, most)?;
            sum_up(&mut sum.values[parameters..], plain.values(), sum.first);
        }
        Ok(())
    }

    /// Like [`Coding::read_difference`], for this node's own contribution.
    pub fn own_difference(&self, own: &Encoder, range: &Range<usize>, sum: Sum<'_>) {
        let parameters = self.parameters_of(range).len();
        self.decode(&own.chunk(range), &mut sum.values[..parameters], sum.first);
        sum_up(
            &mut sum.values[parameters..],
            &own.frozen.values()[range.start + parameters..range.end],
            sum.first,
        );
    }

    fn decode(&self, bytes: &[u8], target: &mut [f32], first: bool) {
        if first {
            self.wire.decode(bytes, target);
        } else {
            self.wire.mix(bytes, 1.0, target);
        }
    }

    /// Encodes a group's sum of the differences of a chunk. What rounding drops has the unit of a
    /// contribution, `Σ w (x − o)`, so it can be added to a residual as it is.
    #[must_use]
    pub fn sum(&self, chunk: &Buffer, range: &Range<usize>) -> Update {
        let parameters = self.parameters_of(range).len();
        let mut dropped = self.pool.zeros(parameters);
        let (sum, plain) = chunk.values().split_at(parameters);
        // The encoding of a gossip message whose share is 1, with a residual of zeros: it rounds the
        // sum itself and leaves in the residual what it dropped.
        let bytes = self.assemble(range, plain, |encoded| {
            self.wire
                .encode_gossip(sum, dropped.values_mut(), 1.0, encoded);
        });
        Update { bytes, dropped }
    }

    /// Encodes the new values of a chunk; its parameters become the values that every member will
    /// have.
    #[must_use]
    pub fn update(&self, chunk: &mut Buffer, range: &Range<usize>) -> Update {
        let parameters = self.parameters_of(range).len();
        let mut dropped = self.pool.take(parameters);
        let (values, plain) = chunk.values_mut().split_at_mut(parameters);
        let bytes = self.assemble(range, plain, |encoded| {
            self.wire.encode_publication(
                values,
                &self.reference(range),
                encoded,
                dropped.values_mut(),
            );
        });
        Update { bytes, dropped }
    }

    /// Reads the chunk `range` of an owner's publication. Returns its values, and the bytes that
    /// came, which are at the beginning of `scratch` now.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn read_update<'a>(
        &self,
        stream: &mut dyn BulkReceiver,
        range: &Range<usize>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<(Frozen, &'a [u8]), BulkError> {
        let parameters = self.parameters_of(range).len();
        let encoded = self.encoded_bytes(range);
        let length = encoded + (range.len() - parameters) * VALUE_BYTES;
        if scratch.len() < length {
            scratch.resize(length, 0);
        }
        let bytes = &mut scratch[..length];
        stream.read_exact(bytes).await?;
        let mut chunk = self.pool.take(range.len());
        chunk.bytes_mut()[parameters * VALUE_BYTES..].copy_from_slice(&bytes[encoded..]);
        let values = &mut chunk.values_mut()[..parameters];
        values.copy_from_slice(&self.reference(range));
        self.wire.mix(&bytes[..encoded], 1.0, values);
        Ok((chunk.freeze(), bytes))
    }

    /// Builds a chunk's bytes: the parameters as `encode` writes them, then `plain` as float32.
    fn assemble(
        &self,
        range: &Range<usize>,
        plain: &[f32],
        encode: impl FnOnce(&mut [u8]),
    ) -> Bytes {
        let encoded = self.encoded_bytes(range);
        let length = encoded + plain.len() * VALUE_BYTES;
        let mut buffer = self.pool.take(length.div_ceil(VALUE_BYTES));
        encode(&mut buffer.bytes_mut()[..encoded]);
        WireType::Float32.encode_gossip(
            plain,
            &mut [],
            1.0,
            &mut buffer.bytes_mut()[encoded..length],
        );
        let whole = 0..buffer.values().len();
        buffer.freeze().bytes(whole).slice(..length)
    }
}

/// Sum to which a chunk of a contribution is added.
pub struct Sum<'a> {
    /// The sum so far.
    pub values: &'a mut [f32],
    /// Whether there is no sum yet, so that the chunk is stored instead of added.
    pub first: bool,
}

fn sum_up(sum: &mut [f32], values: &[f32], first: bool) {
    if first {
        sum.copy_from_slice(values);
    } else {
        mean::add(sum, values);
    }
}

impl Encoder {
    /// Makes an encoder of a frozen contribution; each chunk is encoded when it is requested.
    #[must_use]
    pub fn new(coding: Coding, weight: f64, frozen: Frozen) -> Self {
        Self {
            coding,
            weight,
            frozen,
            owed: Mutex::default(),
        }
    }

    /// Whether this encoder uses the same reference as `coding`.
    #[must_use]
    pub fn is_of(&self, coding: &Coding) -> bool {
        Arc::ptr_eq(&self.coding.reference, &coding.reference)
    }

    /// Wire type of the parameters.
    #[must_use]
    pub fn wire(&self) -> WireType {
        self.coding.wire
    }

    /// The encoded chunk `range`.
    #[must_use]
    pub fn chunk(&self, range: &Range<usize>) -> Bytes {
        let coding = &self.coding;
        let parameters = coding.parameters_of(range);
        let mut owed = coding.pool.take(parameters.len());
        let bytes = coding.assemble(
            range,
            &self.frozen.values()[parameters.end.max(range.start)..range.end],
            |encoded| {
                let reference = coding.reference(range);
                let residual = coding.owed_before(range);
                let values = &self.frozen.values()[parameters.clone()];
                let residual = Some(residual.values());
                let contribution = EncoderInput {
                    values,
                    weight: self.weight,
                    reference: &reference,
                    residual,
                };
                coding
                    .wire
                    .encode_contribution(contribution, encoded, owed.values_mut());
            },
        );
        self.owed.lock().insert(range.start, owed.freeze());
        bytes
    }

    /// Residual of the chunk `range` if the round is decided with this contribution.
    #[must_use]
    pub fn owes(&self, range: &Range<usize>) -> Frozen {
        let known = |encoder: &Self| encoder.owed.lock().get(&range.start).cloned();
        // Every chunk was sent before the round could be decided; encoding it again gives the same
        // result.
        known(self).unwrap_or_else(|| {
            let _same = self.chunk(range);
            known(self).unwrap_or_else(|| self.coding.owed_before(range))
        })
    }
}

/// The values of `range`: borrowed if they are in one piece, otherwise copied together, which
/// happens if the rounds are cut differently.
fn gathered(values: &ChunkedBuffer, range: Range<usize>) -> Cow<'_, [f32]> {
    let whole = values
        .piece(range.start)
        .and_then(|piece| piece.values().get(..range.len()));
    whole.map_or_else(
        || {
            let mut copy = vec![0.0; range.len()];
            values.copy_to(range.start, &mut copy);
            Cow::Owned(copy)
        },
        Cow::Borrowed,
    )
}
