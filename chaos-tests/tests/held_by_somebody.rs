//! A round is decided that nobody holds, message by message, on the real coordinators. Within the bounds of this setup: three members, one
//! round, one crash, two wrong verdicts, three ballots of each.
#![allow(clippy::unwrap_used, clippy::panic)]

use slowmo_chaos::model::rounds::Step::{self, Back, Crash, Deliver, Hold, Lost};
use slowmo_chaos::model::rounds::{Cluster, Setup};
use slowmo_protocol::coordinator::RoundKind;
use slowmo_protocol::ident::NodeId;
use stateright::{Expectation, Model};

type State = <Cluster as Model>::State;

/// A run of the model along one path, whose properties are looked at after every step.
struct Path {
    model: Cluster,
    state: State,
}

impl Path {
    /// Goes the first of these ways that there is; false if there is none.
    fn goes(&mut self, choices: &[Step]) -> bool {
        let mut steps = Vec::new();
        self.model.actions(&self.state, &mut steps);
        let Some(step) = choices.iter().find(|step| steps.contains(step)) else { return false };
        self.state = self.model.next_state(&self.state, *step).unwrap();
        assert!(self.model.within_boundary(&self.state));
        for property in self.model.properties().iter().filter(|property| matches!(property.expectation, Expectation::Always)) {
            assert!((property.condition)(&self.model, &self.state), "after {step:?}: violated: {}", property.name);
        }
        true
    }

    fn goes_to(&mut self, step: Step) {
        assert!(self.goes(&[step]), "{step:?} is not possible");
    }

    fn deliver(&mut self, from: NodeId, to: NodeId) {
        while self.goes(&[Deliver(from, to)]) {}
    }
}

/// The coordinators of today decide such a round; once they do not, this is expected no more.
#[test]
#[should_panic(expected = "violated")]
fn what_is_decided_is_held_by_somebody() {
    let model = Cluster::new(Setup { crashes: 1, wrong_verdicts: 2, counter_max: 2, ..Setup::calm(&[RoundKind::Average]) });
    let state = model.init_states().remove(0);
    let mut path = Path { model, state };
    let [one, two, three] = [NodeId(1), NodeId(2), NodeId(3)];
    // {1, 3} | {2}: 1 takes over and proposes to 1 and 3; 3 holds all and votes; its parameters and its vote never reach 1.
    path.goes_to(Lost(one, two));
    path.deliver(one, three);
    path.deliver(three, one);
    path.deliver(one, three);
    path.goes_to(Hold(three));
    // {1} | {2, 3}: 2 takes over; 3 reports, 2 is bound and votes without data; 3 dies before the proposal reaches it.
    path.goes_to(Lost(two, one));
    path.deliver(two, three);
    path.deliver(three, two);
    path.goes_to(Crash(three));
    // 1 and 2 meet again: a quorum of three with one dead.
    for step in [Lost(one, three), Lost(two, three), Back(one, two), Back(two, one)] {
        path.goes_to(step);
    }
    while path.goes(&[Deliver(one, two), Deliver(two, one)]) {}
}
