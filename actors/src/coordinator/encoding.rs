//! How a round's parameters travel where they do not travel as float32 (`round_wire`): as
//! differences from what the round before decided, which every member holds. What rounding drops
//! stays with the node and is added to its next contribution.

use crate::buffers::{Buffer, CHUNK_ELEMENTS, ChunkedBuffer, Frozen, Pool, VALUE_BYTES, chunks};
use crate::ports::transport::{BulkError, BulkReceiver};
use bytes::Bytes;
use slowmo_protocol::algorithm::WireType;
use slowmo_protocol::coordinator::{Plan, RoundKind};
use slowmo_protocol::encoding::Contribution;
use slowmo_protocol::mean;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Whether the parameters of a round may travel in fewer bytes: the founding has no reference,
/// gradients are no parameters.
pub fn is_encoded(kind: RoundKind, wire: WireType) -> bool {
    wire != WireType::Float32 && matches!(kind, RoundKind::Average | RoundKind::Slow)
}

/// What a node carries from one round to the next.
#[derive(Debug, Default)]
pub struct ErrorFeedback {
    reference: Arc<ChunkedBuffer>,
    residual: Arc<ChunkedBuffer>,
}

/// How the values of one round travel: parameters as differences from the reference, what lies
/// behind them as float32.
#[derive(Clone, Debug)]
pub struct Coding {
    /// Of the parameters.
    pub wire: WireType,
    parameters: usize,
    reference: Arc<ChunkedBuffer>,
    residual: Arc<ChunkedBuffer>,
    pool: Arc<Pool>,
}

/// This node's contribution to a round; the same bytes for every attempt, and one residual for all
/// of them.
#[derive(Debug)]
pub struct Encoder {
    coding: Coding,
    weight: f64,
    frozen: Frozen,
    /// What each chunk owes if the round is decided with it, by its first element.
    owed: Mutex<BTreeMap<usize, Frozen>>,
}

/// An encoded chunk of new parameters.
pub struct Update {
    /// As it travels.
    pub bytes: Bytes,
    /// What the parameters were more than that.
    pub dropped: Buffer,
}

impl ErrorFeedback {
    /// How a round of `parameters` parameters travels; `None` without the reference for it.
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

    /// A node that has got its model by founding or joining owes nothing.
    pub fn begin(&mut self, values: &ChunkedBuffer) {
        *self = Self {
            reference: Arc::new(values.clone()),
            residual: Arc::default(),
        };
    }

    /// The round that travelled as `coding` is decided: `own` is this node's contribution if it
    /// counts, `part` what this node owes for its own shards.
    pub fn renew(
        &mut self,
        plan: &Plan,
        coding: &Coding,
        own: Option<&Encoder>,
        part: &ChunkedBuffer,
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
                let owed = part.piece(range.start).cloned();
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

    /// Bytes of the parameters of a chunk.
    fn encoded_bytes(&self, range: &Range<usize>) -> usize {
        self.wire.encoded_bytes(self.parameters_of(range).len())
    }

    /// What the round before decided for the parameters of a chunk.
    #[must_use]
    pub fn reference(&self, range: &Range<usize>) -> Cow<'_, [f32]> {
        gathered(&self.reference, self.parameters_of(range))
    }

    /// Room for the encoded parameters of any chunk.
    #[must_use]
    pub fn scratch(&self) -> Vec<u8> {
        vec![0; self.wire.encoded_bytes(CHUNK_ELEMENTS.min(self.parameters))]
    }

    /// What this node owes for a chunk without what its own publication drops.
    #[must_use]
    pub fn owes(&self, own: Option<&Encoder>, range: &Range<usize>) -> Frozen {
        own.map_or_else(|| self.owed_before(range), |own| own.owes(range))
    }

    /// As before this round: a contribution that does not count changes nothing.
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

    /// Reads the chunk `range` of a contribution: `sum` becomes it, or it is added.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn read_difference(
        &self,
        stream: &mut dyn BulkReceiver,
        range: &Range<usize>,
        sum: Sum<'_>,
        scratch: &mut [u8],
    ) -> Result<(), BulkError> {
        let parameters = self.parameters_of(range).len();
        let encoded = &mut scratch[..self.encoded_bytes(range)];
        stream.read_exact(encoded).await?;
        self.decode(encoded, &mut sum.values[..parameters], sum.first);
        if parameters < range.len() {
            let mut plain = self.pool.take(range.len() - parameters);
            stream.read_exact(plain.bytes_mut()).await?;
            sum_up(&mut sum.values[parameters..], plain.values(), sum.first);
        }
        Ok(())
    }

    /// The same of this node's own contribution.
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

    /// Encodes the new values of a chunk; its parameters become what every member will have.
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

    /// Reads the chunk `range` of what an owner publishes.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn read_update(
        &self,
        stream: &mut dyn BulkReceiver,
        range: &Range<usize>,
        scratch: &mut [u8],
    ) -> Result<Frozen, BulkError> {
        let parameters = self.parameters_of(range).len();
        let encoded = &mut scratch[..self.encoded_bytes(range)];
        let mut chunk = self.pool.take(range.len());
        stream.read_exact(encoded).await?;
        if parameters < range.len() {
            stream
                .read_exact(&mut chunk.bytes_mut()[parameters * VALUE_BYTES..])
                .await?;
        }
        let values = &mut chunk.values_mut()[..parameters];
        values.copy_from_slice(&self.reference(range));
        self.wire.mix(encoded, 1.0, values);
        Ok(chunk.freeze())
    }

    /// A chunk as it travels: the parameters as `encode` writes them, then `plain` as float32.
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

/// Where a chunk of a contribution goes.
pub struct Sum<'a> {
    /// The sum so far.
    pub values: &'a mut [f32],
    /// There is none yet.
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
    /// Encodes a frozen contribution chunk by chunk, when its chunks are asked for.
    #[must_use]
    pub fn new(coding: Coding, weight: f64, frozen: Frozen) -> Self {
        Self {
            coding,
            weight,
            frozen,
            owed: Mutex::default(),
        }
    }

    /// Whether it encodes differences from what `coding` does.
    #[must_use]
    pub fn is_of(&self, coding: &Coding) -> bool {
        Arc::ptr_eq(&self.coding.reference, &coding.reference)
    }

    /// How its parameters travel.
    #[must_use]
    pub fn wire(&self) -> WireType {
        self.coding.wire
    }

    /// The chunk `range` as it travels.
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
                let contribution = Contribution {
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
        self.owed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(range.start, owed.freeze());
        bytes
    }

    /// What the chunk `range` owes if the round is decided with it.
    #[must_use]
    pub fn owes(&self, range: &Range<usize>) -> Frozen {
        let known = |encoder: &Self| {
            encoder
                .owed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get(&range.start)
                .cloned()
        };
        // Every chunk was sent before the round could be decided; asking again makes the same.
        known(self).unwrap_or_else(|| {
            let _same = self.chunk(range);
            known(self).unwrap_or_else(|| self.coding.owed_before(range))
        })
    }
}

/// The values of `range`: as they lie there, or copied together where the rounds are cut
/// differently.
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
