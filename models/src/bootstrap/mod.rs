//! Which process bootstraps a run. The model has three bootstrap members, one of which is the
//! bootstrapper, and a fourth process that only a run knows.
//!
//! Round 0 is modelled as votes of its bootstrap members without terms: [`crate::round`] explores
//! that this one round has one outcome. A message once sent stays sent and is read at any later
//! time or never, which stands for loss, repetition and any order.
//!
//! The steps:
//!
//! - `Hear`, `Forget`: a process knows of another what that one said last; it notices a broken
//!   connection late.
//! - `Found`: the process with the smallest known address bootstraps, once every reachable process
//!   has answered, with those that may be counted.
//! - `Adopt`, `Form`: a bootstrap member takes part once it can send to all other bootstrap
//!   members.
//! - `Ready`, `Vote`, `Learn`: more than half of the bootstrap members decide round 0, once as many
//!   are ready.
//! - `Leave`: so many bootstrap members ended that the rest is no quorum.
//! - `Mark`, `Restart`: a member makes its marker; a process that finds one bootstraps nothing
//!   before every known address answered.
//!
//! A run continues with any living member of it, the most that any setting of `quorum` allows.

mod rules;
mod state;

use crate::check::{Limit, Report, Search, Until, check};
pub use state::{Action, State};
use state::{FOUNDERS, Node, bit, ids};
use stateright::{Model, Property};

/// Number of passes within which a run without faults must come to rest.
const PASSES: usize = 40;

/// P6 and P7: all processes that hold a run hold the same one.
pub const ONE_RUN: &str = "P7: no founding takes a living run's place";
/// Once faults are over, every process ends in one run or waits for a process that is gone.
pub const COMES_TO_REST: &str =
    "P4: without faults everybody ends in one run or waits for who is not there";
/// Some run can be bootstrapped at all.
pub const POSSIBLE: &str = "a run with everybody in it is possible";

/// The time at which a process makes its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// Never: a restart goes unnoticed.
    None,
    /// Once the process is a member and its training has begun, as the product does.
    Member,
    /// Before the process says that it is ready for round 0. A process that has a marker looks for
    /// a run before it bootstraps, whether or not it was restarted.
    Founder,
}

/// A planted bug: one rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Planted {
    /// The bootstrapper asks nobody whether a run lives.
    NobodyAsked,
    /// A process that finds its marker bootstraps like any other.
    MarkerIgnored,
    /// A process that finds its marker waits itself, and others count it as a bootstrap member.
    RestartedIsFounder,
    /// A bootstrap member switches to a preferred bootstrap although it was ready for another.
    GoesOverWhenReady,
    /// Half of the bootstrap members, if the lowest is among them, decide round 0.
    TieBreaker,
    /// A process that heard of a bootstrap without it waits for that run, even when no process
    /// takes part in it any more.
    WaitsForTheVoid,
    /// A process that heard that its bootstrap was decided without it does not help to decide it,
    /// even when the process that said so is gone.
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
    /// The property that finds the bug.
    #[must_use]
    pub fn found_by(self) -> &'static str {
        match self {
            Self::WaitsForTheVoid | Self::OnceOutsideAlwaysOutside => COMES_TO_REST,
            _ => ONE_RUN,
        }
    }

    /// The space in which the bug shows; without the bug, everything holds there.
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

/// A search space: the settings and the bounds on faults.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Name in the report.
    pub name: &'static str,
    /// Number of processes that must have met before one of them bootstraps.
    pub min_nodes: u32,
    /// Addresses that each process knows, its own included, one bit each.
    pub lists: [u8; FOUNDERS],
    /// The time at which the marker is made.
    pub marker: Marker,
    /// Whether a run may admit a fourth process that nobody else can reach.
    pub fourth: bool,
    /// Whether the three processes know the address of the fourth.
    pub fourth_is_listed: bool,
    /// Whether, of two bootstraps by one process, the later has the lower name.
    pub later_is_preferred: bool,
    /// Number of processes that are killed; each may be restarted.
    pub kills: u8,
    /// Number of times that a process is cut off from the others.
    pub cuts: u8,
    /// The rule that is left out, if any.
    pub planted: Option<Planted>,
}

/// Two of three processes bootstrap; a bootstrap member makes its marker before it says that it is
/// ready.
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
/// Only members make markers, as in the product; all processes can reach each other.
pub const MEMBERS_MARKERS: Space = Space {
    name: "two of three needed, members' markers, 1 kill, no cut",
    marker: Marker::Member,
    cuts: 0,
    ..TWO_NEEDED
};
/// No markers; all processes can reach each other.
pub const WITHIN_REACH: Space = Space {
    name: "two of three needed, no markers, 1 kill, no cut",
    marker: Marker::None,
    cuts: 0,
    ..TWO_NEEDED
};
/// All three processes bootstrap; nobody notices a restart.
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

/// Spaces in which every property holds, explored in every run.
pub const SHORT: [Space; 5] = [
    TWO_NEEDED,
    MEMBERS_MARKERS,
    WITHIN_REACH,
    ALL_NEEDED,
    LISTS_DIFFER,
];
/// Wider spaces in which every property holds.
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

/// Spaces in which two separate runs are possible: the rules do not promise otherwise.
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

/// Runs the spaces of this model, including the wide ones if `long`.
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

/// Explores until two separate runs are found.
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
    /// Steps that processes take by themselves, in the order in which a run without faults tries
    /// them.
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

    /// The state in which a run without further faults comes to rest, or `None` if it does not.
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

    /// Whether all living processes are in one run; or none is, and the bootstrapper is gone or
    /// waits for a process that is gone.
    fn explained(&self, state: &State) -> bool {
        let living = || ids().filter(|id| state.node(*id).alive);
        if let Some(run) = living().find_map(|id| state.node(id).run) {
            return living().all(|id| state.node(id).run == Some(run));
        }
        // A bootstrap member takes part once it can send to all of them.
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
        // Bootstrap members that are ready for different bootstraps wait for each other: only a
        // restart of one of them ends that.
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
