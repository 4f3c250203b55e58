//! A session's use of checkpoints: what it takes from the one that the bootstrap continues from,
//! and what it contributes to later ones.

use super::Session;
use super::buffers::Sizes;
use crate::checkpoints::{CURSOR_BYTES_MAX, Header, Kind, Resumed, Tensor, unique_names};
use crate::error::{SynchronizeError, WorkerError};
use crate::worker::report::{Buffers, ResumedFrom};
use slowmo_actors::buffers::{ChunkedBuffer, Frozen};
use slowmo_actors::messages::Exchanged;
use slowmo_actors::ports::device::{TensorError, Tensors};
use slowmo_actors::ports::store::{Restored, Store};
use slowmo_protocol::checkpoint::is_due;
use slowmo_protocol::coordinator::{RoundKind, RoundSpec};
use slowmo_protocol::ident::Step;
use slowmo_protocol::schedule::{Due, Exchange};
use std::sync::Arc;

impl Session {
    /// Names the model's tensors for checkpoints.
    pub(super) fn describe(
        &self,
        parameters: &dyn Tensors,
        buffers: &Buffers<'_>,
    ) -> Result<(), TensorError> {
        if self.index != 0 || !self.node.checkpoints().writes() {
            return Ok(());
        }
        let mut tensors = Vec::new();
        for (shapes, kind) in [
            (parameters.shapes()?, Kind::Parameter),
            (buffers.model.shapes()?, Kind::Buffer),
        ] {
            tensors.extend(
                shapes
                    .into_iter()
                    .map(|(name, shape)| Tensor { name, shape, kind }),
            );
        }
        let names = unique_names(&tensors);
        tensors
            .iter_mut()
            .zip(names)
            .for_each(|(tensor, name)| tensor.name = name);
        self.node.checkpoints().describe(tensors);
        Ok(())
    }

    /// Lets the bootstrap continue from a checkpoint, if there is one: its values replace the
    /// frozen ones, and step and samples continue after it. Returns the whole slow momentum if it
    /// is not in shards.
    pub(super) fn resume(
        &mut self,
        sizes: Sizes,
        frozen: &mut Frozen,
    ) -> Result<Option<Frozen>, SynchronizeError> {
        let Some(resumed) = self.node.checkpoints().resumed().cloned() else {
            return Ok(None);
        };
        let header = resumed.checkpoint().header();
        fits(header, sizes)?;
        if let (Some(sampler), Some(samples)) = (&self.sampler, &header.samples) {
            sampler.resume(samples)?;
        }
        self.step = Step(header.step);
        if self.index != 0 {
            return Ok(None);
        }
        read_values(&resumed, frozen)?;
        let whole = self
            .node
            .settings()
            .algorithm
            .outer
            .is_some_and(|outer| !outer.sharded);
        if !whole {
            return Ok(None);
        }
        let mut momentum = self.node.pool().take(sizes.parameters);
        resumed
            .momentum(0..sizes.parameters, momentum.values_mut())
            .map_err(SynchronizeError::Checkpoint)?;
        Ok(Some(momentum.freeze()))
    }

    /// Restores the base optimizer's buffers of a node of this rank after a bootstrap that
    /// continued from a checkpoint.
    pub(super) fn restore_optimizer(
        &self,
        exchanged: &Exchanged,
        buffers: &mut Buffers<'_>,
    ) -> Result<(), SynchronizeError> {
        let is_bootstrap = exchanged
            .outcome
            .as_ref()
            .is_some_and(|outcome| outcome.spec.kind == RoundKind::Bootstrap);
        if !is_bootstrap {
            return Ok(());
        }
        let Some(resumed) = self.node.checkpoints().resumed() else {
            return Ok(());
        };
        let unread = |error: crate::checkpoints::CheckpointError| {
            SynchronizeError::Checkpoint(error.to_string())
        };
        let Some(kept) = resumed
            .checkpoint()
            .optimizer(self.rank(exchanged))
            .map_err(unread)?
        else {
            return Ok(());
        };
        let lent = buffers.optimizer.elements()?;
        if kept.len() != lent {
            if lent > 0 {
                tracing::warn!(
                    kept = kept.len(),
                    lent,
                    "the checkpoint's optimizer buffers differ from this optimizer's: its own stay as they are"
                );
            }
            return Ok(());
        }
        let mut values = ChunkedBuffer::default();
        let mut buffer = self.node.pool().take(kept.len());
        buffer.values_mut().copy_from_slice(&kept);
        values.insert(0, buffer.freeze());
        self.device()
            .write_back(&values, 0, 1.0, buffers.optimizer)
            .map_err(SynchronizeError::NotWritten)
    }

