//! A session's use of checkpoints: what it takes from the one that the bootstrap continues from,
//! and what it contributes to later ones.

use super::Session;
use super::buffers::Sizes;
use super::model::compare_tensors;
use crate::checkpoints::{CURSOR_BYTES_MAX, Header, Resumed, Tensor};
use crate::error::{SynchronizeError, WorkerError};
use crate::worker::report::{Buffers, ResumedFrom};
use slowmo_actors::buffers::{ChunkedBuffer, Frozen};
use slowmo_actors::messages::Exchanged;
use slowmo_actors::ports::device::Tensors;
use slowmo_actors::ports::store::{Restored, Store};
use slowmo_protocol::checkpoint::is_due;
use slowmo_protocol::coordinator::{RoundKind, RoundSpec};
use slowmo_protocol::ident::Step;
use slowmo_protocol::sampler::{SamplerError, Settings};
use slowmo_protocol::schedule::{Due, Exchange};
use std::sync::Arc;

impl Session {
    /// Lets the bootstrap continue from a checkpoint, if there is one: its values replace the
    /// frozen ones, and step and samples continue after it. Returns the whole slow momentum if it
    /// is not in shards.
    pub(super) fn resume(
        &mut self,
        tensors: &[Tensor],
        sizes: Sizes,
        frozen: &mut Frozen,
    ) -> Result<Option<Frozen>, SynchronizeError> {
        let Some(resumed) = self.node.checkpoints().resumed().cloned() else {
            return Ok(None);
        };
        let header = resumed.checkpoint().header();
        // It names tensors, where `fits` has only their sizes.
        compare_tensors(header, tensors)?;
        fits(header, sizes)?;
        self.resume_samples(header)?;
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

    /// Lets the attached sampler go on after a checkpoint.
    fn resume_samples(&self, header: &Header) -> Result<(), SynchronizeError> {
        let (Some(sampler), Some(left)) = (&self.sampler, &header.samples) else {
            return Ok(());
        };
        if self.node.checkpoints().begins_samples_anew() {
            sampler.begin_anew(Step(header.step));
            return Ok(());
        }
        sampler.resume(left).map_err(|error| match error {
            SamplerError::Differs { cluster, own } => SynchronizeError::ResumedSampler {
                step: header.step,
                differences: differences(cluster, own),
            },
            error => error.into(),
        })
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
        let lent = buffers.optimizer.elements()?;
        if self.index == 0 {
            self.tell_dropped(resumed, exchanged, lent);
        }
        let rank = self.rank(exchanged);
        let checkpoint = resumed.checkpoint();
        if checkpoint.optimizer_values(rank) != Some(lent as u64) {
            return Ok(());
        }
        let kept = checkpoint
            .optimizer(rank)
            .map_err(|error| SynchronizeError::Checkpoint(error.to_string()))?
            .unwrap_or_default();
        let mut values = ChunkedBuffer::default();
        let mut buffer = self.node.pool().take(kept.len());
        buffer.values_mut().copy_from_slice(&kept);
        values.insert(0, buffer.freeze());
        self.device()
            .write_back(&values, 0, 1.0, buffers.optimizer)
            .map_err(SynchronizeError::NotWritten)?;
        Ok(())
    }

    /// Names what the checkpoint holds and this training does not continue with.
    fn tell_dropped(&self, resumed: &Resumed, exchanged: &Exchanged, lent: usize) {
        let checkpoint = resumed.checkpoint();
        let mut dropped = Vec::new();
        match checkpoint.optimizer_values(self.rank(exchanged)) {
            Some(kept) if lent == 0 => dropped.push(format!(
                "the optimizer's state ({kept} values; none is lent: pass it to synchronize_with \
                 and step_with)"
            )),
            Some(kept) if kept != lent as u64 => dropped.push(format!(
                "the optimizer's state ({kept} values, but {lent} are lent, which stay as they \
                 are: is it another optimizer?)"
            )),
            _ => {}
        }
        let optimizers = checkpoint.optimizers();
        let nodes = exchanged.members.len();
        if lent > 0 && optimizers > nodes && self.rank(exchanged) == 0 {
            let beyond = optimizers - nodes;
            dropped.push(format!(
                "the optimizer's state of {beyond} more nodes (there are {nodes} now)"
            ));
        }
        if let Some(outer) = resumed.momentum_dropped() {
            dropped.push(format!(
                "the slow momentum (it is of outer = {outer}, and starts at zero)"
            ));
        }
        match (&checkpoint.header().samples, &self.sampler) {
            (Some(_), None) => dropped.push(
                "the samples that are left (no sampler is attached: call attach_sampler before \
                 synchronize)"
                    .to_owned(),
            ),
            (Some(_), Some(_)) if self.node.checkpoints().begins_samples_anew() => {
                dropped.push("the samples that are left (resume_sampler = reset)".to_owned());
            }
            _ => {}
        }
        if !dropped.is_empty() {
            self.node.warn(format!(
                "this training resumes from step {} without a part of the checkpoint: {}",
                checkpoint.header().step,
                dropped.join("; ")
            ));
        }
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
        let algorithm = self.algorithm();
        let every = self.changed.checkpoint_every(settings.checkpoint_every);
        checkpoints.writes()
            && (is_due(&algorithm, every, &spec)
                || (checkpoints.expects() && is_due(&algorithm, 1, &spec)))
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

/// The settings in which two samplers differ, in words.
fn differences(kept: Settings, own: Settings) -> String {
    let differing: Vec<String> = [
        ("samples", kept.samples, own.samples),
        ("batch", kept.batch, own.batch),
        ("seed", kept.seed, own.seed),
    ]
    .into_iter()
    .filter(|(_, kept, own)| kept != own)
    .map(|(what, kept, own)| format!("{what} {own} (in the checkpoint {kept})"))
    .collect();
    differing.join(", ")
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
        "the checkpoint of step {step} holds {kept} parameters and {buffers} values of buffers, \
         this training lends {} and {}: lend the same parameters and buffers, and give the key \
         buffers the value that it had",
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
