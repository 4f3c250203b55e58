//! Properties that must always hold, and the continuation of a cluster once faults stop.

use super::rules::{Rules, Step};
use super::setup::Setup;
use super::state::State;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Property P1.
pub const ONE_OUTCOME: &str = "P1: a round has one outcome";
/// Property P2.
pub const MEMBERS_HOLD: &str = "P2: who is a member of a decided entry holds its data";
/// Property P3.
pub const MODEL_HELD: &str =
    "P3: while a member of the newest view lives, somebody holds the model";
/// P4, as far as a model without clocks can express it.
pub const SETTLES: &str = "P4: once faults stop the round is decided";
/// Property P6.
pub const QUORUM: &str = "P6: only a quorum of a round's voters decides it";
/// Part of rule 1.
pub const ALL_READY: &str = "nothing is decided without the Ready of every next member";
/// Part of rule 1.
pub const SHRINKS: &str = "within a term the participants only shrink";
/// Rule of the section on voters.
pub const OUTVOTED: &str = "the voters who stay are a quorum of the next ones";

/// Maximum number of steps of the continuation. A round takes about forty.
const SETTLES_WITHIN: usize = 200;
/// Number of terms that the continuation may begin.
const SETTLES_WITH: usize = 2;

/// The order in which messages arrive in the continuation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// Messages of higher terms first.
    NewestFirst,
    /// Messages of lower terms first.
    OldestFirst,
}

impl Rules {
    /// Checks P2.
    #[must_use]
    pub fn members_hold(state: &State) -> bool {
        let newest = state.newest();
        !state.wrong.nothing_held
            && state
                .view(newest)
                .members
                .and(state.alive)
                .iter()
                .all(|member| state.holds(member, newest))
    }

    /// Checks P3.
    #[must_use]
    pub fn model_is_held(state: &State) -> bool {
        let newest = state.newest();
        state.view(newest).members.and(state.alive).is_empty()
            || state
                .alive
                .iter()
                .any(|process| state.holds(process, newest))
    }

    /// P4: the continuation without faults decides, if it must.
    #[must_use]
    pub fn settles(&self, state: &State) -> bool {
        if !self.is_tried(state) || !self.must_settle(state) {
            return true;
        }
        [Delivery::NewestFirst, Delivery::OldestFirst]
            .into_iter()
            .all(|delivery| self.settles_with(state, delivery))
    }

    fn is_tried(&self, state: &State) -> bool {
        match self.setup.settle_every {
            0 => false,
            1 => true,
            every => {
                let mut hasher = DefaultHasher::new();
                state.processes.hash(&mut hasher);
                state.views.hash(&mut hasher);
                (state.alive, state.leaving, state.known(), state.newest()).hash(&mut hasher);
                hasher.finish().is_multiple_of(every)
            }
        }
    }

    /// Whether the continuation must decide: a quorum and a holder live, both of the newest view
    /// and of the newest view that a living process knows; or so few processes died that the rules
    /// for fewer than three voters promise a quorum.
    fn must_settle(&self, state: &State) -> bool {
        let Setup {
            founders,
            rounds,
            leavers,
            ends,
            ..
        } = self.setup;
        let known = state.known();
        let newest = state.newest();
        if known == 0 || known > rounds {
            return false;
        }
        let held = |round: u8| {
            state
                .view(round)
                .members
                .and(state.alive)
                .iter()
                .any(|member| state.holds(member, round))
        };
        if !held(known) || !held(newest) {
            return false;
        }
        // A process that left by the rules is not a fault.
        let quorum = state.view(known).is_quorum(state.alive.or(state.gone))
            && state.view(newest).is_quorum(state.alive);
        let few = founders >= 3 && leavers == 0 && ends == 0 && state.spent.crashes <= 1;
        quorum || few
    }

    /// Continues the cluster: every message arrives, leaders know which processes live, and a
    /// member takes over when nothing else happens.
    fn settles_with(&self, state: &State, delivery: Delivery) -> bool {
        let known = state.known();
        let mut state = state.clone();
        let mut steps = Vec::new();
        let mut began = 0;
        for _ in 0..SETTLES_WITHIN {
            if state.known() > known {
                return true;
            }
            steps.clear();
            self.steps(&state, false, &mut steps);
            if let Some(step) = steps.iter().min_by_key(|step| rank(step, delivery)) {
                state = self.after(&state, *step);
                continue;
            }
            // The bound on attempts belongs to the model: a process that has used them up continues
            // in a term of its own.
            let able = |process: &usize| {
                state.processes[*process].round == known
                    && state.holds(*process, known)
                    && self.may_lead(&state, *process)
            };
            let mut members = state
                .view(known)
                .members
                .and(state.alive)
                .iter()
                .filter(able);
            let first = match delivery {
                Delivery::NewestFirst => members.next(),
                Delivery::OldestFirst => members.last(),
            };
            if began >= SETTLES_WITH {
                return false;
            }
            let Some(process) = first else {
                return false;
            };
            began += 1;
            self.take_over_above_all(&mut state, process);
        }
        false
    }
}

/// Rank of a step; the lowest goes first.
fn rank(step: &Step, delivery: Delivery) -> (u8, u8) {
    let (order, term) = match *step {
        Step::Announce { term, .. } => (0, term),
        Step::Learn(_) => (1, 0),
        Step::Propose { term, .. } => (2, term),
        Step::Finish { term, .. } | Step::Open { term, .. } => (3, term),
        Step::Accept { term, .. } => (4, term),
        Step::Promise { term, .. } => (5, term),
        Step::Acknowledge { term, .. } => (6, term),
        Step::Safe { term, .. } => (7, term),
        Step::Ready { term, .. } | Step::AllReady { term, .. } => (8, term),
        Step::Attempt { term, .. } => (9, term),
        Step::Drop { term, .. } => (10, term),
        Step::Go(_) => (11, 0),
        Step::Crash(_) | Step::Restart(_) | Step::Leave(_) | Step::TakeOver(_) => (12, 0),
    };
    match delivery {
        Delivery::NewestFirst => (order, u8::MAX - term as u8),
        Delivery::OldestFirst => (term as u8, order),
    }
}
