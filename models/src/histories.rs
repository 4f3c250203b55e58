//! Forks of a history, and the merging of histories, under `quorum = "survivors"`.
//!
//! The votes of one round are modelled without terms: [`crate::round`] explores that a round has
//! one outcome in its history. Starting an attempt, holding its data, voting and learning the
//! decision are separate steps, because a fork or a merge may come between any two of them.

use crate::check::{Limit, Report, Search, Until, check};
use crate::order::{self, Fork};
use stateright::{Model, Property};
use std::cmp::Reverse;
use std::time::Duration;

/// Time after which the search of a space is given up.
const LONGEST: Duration = Duration::from_secs(240);
/// Number of passes within which a run without faults must come to rest.
const PASSES: usize = 60;
/// More histories than the faults of any space can cause; states with more are not explored.
const MOST_HISTORIES: usize = 12;
/// Number of times that a round is tried again; states beyond that are not explored.
const MOST_ATTEMPTS: u8 = 1;
/// The last round that is explored.
const MOST_ROUNDS: u8 = 2;
/// Number of empty processes that bootstrap a run.
const FOUNDERS: usize = 2;

/// Properties P2 and P3.
pub const MEMBERS_HOLD: &str =
    "P3: who is a member of the newest view holds it, or what came of it";
/// Property P5.
pub const NOTHING_GIVEN_UP: &str =
    "P5: nobody gives up state before it holds newer state of the history that it joins";
/// Property P7.
pub const FRESH_NEVER_ABSORBS: &str = "P7: no run absorbs a member of another bootstrap's";
/// The order of histories is strict and constant.
pub const ONE_ORDER: &str = "P4: of two histories always the same one wins";
/// A history that kept its quorum continues.
pub const TRUNK_STAYS: &str =
    "P4: a history that kept its quorum and decided is not left for its own fork";
/// Once faults are over, one history of each bootstrap is left.
pub const COMES_TOGETHER: &str =
    "P4: without faults each bootstrap ends in one history with everybody in it";
/// Forks are possible at all.
pub const FORKS: &str = "two histories of one bootstrap are possible";

/// A planted bug: one rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Planted {
    /// A node drops what it holds when it begins to join a higher history.
    DropsBeforeAdmitted,
    /// A fork outranks the history that kept its quorum.
    ForksOutrank,
    /// Histories are compared by their current number of contributions.
    RankGrows,
    /// Runs of different bootstraps merge as histories of one bootstrap do.
    MergesAcrossBootstraps,
    /// A fork starts from an undecided outcome only if a member of the group voted for it, and
    /// otherwise repeats the round.
    ForksFromVotedOnly,
    /// A joiner counts before it holds the data.
    AdmittedUnready,
    /// A node takes part in a second fork and drops the first.
    TwoForks,
    /// A node that returns drops what it said `Ready` to.
    ForgetsOnReturn,
    /// A node switches to any other history that it meets.
    NoOrder,
}

/// Every planted bug.
pub const PLANTED: [Planted; 9] = [
    Planted::DropsBeforeAdmitted,
    Planted::ForksOutrank,
    Planted::RankGrows,
    Planted::MergesAcrossBootstraps,
    Planted::ForksFromVotedOnly,
    Planted::AdmittedUnready,
    Planted::TwoForks,
    Planted::ForgetsOnReturn,
    Planted::NoOrder,
];

