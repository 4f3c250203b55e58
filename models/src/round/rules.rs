//! The rules: possible next steps and their effects.

use super::setup::{Planted, Setup};
use super::state::{
    ATTEMPTS, Entry, PROCESSES, Phase, Process, Promise, ROUNDS, Round, Set, Spent, State, TERMS,
    Term, View, Wrong, data_of,
};

/// One step of the model. Rounds count from 1, terms from the lowest of their round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A process stops.
    Crash(usize),
    /// A process that stopped is restarted with empty memory.
    Restart(usize),
    /// A member wants to leave.
    Leave(usize),
    /// A leaver leaves for good.
    Go(usize),
    /// A member learns the decision of its round.
    Learn(usize),
    /// A member takes over its round.
    TakeOver(usize),
    /// A voter promises.
    Promise {
        /// Number of the round.
        round: u8,
        /// Number of the term.
        term: usize,
        /// The voter.
        voter: usize,
    },
    /// A leader has a quorum of promises and asks for votes on what was accepted under another
    /// term.
    Finish {
        /// Number of the round.
        round: u8,
        /// Number of the term.
        term: usize,
        /// Number of the term under which it was accepted.
        accepted: u8,
    },
    /// A leader has a quorum of promises and nothing to finish.
    Open {
        /// Number of the round.
        round: u8,
        /// Number of the term.
        term: usize,
    },
    /// A voter hears `Open`.
    Acknowledge {
        /// Number of the round.
        round: u8,
        /// Number of the term.
        term: usize,
        /// The voter.
        voter: usize,
    },
    /// A leader says that a quorum acknowledged `Open`.
    Safe {
        /// Number of the round.
        round: u8,
        /// Number of the term.
        term: usize,
    },
    /// A leader starts an attempt.
    Attempt {
        /// Number of the round.
        round: u8,
        /// Number of the term.
        term: usize,
        /// The contributors.
        contributors: Set,
        /// The next members.
        next: Set,
        /// The next voters.
        voters: Set,
        /// Number of live processes that the leader takes for dead.
        verdicts: u8,
        /// Number of live processes that the leader takes for ended.
        ends: u8,
    },
    /// A next member holds everything that it must hold.
    Ready {
        /// Number of the round.
        round: u8,
        /// Number of the term.
        term: usize,
        /// The next member.
        member: usize,
    },
    /// All next members hold everything that they must hold.
    AllReady {
        /// Number of the round.
        round: u8,
        /// Number of the term.
        term: usize,
    },
    /// A leader asks for votes.
    Propose {
        /// Number of the round.
        round: u8,
        /// Number of the term.
        term: usize,
    },
    /// A voter accepts.
    Accept {
        /// Number of the round.
        round: u8,
        /// Number of the term.
        term: usize,
        /// The voter.
        voter: usize,
    },
    /// A leader announces the decision.
    Announce {
        /// Number of the round.
        round: u8,
        /// Number of the term.
        term: usize,
    },
    /// Planted: a leader drops the data for which it asked for votes.
    Drop {
        /// Number of the round.
        round: u8,
        /// Number of the term.
        term: usize,
    },
}

/// The rules of a space.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The space.
    pub setup: Setup,
}

/// Possible participants of an attempt.
struct Choice {
    contributors: Set,
    next: Set,
    verdicts: u8,
}

impl Rules {
    /// The initial state: the bootstrap members, in the first round.
    #[must_use]
    pub fn founded(&self) -> State {
        let founders = Set::first(self.setup.founders);
        let mut state = State {
            alive: Set::first(self.setup.founders + self.setup.joiners),
            gone: Set::NONE,
            leaving: Set::NONE,
            spent: Spent::default(),
            wrong: Wrong::default(),
            ids: std::array::from_fn(|process| process as u8),
            processes: Default::default(),
            views: [View::default(); ROUNDS + 1],
            rounds: [Round::default(); ROUNDS],
        };
        for founder in founders.iter() {
            state.processes[founder].round = 1;
            state.processes[founder].holds = 1;
        }
        state.views[0] = View {
            members: founders,
            voters: founders,
            first: 0,
        };
        self.begin(&mut state, 1);
        state
    }

    /// Lists the possible next steps. Without `faults` no faults occur, leaders know which
    /// processes live, and nobody takes over.
    pub fn steps(&self, state: &State, faults: bool, steps: &mut Vec<Step>) {
        for process in state.alive.iter() {
            self.steps_of(state, process, faults, steps);
        }
        let restarts =
            state.spent.restarts < self.setup.restarts && state.known() <= self.setup.rounds;
        if faults && restarts && self.unused(state).is_some() {
            let stopped = (0..self.processes(state))
                .filter(|process| !state.alive.has(*process) && !state.gone.has(*process));
            steps.extend(
                stopped
                    .filter(|process| self.last_of_place(state, *process))
                    .map(Step::Restart),
            );
        }
        for round in 1..=self.setup.rounds.min(state.newest()) {
            for term in 0..state.round(round).terms().len() {
                self.steps_in(state, round, term, faults, steps);
            }
        }
    }

