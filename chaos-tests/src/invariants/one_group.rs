//! 11. Two groups never both continue (majority quorum).

use super::{Checked, History, Invariant};
use slowmo_protocol::ident::Lineage;
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{Event, Line};
use std::collections::BTreeMap;

/// Of two histories of one bootstrap at most one decides rounds while the other exists. A history
/// may end in another one, but once the later one has begun and continues, the earlier one does
/// not.
#[derive(Default)]
pub struct OneGroup {
    checked: u64,
    /// Times at which the first and the last round of each history were decided.
    decided: BTreeMap<Lineage, (Instant, Instant)>,
}

impl Invariant for OneGroup {
    fn name(&self) -> &'static str {
        "one_group"
    }

    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String> {
        let (Event::Applied { .. }, Some(known), Some(setup)) =
            (&line.event, history.new_outcome(), history.setup())
        else {
            return Ok(());
        };
        if setup.quorum != Quorum::Majority {
            return Ok(());
        }
        self.checked += 1;
        let lineage = known.decided.place.lineage;
        let own = self.decided.entry(lineage).or_insert((line.at, line.at));
        own.1 = line.at;
        let (begun, last) = *own;
        let beside = |(other, (other_begun, other_last)): &(&Lineage, &(Instant, Instant))| {
            **other != lineage
                && other.is_akin(lineage)
                && begun.max(*other_begun) < last.min(*other_last)
        };
        match self.decided.iter().find(beside) {
            Some((other, (_, other_last))) => Err(format!(
                "two groups go on: {} of {lineage} was decided by {:?}, and {other} decided rounds \
                 until {} ms",
                known.decided.place.round,
                known.decided.participants,
                other_last.0 / 1_000
            )),
            None => Ok(()),
        }
    }

    fn finish(&mut self, history: &History) -> Result<Checked, String> {
        let majority = history
            .setup()
            .is_none_or(|setup| setup.quorum == Quorum::Majority);
        Ok(if majority {
            Checked::Times(self.checked)
        } else {
            Checked::NotShown("whoever survives may decide in this run")
        })
    }
}