impl Planted {
    /// The property that finds the bug.
    #[must_use]
    pub fn found_by(self) -> &'static str {
        match self {
            Self::DropsBeforeAdmitted
            | Self::ForksFromVotedOnly
            | Self::AdmittedUnready
            | Self::TwoForks
            | Self::ForgetsOnReturn => MEMBERS_HOLD,
            Self::ForksOutrank | Self::RankGrows | Self::NoOrder => TRUNK_STAYS,
            Self::MergesAcrossBootstraps => FRESH_NEVER_ABSORBS,
        }
    }

    /// The space in which the bug shows.
    #[must_use]
    pub fn space(self) -> Space {
        let space = match self {
            Self::DropsBeforeAdmitted => CRASH_AND_CUT,
            Self::MergesAcrossBootstraps => RESTARTED_APART,
            Self::ForksFromVotedOnly => TRAIN,
            Self::TwoForks | Self::AdmittedUnready | Self::ForgetsOnReturn => ALL,
            Self::ForksOutrank | Self::RankGrows | Self::NoOrder => TRUNK,
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
    /// Number of processes.
    pub nodes: u8,
    /// Number of processes that are killed.
    pub kills: u8,
    /// Number of killed processes that are restarted, empty and with bootstrap settings.
    pub restarts: u8,
    /// Number of times that the nodes are partitioned in two.
    pub cuts: u8,
    /// Number of rounds, beside those that admit a node.
    pub rounds: u8,
    /// Bound on the number of histories.
    pub histories: usize,
    /// The rule that is left out, if any.
    pub planted: Option<Planted>,
}

/// Three nodes, one cut.
pub const CUT: Space = Space {
    name: "three, a cut",
    nodes: 3,
    kills: 0,
    restarts: 0,
    cuts: 1,
    rounds: 0,
    histories: 3,
    planted: None,
};
/// Three nodes, one crash, no cut.
pub const CRASH: Space = Space {
    name: "three, a restart, a round, no cut",
    kills: 1,
    restarts: 1,
    cuts: 0,
    rounds: 1,
    ..CUT
};
/// Three nodes, one crash, one cut, two histories.
pub const CRASH_AND_CUT: Space = Space {
    name: "three, a crash, a cut, two histories",
    kills: 1,
    histories: 2,
    ..CUT
};
/// Like `CRASH_AND_CUT`, with three histories: both sides may fork.
pub const FORKS_APART: Space = Space {
    name: "three, a crash, a cut, three histories",
    histories: 3,
    ..CRASH_AND_CUT
};
/// Three nodes, two of them killed and restarted, one cut.
pub const RESTARTED_APART: Space = Space {
    name: "three, two restart apart, two histories",
    kills: 2,
    restarts: 2,
    histories: 2,
    ..CUT
};
/// Three nodes, one cut, one round.
pub const TRAIN: Space = Space {
    name: "three, a cut, a round",
    rounds: 1,
    ..CUT
};
/// Like `TRAIN`, with two histories: one fork, and a trunk that continues.
pub const TRUNK: Space = Space {
    name: "three, a cut, a round, two histories",
    histories: 2,
    ..TRAIN
};
/// Three nodes, one crash, one cut, one round.
pub const ALL: Space = Space {
    name: "three, a restart, a cut, a round",
    kills: 1,
    restarts: 1,
    ..TRAIN
};
/// Three nodes, two cuts.
pub const CUT_TWICE: Space = Space {
    name: "three, two cuts",
    cuts: 2,
    ..CUT
};
/// Four nodes, one cut.
pub const FOUR: Space = Space {
    name: "four, a cut",
    nodes: 4,
    ..CUT
};

/// Spaces that are explored completely in every run.
pub const SHORT: [Space; 4] = [CUT, CRASH_AND_CUT, FORKS_APART, TRUNK];
/// Wider spaces, some of them too wide to be explored completely.
pub const LONG: [Space; 6] = [CRASH, RESTARTED_APART, TRAIN, CUT_TWICE, FOUR, ALL];

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
    check(
        &Search {
            time: LONGEST,
            ..Search::new(space.name)
        },
        |limit| Histories { space, limit },
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
    check(&search, |limit| Histories { space, limit })
}

/// The outcome of one attempt at one round of one history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Outcome {
    history: u8,
    round: u8,
    attempt: u8,
    /// Number of contributions in the outcome since the bootstrap.
    contributions: u8,
}

/// An outcome that a node holds completely without knowing that it is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pending {
    outcome: Outcome,
    voted: bool,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    alive: bool,
    /// The newest outcome that the node knows to be decided with itself as a member.
    held: Option<Outcome>,
    /// Outcomes that the node has said `Ready` to since, oldest first; one per history.
    pending: Vec<Pending>,
}

/// An attempt in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    members: u8,
    outcome: Outcome,
    ready: u8,
    voted: u8,
}

/// A history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct History {
    bootstrap: u8,
    /// The outcome from which the history started.
    base: Option<Outcome>,
    /// The history that this one forked from.
    from: Option<u8>,
    /// Total contributions decided when the history started.
    contributions: u8,
    /// The first round that the history decides without the quorum of the previous history.
    first_round: u8,
    /// The leader of the fork; lower wins. The slot keeps two forks of one leader distinct.
    leader: u8,
    /// The nodes that forked, or the bootstrap members.
    group: u8,
    /// The voters of the next round: members of the newest view, or the group that forks.
    voters: u8,
    /// The voters that neither ended nor left for a higher history.
    faithful: u8,
    newest: Outcome,
    decided: bool,
    attempt: Option<Attempt>,
}