    /// Number of processes that have started so far.
    fn processes(&self, state: &State) -> usize {
        let started = self.setup.founders + self.setup.joiners;
        if self.setup.breaks(Planted::RestartKeepsPlace) {
            started
        } else {
            started + usize::from(state.spent.restarts)
        }
    }

    fn unused(&self, state: &State) -> Option<usize> {
        let next = self.processes(state);
        (next < PROCESSES).then_some(next)
    }

    /// Whether no later process was started in the slot of `process`.
    fn last_of_place(&self, state: &State, process: usize) -> bool {
        (process + 1..self.processes(state)).all(|later| state.ids[later] != state.ids[process])
    }

    fn steps_of(&self, state: &State, process: usize, faults: bool, steps: &mut Vec<Step>) {
        let Setup {
            crashes,
            leavers,
            take_overs,
            rounds,
            ..
        } = self.setup;
        let at = state.processes[process].round;
        if faults {
            let going_on = state.known() <= rounds;
            if state.spent.crashes < crashes && going_on {
                steps.push(Step::Crash(process));
            }
            let leaves = state.leaving.len() < u32::from(leavers) && !state.leaving.has(process);
            if leaves && going_on && at > 0 && state.view(at).members.has(process) {
                steps.push(Step::Leave(process));
            }
        }
        if state.leaving.has(process) && self.may_go(state, process) {
            steps.push(Step::Go(process));
        }
        if at == 0 || at > rounds {
            return;
        }
        // Without faults no message of a dead process is in flight.
        if state.round(at).announced && (faults || state.known() > at) {
            steps.push(Step::Learn(process));
        }
        if faults
            && state.spent.take_overs < take_overs
            && self.may_lead(state, process)
            && !self.leads(state, process)
        {
            steps.push(Step::TakeOver(process));
        }
    }

    /// Rule 8: a leaver goes once a quorum of the next voters knows the decision that lets it go.
    fn may_go(&self, state: &State, process: usize) -> bool {
        let at = state.processes[process].round;
        let view = state.view(at);
        if view.members.has(process) || view.voters.has(process) {
            return false;
        }
        let know = view
            .voters
            .iter()
            .filter(|voter| state.processes[*voter].round >= at);
        self.setup.breaks(Planted::LeavesEarly) || view.is_quorum(know.fold(Set::NONE, Set::with))
    }

    /// Whether a process may lead a term of its round.
    pub fn may_lead(&self, state: &State, process: usize) -> bool {
        let at = state.processes[process].round;
        let member = at > 0 && at <= self.setup.rounds && state.view(at).members.has(process);
        member && state.round(at).terms().len() < TERMS
    }

    /// Whether a process leads the highest term of its round.
    fn leads(&self, state: &State, process: usize) -> bool {
        let highest = state.round(state.processes[process].round).terms().last();
        highest.is_some_and(|term| usize::from(term.leader) == process && term.phase != Phase::Over)
    }

    /// Whether the leader of a term lives, is still in the round and promised nothing higher.
    fn in_charge(&self, state: &State, round: u8, term: &Term) -> bool {
        let leader = usize::from(term.leader);
        state.alive.has(leader)
            && state.processes[leader].round == round
            && state.processes[leader].promise <= term.code
    }

    /// The view that decides, as the leader of an entry sees it.
    fn deciders(&self, state: &State, round: u8, term: &Term) -> View {
        let view = *state.view(round);
        match term.proposal {
            Some(entry) if self.setup.breaks(Planted::JoinerVotes) => View {
                voters: view
                    .voters
                    .or(term.next[usize::from(entry.attempt)].minus(view.members)),
                ..view
            },
            _ => view,
        }
    }

    /// Whether `votes` decide, as the leader counts them.
    fn is_quorum(&self, view: &View, votes: Set) -> bool {
        let half = votes.and(view.voters).len() * 2 >= view.voters.len();
        view.is_quorum(votes) || half && self.setup.breaks(Planted::HalfDecides)
    }

