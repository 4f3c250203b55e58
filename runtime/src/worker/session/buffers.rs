//! A session's handling of buffers: which of them travel, a joiner's initial values, and what
//! rounds do to the base optimizer's.

use super::Session;
use super::model::{digests_of, model_tensors};
use crate::error::StepError;
use crate::tensors::{elements, zero};
use crate::worker::report::Buffers;
use slowmo_actors::buffers::{ChunkedBuffer, Frozen};
use slowmo_actors::messages::Exchanged;
use slowmo_actors::ports::device::{TensorError, Tensors, Values};
use slowmo_protocol::algorithm::BufferStrategy;
use slowmo_protocol::coordinator::RoundKind;
use slowmo_protocol::model::{ModelSize, TensorDigests, Types};
use slowmo_protocol::policy::JoinerBuffers;
use slowmo_protocol::schedule::{Due, Exchange};

/// Number of values of each kind, as at `synchronize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub parameters: usize,
    pub model: usize,
    /// Values of the base optimizer's buffers, if slow steps average them.
    pub optimizer: usize,
    /// Values of the base optimizer's buffers, if joiners get a copy of them.
    pub lent: usize,
    /// The types of the parameters.
    pub types: Types,
    /// Digests of the tensors' names and dimensions.
    pub tensors: TensorDigests,
}

impl Sizes {
    pub fn model(&self) -> ModelSize {
        let count = |values: usize| values as u64;
        ModelSize {
            parameters: count(self.parameters),
            buffers: count(self.model),
            optimizer: count(self.optimizer.max(self.lent)),
            types: self.types,
            tensors: self.tensors,
        }
    }
}

/// The types of the parameters; those that lie on a GPU are float32, and not read.
fn types_of(parameters: &dyn Tensors) -> Result<Types, TensorError> {
    let mut types = Types::default();
    if parameters.on_gpu().is_some() {
        return Ok(types);
    }
    let mut start = 0;
    parameters.lend(&mut |_, values| {
        let count = values.len() as u64;
        if let Values::Half(half, _) = values {
            types.add(half, start, count);
        }
        start += count;
    })?;
    Ok(types)
}

impl Session {
    /// Sets the base optimizer's buffers of a node that bootstraps or joins.
    pub(super) fn begin_optimizer(
        &self,
        exchanged: &Exchanged,
        sizes: Sizes,
        buffers: &mut Buffers<'_>,
    ) -> Result<(), TensorError> {
        let joins = exchanged
            .outcome
            .as_ref()
            .is_some_and(|outcome| outcome.spec.kind != RoundKind::Bootstrap);
        match &exchanged.donated {
            Some(donated) => {
                self.device()
                    .write_back(donated, 0, 1.0, buffers.optimizer)?;
            }
            None if joins => zero(buffers.optimizer)?,
            None => {}
        }
        // A joiner's first round may be a plain average, which does not average them.
        if sizes.optimizer > 0
            && exchanged
                .values
                .covers(sizes.parameters + sizes.model + sizes.optimizer)
        {
            self.device().write_back(
                &exchanged.values,
                sizes.parameters + sizes.model,
                1.0,
                buffers.optimizer,
            )?;
        }
        Ok(())
    }

    pub(super) fn sizes_of(
        &self,
        parameters: &dyn Tensors,
        buffers: &Buffers<'_>,
    ) -> Result<Sizes, TensorError> {
        let averages = self.averages_optimizer();
        let copies = self.copies_optimizer();
        let travels = if averages || copies {
            elements(&*buffers.optimizer)?
        } else {
            0
        };
        let optimizer = if averages { travels } else { 0 };
        let lent = if copies { travels } else { 0 };
        Ok(Sizes {
            parameters: elements(parameters)?,
            model: elements(&*buffers.model)?,
            optimizer,
            lent,
            types: types_of(parameters)?,
            tensors: digests_of(&model_tensors(parameters, &*buffers.model)?),
        })
    }

    pub(super) fn averages_optimizer(&self) -> bool {
        self.node.settings().algorithm.buffers == BufferStrategy::Average
    }

    pub(super) fn copies_optimizer(&self) -> bool {
        self.node.settings().joiner_buffers == JoinerBuffers::Copy
    }

    /// A copy of the base optimizer's buffers for nodes that join with this round, and for a
    /// checkpoint. Which nodes join, and whether this node does the optimizer-state transfer, is
    /// known only when the training thread has the buffers for itself again.
    pub(super) fn optimizer_transfer(
        &self,
        due: Due,
        sizes: Sizes,
        buffers: &Buffers<'_>,
    ) -> Result<Option<Frozen>, TensorError> {
        let round = matches!(due.exchange, Exchange::Average | Exchange::SlowRound);
        let own = self
            .node
            .settings()
            .algorithm
            .buffers
            .leaves_own(due.takes_slow_step());
        let values = if own && self.is_kept(due) {
            elements(&*buffers.optimizer)?
        } else {
            sizes.lent
        };
        if self.index != 0 || values == 0 || !round || !own {
            return Ok(None);
        }
        let mut buffer = self.node.pool().take(values);
        self.device()
            .copy(&*buffers.optimizer, buffer.values_mut())?;
        Ok(Some(buffer.freeze()))
    }

    pub(super) fn check_buffers(
        &self,
        due: Due,
        sizes: Sizes,
        buffers: &Buffers<'_>,
    ) -> Result<(), StepError> {
        if due.is_boundary() {
            self.check_length("model buffers", elements(&*buffers.model)?, sizes.model)?;
        }
        if self.copies_optimizer() || (due.takes_slow_step() && self.averages_optimizer()) {
            self.check_length(
                "optimizer buffers",
                elements(&*buffers.optimizer)?,
                sizes.optimizer.max(sizes.lent),
            )?;
        }
        Ok(())
    }

    pub(super) fn write_optimizer(
        &self,
        due: Due,
        sizes: Sizes,
        values: &ChunkedBuffer,
        buffers: &mut Buffers<'_>,
    ) -> Result<(), TensorError> {
        if !due.takes_slow_step() {
            return Ok(());
        }
        let averaged = matches!(due.exchange, Exchange::Average | Exchange::SlowRound);
        match self.node.settings().algorithm.buffers {
            BufferStrategy::Maintain => Ok(()),
            BufferStrategy::Reset => zero(buffers.optimizer),
            BufferStrategy::Average
                if averaged && values.covers(sizes.parameters + sizes.model + sizes.optimizer) =>
            {
                self.device().write_back(
                    values,
                    sizes.parameters + sizes.model,
                    1.0,
                    buffers.optimizer,
                )?;
                Ok(())
            }
            BufferStrategy::Average => Ok(()),
        }
    }
}
