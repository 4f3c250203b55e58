//! The checkpoint that a bootstrap continues from: the newest whole one, or the one that was named.
//!
//! Such a bootstrap is an ordinary one at a later step. Every bootstrap member verifies the
//! checkpoint before it meets the others, and all must name the same one. The history is a new one,
//! because other nodes may still continue the old one. Its run number is above all that the folder
//! contains, so its checkpoints are the newest.

use super::checkpoint::Checkpoint;
use super::error::CheckpointError;
use super::folder::{self, TrustedFolder};
use super::history::ancestors_through;
use super::manifest::Ancestor;
use super::name::Name;
use slowmo_actors::ports::store::Restored;
use slowmo_protocol::coordinator::Origin;
use std::ops::Range;

/// Maximum number of checkpoints of other histories that are logged at a start.
const OTHERS_NAMED_MAX: usize = 4;

/// A verified checkpoint, and whether its slow momentum fits this training.
#[derive(Debug)]
pub struct Resumed {
    checkpoint: Checkpoint,
    keeps_momentum: bool,
}

impl Resumed {
    /// The newest whole checkpoint of a folder; `None` if there is none. The faults of newer ones
    /// are logged.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn newest<'a>(
        trusted: impl Into<TrustedFolder<'a>>,
        outer: Option<&str>,
    ) -> Result<Option<Self>, CheckpointError> {
        let trusted = trusted.into();
        let (found, refused) = folder::newest_whole(trusted)?;
        for refused in refused {
            tracing::warn!(
                checkpoint = %refused.path.display(),
                error = %refused.error,
                "a checkpoint cannot be used: an older one is tried"
            );
        }
        warn_of_others(
            trusted,
            found.as_ref().map(|checkpoint| checkpoint.header().name()),
        )?;
        Ok(found.map(|checkpoint| Self::of(checkpoint, outer)))
    }

    /// The checkpoint of this name.
    ///
    /// # Errors
    /// It does not exist, or it is not whole.
    pub fn named<'a>(
        trusted: impl Into<TrustedFolder<'a>>,
        name: Name,
        outer: Option<&str>,
    ) -> Result<Self, CheckpointError> {
        let trusted = trusted.into();
        let path = trusted.folder.join(name.to_string());
        if !path.is_dir() {
            return Err(CheckpointError::NoSuch {
                name: name.to_string(),
                folder: trusted.folder.to_owned(),
            });
        }
        let checkpoint = Checkpoint::open_trusted(&path, trusted.trust)?;
        checkpoint.verify()?;
        warn_of_others(trusted, Some(name))?;
        Ok(Self::of(checkpoint, outer))
    }

    fn of(checkpoint: Checkpoint, outer: Option<&str>) -> Self {
        let keeps_momentum = checkpoint.header().outer.as_deref() == outer;
        tracing::info!(
            checkpoint = %checkpoint.folder().display(),
            step = checkpoint.header().step,
            "the bootstrap resumes from a checkpoint"
        );
        Self {
            checkpoint,
            keeps_momentum,
        }
    }

    /// The checkpoint.
    #[must_use]
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The outer optimizer whose slow momentum this training does not continue with, because it has
    /// another one or none.
    #[must_use]
    pub fn momentum_dropped(&self) -> Option<&str> {
        if self.keeps_momentum {
            return None;
        }
        self.checkpoint.header().outer.as_deref()
    }

    /// The checkpoint's name, on which all bootstrap members must agree.
    #[must_use]
    pub fn name(&self) -> Name {
        self.checkpoint.header().name()
    }
}

impl Resumed {
    /// The origin of a history that continues from this checkpoint as the `run`th in the folder.
    #[must_use]
    pub fn origin(&self, run: u32) -> Origin {
        let header = self.checkpoint.header();
        // The bootstrap itself is a round of the new history.
        let rounds = header.rounds_before.saturating_add(header.round);
        Origin {
            run,
            rounds,
            momentum_lost: header.momentum_lost,
        }
    }

    /// The ancestors of a history that continues from this checkpoint.
    #[must_use]
    pub fn ancestors(&self) -> Vec<Ancestor> {
        ancestors_through(self.checkpoint.header(), self.checkpoint.parts())
    }
}

impl Restored for Resumed {
    fn momentum(&self, parameters: Range<usize>, momentum: &mut [f32]) -> Result<(), String> {
        if !self.keeps_momentum {
            momentum.fill(0.0);
            return Ok(());
        }
        self.checkpoint
            .momentum(parameters, momentum)
            .map_err(|error| error.to_string())
    }
}

/// Logs the whole checkpoints in the folder that a training could have continued from instead of
/// `chosen`: a training that continues from an older one, or from none, leaves them in place.
///
/// # Errors
/// The folder cannot be read.
pub fn warn_of_others(
    trusted: TrustedFolder<'_>,
    chosen: Option<Name>,
) -> Result<(), CheckpointError> {
    let others = folder::others(trusted, chosen, OTHERS_NAMED_MAX)?;
    if !others.is_empty() {
        let others = others
            .iter()
            .map(Name::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        let chosen = chosen.map_or_else(|| "none".to_owned(), |chosen| chosen.to_string());
        tracing::warn!(
            others,
            chosen,
            "there are complete checkpoints of another history: they stay; resume = NAME resumes \
             from one of them"
        );
    }
    Ok(())
}