    fn steps_in(
        &self,
        state: &State,
        round: u8,
        number: usize,
        faults: bool,
        steps: &mut Vec<Step>,
    ) {
        let term = &state.round(round).terms[number];
        let leads = self.in_charge(state, round, term);
        match term.phase {
            Phase::Preparing if leads => self.steps_preparing(state, round, number, steps),
            Phase::Open if leads => {
                if term.opened && !term.safe && self.acknowledged(state, round, term) {
                    steps.push(Step::Safe {
                        round,
                        term: number,
                    });
                }
                self.steps_open(state, round, number, faults, steps);
                self.attempts(state, round, number, faults, steps);
            }
            Phase::Proposed => self.steps_proposed(state, round, number, faults, steps),
            _ => {}
        }
        if term.opened {
            for voter in state.alive.and(state.view(round).voters).iter() {
                let process = &state.processes[voter];
                let below = process.promise > term.code
                    && !self.setup.breaks(Planted::AcknowledgeBelowPromise);
                let raises = process.floor.is_none_or(|floor| floor < term.code)
                    && (!below || self.setup.refused_raises);
                let answers = !below
                    && leads
                    && term.phase == Phase::Open
                    && !term.safe
                    && !term.acknowledged.has(voter);
                if process.round == round && (raises || answers) {
                    steps.push(Step::Acknowledge {
                        round,
                        term: number,
                        voter,
                    });
                }
            }
        }
    }

    /// Rule 5 (c): whether `Open` is acknowledged.
    fn acknowledged(&self, state: &State, round: u8, term: &Term) -> bool {
        if self.setup.breaks(Planted::NeverSafe) {
            return false;
        }
        let one = self.setup.breaks(Planted::SafeAfterOne) && !term.acknowledged.is_empty();
        one || state.view(round).is_quorum(term.acknowledged)
    }

    /// Rule 4: promises, and the possible steps after each quorum of them.
    fn steps_preparing(&self, state: &State, round: u8, number: usize, steps: &mut Vec<Step>) {
        let term = &state.round(round).terms[number];
        let view = state.view(round);
        for voter in state.alive.and(view.voters).iter() {
            let process = &state.processes[voter];
            let old = self.setup.breaks(Planted::VotesInOldRound) && process.round > round;
            let above = process.round == round && process.promise <= term.code;
            let news = !term.promised.has(voter)
                || term.promises[voter] != self.promise(state, round, voter);
            if (above || old) && news {
                steps.push(Step::Promise {
                    round,
                    term: number,
                    voter,
                });
            }
        }
        let mut results: Vec<Option<u8>> = Vec::new();
        let mut heard = term.promised.0;
        // Every subset of the promises that is a quorum may be what the leader heard.
        while heard != 0 {
            let quorum = self.is_quorum(view, Set(heard))
                || self.setup.breaks(Planted::ProposeWithoutQuorum);
            if quorum {
                let result = self.to_finish(term, Set(heard));
                if !results.contains(&result) {
                    results.push(result);
                }
            }
            heard = (heard - 1) & term.promised.0;
        }
        steps.extend(results.into_iter().map(|result| match result {
            Some(accepted) => Step::Finish {
                round,
                term: number,
                accepted,
            },
            None => Step::Open {
                round,
                term: number,
            },
        }));
    }

    /// The highest term under which a voter accepted, unless it is void.
    fn to_finish(&self, term: &Term, heard: Set) -> Option<u8> {
        let promises = || heard.iter().map(|voter| term.promises[voter]);
        let floor = promises().filter_map(|promise| promise.floor).max();
        let accepted = promises().filter_map(|promise| promise.accepted).max()?;
        let void = floor.is_some_and(|floor| {
            accepted < floor || accepted == floor && self.setup.breaks(Planted::VoidAtFloor)
        });
        (!void || self.setup.breaks(Planted::VoidIgnored)).then_some(accepted)
    }

    /// The promise that a voter gives, with its accepted term and its floor.
    fn promise(&self, state: &State, round: u8, voter: usize) -> Promise {
        let process = &state.processes[voter];
        if process.round != round {
            return Promise::default();
        }
        let number = |code| {
            state
                .round(round)
                .terms()
                .iter()
                .position(|term| term.code == code)
                .map(|number| number as u8)
        };
        let mut promise = Promise {
            accepted: process.accepted,
            floor: process.floor.and_then(number),
        };
        if self.setup.breaks(Planted::PromiseForgetsAccepted) {
            promise.accepted = None;
        }
        if self.setup.breaks(Planted::FloorNotReported) {
            promise.floor = None;
        }
        promise
    }

    fn steps_open(
        &self,
        state: &State,
        round: u8,
        number: usize,
        faults: bool,
        steps: &mut Vec<Step>,
    ) {
        let term = &state.round(round).terms[number];
        if term.attempts == 0 {
            return;
        }
        let next = term.next[usize::from(term.attempts) - 1];
        let missing = next.minus(term.ready);
        let able = missing
            .iter()
            .filter(|member| self.may_be_ready(state, round, term, *member))
            .fold(Set::NONE, Set::with);
        if !faults || !self.setup.at_once {
            steps.extend(able.iter().map(|member| Step::Ready {
                round,
                term: number,
                member,
            }));
        } else if !missing.is_empty() && able == missing {
            steps.push(Step::AllReady {
                round,
                term: number,
            });
        }
        if missing.is_empty() || missing.len() == 1 && self.setup.breaks(Planted::ReadyMissing) {
            steps.push(Step::Propose {
                round,
                term: number,
            });
        }
    }

