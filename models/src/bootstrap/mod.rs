//! Who founds a run: one process that bootstraps, two that found with it, and a fourth that only a
//! run knows.
//!
//! Round 0 is kept as votes of its founders without terms: that one round has one outcome is what
//! [`crate::round`] explores. What was sent stays sent and is read at any later time or never,
//! which stands for loss, repetition and any order.
//!
//! | step | rule |
//! |---|---|
//! | `Hear`, `Forget` | what a process knows of another is what that one said last; a broken connection is noticed late |
//! | `Found` | the smallest address that is known founds, once whoever can be reached has answered, with those that may be counted |
//! | `Adopt`, `Form` | a founder takes part once it can send to all of the founding |
//! | `Ready`, `Vote`, `Learn` | more than half of the founders decide round 0, once as many are ready |
//! | `Leave` | so many founders ended that the rest is no quorum |
//! | `Mark`, `Restart` | a member makes its marker; a process that finds one founds nothing before every known address answered |
//!
//! A run goes on with any living member of it, the most that any setting of `quorum` allows.

mod rules;
mod state;

use crate::check::{Limit, Report, Search, Until, check};
pub use state::{Action, State};
use state::{FOUNDERS, Node, bit, ids};
use stateright::{Model, Property};

/// Passes after which a run without faults must have come to rest.
const PASSES: usize = 40;

/// P6 and P7: whoever holds a run holds the same one.
pub const ONE_RUN: &str = "P7: no founding takes a living run's place";
/// Faults over, everybody ends in one run or waits for a process that is gone.
pub const COMES_TO_REST: &str =
    "P4: without faults everybody ends in one run or waits for who is not there";
/// A run can come to be at all.
pub const POSSIBLE: &str = "a run with everybody in it is possible";

/// When a process makes its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// Never: no restart is noticed.
    None,
    /// Once it is a member and its training has begun, as the product does.
    Member,
    /// Before it says that it is ready for round 0; and whoever has a marker looks before it
    /// founds, started again or not.
    Founder,
}

/// A planted bug: one rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Planted {
    /// The process that bootstraps asks nobody whether a run lives.
    NobodyAsked,
    /// A process that finds its marker founds like any other.
    MarkerIgnored,
    /// A process that finds its marker waits itself, and is counted as a founder by others.
    RestartedIsFounder,
    /// A founder goes over to a better founding although it was ready for another.
    GoesOverWhenReady,
    /// Half of the founders with the lowest decide round 0.
    TieBreaker,
    /// A process that heard of a founding without it waits for that, also when nobody stands in it
    /// any more.
    WaitsForTheVoid,
    /// A process that heard that its founding was decided without it does not help to decide it,
    /// when who said so is gone.
    OnceOutsideAlwaysOutside,
}

/// Every planted bug.
pub const PLANTED: [Planted; 7] = [
    Planted::NobodyAsked,
    Planted::MarkerIgnored,
    Planted::RestartedIsFounder,
    Planted::GoesOverWhenReady,
    Planted::TieBreaker,
    Planted::WaitsForTheVoid,
    Planted::OnceOutsideAlwaysOutside,
];

impl Planted {
    /// The property that finds it.
    #[must_use]
    pub fn found_by(self) -> &'static str {
        match self {
            Self::WaitsForTheVoid | Self::OnceOutsideAlwaysOutside => COMES_TO_REST,
            _ => ONE_RUN,
        }
    }

    /// The space in which it shows; without it, everything holds there.
    #[must_use]
    pub fn space(self) -> Space {
        let space = match self {
            Self::MarkerIgnored
            | Self::RestartedIsFounder
            | Self::WaitsForTheVoid
            | Self::OnceOutsideAlwaysOutside => TWO_NEEDED,
            Self::NobodyAsked => WITHIN_REACH,
            Self::GoesOverWhenReady | Self::TieBreaker => LISTS_DIFFER,
        };
        Space {
            planted: Some(self),
            ..space
        }
    }
}

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// What the report calls it.
    pub name: &'static str,
    /// How many must have met before one of them founds.
    pub min_nodes: u32,
    /// The addresses that each process knows, its own included, a bit each.
    pub lists: [u8; FOUNDERS],
    /// When the marker is made.
    pub marker: Marker,
    /// Whether a run may admit a fourth process, out of everybody's reach.
    pub fourth: bool,
    /// Whether the three know the address of the fourth.
    pub fourth_is_listed: bool,
    /// Of two foundings of one process the later one has the lower name.
    pub later_is_preferred: bool,
    /// How many processes are killed; each may be started again.
    pub kills: u8,
    /// How often one is cut off from the others.
    pub cuts: u8,
    /// The rule left out.
    pub planted: Option<Planted>,
}

