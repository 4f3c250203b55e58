//! The arithmetic of mixes, one job after the other on a thread of its own, while the training
//! threads compute.
//!
//! The training threads hold the de-biased model `z` and move it by `Δ`. Overlapped, the numerators
//! are `x = own·z + stays·Δ + Σ scale·y`, and what is sent is a part of `x + goes·Δ` (see [`Mix`]).
//! What is added to `stays·(z + Δ)` to get `x` is the *correction* `(own − stays)·z + Σ scale·y`:
//! it needs nothing of the training thread, which mixes it in and hands over the model as it was.
//! Where something is sent, `own = stays`, and the correction is no more than the messages.

use super::messages::GossipPeerMessage;
use super::payload::Payload;
use crate::buffers::{Buffer, ChunkedBuffer, Frozen, Pool, chunks};
use crate::compute::compute;
use ractor::ActorRef;
use slowmo_protocol::gossip_peer::{Mix, Plan};
use slowmo_protocol::mean;
use slowmo_protocol::node::{Made, ToGossip};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Jobs that may wait; more than that are waited for by the gossip peer.
const JOBS_MAX: usize = 64;

/// Numerators on their way into a mix: `scale` of them is added.
#[derive(Debug)]
pub struct Part {
    /// The numerators.
    pub values: Payload,
    /// What they are multiplied by.
    pub scale: f32,
}

/// One piece of arithmetic.
pub enum Job {
    /// Overlapped: folds a message that arrived into the next correction.
    Fold(Part),
    /// Overlapped: completes the correction.
    Correct(Mix, Vec<Part>),
    /// Overlapped: the training threads have mixed it in; the model was this before. Fills in the
    /// message, if one is to be sent.
    Moved(ChunkedBuffer, Option<(Arc<Plan>, Payload)>),
    /// Synchronous: `kept` of the shipped numerators, and what arrived.
    Mix(Mix, Part, Vec<Part>),
    /// Turns numerators into a message to the peers of the plan, and fills it in.
    Encode(Arc<Plan>, ChunkedBuffer, Payload),
    /// Adds the correction, and what rounding of earlier messages dropped, to the contribution to
    /// an exact average.
    Settle(Mix, Frozen, Vec<Part>),
    /// The numerators that the model in the training threads comes from, with their push-sum
    /// weight.
    Last(ChunkedBuffer, f64),
    /// Overlapped: the same as [`Job::Moved`], but not all numerators are finite: those stay what
    /// they were, and nothing is sent. The training thread has to mend its model there.
    Mend(ChunkedBuffer),
    /// A decided round: every weight is 1, and nothing is under way.
    Reset,
}

/// Where jobs go.
pub type Jobs = mpsc::Sender<Job>;

/// Starts the arithmetic of one node; it ends when the sender is dropped.
pub fn start(pool: Arc<Pool>, actor: ActorRef<GossipPeerMessage>) -> Jobs {
    let (jobs, mut queue) = mpsc::channel(JOBS_MAX);
    tokio::spawn(async move {
        let mut arithmetic = Arithmetic::new(pool);
        while let Some(job) = queue.recv().await {
            let ran = compute(move || {
                let result = arithmetic.run(job);
                (arithmetic, result)
            });
            let Some((next, result)) = ran.await else {
                return;
            };
            arithmetic = next;
            // A stopped gossip peer needs no result.
            result.into_iter().for_each(|result| _ = actor.cast(result));
        }
    });
    jobs
}

/// A correction that the training threads mix in.
struct Mixing {
    correction: ChunkedBuffer,
    stays: f32,
    weight: f64,
}

struct Arithmetic {
    pool: Arc<Pool>,
    last: Option<(ChunkedBuffer, f64)>,
    /// The messages that are here.
    correction: Option<ChunkedBuffer>,
    mixing: Option<Mixing>,
    /// Mass that rounding dropped, which the next message owes.
    residual: ChunkedBuffer,
}