/// The state of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: Vec<Node>,
    histories: Vec<History>,
    /// One side of the partition; the remaining nodes are the other side.
    cut: Option<u8>,
    kills: u8,
    restarts: u8,
    cuts: u8,
    rounds: u8,
    bootstraps: u8,
    /// For each history, those that it won over, one bit each.
    won: [u16; MOST_HISTORIES],
    gave_up: bool,
    absorbed: bool,
    trunk_left: bool,
}

/// One step of the model. A `bool` names a side: the lower or the upper one of a partition; without
/// a partition only the first exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A history starts a round on one side.
    Attempt(u8, bool),
    /// A node holds all data of an attempt.
    Ready(u8, u8),
    /// A node votes for an attempt.
    Vote(u8, u8),
    /// A node learns that the attempt it is ready for is decided.
    Learn(u8, u8),
    /// A group without a quorum starts a new history.
    Fork(u8, bool),
    /// Empty processes that find no run bootstrap one.
    Found(bool),
    /// Planted: a node drops everything that it holds.
    Drop(u8),
    /// Planted: a node turns back from a history that cannot continue.
    Return(u8),
    /// A process is killed.
    Kill(u8),
    /// A killed process is restarted, empty.
    Restart(u8),
    /// The nodes are partitioned.
    Cut(u8),
    /// All nodes can reach each other again.
    Heal,
}

/// The model.
struct Histories {
    space: Space,
    limit: Limit,
}

fn bit(id: u8) -> u8 {
    1 << id
}

impl Node {
    /// All outcomes that the node holds completely.
    fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        self.held
            .into_iter()
            .chain(self.pending.iter().map(|pending| pending.outcome))
    }

    fn holds(&self, outcome: Outcome) -> bool {
        self.outcomes().any(|held| held == outcome)
    }

    /// The history that the node follows: the last one to which it said `Ready`.
    fn follows(&self) -> Option<u8> {
        self.pending
            .last()
            .map(|pending| pending.outcome)
            .or(self.held)
            .map(|outcome| outcome.history)
    }
}

impl State {
    fn history(&self, number: u8) -> &History {
        &self.histories[usize::from(number)]
    }

    /// Whether `outcome` contains `earlier`.
    fn contains(&self, outcome: Outcome, earlier: Outcome) -> bool {
        if outcome.history == earlier.history {
            return outcome == earlier || outcome.round > earlier.round;
        }
        self.history(outcome.history)
            .base
            .is_some_and(|base| self.contains(base, earlier))
    }

    /// The histories from which `number` descends, starting with `number` itself.
    fn line(&self, number: u8) -> Vec<u8> {
        let mut line = vec![number];
        let mut now = number;
        while let Some(base) = self.history(now).base {
            now = base.history;
            line.push(now);
        }
        line
    }

    fn everybody(&self) -> u8 {
        self.nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.alive)
            .fold(0, |all, (id, _)| all | bit(id as u8))
    }

    /// The living nodes of a side.
    fn side(&self, upper: bool) -> u8 {
        match (self.cut, upper) {
            (None, false) => self.everybody(),
            (None, true) => 0,
            (Some(lower), false) => self.everybody() & lower,
            (Some(lower), true) => self.everybody() & !lower,
        }
    }

    fn side_of(&self, id: u8) -> u8 {
        let upper = self.cut.is_some_and(|lower| lower & bit(id) == 0);
        self.side(upper)
    }

    fn among(&self, mask: u8) -> impl Iterator<Item = (u8, &Node)> {
        self.nodes
            .iter()
            .enumerate()
            .map(|(id, node)| (id as u8, node))
            .filter(move |(id, _)| mask & bit(*id) != 0)
    }

    /// Whether `fork` descends from `trunk`, `trunk` also decided the fork's first round, and a
    /// quorum of `trunk` on that side still follows it.
    fn stands_before(&self, trunk: u8, fork: u8, side: u8) -> bool {
        let with = self
            .among(side)
            .filter(|(_, node)| node.follows() == Some(trunk))
            .fold(0, |all, (id, _)| all | bit(id));
        let voters = self.history(trunk).voters;
        let decided_it = self.history(trunk).newest.round >= self.history(fork).first_round;
        trunk != fork
            && decided_it
            && self.line(fork).contains(&trunk)
            && Self::carries(voters, voters & with)
    }

    /// Whether `votes` decide: more than half of the voters, or half including the lowest.
    fn carries(voters: u8, votes: u8) -> bool {
        let half = votes.count_ones() * 2 == voters.count_ones()
            && votes & (1 << voters.trailing_zeros().min(7)) != 0;
        votes != 0 && (votes.count_ones() * 2 > voters.count_ones() || half)
    }
}