    fn may_be_ready(&self, state: &State, round: u8, term: &Term, member: usize) -> bool {
        // Data of a contributor that died arrived before it died: a process that is ready later
        // could have been ready then.
        let flows = term.contributors.within(state.alive) && state.alive.has(member);
        let process = &state.processes[member];
        if process.round == round {
            // Rule 5: a process that holds data of two attempts waits before it holds a third.
            return flows && process.promise <= term.code && process.data.count_ones() < 2;
        }
        flows && process.round < round && !state.view(round).members.has(member)
    }

    fn steps_proposed(
        &self,
        state: &State,
        round: u8,
        number: usize,
        faults: bool,
        steps: &mut Vec<Step>,
    ) {
        let term = &state.round(round).terms[number];
        let deciders = self.deciders(state, round, term);
        for voter in state.alive.and(deciders.voters).minus(term.accepted).iter() {
            let process = &state.processes[voter];
            let old = self.setup.breaks(Planted::VotesInOldRound) && process.round > round;
            let below =
                process.promise > term.code && !self.setup.breaks(Planted::AcceptBelowPromise);
            let joins = process.round == 0 && self.setup.breaks(Planted::JoinerVotes);
            if old || (process.round == round || joins) && !below {
                steps.push(Step::Accept {
                    round,
                    term: number,
                    voter,
                });
            }
        }
        let leader = usize::from(term.leader);
        let present = state.alive.has(leader) && state.processes[leader].round == round;
        let one_more = |voter: usize| deciders.is_quorum(term.accepted.with(voter));
        let enough = self.is_quorum(&deciders, term.accepted)
            || self.setup.breaks(Planted::DecideWithoutQuorum)
                && deciders.voters.iter().any(one_more)
                && !term.accepted.is_empty();
        if present && enough {
            steps.push(Step::Announce {
                round,
                term: number,
            });
        }
        let own = term
            .proposal
            .is_some_and(|entry| usize::from(entry.term) == number);
        if own
            && self.setup.breaks(Planted::AttemptAfterAccept)
            && self.in_charge(state, round, term)
        {
            self.attempts(state, round, number, faults, steps);
        }
        let held = term.proposal.is_some_and(|entry| {
            state
                .processes
                .iter()
                .any(|process| process.data & entry.bit() != 0)
        });
        if own
            && held
            && self.setup.breaks(Planted::DropAfterAccept)
            && self.in_charge(state, round, term)
        {
            steps.push(Step::Drop {
                round,
                term: number,
            });
        }
    }

    /// Rule 1: the attempts that a leader may start.
    fn attempts(
        &self,
        state: &State,
        round: u8,
        number: usize,
        faults: bool,
        steps: &mut Vec<Step>,
    ) {
        let term = &state.round(round).terms[number];
        let bound = if faults {
            usize::from(self.setup.attempts)
        } else {
            ATTEMPTS
        };
        if usize::from(term.attempts) >= bound.min(ATTEMPTS) {
            return;
        }
        let mut choices = Vec::new();
        if term.attempts == 0 {
            self.first_choices(state, round, term, faults, &mut choices);
        } else {
            self.later_choices(state, round, term, faults, &mut choices);
        }
        let view = state.view(round);
        for Choice {
            contributors,
            mut next,
            verdicts,
        } in choices
        {
            // The last holder of the outcome stays until others hold the next one.
            let leader = usize::from(term.leader);
            if next.and(view.members).is_empty()
                && state.leaving.has(leader)
                && !self.setup.breaks(Planted::LastLeaves)
            {
                next = next.with(leader);
            }
            // Both sets include a current member that holds the last outcome; and the quorum needs
            // a member to name.
            let holds = |set: Set| {
                set.and(view.members)
                    .iter()
                    .any(|member| state.holds(member, round))
            };
            if !holds(contributors) || !holds(next) || next.and(view.voters).is_empty() {
                continue;
            }
            let mut known: Vec<(Set, u8)> = Vec::new();
            let dead = view.voters.minus(state.alive);
            if faults {
                known.push((Set::NONE, 0));
                known.push((dead, 0));
                let left = view
                    .voters
                    .and(state.alive)
                    .minus(next)
                    .minus(state.leaving);
                if state.spent.ends < self.setup.ends {
                    known.extend(left.iter().map(|process| (dead.with(process), 1)));
                }
            } else {
                known.push((dead, 0));
            }
            let mut seen = Vec::new();
            for (ended, ends) in known {
                let voters = self.next_voters(state, view, leader, next, ended);
                if !seen.contains(&voters) {
                    seen.push(voters);
                    steps.push(Step::Attempt {
                        round,
                        term: number,
                        contributors,
                        next,
                        voters,
                        verdicts,
                        ends,
                    });
                }
            }
        }
    }

