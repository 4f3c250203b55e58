//! What a cluster is made of, packed: sets of processes are bits, terms and entries small numbers.

use std::fmt;
use std::hash::{Hash, Hasher};

/// Processes of a space at most: founders, joiners, restarts.
pub const PROCESSES: usize = 6;
/// Terms of a round at most, those of the fault-free continuation included.
pub const TERMS: usize = 6;
/// Rounds of a space at most.
pub const ROUNDS: usize = 3;
/// Attempts of a term at most.
pub const ATTEMPTS: usize = 2;

/// A set of processes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Set(pub u8);

impl Set {
    /// Nobody.
    pub const NONE: Self = Self(0);

    /// One process.
    #[must_use]
    pub fn one(process: usize) -> Self {
        Self(1 << process)
    }

    /// The processes below `count`.
    #[must_use]
    pub fn first(count: usize) -> Self {
        Self(((1_u16 << count) - 1) as u8)
    }

    /// Whether `process` belongs to it.
    #[must_use]
    pub fn has(self, process: usize) -> bool {
        self.0 & (1 << process) != 0
    }

    /// With one more.
    #[must_use]
    pub fn with(self, process: usize) -> Self {
        Self(self.0 | (1 << process))
    }

    /// Without one.
    #[must_use]
    pub fn without(self, process: usize) -> Self {
        Self(self.0 & !(1 << process))
    }

    /// Who is in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Who is in either.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Who is in this one only.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// How many.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether nobody is in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of it belong to `other`.
    #[must_use]
    pub fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// The lowest.
    #[must_use]
    pub fn lowest(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    /// All, ascending.
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

/// Who takes part in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// Who holds the outcome of the round before.
    pub members: Set,
    /// Who decides the round.
    pub voters: Set,
    /// With whom half of the voters are a quorum, and who leads the lowest term.
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

/// What a term's leader does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It asks for promises.
    #[default]
    Preparing,
    /// It moves data.
    Open,
    /// It asks for votes.
    Proposed,
    /// It died or was overtaken before it asked for votes.
    Over,
}

/// An entry: the attempt that moved its data, as number of the term and number of the attempt in
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Which term, counted from the lowest of the round.
    pub term: u8,
    /// Which attempt.
    pub attempt: u8,
}

impl Entry {
    /// The bit that stands for its data.
    #[must_use]
    pub fn bit(self) -> u16 {
        1 << (usize::from(self.term) * ATTEMPTS + usize::from(self.attempt))
    }
}

/// All data of a term.
#[must_use]
pub fn data_of(term: usize) -> u16 {
    ((1 << ATTEMPTS) - 1) << (term * ATTEMPTS)
}

/// What a voter promised with: the term under which it accepted and its floor, as numbers of terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The highest term under which it accepted.
    pub accepted: Option<u8>,
    /// The highest term that it knows to have been open.
    pub floor: Option<u8>,
}

/// A term: what its leader knows, and the messages that were sent in it.
///
/// A message once sent may arrive at any time, any number of times, or never: the sets below only
/// grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Term {
    /// Counter, then leader: what terms are compared by.
    pub code: u8,
    /// Who leads.
    pub leader: u8,
    /// What it does.
    pub phase: Phase,
    /// Whether `Open` was said.
    pub opened: bool,
    /// Whether the leader said that a quorum acknowledged `Open`.
    pub safe: bool,
    /// What votes are asked for.
    pub proposal: Option<Entry>,
    /// Attempts so far.
    pub attempts: u8,
    /// The next members of each attempt.
    pub next: [Set; ATTEMPTS],
    /// The next voters of each attempt.
    pub voters: [Set; ATTEMPTS],
    /// Who contributes to the last attempt.
    pub contributors: Set,
    /// Who said `Ready` to the last attempt.
    pub ready: Set,
    /// Whether all next members had said `Ready` when votes were asked for.
    pub complete: bool,
    /// Who promised.
    pub promised: Set,
    /// With what.
    pub promises: [Promise; PROCESSES],
    /// Who accepted.
    pub accepted: Set,
    /// Who acknowledged `Open`.
    pub acknowledged: Set,
}

/// No term, in packed states.
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

/// A round: its terms, ascending, and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// How many terms there are.
    pub count: u8,
    /// The terms.
    pub terms: [Term; TERMS],
    /// What a quorum accepted under one term.
    pub chosen: Option<Entry>,
    /// Whether a leader said so.
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

/// What a process knows. Its votes are of its round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The round that it takes part in; 0 before it knows any.
    pub round: u8,
    /// The round whose beginning it holds; 0 if none.
    pub holds: u8,
    /// The code of the term that it promised.
    pub promise: u8,
    /// The number of the term under which it accepted last.
    pub accepted: Option<u8>,
    /// The code of the highest term that it knows to have been open.
    pub floor: Option<u8>,
    /// The attempts of its round whose data it holds.
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

/// What went wrong in a step, beside what a state shows by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrong {
    /// Two entries of one round.
    pub two_outcomes: bool,
    /// A decision that no quorum of the round's voters made.
    pub no_quorum: bool,
    /// A decision on an attempt to which a next member did not say `Ready`.
    pub not_ready: bool,
    /// Who learned a decision as next member and did not hold its data.
    pub nothing_held: bool,
    /// Participants of a term that were none of its attempt before.
    pub grew: bool,
    /// Voters who stay and are no quorum of the next ones.
    pub outvoted: bool,
}

/// Faults so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spent {
    /// Processes that stopped.
    pub crashes: u8,
    /// Live processes that a leader took for dead.
    pub verdicts: u8,
    /// Live processes that a leader took for ended.
    pub ends: u8,
    /// Processes that started again.
    pub restarts: u8,
    /// Terms beside the lowest ones.
    pub take_overs: u8,
}

/// A cluster and its network.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Who runs.
    pub alive: Set,
    /// Who left and was let go.
    pub gone: Set,
    /// Who wants to leave.
    pub leaving: Set,
    /// Faults so far.
    pub spent: Spent,
    /// What went wrong.
    pub wrong: Wrong,
    /// The place, by its founder or first process, that each process takes.
    pub ids: [u8; PROCESSES],
    /// The processes.
    pub processes: [Process; PROCESSES],
    /// The views of the rounds 1, 2, …; one more than there are rounds.
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

    /// The same, to change it.
    pub fn round_mut(&mut self, number: u8) -> &mut Round {
        &mut self.rounds[usize::from(number) - 1]
    }

    /// Who takes part in the round with a number from 1.
    #[must_use]
    pub fn view(&self, number: u8) -> &View {
        &self.views[usize::from(number) - 1]
    }

    /// The newest round of which a view is decided.
    #[must_use]
    pub fn newest(&self) -> u8 {
        1 + self
            .rounds
            .iter()
            .take_while(|round| round.chosen.is_some())
            .count() as u8
    }

    /// Whether `process` holds what the round `number` begins with.
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