impl Histories {
    fn planted(&self, planted: Planted) -> bool {
        self.space.planted == Some(planted)
    }

    /// The forks between the bootstrap and a history, each with its round and its contributors; the
    /// last history's slot keeps them distinct.
    fn forks(state: &State, number: u8) -> Vec<Fork> {
        let mut forks: Vec<Fork> = Vec::new();
        for line in state.line(number) {
            let history = state.history(line);
            if history.base.is_some() {
                forks.push((history.first_round, history.group.count_ones() as u8, line));
            }
        }
        forks.reverse();
        forks
    }

    /// Whether `one` wins where the two histories meet.
    fn goes_before(&self, state: &State, one: u8, other: u8) -> bool {
        if self.planted(Planted::RankGrows) {
            let key = |number: u8| (state.history(number).newest.contributions, Reverse(number));
            return key(one) > key(other);
        }
        let path = |number: u8| {
            let forks_outrank = self.planted(Planted::ForksOutrank);
            let towards = if forks_outrank {
                0
            } else {
                state.history(number).newest.round + 1
            };
            (Self::forks(state, number), towards)
        };
        order::goes_on(&path(one), &path(other))
    }

    fn wins(&self, state: &State, one: u8, other: u8) -> bool {
        if state.history(one).bootstrap != state.history(other).bootstrap {
            return self.planted(Planted::MergesAcrossBootstraps) && one < other;
        }
        one != other && (self.goes_before(state, one, other) || self.planted(Planted::NoOrder))
    }

    /// Whether a node that holds `outcome` may give up `earlier`: `earlier` is contained in it, or
    /// a higher history won over `earlier`.
    fn replaces(&self, state: &State, outcome: Outcome, earlier: Outcome) -> bool {
        state.contains(outcome, earlier)
            || state
                .line(outcome.history)
                .iter()
                .any(|number| self.wins(state, *number, earlier.history))
    }

    /// Whether a node takes part in an undecided fork: it follows the fork, or still the history
    /// that forks, and holds nothing newer.
    fn forks_with(&self, state: &State, node: &Node, number: u8) -> bool {
        let history = state.history(number);
        let goes_with = node
            .follows()
            .is_some_and(|followed| followed == number || Some(followed) == history.from);
        let newest = history
            .attempt
            .map_or(history.newest, |attempt| attempt.outcome);
        goes_with
            && node
                .held
                .is_none_or(|held| self.replaces(state, newest, held))
    }

    /// Whether the nodes of `side` are a quorum of a history.
    fn quorum(&self, state: &State, number: u8, side: u8) -> bool {
        let history = state.history(number);
        let votes = |node: &Node| {
            let follower = node.outcomes().any(|outcome| outcome.history == number);
            if history.decided {
                follower
            } else {
                self.forks_with(state, node, number)
            }
        };
        let count = state
            .among(side & history.voters)
            .filter(|(_, node)| votes(node))
            .fold(0, |all, (id, _)| all | bit(id));
        State::carries(history.voters, count)
    }

    /// Whether a history continues among the nodes of `side`: they are a quorum of it, and either
    /// one of them knows and holds its last outcome, or all that are asked hold the next one.
    fn goes_on(&self, state: &State, number: u8, side: u8) -> bool {
        let history = state.history(number);
        let complete = history
            .attempt
            .filter(|attempt| attempt.ready == attempt.members)
            .map(|attempt| attempt.outcome);
        let knows = |node: &Node| {
            let voted = node
                .pending
                .iter()
                .any(|pending| pending.outcome == history.newest && pending.voted);
            voted
                || node.held == Some(history.newest)
                || (!history.decided && node.holds(history.newest))
        };
        let source =
            |node: &Node| knows(node) || node.outcomes().any(|outcome| Some(outcome) == complete);
        self.quorum(state, number, side) && state.among(side).any(|(_, node)| source(node))
    }