    fn first_choices(
        &self,
        state: &State,
        round: u8,
        term: &Term,
        faults: bool,
        choices: &mut Vec<Choice>,
    ) {
        let view = state.view(round);
        let members = view.members.and(state.alive);
        let outside = state.alive.minus(view.members);
        let asks = |process: &usize| {
            let at = state.processes[*process].round;
            let left_out = at > 0 && at <= round;
            !state.leaving.has(*process) && (at == 0 || left_out && (self.setup.rejoin || !faults))
        };
        let joiners = outside.iter().filter(asks).fold(Set::NONE, Set::with);
        let mut admitted = joiners.0;
        loop {
            let base = members.or(Set(admitted));
            let mut add = |contributors: Set, present: Set, verdicts| {
                choices.push(Choice {
                    contributors,
                    next: present.minus(state.leaving),
                    verdicts,
                });
            };
            add(members, base, 0);
            if faults && state.spent.verdicts < self.setup.verdicts {
                for wronged in members
                    .without(usize::from(term.leader))
                    .minus(state.leaving)
                    .iter()
                {
                    add(members.without(wronged), base.without(wronged), 1);
                }
            }
            if admitted == 0 || !faults {
                break;
            }
            admitted = (admitted - 1) & joiners.0;
        }
    }

    fn later_choices(
        &self,
        state: &State,
        round: u8,
        term: &Term,
        faults: bool,
        choices: &mut Vec<Choice>,
    ) {
        let before = term.next[usize::from(term.attempts) - 1];
        let contributors = term.contributors.and(state.alive);
        let next = before.and(state.alive).minus(state.leaving);
        let late = self.setup.breaks(Planted::AttemptAfterAccept) && term.phase == Phase::Proposed;
        let second = self.setup.breaks(Planted::LowestTermShared) && term.contributors.is_empty();
        if second {
            let members = state.view(round).members.and(state.alive);
            choices.push(Choice {
                contributors: members,
                next: members,
                verdicts: 0,
            });
            return;
        }
        if contributors != term.contributors || next != before || late {
            choices.push(Choice {
                contributors,
                next,
                verdicts: 0,
            });
        }
        if faults && state.spent.verdicts < self.setup.verdicts {
            for wronged in contributors
                .or(next)
                .without(usize::from(term.leader))
                .minus(state.leaving)
                .iter()
            {
                choices.push(Choice {
                    contributors: contributors.without(wronged),
                    next: next.without(wronged),
                    verdicts: 1,
                });
            }
        }
        if self.setup.breaks(Planted::ParticipantsGrow) {
            for added in state.alive.minus(term.contributors.or(before)).iter() {
                choices.push(Choice {
                    contributors,
                    next: next.with(added),
                    verdicts: 0,
                });
            }
        }
    }

    /// The voters of the next round: the members that already vote, and no more new ones than that;
    /// below three voters, the most recently left-out voters are kept.
    fn next_voters(&self, state: &State, view: &View, leader: usize, next: Set, ended: Set) -> Set {
        let stay = next.and(view.voters);
        let mut voters = stay;
        for new in next.minus(view.voters).iter() {
            let room = View {
                voters: voters.with(new),
                first: self.first_of(view, leader, next),
                ..*view
            }
            .is_quorum(stay);
            if room || self.setup.breaks(Planted::TooManyNewVoters) {
                voters = voters.with(new);
            }
        }
        // A process that was restarted in the same slot shows that its predecessor ended.
        let replaced = |voter: &usize| {
            next.iter()
                .any(|process| process != *voter && state.ids[process] == state.ids[*voter])
        };
        let silent = view.voters.minus(next).minus(state.leaving).minus(ended);
        for voter in silent.iter().filter(|voter| !replaced(voter)) {
            if voters.len() < 3 && !self.setup.breaks(Planted::SilentBelowThree) {
                voters = voters.with(voter);
            }
        }
        voters
    }

    /// The tie-breaker of the next voters, with which half of them are a quorum: the leader, else
    /// the lowest that already votes.
    fn first_of(&self, view: &View, leader: usize, next: Set) -> u8 {
        let stay = next.and(view.voters);
        let first = if stay.has(leader) {
            Some(leader)
        } else {
            stay.lowest()
        };
        first.or(next.lowest()).unwrap_or_default() as u8
    }

    /// The state after a step.
    #[must_use]
    pub fn after(&self, state: &State, step: Step) -> State {
        let mut state = state.clone();
        self.perform(&mut state, step);
        self.tidy(&mut state);
        state
    }