impl Arithmetic {
    fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            last: None,
            correction: None,
            mixing: None,
            residual: ChunkedBuffer::default(),
        }
    }

    fn run(&mut self, job: Job) -> Option<GossipPeerMessage> {
        match job {
            Job::Fold(part) => self.fold(part),
            Job::Correct(mix, parts) => {
                // Without the model as it was before the step nobody knows the movement: all of it
                // stays, and is in what is sent.
                let shared = mix.shared && self.last.is_some();
                let (stays, rest) = if shared && mix.own <= 1.0 {
                    (mix.own as f32, 0.0)
                } else {
                    (1.0, mix.own - 1.0)
                };
                let correction = self.complete(rest, parts);
                self.mixing = Some(Mixing {
                    correction: correction.clone(),
                    stays,
                    weight: mix.weight,
                });
                return Some(
                    ToGossip::Mixed(mix, Made::Correction(correction, f64::from(stays))).into(),
                );
            }
            Job::Moved(before, message) => return self.moved(before, message),
            Job::Mix(mix, own, parts) => {
                let values = self.mix(own, parts);
                self.last = Some((values.clone(), mix.weight));
                return Some(ToGossip::Mixed(mix, Made::Numerators(values)).into());
            }
            Job::Encode(plan, values, payload) => {
                payload.fill(values, &mut self.residual, plan.given(), &self.pool);
                return Some(GossipPeerMessage::Encoded(plan, payload));
            }
            Job::Settle(mix, frozen, parts) => {
                let correction = self.complete(mix.own - 1.0, parts);
                let residual = std::mem::take(&mut self.residual);
                let contribution = self.add(self.add(frozen, &correction), &residual);
                return Some(ToGossip::Mixed(mix, Made::Contribution(contribution)).into());
            }
            Job::Last(values, weight) => self.last = Some((values, weight)),
            Job::Mend(before) => self.mend(before),
            Job::Reset => {
                self.last = None;
                self.correction = None;
                self.mixing = None;
                self.residual = ChunkedBuffer::default();
            }
        }
        None
    }

    /// Adds a part to the correction.
    fn fold(&mut self, part: Part) {
        let mut values = part.values.into_values(&self.pool);
        let scale = part.scale;
        let Some(correction) = &mut self.correction else {
            if scale != 1.0 {
                values.update(&self.pool, |_, target| {
                    target.iter_mut().for_each(|value| *value *= scale)
                });
            }
            self.correction = Some(values);
            return;
        };
        correction.update(&self.pool, |start, target| {
            values.visit(start, target.len(), |at, y| {
                mean::mix(&mut target[at..at + y.len()], y, scale)
            })
        });
    }

    /// The correction with the parts and so much of `z`; empty if there is nothing to add.
    fn complete(&mut self, own: f64, parts: Vec<Part>) -> ChunkedBuffer {
        parts.into_iter().for_each(|part| self.fold(part));
        let mut correction = self.correction.take().unwrap_or_default();
        if own == 0.0 {
            return correction;
        }
        let Some((last, weight)) = self.last.as_ref() else {
            return correction;
        };
        let factor = (own / weight) as f32;
        if correction.is_empty() {
            return scaled(&self.pool, last, factor);
        }
        correction.update(&self.pool, |start, target| {
            last.visit(start, target.len(), |at, x| {
                mean::mix(&mut target[at..at + x.len()], x, factor)
            })
        });
        correction
    }

    /// `own.scale · own + Σ scale · part`, in the order of the parts.
    fn mix(&self, own: Part, parts: Vec<Part>) -> ChunkedBuffer {
        let kept = own.scale;
        let own = own.values.into_values(&self.pool);
        let mut parts = parts
            .into_iter()
            .map(|part| (part.values.into_values(&self.pool), part.scale));
        let Some((mut values, scale)) = parts.next() else {
            return if kept == 1.0 {
                own
            } else {
                scaled(&self.pool, &own, kept)
            };
        };
        values.update(&self.pool, |start, target| {
            own.visit(start, target.len(), |at, x| {
                mean::blend(&mut target[at..at + x.len()], scale, x, kept)
            })
        });
        for (part, scale) in parts {
            values.update(&self.pool, |start, target| {
                part.visit(start, target.len(), |at, y| {
                    mean::mix(&mut target[at..at + y.len()], y, scale)
                })
            });
        }
        values
    }

    /// The numerators of what was mixed, and the message.
    fn moved(
        &mut self,
        before: ChunkedBuffer,
        message: Option<(Arc<Plan>, Payload)>,
    ) -> Option<GossipPeerMessage> {
        let Mixing {
            correction,
            stays,
            weight,
        } = self.mixing.take()?;
        let known = self.last.is_some();
        let (mut last, last_weight) = self.last.take().unwrap_or((ChunkedBuffer::default(), 1.0));
        let mut numerators = ChunkedBuffer::default();
        let mut sent = ChunkedBuffer::default();
        for (start, mut model) in buffers(before, &self.pool) {
            let length = model.values().len();
            let correction = slice(&correction, start, length, &self.pool);
            if let Some((plan, _)) = message.as_ref()
                && known
            {
                let mut last = buffer(&mut last, start, length, &self.pool);
                let movement = (stays, plan.goes(stays));
                mean::share_out(
                    model.values_mut(),
                    last.values_mut(),
                    correction.values(),
                    movement,
                    last_weight,
                );
                sent.insert(start, last.freeze());
            } else {
                // Training threads checked that they are finite.
                _ = mean::correct(model.values_mut(), correction.values(), stays, 1.0);
            }
            numerators.insert(start, model.freeze());
        }
        let sent = if known { sent } else { numerators.clone() };
        self.last = Some((numerators, weight));
        let (plan, payload) = message?;
        payload.fill(sent, &mut self.residual, plan.given(), &self.pool);
        Some(GossipPeerMessage::Encoded(plan, payload))
    }

    /// The numerators where they are finite, what they were where they are not; what was to be sent
    /// of the movement stays.
    fn mend(&mut self, before: ChunkedBuffer) {
        let Some(Mixing {
            correction,
            stays,
            weight,
        }) = self.mixing.take()
        else {
            return;
        };
        let (mut last, last_weight) = self.last.take().unwrap_or((ChunkedBuffer::default(), 1.0));
        let mut numerators = ChunkedBuffer::default();
        let mut stayed = ChunkedBuffer::default();
        for (start, mut model) in buffers(before, &self.pool) {
            let length = model.values().len();
            let correction = slice(&correction, start, length, &self.pool);
            let mut last = buffer(&mut last, start, length, &self.pool);
            for ((model, last), correction) in model
                .values_mut()
                .iter_mut()
                .zip(last.values_mut())
                .zip(correction.values())
            {
                let x = correction + stays * *model;
                let z = *last / last_weight as f32;
                let goes = (1.0 - stays) * (*model - z);
                (*model, *last) = if (x / weight as f32).is_finite() {
                    (x, if goes.is_finite() { goes } else { 0.0 })
                } else {
                    (z * weight as f32, 0.0)
                };
            }
            numerators.insert(start, model.freeze());
            stayed.insert(start, last.freeze());
        }
        self.last = Some((numerators, weight));
        self.fold(Part {
            values: Payload::Float32(stayed),
            scale: 1.0,
        });
    }

    /// Adds a correction to the parameters at the front of a contribution.
    fn add(&self, frozen: Frozen, correction: &ChunkedBuffer) -> Frozen {
        if correction.is_empty() {
            return frozen;
        }
        let mut buffer = frozen.into_buffer(&self.pool);
        let length = buffer.values().len();
        let values = buffer.values_mut();
        correction.visit(0, length, |at, part| {
            mean::add(&mut values[at..at + part.len()], part)
        });
        buffer.freeze()
    }
}