    fn attempt(&self, state: &State, number: u8, upper: bool) -> Option<State> {
        let history = state.histories.get(usize::from(number))?;
        let side = state.side(upper);
        if !self.goes_on(state, number, side)
            || history
                .attempt
                .is_some_and(|attempt| attempt.voted & side != 0)
        {
            return None;
        }
        let current = state
            .among(side)
            .filter(|(_, node)| node.holds(history.newest))
            .fold(0, |all, (id, _)| all | bit(id));
        let members = if history.decided {
            let comes = |node: &Node| {
                node.follows()
                    .is_none_or(|followed| followed == number || self.wins(state, number, followed))
            };
            state
                .among(side)
                .filter(|(_, node)| comes(node))
                .fold(0, |all, (id, _)| all | bit(id))
        } else {
            let stays = |node: &Node| self.forks_with(state, node, number);
            state
                .among(side & history.voters)
                .filter(|(_, node)| stays(node))
                .fold(0, |all, (id, _)| all | bit(id))
        };
        let source = state
            .among(side)
            .any(|(_, node)| node.holds(history.newest));
        let stands = |attempt: Attempt| {
            attempt.members == members
                && state
                    .among(attempt.ready)
                    .all(|(_, node)| node.holds(attempt.outcome))
        };
        if !source
            || history.attempt.is_some_and(stands)
            || (history.attempt.is_none() && !history.decided)
        {
            return None;
        }
        let mut next = state.clone();
        let settled = |node: &Node| node.holds(history.newest) && node.follows() == Some(number);
        if history.attempt.is_none() && state.among(members).all(|(_, node)| settled(node)) {
            next.rounds = state.rounds.checked_sub(1)?;
        }
        let contributions = if history.decided {
            history.newest.contributions + current.count_ones() as u8
        } else {
            history.contributions
        };
        let attempt = history
            .attempt
            .map_or(0, |attempt| attempt.outcome.attempt + 1);
        let outcome = Outcome {
            history: number,
            round: history.newest.round + 1,
            attempt,
            contributions,
        };
        next.histories[usize::from(number)].attempt = Some(Attempt {
            members,
            outcome,
            ready: 0,
            voted: 0,
        });
        Some(next)
    }

    fn ready(&self, state: &State, id: u8, number: u8) -> Option<State> {
        let history = state.histories.get(usize::from(number))?;
        let attempt = history.attempt?;
        let node = &state.nodes[usize::from(id)];
        let side = state.side_of(id);
        let data = state
            .among(side)
            .any(|(_, other)| other.holds(history.newest) || other.holds(attempt.outcome));
        if attempt.members & !attempt.ready & bit(id) == 0 || !node.alive || !data {
            return None;
        }
        let forks_with = self.forks_with(state, node, number);
        if !history.decided && !forks_with && !self.planted(Planted::TwoForks) {
            return None;
        }
        let goes_over = node
            .follows()
            .is_none_or(|followed| followed == number || self.wins(state, number, followed));
        if history.decided && !goes_over {
            return None;
        }
        let mut next = state.clone();
        next.trunk_left |= history.group & bit(id) == 0
            && node
                .follows()
                .is_some_and(|trunk| state.stands_before(trunk, number, side));
        let changed = &mut next.nodes[usize::from(id)];
        changed
            .pending
            .retain(|pending| pending.outcome.history != number);
        if !history.decided && self.planted(Planted::TwoForks) {
            changed.pending.clear();
        }
        changed.pending.push(Pending {
            outcome: attempt.outcome,
            voted: false,
        });
        let changed = next.histories[usize::from(number)].attempt.as_mut()?;
        changed.ready |= bit(id);
        Some(next)
    }

    fn vote(&self, state: &State, id: u8, number: u8) -> Option<State> {
        let history = state.histories.get(usize::from(number))?;
        let attempt = history.attempt?;
        let node = &state.nodes[usize::from(id)];
        let asked = attempt.ready == attempt.members
            || (self.planted(Planted::AdmittedUnready) && attempt.ready != 0);
        let votes = history.voters & !attempt.voted & bit(id) != 0
            && node.alive
            && node.outcomes().any(|outcome| outcome.history == number);
        if !asked || !votes {
            return None;
        }
        let mut next = state.clone();
        for pending in &mut next.nodes[usize::from(id)].pending {
            pending.voted |= pending.outcome == attempt.outcome;
        }
        let voted = attempt.voted | bit(id);
        let carried = State::carries(history.voters, voted);
        let unready = self.planted(Planted::AdmittedUnready);
        let lives = |(id, node): (u8, &Node)| {
            (node.holds(attempt.outcome) || (unready && node.alive)).then(|| bit(id))
        };
        let faithful = state
            .among(attempt.members)
            .filter_map(lives)
            .fold(0, |all, one| all | one);
        let changed = &mut next.histories[usize::from(number)];
        changed.attempt = Some(Attempt { voted, ..attempt });
        if carried {
            changed.attempt = None;
            changed.voters = attempt.members;
            changed.faithful = faithful;
            changed.newest = attempt.outcome;
            changed.decided = true;
        }
        Some(next)
    }