    fn perform(&self, state: &mut State, step: Step) {
        match step {
            Step::Crash(process) => {
                state.spent.crashes += 1;
                self.stop(state, process);
            }
            Step::Restart(process) => self.restart(state, process),
            Step::Leave(process) => state.leaving = state.leaving.with(process),
            Step::Go(process) => {
                state.gone = state.gone.with(process);
                self.stop(state, process);
            }
            Step::Learn(process) => self.learn(state, process),
            Step::TakeOver(process) => {
                state.spent.take_overs += 1;
                self.take_over(state, process);
            }
            Step::Promise { round, term, voter } => self.give_promise(state, round, term, voter),
            Step::Finish {
                round,
                term,
                accepted,
            } => {
                let entry = state.round(round).terms[usize::from(accepted)].proposal;
                let source =
                    entry.map(|entry| state.round(round).terms[usize::from(entry.term)].complete);
                let term = &mut state.round_mut(round).terms[term];
                term.phase = Phase::Proposed;
                term.proposal = entry;
                term.complete = source.unwrap_or_default();
            }
            Step::Open { round, term } => {
                let term = &mut state.round_mut(round).terms[term];
                term.phase = Phase::Open;
                term.opened = true;
            }
            Step::Acknowledge { round, term, voter } => self.acknowledge(state, round, term, voter),
            Step::Safe { round, term } => {
                state.round_mut(round).terms[term].safe = true;
                let older = (0..term).fold(0, |data, older| data | data_of(older));
                Self::drop_data(state, round, older);
            }
            Step::Attempt {
                round,
                term,
                contributors,
                next,
                voters,
                verdicts,
                ends,
            } => {
                state.spent.verdicts += verdicts;
                state.spent.ends += ends;
                self.attempt(state, round, term, contributors, next, voters);
            }
            Step::Ready {
                round,
                term,
                member,
            } => self.ready(state, round, term, member),
            Step::AllReady {
                round,
                term: number,
            } => {
                let term = &state.round(round).terms[number];
                let next = term.next[usize::from(term.attempts) - 1];
                next.minus(term.ready)
                    .iter()
                    .for_each(|member| self.ready(state, round, number, member));
            }
            Step::Propose {
                round,
                term: number,
            } => {
                let term = &mut state.round_mut(round).terms[number];
                let attempt = term.attempts - 1;
                term.phase = Phase::Proposed;
                term.proposal = Some(Entry {
                    term: number as u8,
                    attempt,
                });
                term.complete = term.next[usize::from(attempt)].within(term.ready);
                // Votes for an earlier proposal were not counted and never will be.
                term.accepted = Set::NONE;
            }
            Step::Accept { round, term, voter } => self.accept(state, round, term, voter),
            Step::Announce { round, term } => self.announce(state, round, term),
            Step::Drop { round, term } => {
                if let Some(entry) = state.round(round).terms[term].proposal {
                    Self::drop_data(state, round, entry.bit());
                }
            }
        }
    }

    fn stop(&self, state: &mut State, process: usize) {
        state.alive = state.alive.without(process);
        // Only rule 8 asks what a stopped process knew.
        let round = if self.setup.leavers > 0 {
            state.processes[process].round
        } else {
            0
        };
        state.processes[process] = Process {
            round,
            ..Default::default()
        };
    }

    fn restart(&self, state: &mut State, process: usize) {
        state.spent.restarts += 1;
        if self.setup.breaks(Planted::RestartKeepsPlace) {
            let round = state.newest().min(self.setup.rounds);
            state.processes[process] = Process {
                round,
                ..Default::default()
            };
            state.alive = state.alive.with(process);
            return;
        }
        // The budget already counts this restart.
        let new = self.processes(state) - 1;
        state.ids[new] = state.ids[process];
        state.alive = state.alive.with(new);
        let round = state.known();
        if !self.setup.breaks(Planted::LowestTermShared) || round > self.setup.rounds {
            return;
        }
        let lowest = &mut state.round_mut(round).terms[0];
        if usize::from(lowest.leader) == process && lowest.attempts < self.setup.attempts {
            lowest.leader = new as u8;
            lowest.phase = Phase::Open;
            lowest.contributors = Set::NONE;
            state.processes[new].round = round;
        }
    }

    /// Removes data of a round from all processes.
    fn drop_data(state: &mut State, round: u8, data: u16) {
        state
            .processes
            .iter_mut()
            .filter(|process| process.round == round)
            .for_each(|process| process.data &= !data);
    }

    fn learn(&self, state: &mut State, process: usize) {
        let at = state.processes[process].round;
        let Some(entry) = state.round(at).chosen else {
            return;
        };
        let member = state.view(at + 1).members.has(process);
        let knows = &mut state.processes[process];
        let held = knows.data & entry.bit() != 0;
        let holds = if member && held { at + 1 } else { knows.holds };
        *knows = Process {
            round: at + 1,
            holds,
            ..Default::default()
        };
        state.wrong.nothing_held |= member && !held;
    }

