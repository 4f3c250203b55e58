//! The state of a cluster, packed: sets of processes are bits, terms and entries small numbers.

use std::fmt;
use std::hash::{Hash, Hasher};

/// Maximum number of processes in a space: bootstrap members, joiners, restarts.
pub const PROCESSES: usize = 6;
/// Maximum number of terms in a round, including those of the fault-free continuation.
pub const TERMS: usize = 6;
/// Maximum number of rounds in a space.
pub const ROUNDS: usize = 3;
/// Maximum number of attempts in a term.
pub const ATTEMPTS: usize = 2;

/// A set of processes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Set(pub u8);

impl Set {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// The set of one process.
    #[must_use]
    pub fn one(process: usize) -> Self {
        Self(1 << process)
    }

    /// The processes below `count`.
    #[must_use]
    pub fn first(count: usize) -> Self {
        Self(((1_u16 << count) - 1) as u8)
    }

    /// Whether the set contains `process`.
    #[must_use]
    pub fn has(self, process: usize) -> bool {
        self.0 & (1 << process) != 0
    }

    /// The set with one more process.
    #[must_use]
    pub fn with(self, process: usize) -> Self {
        Self(self.0 | (1 << process))
    }

    /// The set without one process.
    #[must_use]
    pub fn without(self, process: usize) -> Self {
        Self(self.0 & !(1 << process))
    }

    /// The intersection of both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The union of both sets.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The processes that are in this set only.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Number of processes in the set.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set is a subset of `other`.
    #[must_use]
    pub fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// The lowest process of the set.
    #[must_use]
    pub fn lowest(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    /// All processes of the set, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |process| self.has(*process))
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter()
            .try_for_each(|process| write!(f, "{}", char::from(b'a' + process as u8)))
    }
}

/// The participants of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// Processes that hold the outcome of the previous round.
    pub members: Set,
    /// Processes that decide the round.
    pub voters: Set,
    /// The tie-breaker, with which half of the voters are a quorum; it also leads the lowest term.
    pub first: u8,
}

impl View {
    /// Whether `votes` decide.
    #[must_use]
    pub fn is_quorum(&self, votes: Set) -> bool {
        let given = votes.and(self.voters).len() * 2;
        let all = self.voters.len();
        given > all
            || given == all
                && votes.has(usize::from(self.first))
                && self.voters.has(usize::from(self.first))
    }
}

/// The phase of a term's leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The leader asks for promises.
    #[default]
    Preparing,
    /// The leader moves data.
    Open,
    /// The leader asks for votes.
    Proposed,
    /// The leader died or was overtaken before it asked for votes.
    Over,
}

/// An entry: the attempt that moved its data, as the number of the term and the number of the
/// attempt in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Number of the term, counted from the lowest of the round.
    pub term: u8,
    /// Number of the attempt in the term.
    pub attempt: u8,
}

impl Entry {
    /// The bit that stands for the entry's data.
    #[must_use]
    pub fn bit(self) -> u16 {
        1 << (usize::from(self.term) * ATTEMPTS + usize::from(self.attempt))
    }
}

/// The bits of all data of a term.
#[must_use]
pub fn data_of(term: usize) -> u16 {
    ((1 << ATTEMPTS) - 1) << (term * ATTEMPTS)
}

/// Content of a voter's promise: the term under which it accepted and its floor, as term numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The highest term under which the voter accepted.
    pub accepted: Option<u8>,
    /// The highest term that the voter knows to have been open.
    pub floor: Option<u8>,
}

/// A term: what its leader knows, and the messages that were sent in it.
///
/// A message once sent may arrive at any time, any number of times, or never, so the sets below
/// only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Term {
    /// Counter, then leader: the key by which terms are compared.
    pub code: u8,
    /// The leader.
    pub leader: u8,
    /// The leader's phase.
    pub phase: Phase,
    /// Whether the leader said `Open`.
    pub opened: bool,
    /// Whether the leader said that a quorum acknowledged `Open`.
    pub safe: bool,
    /// The entry for which votes are asked.
    pub proposal: Option<Entry>,
    /// Number of attempts so far.
    pub attempts: u8,
    /// The next members of each attempt.
    pub next: [Set; ATTEMPTS],
    /// The next voters of each attempt.
    pub voters: [Set; ATTEMPTS],
    /// The contributors to the last attempt.
    pub contributors: Set,
    /// Next members that said `Ready` to the last attempt.
    pub ready: Set,
    /// Whether all next members had said `Ready` when votes were asked for.
    pub complete: bool,
    /// Voters that promised.
    pub promised: Set,
    /// The content of each voter's promise.
    pub promises: [Promise; PROCESSES],
    /// Voters that accepted.
    pub accepted: Set,
    /// Voters that acknowledged `Open`.
    pub acknowledged: Set,
}

/// Code for "no term" in packed states.
const NO_TERM: u8 = 15;