    fn learn(&self, state: &State, id: u8, number: u8, needs_witness: bool) -> Option<State> {
        let history = state.histories.get(usize::from(number))?;
        let outcome = history.newest;
        let node = &state.nodes[usize::from(id)];
        let ready = node.alive
            && node
                .pending
                .iter()
                .any(|pending| pending.outcome == outcome);
        if !history.decided || !ready {
            return None;
        }
        let knows = |other: &Node| {
            other.held == Some(outcome)
                || other
                    .pending
                    .iter()
                    .any(|pending| pending.outcome == outcome && pending.voted)
        };
        if needs_witness
            && !state
                .among(state.side_of(id))
                .any(|(_, other)| knows(other))
        {
            return None;
        }
        let mut next = state.clone();
        let mut kept: Vec<Pending> = node
            .pending
            .iter()
            .copied()
            .filter(|pending| pending.outcome != outcome)
            .collect();
        kept.retain(|pending| {
            !self.replaces(state, outcome, pending.outcome)
                && !self.planted(Planted::ForksFromVotedOnly)
        });
        next.nodes[usize::from(id)].pending = kept;
        next.nodes[usize::from(id)].held = Some(outcome);
        let line = state.line(number);
        for (other, left) in next.histories.iter_mut().enumerate() {
            if line.iter().any(|one| self.wins(state, *one, other as u8)) {
                left.faithful &= !bit(id);
            }
        }
        if let Some(before) = node.held {
            next.gave_up |= !self.replaces(state, outcome, before);
            next.absorbed |= state.history(before.history).bootstrap != history.bootstrap;
            // A fork may descend from a history that the node had switched to in between; only a
            // merge records which one won.
            if !line.contains(&before.history) && history.group & bit(id) == 0 {
                next.won[usize::from(number)] |= 1 << before.history;
            }
        }
        Some(next)
    }

    fn fork(&self, state: &State, number: u8, upper: bool) -> Option<State> {
        let history = state.histories.get(usize::from(number))?;
        let side = state.side(upper);
        let group = state
            .among(side)
            .filter(|(_, node)| node.follows() == Some(number))
            .fold(0, |all, (id, _)| all | bit(id));
        let higher = |other: u8| {
            let related =
                state.history(other).bootstrap == history.bootstrap && state.history(other).decided;
            related
                && other != number
                && self.wins(state, other, number)
                && self.goes_on(state, other, side)
        };
        let full = state.histories.len() >= MOST_HISTORIES;
        if group == 0
            || full
            || self.goes_on(state, number, side)
            || (0..state.histories.len() as u8).any(higher)
        {
            return None;
        }
        let better = |one: Outcome, other: Outcome| {
            if state.contains(other, one) {
                return other;
            }
            let key = |outcome: Outcome| (outcome.round, outcome.attempt);
            let first = if one.history == other.history {
                key(one) > key(other)
            } else {
                self.goes_before(state, one.history, other.history)
            };
            if state.contains(one, other) || first {
                one
            } else {
                other
            }
        };
        let voted_only = self.planted(Planted::ForksFromVotedOnly);
        let held = state.among(group).flat_map(|(_, node)| {
            let pending = node
                .pending
                .iter()
                .filter(move |pending| !voted_only || pending.voted)
                .map(|pending| pending.outcome);
            node.held.into_iter().chain(pending)
        });
        let base = held.reduce(better)?;
        let leader = state.among(group).find(|(_, node)| node.holds(base))?.0;
        let mut next = state.clone();
        let slot = state.histories.len() as u8;
        let contributions = base.contributions + group.count_ones() as u8;
        let outcome = Outcome {
            history: slot,
            round: base.round + 1,
            attempt: 0,
            contributions,
        };
        // Outcomes that the group holds without knowing that they are decided are decided again.
        let knows = state.among(group).any(|(_, node)| node.held == Some(base));
        let first_round = if knows { outcome.round } else { base.round };
        next.histories.push(History {
            bootstrap: history.bootstrap,
            base: Some(base),
            from: Some(number),
            contributions,
            first_round,
            leader,
            group,
            voters: group,
            faithful: 0,
            newest: base,
            decided: false,
            attempt: Some(Attempt {
                members: group,
                outcome,
                ready: bit(leader),
                voted: 0,
            }),
        });
        next.nodes[usize::from(leader)].pending.push(Pending {
            outcome,
            voted: false,
        });
        Some(next)
    }