/// The pieces of `values`, to write.
fn buffers(mut values: ChunkedBuffer, pool: &Arc<Pool>) -> Vec<(usize, Buffer)> {
    let all: Vec<_> = values
        .pieces()
        .map(|(start, piece)| (start, piece.values().len()))
        .collect();
    all.into_iter()
        .map(|(start, length)| (start, buffer(&mut values, start, length, pool)))
        .collect()
}

/// A range of `values`, to write: the piece itself where it is one that nobody else has. Zeros
/// where there are no values.
fn buffer(values: &mut ChunkedBuffer, start: usize, length: usize, pool: &Arc<Pool>) -> Buffer {
    match values.take_piece(start, length) {
        Some(piece) => piece.into_buffer(pool),
        None => copy(values, start, length, pool),
    }
}

/// A range of `values`: the piece itself where it is one.
fn slice(values: &ChunkedBuffer, start: usize, length: usize, pool: &Arc<Pool>) -> Frozen {
    match values
        .piece(start)
        .filter(|piece| piece.values().len() == length)
    {
        Some(piece) => piece.clone(),
        None => copy(values, start, length, pool).freeze(),
    }
}

fn copy(values: &ChunkedBuffer, start: usize, length: usize, pool: &Arc<Pool>) -> Buffer {
    let mut buffer = pool.zeros(length);
    values.copy_to(start, buffer.values_mut());
    buffer
}

/// The first `elements` of `values`: buffers may follow the parameters. Only a piece across that
/// border is copied.
pub fn front(pool: &Arc<Pool>, values: &ChunkedBuffer, elements: usize) -> ChunkedBuffer {
    let mut front = ChunkedBuffer::default();
    for (start, piece) in values.pieces_within(0..elements) {
        let length = piece.values().len().min(elements - start);
        if length == piece.values().len() {
            front.insert(start, piece.clone());
        } else {
            let mut cut = pool.take(length);
            cut.values_mut().copy_from_slice(&piece.values()[..length]);
            front.insert(start, cut.freeze());
        }
    }
    front
}

/// `scale` of `values`, in chunks.
fn scaled(pool: &Arc<Pool>, values: &ChunkedBuffer, scale: f32) -> ChunkedBuffer {
    let mut result = ChunkedBuffer::default();
    for (start, piece) in values.pieces() {
        for range in chunks(0..piece.values().len()) {
            let mut chunk = pool.take(range.len());
            mean::scale(chunk.values_mut(), &piece.values()[range.clone()], scale);
            result.insert(start + range.start, chunk.freeze());
        }
    }
    result
}

/// Synchronous: the numerators of a node whose training threads left the model at `frozen`; `own`
/// is their push-sum weight.
pub fn unbiased(
    pool: &Arc<Pool>,
    frozen: Frozen,
    last: Option<&(ChunkedBuffer, f64)>,
    own: f64,
) -> Frozen {
    if own == 1.0 {
        return frozen;
    }
    let Some((last, weight)) = last else {
        return frozen;
    };
    let factor = ((own - 1.0) / weight) as f32;
    let mut buffer = frozen.into_buffer(pool);
    let length = buffer.values().len();
    let values = buffer.values_mut();
    last.visit(0, length, |at, x| {
        mean::mix(&mut values[at..at + x.len()], x, factor)
    });
    buffer.freeze()
}

#[cfg(test)]
mod tests;
