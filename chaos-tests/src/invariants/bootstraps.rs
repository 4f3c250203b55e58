//! 12. A bootstrap never replaces a living run: trained state is not given up for fresh weights.

use super::{Checked, History, Invariant};
use slowmo_protocol::ident::Lineage;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{Event, Line, Start};
use std::collections::BTreeMap;

/// No node moves from a run to one that was bootstrapped later.
#[derive(Default)]
pub struct Bootstraps {
    checked: u64,
    /// Time at which the first round of each history was decided.
    begun: BTreeMap<Lineage, Instant>,
    /// The history that each incarnation was in last.
    applied: BTreeMap<Start, Lineage>,
}

impl Bootstraps {
    /// Time at which the bootstrap of a history was decided.
    fn founded(&self, lineage: Lineage) -> Option<Instant> {
        self.begun
            .iter()
            .filter(|(other, _)| other.is_akin(lineage))
            .map(|(_, begun)| *begun)
            .min()
    }
}

impl Invariant for Bootstraps {
    fn name(&self) -> &'static str {
        "bootstraps"
    }

    fn observe(&mut self, line: &Line, _: &History) -> Result<(), String> {
        let Event::Applied { start, decided, .. } = &line.event else {
            return Ok(());
        };
        self.checked += 1;
        let lineage = decided.place.lineage;
        self.begun.entry(lineage).or_insert(line.at);
        let Some(before) = self
            .applied
            .insert(*start, lineage)
            .filter(|before| !before.is_akin(lineage))
        else {
            return Ok(());
        };
        match (self.founded(before), self.founded(lineage)) {
            (Some(earlier), Some(later)) if earlier < later => {
                let node = start.node;
                Err(format!(
                    "{node} gave up {before} for {lineage}, which was founded {} ms later",
                    later.since(earlier).as_millis()
                ))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _: &History) -> Result<Checked, String> {
        Ok(Checked::Times(self.checked))
    }
}
