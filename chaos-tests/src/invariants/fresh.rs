//! 7. No fresh node's parameters enter a decided round of an existing lineage except by
//!    contributing after it joined.

use super::{Checked, History, Invariant};
use slowmo_protocol::coordinator::RoundKind;
use slowmo_protocol::trace::{Event, Line};

/// Every contributor is a member and computed its contribution from the parameters that were
/// decided before.
#[derive(Default)]
pub struct Fresh {
    checked: u64,
}

impl Invariant for Fresh {
    fn name(&self) -> &'static str {
        "fresh_parameters"
    }

    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String> {
        let (Event::Applied { .. }, Some(known)) = (&line.event, history.new_outcome()) else {
            return Ok(());
        };
        let decided = &known.decided;
        let round = decided.place.round;
        if decided.kind == RoundKind::Bootstrap {
            let founder = decided.participants.first().copied();
            let right = decided.contributors.iter().copied().eq(founder);
            return if right {
                Ok(())
            } else {
                Err(format!("{round} was founded by {:?}", decided.contributors))
            };
        }
        let Some(before) = history
            .parameters_before(decided)
            .map(|known| known.decided.place)
        else {
            return Ok(());
        };
        for node in &decided.contributors {
            self.checked += 1;
            let Some(start) = decided.members.iter().find(|start| start.node == *node) else {
                return Err(format!("{node} contributed to {round} and is no member"));
            };
            let contribution = history.contribution(*start, decided.began_in, round);
            match contribution.map(|contribution| contribution.after) {
                Some(Some(after)) if after == before => {}
                Some(after) => {
                    return Err(format!(
                        "{node} contributed to {round} what it computed after {after:?}, not after \
                         {before:?}"
                    ));
                }
                None => {
                    return Err(format!(
                        "{round} was averaged with a contribution of {node} that it never made"
                    ));
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self, _: &History) -> Result<Checked, String> {
        Ok(Checked::Times(self.checked))
    }
}
