//! Who founds a run: three processes that may found one, and a fourth that no list names and that a living run admits.
//!
//! Round 0 is kept as votes of its founders without terms: that one round has one outcome is what [`crate::round`] explores. What was sent stays
//! sent and is read at any later time or never, which stands for loss, repetition and any order. A question that must be answered before somebody
//! founds is asked of whoever can be reached at that moment.

use crate::check::{Limit, Report, Search, Until, check};
use stateright::{Model, Property};

/// Processes that may found a run.
const FOUNDERS: usize = 3;
/// More bootstraps than the faults of any space can cause.
const MOST_BOOTSTRAPS: usize = 8;
/// Passes after which a run without faults must have come to rest.
const PASSES: usize = 40;

/// P6: two bootstraps of one list are never both decided.
pub const ONE_BOOTSTRAP: &str = "P6: one bootstrap of a list is decided";
/// P7: whoever holds a run that lives holds the same one.
pub const RUN_KEEPS_ITS_PLACE: &str = "P7: no bootstrap takes a living run's place";
/// The end of a bootstrap is one.
pub const ONE_END: &str = "P1: a bootstrap is decided or void, not both";
/// A node's changes of mind follow the order of the bootstraps.
pub const ONLY_UPWARD: &str = "P4: a node moves to later bootstraps only";
/// Faults over, everybody ends in one run or names what it waits for.
pub const COMES_TO_REST: &str = "P4: without faults everybody ends in one run or says why not";
/// A run can come to be at all.
pub const POSSIBLE: &str = "a run with everybody in it is possible";

/// A planted bug: one rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Planted {
    /// Nodes with different lists found together.
    ListsNotCompared,
    /// A process founds without asking whether a run lives.
    NobodyAsked,
    /// A node says `Ready` to a later bootstrap while an earlier one holds it.
    ReadyToTwo,
    /// A node goes with the bootstrap that it heard of last.
    LastHeardWins,
    /// A node is free from a bootstrap whose leader was silent for a while.
    Lease,
    /// A node is free when the others say "undecided", though these may still vote.
    AnswersDoNotBind,
    /// A founder that ended counts as one that never voted, however many ended.
    EndedNeverVoted,
    /// Half of the founders with the leader decide round 0.
    TieBreaker,
    /// A process that was started again counts as one that remembers.
    RestartsRemember,
    /// Votes are asked for before `min_nodes` said `Ready`.
    TooFewReady,
    /// Nobody ends the bootstrap of a leader that ended.
    NobodySettles,
    /// A process that does not know that it was started again founds, cut off from those who remember, with `min_nodes` no more than just above half.
    RestartUnnoticed,
}

/// Every planted bug.
pub const PLANTED: [Planted; 12] = [
    Planted::ListsNotCompared,
    Planted::NobodyAsked,
    Planted::ReadyToTwo,
    Planted::LastHeardWins,
    Planted::Lease,
    Planted::AnswersDoNotBind,
    Planted::EndedNeverVoted,
    Planted::TieBreaker,
    Planted::RestartsRemember,
    Planted::TooFewReady,
    Planted::NobodySettles,
    Planted::RestartUnnoticed,
];

impl Planted {
    /// The property that finds it.
    #[must_use]
    pub fn found_by(self) -> &'static str {
        match self {
            Self::ListsNotCompared | Self::NobodySettles => COMES_TO_REST,
            Self::LastHeardWins => ONLY_UPWARD,
            Self::EndedNeverVoted | Self::TieBreaker => ONE_END,
            Self::NobodyAsked
            | Self::ReadyToTwo
            | Self::Lease
            | Self::AnswersDoNotBind
            | Self::RestartsRemember
            | Self::TooFewReady
            | Self::RestartUnnoticed => ONE_BOOTSTRAP,
        }
    }

    /// The space in which it shows.
    #[must_use]
    pub fn space(self) -> Space {
        let mut space = match self {
            Self::ListsNotCompared => LISTS_DIFFER_ALL_NEEDED,
            Self::NobodyAsked => UNNOTICED_WITHIN_REACH,
            Self::RestartUnnoticed => Space { name: "restart unnoticed, apart", cuts: 1, ..UNNOTICED_WITHIN_REACH },
            Self::ReadyToTwo | Self::LastHeardWins | Self::Lease => ALL_NEEDED,
            Self::AnswersDoNotBind
            | Self::EndedNeverVoted
            | Self::TieBreaker
            | Self::RestartsRemember
            | Self::TooFewReady
            | Self::NobodySettles => TWO_NEEDED,
        };
        space.planted = Some(self);
        space
    }
}

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// What the report calls it.
    pub name: &'static str,
    /// How many must be there before one of them founds.
    pub min_nodes: u32,
    /// The addresses that each node knows, its own included, a bit each.
    pub lists: [u8; FOUNDERS],
    /// Whether a process knows that it was started again.
    pub notices: bool,
    /// How many processes are killed; each may be started again.
    pub kills: u8,
    /// How often one is cut off from the others.
    pub cuts: u8,
    /// The rule left out.
    pub planted: Option<Planted>,
}

