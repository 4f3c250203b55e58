//! What a founding goes on from: the newest whole checkpoint, or the one that was named.

use super::checkpoint::Checkpoint;
use super::error::CheckpointError;
use super::folder::{self, Name};
use slowmo_actors::ports::store::Restored;
use slowmo_protocol::coordinator::Origin;
use std::ops::Range;
use std::path::Path;

/// A checkpoint that was verified, and whether its slow momentum is this training's.
#[derive(Debug)]
pub struct Resumed {
    checkpoint: Checkpoint,
    keeps_momentum: bool,
}

impl Resumed {
    /// The newest whole checkpoint of a folder; `None` if there is none. What is wrong with newer ones is logged.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn newest(folder: &Path, outer: Option<&str>) -> Result<Option<Self>, CheckpointError> {
        let (found, refused) = folder::newest_whole(folder)?;
        for refused in refused {
            tracing::warn!(checkpoint = %refused.path.display(), error = %refused.error, "a checkpoint cannot be used: an older one is tried");
        }
        Ok(found.map(|checkpoint| Self::of(checkpoint, outer)))
    }

    /// The checkpoint of this name.
    ///
    /// # Errors
    /// There is none, or it is not whole.
    pub fn named(folder: &Path, name: Name, outer: Option<&str>) -> Result<Self, CheckpointError> {
        let path = folder.join(name.to_string());
        if !path.is_dir() {
            return Err(CheckpointError::NoSuch { name: name.to_string(), folder: folder.to_owned() });
        }
        let checkpoint = Checkpoint::open(&path)?;
        checkpoint.verify()?;
        Ok(Self::of(checkpoint, outer))
    }

    fn of(checkpoint: Checkpoint, outer: Option<&str>) -> Self {
        let kept = checkpoint.header().outer.as_deref();
        let keeps_momentum = kept == outer;
        if !keeps_momentum && let (Some(kept), Some(outer)) = (kept, outer) {
            tracing::warn!(kept, outer, "the checkpoint is of another outer optimizer: slow momentum begins at zero");
        }
        tracing::info!(checkpoint = %checkpoint.folder().display(), step = checkpoint.header().step, "the founding goes on from a checkpoint");
        Self { checkpoint, keeps_momentum }
    }

    /// The checkpoint.
    #[must_use]
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// What all founding nodes must say alike.
    #[must_use]
    pub fn name(&self) -> Name {
        Name::of(self.checkpoint.header())
    }
}

impl Restored for Resumed {
    fn origin(&self) -> Origin {
        let header = self.checkpoint.header();
        // The founding itself is a round of the new history's own.
        let rounds = header.rounds_before.saturating_add(header.round);
        Origin { run: header.run.saturating_add(1), rounds, momentum_lost: header.momentum_lost }
    }

    fn momentum(&self, parameters: Range<usize>, momentum: &mut [f32]) -> Result<(), String> {
        if !self.keeps_momentum {
            momentum.fill(0.0);
            return Ok(());
        }
        self.checkpoint.momentum(parameters, momentum).map_err(|error| error.to_string())
    }
}