    fn found(&self, state: &State, upper: bool) -> Option<State> {
        let side = state.side(upper);
        let anybody_runs = state.among(side).any(|(_, node)| node.follows().is_some());
        if anybody_runs
            || side.count_ones() < FOUNDERS as u32
            || state.histories.len() >= MOST_HISTORIES
        {
            return None;
        }
        let mut next = state.clone();
        let contributions = side.count_ones() as u8;
        let newest = Outcome {
            history: state.histories.len() as u8,
            round: 0,
            attempt: 0,
            contributions,
        };
        next.histories.push(first(state.bootstraps, side, newest));
        next.bootstraps += 1;
        for (id, node) in next.nodes.iter_mut().enumerate() {
            if side & bit(id as u8) != 0 {
                node.held = Some(newest);
            }
        }
        Some(next)
    }

    /// Whether a history above the one that `id` follows can admit it.
    fn could_go_over(&self, state: &State, id: u8) -> bool {
        let Some(followed) = state.nodes[usize::from(id)].follows() else {
            return false;
        };
        (0..state.histories.len() as u8).any(|number| {
            state.history(number).decided
                && self.wins(state, number, followed)
                && self.goes_on(state, number, state.side_of(id))
        })
    }

    fn apply(&self, state: &State, action: Action) -> Option<State> {
        match action {
            Action::Attempt(number, upper) => self.attempt(state, number, upper),
            Action::Ready(id, number) => self.ready(state, id, number),
            Action::Vote(id, number) => self.vote(state, id, number),
            Action::Learn(id, number) => self.learn(state, id, number, false),
            Action::Fork(number, upper) => self.fork(state, number, upper),
            Action::Found(upper) => self.found(state, upper),
            Action::Drop(id) => (self.planted(Planted::DropsBeforeAdmitted)
                && self.could_go_over(state, id))
            .then(|| {
                let mut next = state.clone();
                next.nodes[usize::from(id)] = Node {
                    alive: true,
                    ..Node::default()
                };
                next
            }),
            Action::Return(id) => {
                let node = &state.nodes[usize::from(id)];
                let lost = node
                    .follows()
                    .is_some_and(|number| !self.goes_on(state, number, state.side_of(id)));
                (self.planted(Planted::ForgetsOnReturn)
                    && lost
                    && node.held.is_some()
                    && !node.pending.is_empty())
                .then(|| {
                    let mut next = state.clone();
                    next.nodes[usize::from(id)].pending.clear();
                    next
                })
            }
            Action::Kill(id) => {
                (state.nodes[usize::from(id)].alive && state.kills > 0).then(|| {
                    let mut next = state.clone();
                    next.kills -= 1;
                    next.nodes[usize::from(id)] = Node::default();
                    for history in &mut next.histories {
                        history.faithful &= !bit(id);
                    }
                    next
                })
            }
            Action::Restart(id) => (!state.nodes[usize::from(id)].alive && state.restarts > 0)
                .then(|| {
                    let mut next = state.clone();
                    next.restarts -= 1;
                    next.nodes[usize::from(id)].alive = true;
                    next
                }),
            Action::Cut(lower) => (state.cut.is_none() && state.cuts > 0).then(|| State {
                cut: Some(lower),
                cuts: state.cuts - 1,
                ..state.clone()
            }),
            Action::Heal => state.cut.is_some().then(|| State {
                cut: None,
                ..state.clone()
            }),
        }
    }

    /// Steps that nodes take by themselves, in the order in which a run without faults tries them.
    fn steps(state: &State, out: &mut Vec<Action>) {
        let ids = 0..state.nodes.len() as u8;
        for number in 0..state.histories.len() as u8 {
            for id in ids.clone() {
                out.extend([
                    Action::Learn(id, number),
                    Action::Vote(id, number),
                    Action::Ready(id, number),
                ]);
            }
            for upper in [false, true] {
                out.extend([Action::Attempt(number, upper), Action::Fork(number, upper)]);
            }
        }
        out.extend([Action::Found(false), Action::Found(true)]);
        out.extend(ids.flat_map(|id| [Action::Drop(id), Action::Return(id)]));
    }

