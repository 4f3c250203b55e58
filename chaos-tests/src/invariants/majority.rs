//! 6. A minority side decides nothing (majority quorum).

use super::{Checked, History, Invariant};
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::trace::{Decided, Event, Line};

/// Who decides is a quorum of the view, or accounts for all of it together with members that hold nothing any more: they came back
/// as new starts, or resigned.
#[derive(Default)]
pub struct Majority {
    checked: u64,
}

impl Invariant for Majority {
    fn name(&self) -> &'static str {
        "majority"
    }

    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String> {
        let (Event::Applied { .. }, Some(known), Some(setup)) = (&line.event, history.new_outcome(), history.setup()) else {
            return Ok(());
        };
        if setup.quorum != Quorum::Majority {
            return Ok(());
        }
        self.checked += 1;
        let decided = &known.decided;
        let (round, participants) = (decided.place.round, &decided.participants);
        let same = decided.began_in == decided.place.lineage;
        match (is_quorum(decided), same) {
            (true, true) => Ok(()),
            // Those whose data it is may be a quorum, and some of them gone when it was decided.
            (true, false) if accounts_for_all(decided, history) && is_short(decided, history) => Ok(()),
            (true, false) => Err(format!("{round} changed the history although {participants:?} are a quorum of {:?}", decided.members)),
            (false, false) if accounts_for_all(decided, history) => Ok(()),
            (false, _) => Err(format!("{round} was decided by {participants:?} of {:?}, which are no quorum", decided.members)),
        }
    }

    fn finish(&mut self, history: &History) -> Result<Checked, String> {
        let majority = history.setup().is_none_or(|setup| setup.quorum == Quorum::Majority);
        Ok(if majority { Checked::Times(self.checked) } else { Checked::NotShown("whoever survives may decide in this run") })
    }
}

/// More than half of the members, or exactly half with the lowest of them.
fn is_quorum(decided: &Decided) -> bool {
    let there = decided.members.iter().filter(|start| decided.participants.contains(&start.node)).count();
    let lowest = decided.members.first().is_some_and(|start| decided.participants.contains(&start.node));
    2 * there > decided.members.len() || (2 * there == decided.members.len() && lowest)
}

/// Whether one of those that took part holds nothing any more.
fn is_short(decided: &Decided, history: &History) -> bool {
    decided.members.iter().any(|start| decided.participants.contains(&start.node) && history.is_void(*start))
}

fn accounts_for_all(decided: &Decided, history: &History) -> bool {
    decided.members.iter().all(|start| decided.participants.contains(&start.node) || history.is_void(*start))
}