/// Two of three found; who was started again knows it.
pub const TWO_NEEDED: Space = Space {
    name: "two of three, restarts noticed",
    min_nodes: 2,
    lists: [0b111; FOUNDERS],
    notices: true,
    kills: 2,
    cuts: 1,
    planted: None,
};
/// All three found; nobody knows that it was started again.
pub const ALL_NEEDED: Space = Space { name: "three of three, restarts unnoticed", min_nodes: 3, notices: false, ..TWO_NEEDED };
/// Two of three found, one restart that nobody notices, everybody within reach.
pub const UNNOTICED_WITHIN_REACH: Space =
    Space { name: "two of three, one restart unnoticed, no cut", notices: false, kills: 1, cuts: 0, ..TWO_NEEDED };
/// The second node does not know the first.
pub const LISTS_DIFFER: Space = Space { name: "lists that differ, two needed", lists: [0b111, 0b110, 0b111], kills: 1, ..TWO_NEEDED };
/// As before, and nobody can be missed.
pub const LISTS_DIFFER_ALL_NEEDED: Space = Space { name: "lists that differ, all needed", min_nodes: 3, kills: 0, ..LISTS_DIFFER };

/// Spaces explored in every run.
pub const SHORT: [Space; 5] = [TWO_NEEDED, ALL_NEEDED, UNNOTICED_WITHIN_REACH, LISTS_DIFFER, LISTS_DIFFER_ALL_NEEDED];
/// Wider spaces.
pub const LONG: [Space; 3] = [
    Space { name: "two of three, restarts noticed, two cuts", cuts: 2, ..TWO_NEEDED },
    Space { name: "three of three, restarts unnoticed, two cuts", cuts: 2, ..ALL_NEEDED },
    Space { name: "three of three, restarts noticed", min_nodes: 3, ..TWO_NEEDED },
];

/// Runs the spaces of this model, the wide ones too if `long`.
#[must_use]
pub fn run(long: bool) -> Vec<Report> {
    let wide = if long { LONG.as_slice() } else { &[] };
    SHORT.iter().chain(wide).map(|space| explore(*space)).collect()
}

/// Explores one space.
#[must_use]
pub fn explore(space: Space) -> Report {
    check(&Search::new(space.name), |limit| Bootstraps { space, limit })
}

/// Explores until the planted bug is found.
#[must_use]
pub fn run_planted(planted: Planted) -> Report {
    let space = planted.space();
    let search = Search { until: Until::Fails(planted.found_by()), ..Search::new(space.name) };
    check(&search, |limit| Bootstraps { space, limit })
}

/// A process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    alive: bool,
    /// Which start of it this is.
    incarnation: u8,
    /// The bootstrap to which it said `Ready`, until this one ends.
    bound: Option<u8>,
    /// The run that it is a member of.
    run: Option<u8>,
    /// Bootstraps before this one it refuses: it met a later one, or a later start of their leader.
    floor: u8,
}

/// One attempt of one process to found a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Bootstrap {
    leader: u8,
    /// The founders: voters of round 0, in these incarnations.
    founders: u8,
    incarnations: [u8; FOUNDERS],
    /// Who said that it holds all of round 0's data.
    ready: u8,
    /// Whether votes were asked for.
    asked: bool,
    /// Who voted for it.
    yes: u8,
    /// Who votes for it no more.
    no: u8,
    /// Whether enough voted for it; nobody may know.
    decided: bool,
    /// Whether its founders gave it up.
    void: bool,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: [Node; FOUNDERS],
    bootstraps: Vec<Bootstrap>,
    /// The run of the fourth process, which no list names and which never ends.
    outside: Option<u8>,
    /// Who is cut off from the two others.
    cut: Option<u8>,
    kills: u8,
    cuts: u8,
    /// Whether a node moved to an earlier bootstrap.
    went_back: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A process asks everybody, finds no run, and founds with whoever answered.
    Begin(u8),
    /// A founder says that it holds all data.
    Ready(u8, u8),
    /// The leader asks for votes.
    Ask(u8),
    /// A founder votes.
    Vote(u8, u8),
    /// A member learns that its bootstrap is decided.
    Learn(u8, u8),
    /// A founder collects answers and ends a bootstrap: finished if any who answered voted for it, else void.
    Settle(u8, u8),
    /// A node learns that the bootstrap that holds it is void.
    Free(u8, u8),
    /// A run admits a node.
    Join(u8, u8),
    /// A run admits the fourth process.
    Admit(u8),
    /// A process is killed.
    Kill(u8),
    /// It is started again with an empty memory.
    Restart(u8),
    /// A process is cut off.
    Cut(u8),
    /// Everybody reaches everybody again.
    Heal,
}

