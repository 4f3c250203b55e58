//! Which checkpoints of a folder are one training's own past. Others may write into the same
//! folder: those who went on without this node, another job, an earlier start that was not stopped.
//! What is theirs is never removed, and neither is what may be.

use super::folder::Name;
use super::manifest::{ANCESTORS_MAX, Ancestor, Header, Part};
use slowmo_protocol::ident::Lineage;

/// A history and what it descends from. Survivors that went on under a lineage of their own are
/// another history: the rest may go on too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Its founding.
    pub run: u32,
    /// Its lineage.
    pub lineage: Lineage,
    /// What it goes on from, newest first.
    pub ancestors: Vec<Ancestor>,
}

impl History {
    /// Whether a checkpoint is of this history or of its past.
    #[must_use]
    pub fn has(&self, name: Name) -> bool {
        let past = |ancestor: &Ancestor| ancestor.is(name) && name.step <= ancestor.step;
        (name.run, name.lineage) == (self.run, self.lineage) || self.ancestors.iter().any(past)
    }
}

impl History {
    /// Whether a checkpoint is of one of the histories that this one goes on from, but behind the
    /// point where it does.
    #[must_use]
    pub fn left_behind(&self, name: Name) -> bool {
        !self.has(name) && self.ancestors.iter().any(|ancestor| ancestor.is(name))
    }
}

/// What goes on from a checkpoint descends from: its history up to there, and what any of its parts
/// knows of the time before.
pub(super) fn ancestors_through(header: &Header, parts: &[Part]) -> Vec<Ancestor> {
    let own = Ancestor {
        run: header.run,
        lineage: header.lineage,
        step: header.step,
    };
    std::iter::once(own)
        .chain(longest(parts))
        .take(ANCESTORS_MAX)
        .collect()
}

/// The ancestors that these parts know of: a node that joined may know none.
pub(super) fn longest(parts: &[Part]) -> Vec<Ancestor> {
    parts
        .iter()
        .map(|part| &part.ancestors)
        .max_by_key(|ancestors| ancestors.len())
        .cloned()
        .unwrap_or_default()
}

impl Ancestor {
    fn is(&self, name: Name) -> bool {
        (self.run, self.lineage) == (name.run, name.lineage.0)
    }
}