    /// Whether the result of this step's round may be stored in a checkpoint.
    pub(super) fn is_kept(&self, due: Due) -> bool {
        let settings = self.node.settings();
        let kind = if due.exchange == Exchange::SlowRound {
            RoundKind::Slow
        } else {
            RoundKind::Average
        };
        let spec = RoundSpec {
            kind,
            step: self.step,
            gamma: 0.0,
            elements: 0,
        };
        let checkpoints = self.node.checkpoints();
        checkpoints.writes()
            && (is_due(&settings.algorithm, settings.checkpoint_every, &spec)
                || (checkpoints.expects() && is_due(&settings.algorithm, 1, &spec)))
    }

    /// Sets an opaque text of the training code for later checkpoints.
    pub fn set_cursor(&self, cursor: String) -> Result<(), WorkerError> {
        if cursor.len() > CURSOR_BYTES_MAX {
            return Err(WorkerError::CursorTooLong {
                bytes: cursor.len(),
                max: CURSOR_BYTES_MAX,
            });
        }
        self.node.checkpoints().set_cursor(cursor);
        Ok(())
    }

    /// The checkpoint that the training continues from, if any.
    pub fn resumed(&self) -> Option<ResumedFrom> {
        let resumed: &Arc<Resumed> = self.node.checkpoints().resumed()?;
        let header = resumed.checkpoint().header();
        let origin = self.node.checkpoints().origin();
        let cursors = resumed
            .checkpoint()
            .parts()
            .iter()
            .filter_map(|part| Some((part.node, part.cursor.clone()?)))
            .collect();
        Some(ResumedFrom {
            path: resumed.checkpoint().folder().to_owned(),
            step: header.step,
            rounds: origin.rounds,
            run: origin.run,
            cursors,
        })
    }
}

/// Checks that a checkpoint is of a model of this size. It contains the optimizer's buffers if they
/// were averaged in its round.
fn fits(header: &Header, sizes: Sizes) -> Result<(), SynchronizeError> {
    let lent = sizes.parameters + sizes.model;
    let others = [lent as u64, (lent + sizes.optimizer) as u64];
    if header.parameters() == sizes.parameters && others.contains(&header.elements) {
        return Ok(());
    }
    let Header {
        parameters,
        elements,
        step,
        ..
    } = header;
    let kept = parameters;
    let buffers = elements.saturating_sub(*parameters);
    Err(SynchronizeError::Checkpoint(format!(
        "the checkpoint of step {step} holds {kept} parameters and {buffers} values of buffers, this training {} and {}",
        sizes.parameters,
        sizes.model + sizes.optimizer
    )))
}

fn read_values(resumed: &Resumed, frozen: &mut Frozen) -> Result<(), SynchronizeError> {
    let taken = || SynchronizeError::Checkpoint("the contribution is in use already".to_owned());
    let target = frozen.values_mut().ok_or_else(taken)?;
    let mut at = 0;
    resumed
        .checkpoint()
        .values(|values| {
            // The checkpoint's values fit: its size was compared.
            if let Some(target) = target.get_mut(at..at + values.len()) {
                target.copy_from_slice(values);
            }
            at += values.len();
        })
        .map_err(|error| SynchronizeError::Checkpoint(error.to_string()))
}
