//! Durable storage of decided state, and the restored state from which a bootstrap continues.

use crate::buffers::{ChunkedBuffer, Frozen};
use slowmo_protocol::coordinator::{Origin, Outcome};
use slowmo_protocol::ident::ShardId;
use slowmo_protocol::view::Member;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// State after a decided outcome on this node, which writes its part of it. Shares the values and
/// keeps them alive until they are written.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The decided outcome.
    pub outcome: Outcome,
    /// The members of the view in which the round began, ascending.
    pub members_before: Arc<[Member]>,
    /// The averaged values, parameters, then buffers: at least those of its shards.
    pub values: ChunkedBuffer,
    /// How many of the values are parameters.
    pub parameters: usize,
    /// The shards that this node writes, ascending; none if it left with this outcome.
    pub shards: Vec<ShardId>,
    /// The slow momentum of each of those shards, in pieces at their positions; a shard without
    /// pieces has zero momentum. `None` if there is no outer optimizer.
    pub momentum: Option<Vec<ChunkedBuffer>>,
    /// The base optimizer's buffers of this node, if its training passed them.
    pub optimizer: Option<Frozen>,
}

/// Keeps snapshots. No call may block, neither on a disk nor on another thread, except
/// [`Store::end`].
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// Whether anything is kept at all.
    fn keeps(&self) -> bool {
        false
    }

    /// Writes this node's part of a snapshot later. At most one snapshot waits: if its writing has
    /// not begun when the next one arrives, one of the two is dropped and counted. All nodes drop
    /// the same one of any two ([`slowmo_protocol::checkpoint::replaces`]).
    fn keep(&self, _snapshot: Snapshot) {}

    /// Keeps a snapshot of its own part in memory, in place of the one held before. It is written
    /// only if the node ends in order before a later one is kept.
    fn hold(&self, _snapshot: Snapshot) {}

    /// Tells whether a round may soon make a checkpoint beside the schedule.
    fn expect(&self, _soon: bool) {}

    /// Waits, within a time bound, until all kept snapshots are written; with `held`, also the one
    /// that is held. Called when a node ends.
    fn end(&self, _held: bool) {}

    /// The origin that every outcome of a history names if this node bootstraps that history.
    fn origin(&self) -> Origin {
        Origin::default()
    }

    /// The kept state from which bootstrap continues; `None` if the run starts afresh.
    fn restored(&self) -> Option<Arc<dyn Restored>> {
        None
    }
}

/// Kept state from which a bootstrap continues; all of it was verified to be as it was written.
pub trait Restored: Send + Sync + fmt::Debug {
    /// Copies the slow momentum of the given parameters, in flat order, into `momentum`, which is
    /// as long as the range; zeros if the state was kept without momentum. May wait for a disk.
    ///
    /// # Errors
    /// The state cannot be read any more, or differs from what was written; the text names the
    /// file.
    fn momentum(&self, parameters: Range<usize>, momentum: &mut [f32]) -> Result<(), String>;
}

/// A store that keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStore;

impl Store for NoStore {}