/// The model.
struct Bootstraps {
    space: Space,
    limit: Limit,
}

fn bit(id: u8) -> u8 {
    1 << id
}

fn ids() -> impl Iterator<Item = u8> {
    0..FOUNDERS as u8
}

impl State {
    fn reaches(&self, from: u8, to: u8) -> bool {
        from == to || (self.cut != Some(from) && self.cut != Some(to))
    }

    /// The founders of `bootstrap` that live in the incarnation which founded.
    fn living(&self, bootstrap: &Bootstrap) -> u8 {
        let lives = |id: &u8| {
            let node = &self.nodes[usize::from(*id)];
            node.alive && node.incarnation == bootstrap.incarnations[usize::from(*id)]
        };
        ids().filter(|id| bootstrap.founders & bit(*id) != 0).filter(lives).fold(0, |all, id| all | bit(id))
    }

    fn reached_by(&self, from: u8, among: u8) -> u8 {
        ids().filter(|id| among & bit(*id) != 0 && self.reaches(from, *id)).fold(0, |all, id| all | bit(id))
    }
}

impl Bootstrap {
    fn quorum(&self) -> u32 {
        self.founders.count_ones() / 2 + 1
    }
}

impl Bootstraps {
    fn planted(&self, planted: Planted) -> bool {
        self.space.planted == Some(planted)
    }

    fn list(&self, id: u8) -> u8 {
        self.space.lists[usize::from(id)]
    }

    /// Whether `id` is the one process of its list that founds.
    fn founds(&self, id: u8) -> bool {
        self.list(id).trailing_zeros() == u32::from(id)
    }

    /// Whether two nodes found together.
    fn same_list(&self, one: u8, other: u8) -> bool {
        if self.planted(Planted::ListsNotCompared) {
            return self.list(one) & bit(other) != 0 || self.list(other) & bit(one) != 0;
        }
        self.list(one) == self.list(other)
    }

    /// How many of `among` remember everything since the run's first minute.
    fn remembering(&self, state: &State, among: u8) -> u32 {
        let knows_better = self.space.notices && !self.planted(Planted::RestartsRemember);
        let counts = |id: &u8| among & bit(*id) != 0 && !(knows_better && state.nodes[usize::from(*id)].incarnation > 0);
        ids().filter(counts).map(|_| 1).sum()
    }

    /// Two sets of `Ready` of one list share a process that remembers if each has `min_nodes` and one of them more than `n - min_nodes` that remember.
    fn enough_remember(&self, state: &State, leader: u8, among: u8) -> bool {
        self.remembering(state, among) + self.space.min_nodes > self.list(leader).count_ones()
    }

