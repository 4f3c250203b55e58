//! Orders of events that lie too deep for an exhaustive search, step by step through the model of
//! rounds: each must end well.
#![allow(clippy::unwrap_used, clippy::panic)]

use slowmo_chaos::model::rounds::Step::{self, Back, Break, Crash, Deliver, Hold, Lost, Tick};
use slowmo_chaos::model::rounds::{Cluster, Planted, Setup, State};
use slowmo_protocol::coordinator::RoundKind;
use slowmo_protocol::ident::{NodeId, Round};
use stateright::Model;

/// A cluster of three at its first round, one step after the other.
struct Run {
    model: Cluster,
    state: State,
}

impl Run {
    fn new(planted: Option<Planted>) -> Self {
        let setup = Setup {
            crashes: 1,
            wrong_verdicts: 6,
            breaks: 1,
            counter_max: 3,
            planted,
            ..Setup::calm(&[RoundKind::Average])
        };
        let model = Cluster::new(setup);
        let state = model.init_states().remove(0);
        Self { model, state }
    }

    /// Takes a step if it is possible, and nothing was wrong before it.
    fn try_step(&mut self, step: Step) -> bool {
        let mut steps = Vec::new();
        self.model.actions(&self.state, &mut steps);
        let possible = steps.contains(&step);
        if possible {
            self.state = self
                .model
                .next_state(&self.state, step)
                .unwrap_or_else(|| self.state.clone());
            assert!(self.model.within_boundary(&self.state));
        }
        possible
    }

    /// Takes a step that must be possible, unless something is wrong already.
    fn step(&mut self, step: Step) {
        let possible = self.try_step(step);
        assert!(
            possible || self.state.violation().is_some(),
            "{step:?} is not possible"
        );
    }

    /// Delivers all that is on its way from one node to another.
    fn deliver(&mut self, from: u64, to: u64) {
        while self.try_step(Deliver(NodeId(from), NodeId(to))) {}
    }

    fn lose(&mut self, node: u64, other: u64) {
        self.step(Lost(NodeId(node), NodeId(other)));
    }

    fn back(&mut self, node: u64, other: u64) {
        self.step(Back(NodeId(node), NodeId(other)));
    }

    fn hold(&mut self, node: u64) {
        self.step(Hold(NodeId(node)));
    }

    /// Lets two nodes go on until nothing happens any more.
    fn go_on(&mut self, one: u64, other: u64) {
        let one = NodeId(one);
        let other = NodeId(other);
        let steps = [
            Deliver(one, other),
            Deliver(other, one),
            Hold(one),
            Hold(other),
            Tick(one),
            Tick(other),
        ];
        for _ in 0..500 {
            if !steps.iter().any(|step| self.try_step(*step)) {
                return;
            }
        }
        panic!("they go on for ever");
    }

    fn is_right(&self) {
        assert_eq!(self.state.violation(), None);
    }

    fn applied(&self, node: u64) -> bool {
        self.state.has_applied(NodeId(node), Round(1))
    }
}

/// {1,3}: 1 begins an attempt without 2; 3 holds its data and says so, and 1 does not hear it.
/// {2,3}: 2 takes over with the promise of 3, which accepted nothing, and 3 dies. {1,2} heal.
#[test]
fn what_is_decided_after_a_healed_cut_is_held_by_somebody() {
    let mut run = Run::new(None);
    run.deliver(3, 1);
    run.lose(1, 2);
    run.deliver(1, 3);
    run.hold(3);
    run.lose(2, 1);
    run.deliver(2, 3);
    run.deliver(3, 2);
    run.step(Crash(NodeId(3)));
    run.lose(1, 3);
    run.lose(2, 3);
    run.back(1, 2);
    run.back(2, 1);
    run.go_on(1, 2);
    run.is_right();
    assert!(run.applied(1) || run.applied(2));
    assert!(run.model.is_over(&run.state));
}

/// The same, but 1 heard 3 and asked for votes, and 3 voted: 2 is bound to an entry whose data it
/// does not have, and finishes it with 1, which has it.
#[test]
fn who_takes_over_finishes_an_entry_whose_data_it_does_not_hold() {
    let mut run = Run::new(None);
    run.deliver(3, 1);
    run.lose(1, 2);
    run.deliver(1, 3);
    run.hold(1);
    run.hold(3);
    run.deliver(3, 1);
    run.deliver(1, 3);
    run.lose(2, 1);
    run.deliver(2, 3);
    run.deliver(3, 2);
    run.step(Crash(NodeId(3)));
    run.lose(1, 3);
    run.lose(2, 3);
    run.back(1, 2);
    run.back(2, 1);
    run.go_on(1, 2);
    run.is_right();
    assert!(run.applied(1) && !run.applied(2));
}

