//! Where decided state is kept for good, and what a founding goes on from.

use crate::buffers::{ChunkedBuffer, Frozen};
use slowmo_protocol::coordinator::{Origin, Outcome};
use slowmo_protocol::ident::ShardId;
use slowmo_protocol::view::Member;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// What a decided outcome left on this node, of which it writes its part. Shares the values, which
/// it keeps alive until they are written.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What was decided.
    pub outcome: Outcome,
    /// The members of the view that the round began with, ascending.
    pub members_before: Arc<[Member]>,
    /// Everything that was averaged: parameters, then buffers.
    pub values: ChunkedBuffer,
    /// How many of them are parameters.
    pub parameters: usize,
    /// The shards that this node writes, ascending.
    pub shards: Vec<ShardId>,
    /// The slow momentum of those, each in pieces at their places; one without pieces is zero.
    /// `None` where there is no outer optimizer.
    pub momentum: Option<Vec<ChunkedBuffer>>,
    /// The base optimizer's buffers of this node, if its training lent them.
    pub optimizer: Option<Frozen>,
}

/// Keeps snapshots. No call may wait, neither for a disk nor for anybody else, but
/// [`Store::flush`].
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// Whether anything is kept at all.
    fn keeps(&self) -> bool {
        false
    }

    /// Writes this node's part of a snapshot later. At most one waits: where it is not begun when
    /// the next comes, one of the two is given up, of any two the same on all nodes
    /// ([`slowmo_protocol::checkpoint::replaces`]), and counted.
    fn keep(&self, _snapshot: Snapshot) {}

    /// Waits, within a bound, until what was given is written. For a node that ends.
    fn flush(&self) {}

    /// What every outcome of a history that this node founds says of where it comes from.
    fn origin(&self) -> Origin {
        Origin::default()
    }

    /// What the founding goes on from, if it does.
    fn restored(&self) -> Option<Arc<dyn Restored>> {
        None
    }
}

/// What a founding goes on from: state that was kept, all of it found to be as it was written.
pub trait Restored: Send + Sync + fmt::Debug {
    /// Copies the slow momentum of some parameters, in flat order, into `momentum`, which is as
    /// long as the range; zeros where it was kept without. May wait for a disk.
    ///
    /// # Errors
    /// It cannot be read any more, or is not what was written; the text names the file.
    fn momentum(&self, parameters: Range<usize>, momentum: &mut [f32]) -> Result<(), String>;
}

/// Keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStore;

impl Store for NoStore {}