    fn begin(&self, state: &State, id: u8) -> Option<State> {
        let node = &state.nodes[usize::from(id)];
        let idle = node.alive && node.run.is_none() && node.bound.is_none();
        if !idle || !self.founds(id) || state.bootstraps.len() >= MOST_BOOTSTRAPS {
            return None;
        }
        let answered: Vec<u8> = ids()
            .filter(|other| self.list(id) & bit(*other) != 0 || self.same_list(id, *other))
            .filter(|other| state.nodes[usize::from(*other)].alive && state.reaches(id, *other))
            .collect();
        let taken = |other: &u8| {
            let node = &state.nodes[usize::from(*other)];
            // With two that found, each may have asked before the other began.
            let unheard = self.planted(Planted::ReadyToTwo) || self.planted(Planted::ListsNotCompared);
            node.run.is_some() || (node.bound.is_some() && !unheard)
        };
        if !self.planted(Planted::NobodyAsked) && answered.iter().any(|other| taken(other) && self.same_list(id, *other)) {
            return None;
        }
        let lives = |other: &u8| state.nodes[usize::from(*other)].run.is_some();
        if !self.planted(Planted::NobodyAsked) && answered.iter().any(lives) {
            return None;
        }
        let founders = answered.iter().filter(|other| self.same_list(id, **other) && !taken(other)).fold(0, |all, other| all | bit(*other));
        if founders.count_ones() < self.space.min_nodes || !self.enough_remember(state, id, founders) {
            return None;
        }
        let mut next = state.clone();
        let number = state.bootstraps.len() as u8;
        let incarnations = std::array::from_fn(|other| state.nodes[other].incarnation);
        next.bootstraps.push(Bootstrap {
            leader: id,
            founders,
            incarnations,
            ready: bit(id),
            asked: false,
            yes: 0,
            no: 0,
            decided: false,
            void: false,
        });
        for other in ids().filter(|other| founders & bit(*other) != 0 && !self.planted(Planted::ListsNotCompared)) {
            next.nodes[usize::from(other)].floor = number;
        }
        next.nodes[usize::from(id)].bound = Some(number);
        Some(next)
    }

    fn ready(&self, state: &State, id: u8, number: u8) -> Option<State> {
        let bootstrap = state.bootstraps.get(usize::from(number))?;
        let node = &state.nodes[usize::from(id)];
        let asked_to = state.living(bootstrap) & bit(id) & !bootstrap.ready & !bootstrap.no != 0 && !bootstrap.asked;
        if !asked_to || node.run.is_some() {
            return None;
        }
        let any = self.planted(Planted::LastHeardWins);
        let free = node.bound.is_none() || self.planted(Planted::ReadyToTwo) || any;
        if !free || (number < node.floor && !any) {
            return None;
        }
        let mut next = state.clone();
        next.went_back |= node.bound.is_some_and(|before| number < before);
        next.bootstraps[usize::from(number)].ready |= bit(id);
        next.nodes[usize::from(id)].bound = Some(number);
        next.nodes[usize::from(id)].floor = number.max(node.floor);
        Some(next)
    }

    fn ask(&self, state: &State, number: u8) -> Option<State> {
        let bootstrap = state.bootstraps.get(usize::from(number))?;
        let leads = state.living(bootstrap) & bit(bootstrap.leader) & !bootstrap.no != 0 && !bootstrap.asked;
        let enough = bootstrap.ready.count_ones() >= self.space.min_nodes && self.enough_remember(state, bootstrap.leader, bootstrap.ready);
        if !leads || state.nodes[usize::from(bootstrap.leader)].bound != Some(number) || !(enough || self.planted(Planted::TooFewReady)) {
            return None;
        }
        let mut next = state.clone();
        let asked = &mut next.bootstraps[usize::from(number)];
        asked.asked = true;
        asked.yes |= bit(asked.leader);
        asked.decided |= self.carried(asked);
        Some(next)
    }

    /// Whether those who voted decide.
    fn carried(&self, bootstrap: &Bootstrap) -> bool {
        let half = bootstrap.yes.count_ones() * 2 == bootstrap.founders.count_ones() && bootstrap.yes & bit(bootstrap.leader) != 0;
        bootstrap.yes.count_ones() >= bootstrap.quorum() || (half && self.planted(Planted::TieBreaker))
    }

    fn vote(&self, state: &State, id: u8, number: u8) -> Option<State> {
        let bootstrap = state.bootstraps.get(usize::from(number))?;
        if !bootstrap.asked || state.living(bootstrap) & bit(id) & !bootstrap.no & !bootstrap.yes == 0 {
            return None;
        }
        let mut next = state.clone();
        let voted = &mut next.bootstraps[usize::from(number)];
        voted.yes |= bit(id);
        voted.decided |= self.carried(voted);
        Some(next)
    }

    fn learn(&self, state: &State, id: u8, number: u8) -> Option<State> {
        let bootstrap = state.bootstraps.get(usize::from(number))?;
        let node = &state.nodes[usize::from(id)];
        if !bootstrap.decided || node.bound != Some(number) || bootstrap.ready & bit(id) == 0 {
            return None;
        }
        let mut next = state.clone();
        next.nodes[usize::from(id)].run = Some(number);
        next.nodes[usize::from(id)].bound = None;
        Some(next)
    }

