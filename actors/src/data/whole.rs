//! The slow step on a node's whole copy (`sharded = false`): every node holds anchor and momentum
//! of every parameter.

use crate::buffers::{ChunkedBuffer, Pool, chunks};
use slowmo_protocol::algorithm::OuterOptimizer;
use slowmo_protocol::outer::{OuterStep, Piece};
use std::ops::Range;
use std::sync::Arc;

/// Anchor and slow momentum of the whole model.
#[derive(Clone, Debug)]
pub struct WholeState {
    anchor: Vec<f32>,
    momentum: Vec<f32>,
    optimizer: OuterOptimizer,
}

impl WholeState {
    /// The state at bootstrap: the anchor is the bootstrap parameters, the momentum is zero.
    #[must_use]
    pub fn new(optimizer: OuterOptimizer, bootstrap: &ChunkedBuffer, parameters: usize) -> Self {
        let mut anchor = vec![0.0; parameters];
        bootstrap.copy_to(0, &mut anchor);
        Self {
            momentum: vec![0.0; parameters],
            anchor,
            optimizer,
        }
    }

    /// Sets the slow momentum from which bootstrap continues. Momentum of another length does not
    /// belong to this model and is ignored.
    #[must_use]
    pub fn going_on(mut self, momentum: Option<&[f32]>) -> Self {
        if let Some(momentum) = momentum.filter(|momentum| momentum.len() == self.momentum.len()) {
            self.momentum.copy_from_slice(momentum);
        }
        self
    }

    /// A copy of the slow momentum of the given parameters.
    #[must_use]
    pub fn momentum(&self, parameters: Range<usize>, pool: &Arc<Pool>) -> ChunkedBuffer {
        let mut momentum = ChunkedBuffer::default();
        for range in chunks(parameters) {
            let mut chunk = pool.take(range.len());
            chunk
                .values_mut()
                .copy_from_slice(&self.momentum[range.clone()]);
            momentum.insert(range.start, chunk.freeze());
        }
        momentum
    }

    /// Takes the slow step from the numerators `values` with push-sum weight `weight`; values after
    /// the parameters pass through unchanged. The result is numerators of the same weight.
    pub fn step(
        &mut self,
        values: &ChunkedBuffer,
        elements: usize,
        weight: f64,
        gamma: f32,
        pool: &Arc<Pool>,
    ) -> ChunkedBuffer {
        let weight = weight as f32;
        let parameters = self.anchor.len();
        let mut result = ChunkedBuffer::default();
        for range in chunks(0..parameters) {
            let mut chunk = pool.take(range.len());
            values.copy_to(range.start, chunk.values_mut());
            chunk
                .values_mut()
                .iter_mut()
                .for_each(|value| *value /= weight);
            let mut next = vec![0.0; range.len()];
            let anchor = &self.anchor[range.clone()];
            let momentum = &self.momentum[range.clone()];
            self.optimizer.step(
                Piece {
                    values: chunk.values_mut(),
                    anchor,
                    momentum,
                    next_momentum: &mut next,
                },
                gamma,
            );
            self.anchor[range.clone()].copy_from_slice(chunk.values());
            self.momentum[range.clone()].copy_from_slice(&next);
            chunk
                .values_mut()
                .iter_mut()
                .for_each(|value| *value *= weight);
            result.insert(range.start, chunk.freeze());
        }
        for range in chunks(parameters..elements) {
            let mut chunk = pool.take(range.len());
            values.copy_to(range.start, chunk.values_mut());
            result.insert(range.start, chunk.freeze());
        }
        result
    }
}
