//! Decides which checkpoints of a folder are one training's own past. Others may write into the
//! same folder: nodes that continued without this one, another job, an earlier start that was not
//! stopped. Checkpoints that are theirs, or may be, are never removed.

use super::manifest::{ANCESTORS_MAX, Ancestor, Header, Part};
use super::name::Name;
use slowmo_protocol::ident::Lineage;

/// A history and its ancestors. Survivors that continued under a lineage of their own are another
/// history: the rest may continue too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Run number of its bootstrap.
    pub run: u32,
    /// Its lineage.
    pub lineage: Lineage,
    /// The histories that it continues from, newest first.
    pub ancestors: Vec<Ancestor>,
}

impl History {
    /// Whether a checkpoint belongs to this history or to its past.
    #[must_use]
    pub fn has(&self, name: Name) -> bool {
        let past = |ancestor: &Ancestor| ancestor.is(name) && name.step <= ancestor.step;
        (name.run, name.lineage) == (self.run, self.lineage) || self.ancestors.iter().any(past)
    }
}

impl History {
    /// Whether a checkpoint belongs to a branch that this history left behind: to one of its
    /// ancestors, after the step from which it continues, or to another history of the same
    /// bootstrap as this one or an ancestor.
    #[must_use]
    pub fn left_behind(&self, name: Name) -> bool {
        let is_of = |run: u32, lineage: Lineage| run == name.run && lineage.is_akin(name.lineage);
        let ancestors = || self.ancestors.iter();
        !self.has(name)
            && (is_of(self.run, self.lineage)
                || ancestors().any(|ancestor| is_of(ancestor.run, Lineage(ancestor.lineage))))
    }
}

/// The ancestors of a history that continues from a checkpoint: the checkpoint's history up to
/// there, and the earlier ancestors known to any of its parts.
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

/// The ancestors recorded in these parts: the part of a node that joined may have none.
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