    /// Whether `among`, living founders, settle for all: more than half, or half if every other one is known to have ended.
    fn settles(&self, state: &State, bootstrap: &Bootstrap, among: u8) -> bool {
        let others_ended = state.living(bootstrap) & !among == 0;
        let half = among.count_ones() * 2 == bootstrap.founders.count_ones();
        among.count_ones() >= bootstrap.quorum() || (others_ended && (half || self.planted(Planted::EndedNeverVoted)))
    }

    fn settle(&self, state: &State, id: u8, number: u8) -> Option<State> {
        let bootstrap = state.bootstraps.get(usize::from(number))?;
        let living = state.living(bootstrap);
        if living & bit(id) == 0 || bootstrap.no & bit(id) != 0 || self.planted(Planted::NobodySettles) {
            return None;
        }
        let answered = state.reached_by(id, living);
        let leader_ended = living & bit(bootstrap.leader) == 0;
        let leader_gives_up = bootstrap.leader == id && answered != bootstrap.founders;
        if !(leader_ended || leader_gives_up) || !self.settles(state, bootstrap, answered) {
            return None;
        }
        let mut next = state.clone();
        let settled = &mut next.bootstraps[usize::from(number)];
        if settled.yes & answered != 0 {
            settled.yes |= answered;
            settled.decided = true;
        } else {
            settled.no |= answered;
            settled.void = true;
        }
        (next != *state).then_some(next)
    }

    fn free(&self, state: &State, id: u8, number: u8) -> Option<State> {
        let bootstrap = state.bootstraps.get(usize::from(number))?;
        if state.nodes[usize::from(id)].bound != Some(number) {
            return None;
        }
        let living = state.living(bootstrap);
        let leader_silent = living & state.reached_by(id, bit(bootstrap.leader)) == 0;
        let undecided = |other: u8| state.nodes[usize::from(other)].run != Some(number) && bootstrap.yes & bit(other) == 0;
        let others_undecided = bootstrap.leader != id
            && ids().filter(|other| living & bit(*other) != 0).all(|other| state.reaches(id, other) && undecided(other));
        let freed = bootstrap.void
            || (self.planted(Planted::Lease) && leader_silent)
            || (self.planted(Planted::AnswersDoNotBind) && others_undecided);
        if !freed {
            return None;
        }
        let mut next = state.clone();
        next.nodes[usize::from(id)].bound = None;
        Some(next)
    }

    /// Whether the run that came of `bootstrap` can admit somebody on the side of `id`.
    fn goes_on(&self, state: &State, id: u8, number: u8) -> bool {
        let bootstrap = &state.bootstraps[usize::from(number)];
        state.nodes[usize::from(id)].run == Some(number) && self.settles(state, bootstrap, state.reached_by(id, state.living(bootstrap)))
    }

    fn join(&self, state: &State, id: u8, number: u8) -> Option<State> {
        let node = &state.nodes[usize::from(id)];
        let admitted = ids().any(|other| state.reaches(id, other) && self.goes_on(state, other, number));
        if !node.alive || node.run.is_some() || !admitted {
            return None;
        }
        let mut next = state.clone();
        next.nodes[usize::from(id)].run = Some(number);
        next.nodes[usize::from(id)].bound = None;
        Some(next)
    }

    fn admit(&self, state: &State, number: u8) -> Option<State> {
        if state.outside.is_some() || !ids().any(|id| self.goes_on(state, id, number)) {
            return None;
        }
        let mut next = state.clone();
        next.outside = Some(number);
        Some(next)
    }

    fn apply(&self, state: &State, action: Action) -> Option<State> {
        match action {
            Action::Begin(id) => self.begin(state, id),
            Action::Ready(id, number) => self.ready(state, id, number),
            Action::Ask(number) => self.ask(state, number),
            Action::Vote(id, number) => self.vote(state, id, number),
            Action::Learn(id, number) => self.learn(state, id, number),
            Action::Settle(id, number) => self.settle(state, id, number),
            Action::Free(id, number) => self.free(state, id, number),
            Action::Join(id, number) => self.join(state, id, number),
            Action::Admit(number) => self.admit(state, number),
            Action::Kill(id) => {
                let node = state.nodes[usize::from(id)];
                (node.alive && state.kills > 0).then(|| {
                    let mut next = state.clone();
                    next.kills -= 1;
                    next.nodes[usize::from(id)] = Node { incarnation: node.incarnation, ..Node::default() };
                    next
                })
            }
            Action::Restart(id) => {
                let node = state.nodes[usize::from(id)];
                (!node.alive).then(|| {
                    let mut next = state.clone();
                    next.nodes[usize::from(id)] = Node { alive: true, incarnation: node.incarnation + 1, ..Node::default() };
                    next
                })
            }
            Action::Cut(id) => {
                (state.cut.is_none() && state.cuts > 0).then(|| State { cut: Some(id), cuts: state.cuts - 1, ..state.clone() })
            }
            Action::Heal => state.cut.is_some().then(|| State { cut: None, ..state.clone() }),
        }
    }

