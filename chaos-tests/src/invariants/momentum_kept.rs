//! 4. No decided momentum is lost while at most `R` holders of each shard die between two decisions.

use super::{Checked, History, Invariant};
use crate::trace::{Event, Line};
use slowmo_protocol::ident::{NodeId, Round};
use slowmo_protocol::time::Instant;

/// Where momentum restarts, more than `R` members had trouble since the proposal of the round before.
#[derive(Default)]
pub struct MomentumKept {
    checked: u64,
}

impl Invariant for MomentumKept {
    fn name(&self) -> &'static str {
        "momentum_kept"
    }

    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String> {
        let (Event::Applied { .. }, Some(known), Some(setup)) = (&line.event, history.new_outcome(), history.setup()) else { return Ok(()) };
        let decided = &known.decided;
        self.checked += 1;
        let before = history.before(decided);
        let lost = decided.momentum_lost.saturating_sub(before.map_or(0, |known| known.decided.momentum_lost));
        if lost == 0 {
            return Ok(());
        }
        let since = before.and_then(|known| history.before(&known.decided)).map_or(Instant(0), |known| known.at);
        let troubled = |start: &&crate::trace::Start| history.troubles().since(**start, since);
        let troubled: Vec<NodeId> = decided.members.iter().filter(troubled).map(|start| start.node).collect();
        if troubled.len() > setup.replicas {
            return Ok(());
        }
        let Round(round) = decided.place.round;
        Err(format!("round {round} lost the momentum of {lost} shards with only {troubled:?} in trouble and {} replicas", setup.replicas))
    }

    fn finish(&mut self, history: &History) -> Result<Checked, String> {
        let sharded = history.setup().is_some_and(|setup| setup.sharded);
        Ok(if sharded { Checked::Times(self.checked) } else { Checked::NotShown("this run keeps no slow momentum in shards") })
    }
}