    /// Inserts a term in order; the numbers of higher terms change.
    pub fn take_over(&self, state: &mut State, process: usize) {
        let at = state.processes[process].round;
        let highest = state.processes[process].promise;
        let own = state
            .round(at)
            .terms()
            .iter()
            .filter(|term| usize::from(term.leader) == process)
            .map(|term| term.code)
            .max();
        let above = highest.max(own.unwrap_or_default());
        let mut code = (above & !7) | process as u8;
        while code <= above || code < 8 {
            code += 8;
        }
        self.insert(
            state,
            at,
            Term {
                code,
                leader: process as u8,
                ..Term::default()
            },
        );
        state.processes[process].promise = code;
        let number = state
            .round(at)
            .terms()
            .iter()
            .position(|term| term.code == code)
            .unwrap_or_default();
        if state.view(at).voters.has(process) {
            self.give_promise(state, at, number, process);
        }
    }

    /// Like `take_over`, but above every existing term: what a leader does that learned of them
    /// from refusals.
    pub fn take_over_above_all(&self, state: &mut State, process: usize) {
        let at = state.processes[process].round;
        let highest = state
            .round(at)
            .terms()
            .iter()
            .map(|term| term.code)
            .max()
            .unwrap_or_default();
        state.processes[process].promise = state.processes[process].promise.max(highest);
        self.take_over(state, process);
        self.tidy(state);
    }

    fn insert(&self, state: &mut State, round: u8, term: Term) {
        let rounds = state.round_mut(round);
        let count = usize::from(rounds.count);
        let place = rounds
            .terms()
            .iter()
            .take_while(|other| other.code < term.code)
            .count();
        rounds.terms.copy_within(place..count, place + 1);
        rounds.terms[place] = term;
        rounds.count += 1;
        let from = place as u8;
        let moved = |number: u8| if number >= from { number + 1 } else { number };
        let moved_entry = |entry: Entry| Entry {
            term: moved(entry.term),
            ..entry
        };
        rounds.chosen = rounds.chosen.map(moved_entry);
        for term in &mut rounds.terms[..=count] {
            term.proposal = term.proposal.map(moved_entry);
            for promise in &mut term.promises {
                promise.accepted = promise.accepted.map(moved);
                promise.floor = promise.floor.map(moved);
            }
        }
        for process in state
            .processes
            .iter_mut()
            .filter(|process| process.round == round)
        {
            process.accepted = process.accepted.map(moved);
            let low = process.data & ((1 << (place * ATTEMPTS)) - 1);
            process.data = low | (process.data & !low) << ATTEMPTS;
        }
    }

    fn give_promise(&self, state: &mut State, round: u8, number: usize, voter: usize) {
        let promise = self.promise(state, round, voter);
        let term = &mut state.round_mut(round).terms[number];
        let code = term.code;
        term.promised = term.promised.with(voter);
        term.promises[voter] = promise;
        let process = &mut state.processes[voter];
        if process.round == round {
            process.promise = code;
            if self.setup.breaks(Planted::DropOnPrepare) {
                process.data = 0;
            }
        }
    }

    fn acknowledge(&self, state: &mut State, round: u8, number: usize, voter: usize) {
        let code = state.round(round).terms[number].code;
        let process = &mut state.processes[voter];
        process.floor = process.floor.max(Some(code));
        if process.promise > code && !self.setup.breaks(Planted::AcknowledgeBelowPromise) {
            return;
        }
        let term = &mut state.round_mut(round).terms[number];
        term.acknowledged = term.acknowledged.with(voter);
    }

    fn attempt(
        &self,
        state: &mut State,
        round: u8,
        number: usize,
        contributors: Set,
        next: Set,
        voters: Set,
    ) {
        let view = *state.view(round);
        let term = &mut state.round_mut(round).terms[number];
        let attempt = usize::from(term.attempts);
        let participants = contributors.or(next);
        let mut grew = false;
        if attempt > 0 {
            let before = term.contributors.or(term.next[attempt - 1]);
            grew = !participants.within(before) && !before.is_empty();
        }
        term.phase = Phase::Open;
        term.attempts += 1;
        term.next[attempt] = next;
        term.voters[attempt] = voters;
        term.contributors = contributors;
        term.ready = Set::NONE;
        let leader = usize::from(term.leader);
        // Rule 5 (b): the previous attempt is dropped.
        let older = (0..attempt).fold(0, |data, older| {
            data | Entry {
                term: number as u8,
                attempt: older as u8,
            }
            .bit()
        });
        Self::drop_data(state, round, older);
        let first = self.first_of(&view, leader, next);
        let stays = View {
            members: next,
            voters,
            first,
        }
        .is_quorum(view.voters);
        state.wrong.grew |= grew;
        state.wrong.outvoted |= !stays;
    }