    /// What nodes do by themselves, in the order in which a run without faults tries it.
    fn steps(state: &State, out: &mut Vec<Action>) {
        for number in 0..state.bootstraps.len() as u8 {
            out.push(Action::Ask(number));
            out.push(Action::Admit(number));
            for id in ids() {
                out.extend([
                    Action::Free(id, number),
                    Action::Learn(id, number),
                    Action::Vote(id, number),
                    Action::Ready(id, number),
                    Action::Settle(id, number),
                    Action::Join(id, number),
                ]);
            }
        }
        out.extend(ids().map(Action::Begin));
    }

    /// The state in which a run without further faults comes to rest, if it does.
    fn rest(&self, state: &State) -> Option<State> {
        let mut now = State { cut: None, kills: 0, cuts: 0, ..state.clone() };
        for _ in 0..PASSES {
            let mut steps = Vec::new();
            Self::steps(&now, &mut steps);
            let mut moved = false;
            for step in steps {
                if let Some(next) = self.apply(&now, step) {
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

    /// Whether everybody who lives is in one run, or waits for something that it can name.
    fn explained(&self, state: &State) -> bool {
        let living = |id: &u8| state.nodes[usize::from(*id)].alive;
        let runs = |id: u8| state.nodes[usize::from(id)].run;
        if let Some(run) = ids().filter(living).find_map(runs) {
            let all_in = ids().filter(living).all(|id| runs(id) == Some(run));
            let quorum_lost = !ids().any(|id| self.goes_on(state, id, run));
            return all_in || quorum_lost;
        }
        // Nobody is in a run: each process that may found one must have a reason not to.
        ids().filter(living).filter(|id| self.founds(*id)).all(|id| {
            let group = ids().filter(living).filter(|other| self.same_list(id, *other)).fold(0, |all, other| all | bit(other));
            let too_few = group.count_ones() < self.space.min_nodes;
            let too_few_remember = !self.enough_remember(state, id, group);
            let may_be_decided = ids().filter(|other| group & bit(*other) != 0).any(|other| {
                let bound = state.nodes[usize::from(other)].bound.and_then(|number| state.bootstraps.get(usize::from(number)));
                bound.is_some_and(|bootstrap| !self.settles(state, bootstrap, state.living(bootstrap)))
            });
            too_few || too_few_remember || may_be_decided
        })
    }
}

impl Model for Bootstraps {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let node = Node { alive: true, ..Node::default() };
        vec![State {
            nodes: [node; FOUNDERS],
            bootstraps: Vec::new(),
            outside: None,
            cut: None,
            kills: self.space.kills,
            cuts: self.space.cuts,
            went_back: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        Self::steps(state, actions);
        actions.extend(ids().flat_map(|id| [Action::Kill(id), Action::Restart(id), Action::Cut(id)]));
        actions.push(Action::Heal);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.apply(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_BOOTSTRAP, |_, state: &State| state.bootstraps.iter().filter(|bootstrap| bootstrap.decided).count() <= 1),
            Property::always(RUN_KEEPS_ITS_PLACE, |_, state: &State| {
                let mut held = state.nodes.iter().map(|node| node.run).chain([state.outside]).flatten();
                let first = held.next();
                held.all(|run| Some(run) == first)
            }),
            Property::always(ONE_END, |_, state: &State| !state.bootstraps.iter().any(|bootstrap| bootstrap.decided && bootstrap.void)),
            Property::always(ONLY_UPWARD, |_, state: &State| !state.went_back),
            Property::always(COMES_TO_REST, |model: &Self, state: &State| model.rest(state).is_some_and(|rest| model.explained(&rest))),
            Property::sometimes(POSSIBLE, |model: &Self, state: &State| {
                let group = ids().filter(|id| state.nodes[usize::from(*id)].run.is_some()).count();
                group == FOUNDERS || (model.space.min_nodes == 3 && model.space.lists != [0b111; FOUNDERS])
            }),
        ]
    }

    fn within_boundary(&self, _: &State) -> bool {
        self.limit.allows()
    }
}
