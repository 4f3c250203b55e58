//! 6. A minority side decides nothing (majority quorum).

use super::{Checked, History, Invariant};
use slowmo_protocol::coordinator::{Voter, Voters};
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::trace::{Event, Line, Votes};

/// The deciders are a quorum of the voters that the previous entry named, and no history ever
/// forks.
#[derive(Default)]
pub struct Majority {
    checked: u64,
}

impl Invariant for Majority {
    fn name(&self) -> &'static str {
        "majority"
    }

    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String> {
        let (Event::Applied { decided, votes, .. }, Some(setup)) = (&line.event, history.setup())
        else {
            return Ok(());
        };
        if setup.quorum != Quorum::Majority {
            return Ok(());
        }
        let round = decided.place.round;
        if decided.began_in != decided.place.lineage {
            return Err(format!("{round} changed the history"));
        }
        let Some(votes) = votes else { return Ok(()) };
        self.checked += 1;
        let voters = voters(votes);
        if !voters.is_quorum(votes.accepted.iter().copied()) {
            return Err(format!(
                "{round} was decided by {:?} of {:?}, which are no quorum",
                votes.accepted, votes.voters
            ));
        }
        let named = history
            .before(decided)
            .map(|before| before.decided.next_voters());
        match named {
            Some(named) if named != voters => Err(format!(
                "{round} was voted on by {voters:?}; the entry before names {named:?}"
            )),
            _ => Ok(()),
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

fn voters(votes: &Votes) -> Voters {
    let voter = |start: &slowmo_protocol::trace::Start| Voter {
        node: start.node,
        incarnation: start.incarnation,
    };
    Voters::new(votes.voters.iter().map(voter).collect(), votes.tie_breaker)
}