/// All three are ready for the first attempt; 1 asks for votes, and only it has voted. 2 takes 1
/// for dead, and asks for promises.
fn until_one_voted(planted: Option<Planted>) -> Run {
    let mut run = Run::new(planted);
    for other in [2, 3] {
        run.deliver(other, 1);
        run.deliver(1, other);
    }
    for node in [1, 2, 3] {
        run.hold(node);
    }
    run.deliver(2, 1);
    run.deliver(3, 1);
    run.lose(2, 1);
    run.deliver(2, 1);
    run
}

/// 1 takes over in its turn, with the promise of 3.
fn one_takes_over(run: &mut Run) {
    run.lose(1, 2);
    run.deliver(1, 3);
    run.deliver(3, 1);
}

/// 2 opens its term with the promise of 3, and both drop the entry that 1 voted for. 1 takes over
/// with 3: that entry is void.
fn voided(planted: Option<Planted>) -> Run {
    let mut run = until_one_voted(planted);
    for _ in 0..2 {
        run.deliver(2, 3);
        run.deliver(3, 2);
    }
    run.deliver(2, 3);
    one_takes_over(&mut run);
    run.go_on(1, 3);
    run
}

/// 2 is about to open its term with the promise of 3. Before 3 hears that, 1 takes over with it and
/// is bound to its entry: 3 must not acknowledge the lower term any more, as 2 would drop the data.
fn opened_too_late(planted: Option<Planted>) -> Run {
    let mut run = until_one_voted(planted);
    run.deliver(2, 3);
    run.deliver(3, 2);
    one_takes_over(&mut run);
    run.deliver(2, 3);
    run.deliver(3, 2);
    run.go_on(1, 3);
    run
}

#[test]
fn what_is_void_is_finished_by_nobody() {
    voided(None).is_right();
}

#[test]
fn a_voter_acknowledges_no_term_below_its_promise() {
    opened_too_late(None).is_right();
}

/// 3 is ready under the terms of 1 and of 2, and nobody hears it. 1 takes over with 3, whose third
/// attempt waits until a quorum knows that the newest term is open; 3 does not hear that either, as
/// the connection breaks.
#[test]
fn who_keeps_two_attempts_hears_again_that_they_may_go() {
    let mut run = Run::new(None);
    for other in [2, 3] {
        run.deliver(other, 1);
    }
    run.deliver(1, 2);
    run.deliver(1, 3);
    run.hold(3);
    run.lose(2, 1);
    run.deliver(2, 1);
    run.deliver(2, 3);
    run.deliver(3, 2);
    run.deliver(2, 3);
    run.hold(3);
    assert_eq!(run.state.kept(NodeId(3)), 2);
    run.lose(1, 2);
    for _ in 0..2 {
        run.deliver(1, 3);
        run.deliver(3, 1);
    }
    run.step(Break(NodeId(1), NodeId(3)));
    run.go_on(1, 3);
    run.is_right();
    assert!(run.applied(1) && run.applied(3));
}

/// Each of these bugs breaks the schedule that holds without it.
#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use slowmo_chaos::model::rounds::Violation;
    use slowmo_protocol::planted::{Bug, plant};

    fn assert_found(schedule: impl Fn(Option<Planted>) -> Run, bug: fn()) {
        let violation = schedule(Some(Planted::Machine(bug))).state.violation();
        plant(None);
        assert_eq!(violation, Some(Violation::MemberWithoutData));
    }

    #[test]
    fn a_floor_that_is_not_told_is_found() {
        assert_found(voided, || plant(Some(Bug::FloorUntold)));
    }

    #[test]
    fn void_entries_that_count_are_found() {
        assert_found(voided, || plant(Some(Bug::VoidIgnored)));
    }

    #[test]
    fn a_term_acknowledged_below_a_promise_is_found() {
        assert_found(opened_too_late, || plant(Some(Bug::OpenedBelowPromise)));
    }
}