    fn ready(&self, state: &mut State, round: u8, number: usize, member: usize) {
        let term = &mut state.round_mut(round).terms[number];
        term.ready = term.ready.with(member);
        let entry = Entry {
            term: number as u8,
            attempt: term.attempts - 1,
        };
        let process = &mut state.processes[member];
        if process.round < round {
            *process = Process {
                round,
                holds: process.holds,
                ..Default::default()
            };
        }
        if self.setup.breaks(Planted::DropOnLaterAttempt) {
            process.data = 0;
        }
        process.data |= entry.bit();
    }

    fn accept(&self, state: &mut State, round: u8, number: usize, voter: usize) {
        let view = *state.view(round);
        let term = &mut state.round_mut(round).terms[number];
        term.accepted = term.accepted.with(voter);
        let code = term.code;
        let accepted = term.accepted;
        let proposal = term.proposal;
        let complete = term.complete;
        let process = &mut state.processes[voter];
        if process.round == round {
            process.promise = process.promise.max(code);
            process.accepted = Some(number as u8);
        }
        let Some(entry) = proposal else { return };
        if view.is_quorum(accepted) {
            self.choose(state, round, entry, complete);
        }
    }

    fn choose(&self, state: &mut State, round: u8, entry: Entry, complete: bool) {
        match state.round(round).chosen {
            Some(chosen) => state.wrong.two_outcomes |= chosen != entry,
            None => {
                let view = *state.view(round);
                let term = &state.round(round).terms[usize::from(entry.term)];
                let members = term.next[usize::from(entry.attempt)];
                let voters = term.voters[usize::from(entry.attempt)];
                let first = self.first_of(&view, usize::from(term.leader), members);
                state.round_mut(round).chosen = Some(entry);
                state.views[usize::from(round)] = View {
                    members,
                    voters,
                    first,
                };
                self.begin(state, round + 1);
            }
        }
        state.wrong.not_ready |= !complete;
    }

    fn announce(&self, state: &mut State, round: u8, number: usize) {
        let term = state.round(round).terms[number];
        let Some(entry) = term.proposal else { return };
        state.wrong.no_quorum |= !state.view(round).is_quorum(term.accepted);
        self.choose(state, round, entry, term.complete);
        state.round_mut(round).announced = true;
        self.learn(state, usize::from(term.leader));
    }

    /// Creates a round's lowest term, which exists as soon as its view does.
    fn begin(&self, state: &mut State, round: u8) {
        if round > self.setup.rounds {
            return;
        }
        let leader = state.view(round).first;
        let begun = state.round_mut(round);
        begun.count = 1;
        begun.terms[0] = Term {
            code: leader,
            leader,
            phase: Phase::Open,
            ..Term::default()
        };
    }

    /// Forgets state that can have no effect any more.
    fn tidy(&self, state: &mut State) {
        for round in 1..=self.setup.rounds.min(state.newest()) {
            let here = (0..PROCESSES)
                .any(|process| state.alive.has(process) && state.processes[process].round == round);
            let decided = state.round(round).chosen.is_some();
            // Joiners skip rounds; any other process that passes through a round is in it or in an
            // earlier one.
            let comes = (0..PROCESSES).any(|process| {
                let at = state.processes[process].round;
                state.alive.has(process) && at > 0 && at < round
            });
            if decided && !here && !comes && state.known() > round {
                let kept = state.round(round);
                let chosen = kept.chosen.map(|_| Entry {
                    term: 0,
                    attempt: 0,
                });
                let announced = kept.announced;
                *state.round_mut(round) = Round {
                    chosen,
                    announced,
                    ..Round::default()
                };
                continue;
            }
            for number in 0..state.round(round).terms().len() {
                let term = state.round(round).terms[number];
                // A leader that has not reached the round yet may still lead it.
                let leader = usize::from(term.leader);
                let later = state.alive.has(leader) && state.processes[leader].round < round;
                let leads = later || self.in_charge(state, round, &term);
                let term = &mut state.round_mut(round).terms[number];
                if !leads && matches!(term.phase, Phase::Preparing | Phase::Open) {
                    let Term {
                        code,
                        leader,
                        opened,
                        attempts,
                        ..
                    } = *term;
                    *term = Term {
                        code,
                        leader,
                        phase: Phase::Over,
                        opened,
                        attempts,
                        ..Term::default()
                    };
                }
                if term.phase != Phase::Preparing {
                    term.promised = Set::NONE;
                    term.promises = Default::default();
                }
                if term.phase != Phase::Open {
                    term.ready = Set::NONE;
                    term.acknowledged = Set::NONE;
                }
            }
        }
    }
}
