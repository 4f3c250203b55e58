//! The arithmetic of mixes: one job after another on a separate thread, while the training threads
//! compute.
//!
//! The training threads hold the de-biased model `z` and move it by `Δ`. In overlapped gossip, the
//! numerators are `x = own·z + stays·Δ + Σ scale·y`, and a fraction of `x + goes·Δ` is sent (see
//! [`Mix`]). The *correction* `(own − stays)·z + Σ scale·y` is added to `stays·(z + Δ)` to get `x`.
//! It needs no input from the training thread, which mixes it in and hands over the model as it was
//! before. If something is sent, `own = stays`, and the correction consists of the messages only.

use crate::buffers::{Buffer, ChunkedBuffer, Frozen, Pool, chunks};
use crate::compute::compute;
use crate::data::Payload;
use crate::messages::GossipPeerMessage;
use ractor::ActorRef;
use slowmo_protocol::gossip_peer::{Mix, Plan};
use slowmo_protocol::mean;
use slowmo_protocol::node::{Made, ToGossip};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Most jobs that may wait; the gossip peer waits before it adds more.
const JOBS_MAX: usize = 64;

/// Numerators to be mixed in, multiplied by `scale`.
#[derive(Debug)]
pub struct Part {
    /// The numerators.
    pub values: Payload,
    /// Factor by which they are multiplied.
    pub scale: f32,
}

/// One unit of arithmetic.
pub enum Job {
    /// Overlapped: folds an arrived message into the next correction.
    Fold(Part),
    /// Overlapped: completes the correction.
    Correct(Mix, Vec<Part>),
    /// Overlapped: the training threads have mixed the correction in; the buffer holds the model
    /// from before. Fills in the message, if one is to be sent.
    Moved(ChunkedBuffer, Option<(Arc<Plan>, Payload)>),
    /// Synchronous: mixes the kept fraction of the sent numerators with the arrived messages.
    Mix(Mix, Part, Vec<Part>),
    /// Encodes numerators as a message to the peers of the plan, and fills it in.
    Encode(Arc<Plan>, ChunkedBuffer, Payload),
    /// Adds the correction, and the residual of earlier messages, to the contribution to an exact
    /// average.
    Settle(Mix, Frozen, Vec<Part>),
    /// Sets the numerators from which the model in the training threads was made, with their
    /// push-sum weight.
    Last(ChunkedBuffer, f64),
    /// Overlapped: like [`Job::Moved`], but not all numerators are finite. Those keep their
    /// previous values, and nothing is sent. The training thread must repair its model at these
    /// values.
    Mend(ChunkedBuffer),
    /// A decided round: every weight is 1, and no message is in flight.
    Reset,
}

/// Queue of jobs.
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

/// A correction that the training threads are mixing in.
struct Mixing {
    correction: ChunkedBuffer,
    stays: f32,
    weight: f64,
}

struct Arithmetic {
    pool: Arc<Pool>,
    last: Option<(ChunkedBuffer, f64)>,
    /// Sum of the messages that have arrived.
    correction: Option<ChunkedBuffer>,
    mixing: Option<Mixing>,
    /// Residual: mass that rounding dropped, which the next message includes.
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
                // Without the model from before the step, the movement `Δ` is unknown: all of it
                // stays, and is part of what is sent.
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

    /// The correction with `parts` and `own` times `z` added; empty if there is nothing to add.
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

    /// `own.scale · own + Σ scale · part`, summed in the order of the parts.
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

    /// Computes the numerators after the training threads mixed, and the message to send.
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
                // The training threads checked that the values are finite.
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

    /// Sets the numerators where they are finite, and keeps the previous ones elsewhere; the
    /// fraction of the movement that was to be sent stays here.
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

/// The pieces of `values`, as mutable buffers.
fn buffers(mut values: ChunkedBuffer, pool: &Arc<Pool>) -> Vec<(usize, Buffer)> {
    let all: Vec<_> = values
        .pieces()
        .map(|(start, piece)| (start, piece.values().len()))
        .collect();
    all.into_iter()
        .map(|(start, length)| (start, buffer(&mut values, start, length, pool)))
        .collect()
}

/// A range of `values`, as a mutable buffer: the piece itself if the range is one piece without
/// other references, otherwise a copy. Zeros for missing values.
fn buffer(values: &mut ChunkedBuffer, start: usize, length: usize, pool: &Arc<Pool>) -> Buffer {
    match values.take_piece(start, length) {
        Some(piece) => piece.into_buffer(pool),
        None => copy(values, start, length, pool),
    }
}

/// A range of `values`: the piece itself if the range is one piece, otherwise a copy.
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

/// The first `elements` of `values`, because buffers may follow the parameters. Only a piece that
/// crosses the end is copied.
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

/// `values` multiplied by `scale`, in chunks.
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