impl Hash for Term {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let entry = self
            .proposal
            .map_or(NO_TERM, |entry| entry.term * 2 + entry.attempt);
        let flags = u8::from(self.opened)
            | u8::from(self.safe) << 1
            | u8::from(self.complete) << 2
            | (self.phase as u8) << 4;
        let mut bytes = [0; 16 + PROCESSES];
        let fixed = [
            self.code,
            self.leader,
            flags,
            entry,
            self.attempts,
            self.next[0].0,
            self.next[1].0,
            self.voters[0].0,
            self.voters[1].0,
            self.contributors.0,
            self.ready.0,
            self.promised.0,
            self.accepted.0,
            self.acknowledged.0,
        ];
        bytes[..fixed.len()].copy_from_slice(&fixed);
        for (byte, promise) in bytes[16..].iter_mut().zip(&self.promises) {
            *byte = promise.accepted.unwrap_or(NO_TERM) | promise.floor.unwrap_or(NO_TERM) << 4;
        }
        state.write(&bytes);
    }
}

/// A round: its terms, ascending, and its outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Number of terms.
    pub count: u8,
    /// The terms.
    pub terms: [Term; TERMS],
    /// The entry that a quorum accepted under one term.
    pub chosen: Option<Entry>,
    /// Whether a leader announced the decision.
    pub announced: bool,
}

impl Round {
    /// The terms that exist.
    #[must_use]
    pub fn terms(&self) -> &[Term] {
        &self.terms[..usize::from(self.count)]
    }
}

impl Hash for Round {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let chosen = self
            .chosen
            .map_or(NO_TERM, |entry| entry.term * 2 + entry.attempt);
        state.write(&[self.count, chosen, u8::from(self.announced)]);
        self.terms().iter().for_each(|term| term.hash(state));
    }
}

/// The knowledge of a process. Its votes belong to its round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The round that the process takes part in; 0 before it knows any.
    pub round: u8,
    /// The round whose starting state the process holds; 0 if none.
    pub holds: u8,
    /// The code of the term that the process promised.
    pub promise: u8,
    /// The number of the term under which the process accepted last.
    pub accepted: Option<u8>,
    /// The code of the highest term that the process knows to have been open.
    pub floor: Option<u8>,
    /// The attempts of the round whose data the process holds.
    pub data: u16,
}

impl Hash for Process {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [low, high] = self.data.to_le_bytes();
        let accepted = self.accepted.unwrap_or(NO_TERM);
        let floor = self.floor.unwrap_or(u8::MAX);
        state.write(&[
            self.round,
            self.holds,
            self.promise,
            accepted,
            floor,
            low,
            high,
        ]);
    }
}

/// Errors of a step that cannot be seen in a state itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrong {
    /// A round has two entries decided.
    pub two_outcomes: bool,
    /// A decision that no quorum of the round's voters made.
    pub no_quorum: bool,
    /// A decision on an attempt to which a next member did not say `Ready`.
    pub not_ready: bool,
    /// A process learned a decision as next member and did not hold its data.
    pub nothing_held: bool,
    /// A term gained participants that its previous attempt did not have.
    pub grew: bool,
    /// The staying voters are not a quorum of the next voters.
    pub outvoted: bool,
}

/// Number of faults so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spent {
    /// Processes that stopped.
    pub crashes: u8,
    /// Live processes that a leader took for dead.
    pub verdicts: u8,
    /// Live processes that a leader took for ended.
    pub ends: u8,
    /// Processes that restarted.
    pub restarts: u8,
    /// Terms beside the lowest ones.
    pub take_overs: u8,
}

/// The state of a cluster and its network.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Processes that run.
    pub alive: Set,
    /// Processes that left with permission.
    pub gone: Set,
    /// Processes that want to leave.
    pub leaving: Set,
    /// Number of faults so far.
    pub spent: Spent,
    /// Errors found so far.
    pub wrong: Wrong,
    /// The slot of each process, named by its bootstrap member or first process.
    pub ids: [u8; PROCESSES],
    /// The processes.
    pub processes: [Process; PROCESSES],
    /// The views of the rounds 1, 2, …; one more than the number of rounds.
    pub views: [View; ROUNDS + 1],
    /// The rounds 1, 2, …
    pub rounds: [Round; ROUNDS],
}

impl State {
    /// The round with a number from 1.
    #[must_use]
    pub fn round(&self, number: u8) -> &Round {
        &self.rounds[usize::from(number) - 1]
    }

    /// The round with a number from 1, mutable.
    pub fn round_mut(&mut self, number: u8) -> &mut Round {
        &mut self.rounds[usize::from(number) - 1]
    }

    /// The participants of the round with a number from 1.
    #[must_use]
    pub fn view(&self, number: u8) -> &View {
        &self.views[usize::from(number) - 1]
    }

    /// The newest round whose view is decided.
    #[must_use]
    pub fn newest(&self) -> u8 {
        1 + self
            .rounds
            .iter()
            .take_while(|round| round.chosen.is_some())
            .count() as u8
    }

    /// Whether `process` holds the starting state of round `number`.
    #[must_use]
    pub fn holds(&self, process: usize, number: u8) -> bool {
        let Process {
            round, holds, data, ..
        } = self.processes[process];
        if holds >= number {
            return true;
        }
        let undecided = number > 1 && round == number - 1;
        undecided
            && self
                .round(round)
                .chosen
                .is_some_and(|entry| data & entry.bit() != 0)
    }

    /// The newest round that a living process takes part in.
    #[must_use]
    pub fn known(&self) -> u8 {
        self.alive
            .iter()
            .map(|process| self.processes[process].round)
            .max()
            .unwrap_or(0)
    }
}