    /// The state in which a run without further faults comes to rest, or `None` if it does not.
    fn rest(&self, state: &State) -> Option<State> {
        let mut now = State {
            cut: None,
            kills: 0,
            restarts: 0,
            cuts: 0,
            rounds: 0,
            ..state.clone()
        };
        for _ in 0..PASSES {
            let mut steps = Vec::new();
            Self::steps(&now, &mut steps);
            // A fork waits until nothing else can happen: its timeout is longer than any other.
            let (forks, steps): (Vec<Action>, Vec<Action>) = steps
                .into_iter()
                .partition(|step| matches!(step, Action::Fork(..)));
            let mut moved = false;
            for step in steps {
                let next = match step {
                    Action::Learn(id, number) => self.learn(&now, id, number, true),
                    _ => self.apply(&now, step),
                };
                if let Some(next) = next {
                    now = next;
                    moved = true;
                }
            }
            if !moved {
                match forks.into_iter().find_map(|fork| self.apply(&now, fork)) {
                    Some(next) => now = next,
                    None => return Some(now),
                }
            }
        }
        None
    }

    fn together(state: &State) -> bool {
        let living = || state.nodes.iter().filter(|node| node.alive);
        let runs = living().any(|node| node.held.is_some());
        let one_each = (0..state.bootstraps).all(|bootstrap| {
            let mut held = living()
                .filter_map(|node| node.held)
                .filter(|held| state.history(held.history).bootstrap == bootstrap);
            let first = held.next();
            held.all(|other| Some(other) == first)
        });
        let empty = living().filter(|node| node.held.is_none()).count();
        one_each && (if runs { empty == 0 } else { empty < FOUNDERS })
    }
}

fn first(bootstrap: u8, members: u8, newest: Outcome) -> History {
    History {
        bootstrap,
        base: None,
        from: None,
        contributions: 0,
        first_round: newest.round,
        leader: 0,
        group: members,
        voters: members,
        faithful: members,
        newest,
        decided: true,
        attempt: None,
    }
}

impl Model for Histories {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let newest = Outcome {
            history: 0,
            round: 0,
            attempt: 0,
            contributions: self.space.nodes,
        };
        let node = Node {
            alive: true,
            held: Some(newest),
            pending: Vec::new(),
        };
        vec![State {
            nodes: vec![node; usize::from(self.space.nodes)],
            histories: vec![first(0, bit(self.space.nodes) - 1, newest)],
            cut: None,
            kills: self.space.kills,
            restarts: self.space.restarts,
            cuts: self.space.cuts,
            rounds: self.space.rounds,
            bootstraps: 1,
            won: [0; MOST_HISTORIES],
            gave_up: false,
            absorbed: false,
            trunk_left: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        Self::steps(state, actions);
        actions
            .extend((0..self.space.nodes).flat_map(|id| [Action::Kill(id), Action::Restart(id)]));
        // The side that contains the first node, and not all nodes.
        actions.extend(
            (1..bit(self.space.nodes) - 1)
                .filter(|lower| lower & 1 != 0)
                .map(Action::Cut),
        );
        actions.push(Action::Heal);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.apply(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(MEMBERS_HOLD, |model: &Self, state: &State| {
                let keeps = |history: &History| {
                    let replaces = |node: &Node| {
                        node.outcomes()
                            .any(|outcome| model.replaces(state, outcome, history.newest))
                    };
                    !history.decided
                        || state
                            .among(history.faithful)
                            .all(|(_, node)| replaces(node))
                };
                state.histories.iter().all(keeps)
            }),
            Property::always(NOTHING_GIVEN_UP, |_, state: &State| !state.gave_up),
            Property::always(FRESH_NEVER_ABSORBS, |_, state: &State| !state.absorbed),
            Property::always(ONE_ORDER, |_, state: &State| {
                let won = |one: usize, other: usize| state.won[one] & (1 << other) != 0;
                (0..MOST_HISTORIES).all(|one| {
                    (0..MOST_HISTORIES).all(|other| !(won(one, other) && won(other, one)))
                })
            }),
            Property::always(TRUNK_STAYS, |_, state: &State| !state.trunk_left),
            Property::always(COMES_TOGETHER, |model: &Self, state: &State| {
                model.rest(state).is_some_and(|rest| Self::together(&rest))
            }),
            Property::sometimes(FORKS, |_, state: &State| {
                state
                    .histories
                    .iter()
                    .filter(|history| history.decided)
                    .count()
                    > 1
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        let few_attempts = state
            .histories
            .iter()
            .filter_map(|history| history.attempt)
            .all(|attempt| attempt.outcome.attempt <= MOST_ATTEMPTS);
        let few_rounds = state
            .histories
            .iter()
            .all(|history| history.newest.round <= MOST_ROUNDS);
        state.histories.len() <= self.space.histories
            && few_attempts
            && few_rounds
            && self.limit.allows()
    }
}