/// Two of three found; a founder makes its marker before it says that it is ready.
pub const TWO_NEEDED: Space = Space {
    name: "two of three needed, founders' markers, 1 kill, 1 cut",
    min_nodes: 2,
    lists: [0b111; FOUNDERS],
    marker: Marker::Founder,
    fourth: false,
    fourth_is_listed: false,
    later_is_preferred: true,
    kills: 1,
    cuts: 1,
    planted: None,
};
/// Members' markers, as the product makes them, everybody within reach.
pub const MEMBERS_MARKERS: Space = Space {
    name: "two of three needed, members' markers, 1 kill, no cut",
    marker: Marker::Member,
    cuts: 0,
    ..TWO_NEEDED
};
/// No marker, everybody within reach.
pub const WITHIN_REACH: Space = Space {
    name: "two of three needed, no markers, 1 kill, no cut",
    marker: Marker::None,
    cuts: 0,
    ..TWO_NEEDED
};
/// All three found; nobody notices a restart.
pub const ALL_NEEDED: Space = Space {
    name: "three of three needed, no markers, 1 kill, 1 cut",
    min_nodes: 3,
    marker: Marker::None,
    ..TWO_NEEDED
};
/// The second process does not know the first.
pub const LISTS_DIFFER: Space = Space {
    name: "lists that differ, two needed, 1 cut",
    lists: [0b111, 0b110, 0b111],
    kills: 0,
    ..TWO_NEEDED
};

/// Spaces in which everything holds, explored in every run.
pub const SHORT: [Space; 5] = [
    TWO_NEEDED,
    MEMBERS_MARKERS,
    WITHIN_REACH,
    ALL_NEEDED,
    LISTS_DIFFER,
];
/// Wider spaces.
pub const LONG: [Space; 3] = [
    Space {
        name: "two of three needed, founders' markers, 2 kills, 1 cut",
        kills: 2,
        ..TWO_NEEDED
    },
    Space {
        name: "two of three needed, founders' markers, fourth listed, 1 kill, 1 cut",
        fourth: true,
        fourth_is_listed: true,
        ..TWO_NEEDED
    },
    Space {
        name: "three of three needed, no markers, 2 kills, 1 cut",
        kills: 2,
        ..ALL_NEEDED
    },
];

/// Spaces in which two runs live apart: what the rules do not promise.
pub const APART: [Space; 4] = [
    Space {
        name: "two of three needed, no markers, 1 kill, 1 cut",
        marker: Marker::None,
        ..TWO_NEEDED
    },
    Space {
        name: "two of three needed, members' markers, 1 kill, 1 cut",
        marker: Marker::Member,
        ..TWO_NEEDED
    },
    Space {
        name: "one of three needed, members' markers, 1 kill, 1 cut",
        min_nodes: 1,
        marker: Marker::Member,
        ..TWO_NEEDED
    },
    Space {
        name: "two of three needed, founders' markers, fourth unlisted, 1 kill, 1 cut",
        fourth: true,
        ..TWO_NEEDED
    },
];

/// Runs the spaces of this model, the wide ones too if `long`.
#[must_use]
pub fn run(long: bool) -> Vec<Report> {
    let wide = if long { LONG.as_slice() } else { &[] };
    SHORT
        .iter()
        .chain(wide)
        .map(|space| explore(*space))
        .collect()
}

/// Explores one space.
#[must_use]
pub fn explore(space: Space) -> Report {
    check(&Search::new(space.name), |limit| Bootstraps {
        space,
        limit,
    })
}

/// Explores until two runs live apart.
#[must_use]
pub fn run_apart(space: Space) -> Report {
    check(
        &Search {
            until: Until::Fails(ONE_RUN),
            ..Search::new(space.name)
        },
        |limit| Bootstraps { space, limit },
    )
}

/// Explores until the planted bug is found.
#[must_use]
pub fn run_planted(planted: Planted) -> Report {
    let space = planted.space();
    let search = Search {
        until: Until::Fails(planted.found_by()),
        ..Search::new(space.name)
    };
    check(&search, |limit| Bootstraps { space, limit })
}

