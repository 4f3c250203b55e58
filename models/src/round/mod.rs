//! Rounds: terms, attempts, votes, take-over and views that change.
//!
//! | module | holds |
//! |---|---|
//! | `state` | the state of a cluster |
//! | `rules` | the possible next steps and their effects |
//! | `watch` | properties that must always hold |
//! | `setup` | the bounds of a space, and the rules that can be broken |
//! | `spaces` | the spaces and the broken rules that the tests search |
//!
//! # The network
//! A message is sent once: it may arrive at any time, any number of times, or never. So loss,
//! repetition and order need no steps of their own, and a term's messages are represented as the
//! sets of their senders.
//!
//! # Simplifications that change nothing
//! * **A leader has heard everything that was sent when it acts**, except promises: it acts on any
//!   quorum of them, since what follows depends on which ones it heard.
//! * **Data of an attempt arrives at once.** A node acts on it only when it has all. Data that a
//!   contributor sent before it died could have arrived before it died.
//! * **Data that may be dropped is dropped at once**, everywhere: a node that keeps it longer holds
//!   more, not less.
//! * **Promises to a leader that cannot use them** are not given: a voter that gave one would only
//!   refuse more.
//! * **`Ready` in one step** (`at_once`, in the wider spaces): a `Ready` is useful only if all next
//!   members say it, and a node that may say it later may say it at once; one that others do not
//!   follow occupies a slot for undecided data, which only makes its node wait.
//! * **Rounds that no node is in or will be in** keep only their outcome.

mod rules;
mod setup;
mod spaces;
mod state;
mod watch;

pub use rules::{Rules, Step};
pub use setup::{Planted, Setup};
pub use spaces::{Space, long, planted, short};
pub use state::{Entry, Phase, Process, Promise, Round, Set, Spent, State, Term, View, Wrong};
pub use watch::{
    ALL_READY, MEMBERS_HOLD, MODEL_HELD, ONE_OUTCOME, OUTVOTED, QUORUM, SETTLES, SHRINKS,
};

use crate::check::{Limit, Report, Search, check};
use stateright::{Model, Property};

/// The model: the rules, searched until a limit.
#[derive(Clone, Debug)]
pub struct Cluster {
    rules: Rules,
    limit: Limit,
}

impl Model for Cluster {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.rules.founded()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        self.rules.steps(state, true, steps);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let after = self.rules.after(state, step);
        (after != *state).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ONE_OUTCOME, |_: &Self, state: &State| {
                !state.wrong.two_outcomes
            }),
            Property::always(MEMBERS_HOLD, |_: &Self, state: &State| {
                Rules::members_hold(state)
            }),
            Property::always(MODEL_HELD, |_: &Self, state: &State| {
                Rules::model_is_held(state)
            }),
            Property::always(SETTLES, |model: &Self, state: &State| {
                model.rules.settles(state)
            }),
            Property::always(QUORUM, |_: &Self, state: &State| !state.wrong.no_quorum),
            Property::always(ALL_READY, |_: &Self, state: &State| !state.wrong.not_ready),
            Property::always(SHRINKS, |_: &Self, state: &State| !state.wrong.grew),
            Property::always(OUTVOTED, |_: &Self, state: &State| !state.wrong.outvoted),
            Property::sometimes(
                "the last round is decided",
                |model: &Self, state: &State| state.newest() > model.rules.setup.rounds,
            ),
        ];
        if self.rules.setup.settle_every == 0 {
            properties.retain(|property| property.name != SETTLES);
        }
        properties
    }

    fn within_boundary(&self, _: &State) -> bool {
        self.limit.allows()
    }
}

/// Searches one space.
#[must_use]
pub fn explore(setup: &Setup, search: &Search) -> Report {
    check(search, |limit| Cluster {
        rules: Rules {
            setup: setup.clone(),
        },
        limit,
    })
}

/// Runs the short spaces of this model, or the wide ones instead if `long`.
#[must_use]
pub fn run(long: bool) -> Vec<Report> {
    let spaces = if long {
        spaces::long()
    } else {
        spaces::short()
    };
    spaces
        .into_iter()
        .map(|space| {
            let report = explore(&space.setup, &space.search);
            eprintln!("{report}");
            report
        })
        .collect()
}