/// The model.
struct Bootstraps {
    space: Space,
    limit: Limit,
}

impl Bootstraps {
    /// What processes do by themselves, in the order in which a run without faults tries it.
    fn steps(state: &State, out: &mut Vec<Action>) {
        for id in ids() {
            out.extend([
                Action::Learn(id),
                Action::Mark(id),
                Action::Leave(id),
                Action::GiveUp(id),
                Action::Form(id),
            ]);
            out.extend([Action::Vote(id), Action::Ready(id)]);
            out.extend(ids().filter(|other| *other != id).flat_map(|other| {
                [
                    Action::Forget(id, other),
                    Action::Hear(id, other),
                    Action::Join(id, other),
                ]
            }));
            out.extend((0..state.foundings.len() as u8).map(|number| Action::Adopt(id, number)));
        }
        out.extend((0..state.foundings.len() as u8).map(Action::Admit));
        out.extend(ids().map(Action::Found));
    }

    /// The state in which a run without further faults comes to rest, if it does.
    fn rest(&self, state: &State) -> Option<State> {
        let mut now = State {
            cut: None,
            kills: 0,
            cuts: 0,
            ..state.clone()
        };
        for _ in 0..PASSES {
            let mut steps = Vec::new();
            Self::steps(&now, &mut steps);
            let mut moved = false;
            for step in steps {
                let next = match step {
                    Action::Learn(id) => Self::learn(&now, id, true),
                    Action::Admit(_) => None,
                    _ => self.apply(&now, step),
                };
                if let Some(next) = next {
                    now = next;
                    moved = true;
                }
            }
            if !moved {
                return Some(now);
            }
        }
        None
    }

    /// Whether everybody who lives is in one run, or nobody is and who bootstraps is not there, or
    /// waits for somebody who is not there.
    fn explained(&self, state: &State) -> bool {
        let living = || ids().filter(|id| state.node(*id).alive);
        if let Some(run) = living().find_map(|id| state.node(id).run) {
            return living().all(|id| state.node(id).run == Some(run));
        }
        // A founder takes part once it can send to all of the founding.
        let all_live = |number: u8| {
            ids()
                .filter(|id| state.founding(number).founders & bit(*id) != 0)
                .all(|id| state.node(id).alive)
        };
        if living().any(|id| {
            state
                .node(id)
                .founding
                .is_some_and(|number| !all_live(number))
        }) {
            return true;
        }
        // Founders that are ready for different foundings wait for each other: only another start
        // of one of them ends that.
        let bound: Vec<u8> = living()
            .filter_map(|id| state.node(id).ready_for())
            .collect();
        if bound.iter().any(|number| Some(number) != bound.first()) {
            return true;
        }
        let everybody = self
            .space
            .lists
            .iter()
            .enumerate()
            .filter(|(id, list)| list.trailing_zeros() as usize == *id);
        let mut bootstrap = everybody.map(|(id, _)| id as u8);
        bootstrap.all(|id| {
            let node = state.node(id);
            let founders = living()
                .filter(|other| self.founds(*other, state.node(*other)))
                .count() as u32;
            !node.alive || self.is_bound_to_look(id, node) || founders < self.space.min_nodes
        })
    }
}

impl Model for Bootstraps {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let nodes = [Node {
            alive: true,
            ..Node::default()
        }; FOUNDERS];
        let kills = self.space.kills;
        let cuts = self.space.cuts;
        vec![State {
            nodes,
            foundings: Vec::new(),
            outside: None,
            cut: None,
            kills,
            cuts,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        Self::steps(state, actions);
        actions
            .extend(ids().flat_map(|id| [Action::Kill(id), Action::Restart(id), Action::Cut(id)]));
        actions.push(Action::Heal);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.apply(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_RUN, |_, state: &State| {
                let mut held = state
                    .nodes
                    .iter()
                    .map(|node| node.run)
                    .chain([state.outside])
                    .flatten();
                let first = held.next();
                held.all(|run| Some(run) == first)
            }),
            Property::always(COMES_TO_REST, |model: &Self, state: &State| {
                model.rest(state).is_some_and(|rest| model.explained(&rest))
            }),
            Property::sometimes(POSSIBLE, |_, state: &State| {
                state.nodes.iter().all(|node| node.run.is_some())
            }),
        ]
    }

    fn within_boundary(&self, _: &State) -> bool {
        self.limit.allows()
    }
}
