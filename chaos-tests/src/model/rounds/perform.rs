//! Carries out steps: hands an event to a machine, executes its effects, and runs the checks on
//! both.

use super::shell::{CLUSTER, Movement, Node, STARTS, member};
use super::state::{Letter, Marked, State};
use super::watch::{Violation, Watch, as_drafted};
use super::{Announced, Planted, Setup, Step, TICKS_UNTIL};
use slowmo_protocol::coordinator::{Coordinator, Effect, GivesUp, In, Outcome, Plan, Voters};
use slowmo_protocol::ident::{Epoch, Lineage, NodeId, Round};
use slowmo_protocol::machine::{Machine, Outbox};
use slowmo_protocol::time::Instant;
use slowmo_protocol::view::View;
use slowmo_protocol::wire::Frame;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const NOW: Instant = Instant(0);

/// One node during a step.
struct Stage<'a> {
    setup: &'a Setup,
    /// The last round to which nodes contribute.
    until: Round,
    state: State,
    index: usize,
    node: Node,
}

/// Whether a node may be told that it holds all data.
pub(super) fn may_hold(setup: &Setup, state: &State, node: &Node) -> bool {
    let Some(movement) = node
        .moving()
        .filter(|movement| !movement.told && movement.published.is_some())
    else {
        return false;
    };
    let early = matches!(setup.planted, Some(Planted::HoldsNothing))
        && movement.plan.attempt.round > Round::BOOTSTRAP;
    early || node.may_hold(&state.facts)
}

/// The next deadline whose passing has an effect.
fn next_tick(machine: &Coordinator) -> Option<Instant> {
    let mut deadline = machine
        .next_deadline()
        .filter(|deadline| *deadline < TICKS_UNTIL)?;
    let mut machine = machine.clone();
    loop {
        let mut out = Outbox::default();
        machine.handle(In::Tick, deadline, &mut out);
        if !out.take().is_empty() {
            return Some(deadline);
        }
        let next = machine
            .next_deadline()
            .filter(|next| *next < TICKS_UNTIL && *next != deadline)?;
        deadline = next;
    }
}

/// The state after `step`.
pub(super) fn perform(setup: &Setup, last: &State, step: Step) -> State {
    perform_until(setup, setup.last_round(), last, step)
}

fn perform_until(setup: &Setup, until: Round, last: &State, step: Step) -> State {
    let actor = match step {
        Step::Break(one, other) => return broken(setup, last, one, other),
        Step::Deliver(_, id) | Step::Hold(id) | Step::Contribute(id) | Step::Tick(id) => id,
        Step::Lost(id, _)
        | Step::Back(id, _)
        | Step::Resign(id)
        | Step::Announce(id)
        | Step::Leave(id) => id,
        Step::Crash(id) | Step::Restart(id) | Step::Forget(id) => id,
    };
    let Some((index, node)) = last.take(actor) else {
        return last.clone();
    };
    let mut stage = Stage {
        setup,
        until,
        state: last.clone(),
        index,
        node,
    };
    stage.carry_out(step);
    stage.finish()
}

/// The state after a connection broke and was re-established.
fn broken(setup: &Setup, last: &State, one: NodeId, other: NodeId) -> State {
    let mut state = last.clone();
    state.breaks += 1;
    state
        .links
        .retain(|ends, _| *ends != (one, other) && *ends != (other, one));
    let until = setup.last_round();
    let state = told(
        setup,
        until,
        &state,
        one,
        vec![In::PeerDown(other), In::PeerUp(other)],
    );
    told(
        setup,
        until,
        &state,
        other,
        vec![In::PeerDown(one), In::PeerUp(one)],
    )
}

/// A cluster that has decided its bootstrap; every node has contributed to the first round, or is
/// about to.
pub(super) fn bootstrapped(setup: &Setup) -> State {
    let ids: Vec<NodeId> = (1..=setup.members.max(1)).map(NodeId).collect();
    let joiner = setup.joins.map(|_| NodeId(setup.members + 1));
    let members: Vec<_> = ids.iter().map(|id| member(*id, STARTS[0])).collect();
    #[allow(clippy::expect_used)]
    let view =
        View::new(Epoch::BOOTSTRAP, members).expect("at least one member, all with different ids");
    let everybody: Vec<NodeId> = ids.iter().copied().chain(joiner).collect();
    let mut state = State {
        first_voters: Arc::new(Voters::of_bootstrap(&view)),
        bootstrap: Arc::new(view.clone()),
        nodes: everybody
            .iter()
            .map(|id| Marked::new(Node::new(*id, STARTS[0])))
            .collect(),
        links: BTreeMap::new(),
        facts: Marked::new(BTreeMap::new()),
        watch: Marked::new(Watch::default()),
        crashes: 0,
        wrong_verdicts: 0,
        breaks: 0,
        joiner: joiner.map(|id| member(id, STARTS[0])),
        unannounced: BTreeSet::new(),
        unaware: BTreeSet::new(),
        restarted: None,
        forgot: false,
        violation: None,
    };
    let formed = In::Formed {
        view,
        lineage: Lineage::of_bootstrap(1),
    };
    for id in &everybody {
        let others = everybody.iter().filter(|other| *other != id);
        let mut events: Vec<In> = others.map(|other| In::PeerUp(*other)).collect();
        if joiner != Some(*id) {
            events.push(formed.clone());
        }
        state = told(setup, Round::BOOTSTRAP, &state, *id, events);
    }
    for id in &everybody {
        let spec = setup.spec(Round::BOOTSTRAP);
        let contribute = In::Contribute {
            round: Round::BOOTSTRAP,
            spec,
            samples: None,
            rates: Vec::new(),
            buffers: 0,
        };
        state = told(setup, Round::BOOTSTRAP, &state, *id, vec![contribute]);
    }
    // Uses one order of the bootstrap, since all end in the same state.
    while let Some(step) = any_step(setup, &state) {
        state = perform_until(setup, Round::BOOTSTRAP, &state, step);
    }
    state.facts = Marked::new(BTreeMap::new());
    state.watch = Marked::new(Watch::default());
    if let Some(bootstrap) = state
        .nodes
        .iter()
        .find_map(|node| node.machine.last_outcome())
    {
        state.first_voters = Arc::new(bootstrap.voters());
    }
    begin(setup, state, &ids)
}

fn any_step(setup: &Setup, state: &State) -> Option<Step> {
    let deliver = state
        .links
        .keys()
        .next()
        .map(|(from, to)| Step::Deliver(*from, *to));
    deliver.or_else(|| {
        state
            .nodes
            .iter()
            .find(|node| may_hold(setup, state, node))
            .map(|node| Step::Hold(node.id()))
    })
}

/// Begins the first round after the bootstrap.
fn begin(setup: &Setup, mut state: State, ids: &[NodeId]) -> State {
    if setup.joins.is_some() {
        state.unannounced = ids.iter().copied().collect();
    }
    if setup.leaves.is_some() {
        state.unaware = ids.iter().copied().collect();
    }
    for id in ids {
        if setup.joins == Some(Announced::AtOnce) {
            state = perform(setup, &state, Step::Announce(*id));
        }
        if matches!(setup.leaves, Some((_, Announced::AtOnce))) {
            state = perform(setup, &state, Step::Leave(*id));
        }
    }
    for id in ids {
        state
            .nodes
            .iter_mut()
            .filter(|node| node.id() == *id)
            .for_each(|node| node.change(|node| node.waits_to_contribute = true));
        if !setup.late {
            state = perform(setup, &state, Step::Contribute(*id));
        }
    }
    state
}

fn told(setup: &Setup, until: Round, last: &State, id: NodeId, events: Vec<In>) -> State {
    let Some((index, node)) = last.take(id) else {
        return last.clone();
    };
    let mut stage = Stage {
        setup,
        until,
        state: last.clone(),
        index,
        node,
    };
    events.into_iter().for_each(|event| stage.feed(event, NOW));
    stage.finish()
}

impl Stage<'_> {
    fn carry_out(&mut self, step: Step) {
        match step {
            Step::Deliver(from, to) => self.deliver(from, to),
            Step::Hold(_) => self.hold(),
            Step::Contribute(_) => self.contribute(),
            Step::Tick(_) => {
                // Earlier deadlines pass too, without an effect.
                if let Some(deadline) = self.node.tick {
                    self.feed(In::Tick, deadline);
                }
            }
            Step::Resign(_) => self.feed(In::Resign(GivesUp::Membership), NOW),
            Step::Lost(_, other) => self.lose(other),
            Step::Back(_, other) => {
                self.node.lost.retain(|(id, _)| *id != other);
                self.feed(In::Back(other), NOW);
            }
            Step::Announce(id) => {
                self.state.unannounced.remove(&id);
                let epoch = self.node.machine.place().epoch;
                let members = self.state.joiner.iter().cloned().collect();
                self.feed(In::Joiners { epoch, members }, NOW);
            }
            Step::Leave(id) => {
                self.state.unaware.remove(&id);
                let Some((node, _)) = self.setup.leaves else {
                    return;
                };
                self.node.is_leaving |= node == id;
                self.feed(
                    In::Leaving {
                        node,
                        incarnation: STARTS[0],
                        contributes: true,
                    },
                    NOW,
                );
            }
            Step::Crash(id) => {
                self.state.crashes += 1;
                self.node.alive = false;
                self.state.links.retain(|(_, to), _| *to != id);
            }
            Step::Restart(id) => self.restart(id),
            Step::Forget(_) => {
                self.state.forgot = true;
                if let Some(saved) = self.node.saved.clone() {
                    self.node.machine = *saved;
                    self.node.movements.clear();
                    self.contribute();
                }
            }
            // `Break` acts on two nodes.
            Step::Break(..) => {}
        }
    }

    fn lose(&mut self, other: NodeId) {
        let Some(found) = self.state.node(other) else {
            return;
        };
        let incarnation = self.node.start_of(found);
        let is_there = self.node.knows_start_of(found);
        let wrong = is_there && found.lives();
        // A later incarnation of a node proves that the previous one is over, and a leaving node
        // says so.
        let ended = !wrong && (self.setup.ends_known || !is_there || found.drained);
        self.state.wrong_verdicts += u8::from(wrong);
        self.node.lost.insert((other, incarnation));
        self.feed(
            In::Lost {
                node: other,
                incarnation,
                ended,
            },
            NOW,
        );
    }

    fn restart(&mut self, id: NodeId) {
        self.node = Node::new(id, STARTS[1]);
        self.state.restarted = Some(id);
        self.state.joiner = Some(self.node.member.clone());
        let others = self
            .state
            .nodes
            .iter()
            .filter(|node| node.lives() && node.machine.view().is_some());
        self.state.unannounced = others.map(|node| node.id()).collect();
        self.contribute();
    }

    /// Puts the node back, and applies the consequences of its actions to the others.
    fn finish(self) -> State {
        let Self {
            mut state,
            index,
            mut node,
            ..
        } = self;
        node.tick = if node.lives() {
            next_tick(&node.machine)
        } else {
            None
        };
        let gone = !node.lives();
        let id = node.id();
        state.nodes[index] = Marked::new(node);
        if gone {
            state.links.retain(|(_, to), _| *to != id);
        }
        reduce(&mut state);
        drop_what_is_over(&mut state);
        state.check_held();
        state
    }

    fn deliver(&mut self, from: NodeId, to: NodeId) {
        let Some(frames) = self.state.links.get_mut(&(from, to)) else {
            return;
        };
        let letter = frames.pop_front();
        if frames.is_empty() {
            self.state.links.remove(&(from, to));
        }
        if let Some(letter) = letter {
            let Letter { header, message } = Letter::clone(&letter);
            self.feed(In::Frame { header, message }, NOW);
        }
    }

    fn hold(&mut self) {
        let held = self.node.may_hold(&self.state.facts);
        let events = self.node.arrivals();
        if let Some(movement) = self.node.movements.last_mut() {
            movement.told = true;
            movement.held = held;
        }
        events.into_iter().for_each(|event| self.feed(event, NOW));
    }

    fn contribute(&mut self) {
        self.node.waits_to_contribute = false;
        let round = self.node.machine.place().round;
        let spec = self.setup.spec(round);
        self.feed(
            In::Contribute {
                round,
                spec,
                samples: None,
                rates: Vec::new(),
                buffers: 0,
            },
            NOW,
        );
    }

    fn feed(&mut self, event: In, now: Instant) {
        let mut out = Outbox::default();
        // A machine that detects an error of its own panics, where such checks are compiled in.
        let handled = catch_unwind(AssertUnwindSafe(|| {
            self.node.machine.handle(event, now, &mut out)
        }));
        if handled.is_err() || self.node.machine.verify().is_err() {
            return self.state.violate(Violation::NotItself);
        }
        for effect in out.take() {
            self.execute(effect);
        }
        if self.node.waits_to_contribute && !self.setup.late && self.until > Round::BOOTSTRAP {
            self.contribute();
        }
    }

    fn execute(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, frame } => self.send(to, frame),
            Effect::Open(plan) => self.open(plan),
            Effect::Publish(publication) => {
                let key = (publication.attempt, self.node.id());
                self.state
                    .facts
                    .change(|facts| facts.entry(key).or_default().moved = true);
                let outcome = self.state.watch.outcome_of(publication.attempt);
                if let Some(movement) = self.node.movement(publication.attempt) {
                    movement.published = Some((publication, outcome));
                }
            }
            Effect::Discard(attempt) => {
                let gone = self
                    .node
                    .movements
                    .iter()
                    .position(|movement| movement.plan.attempt == attempt);
                if let Some(gone) = gone {
                    let movement = self.node.movements.remove(gone);
                    self.state.check_discarded(&self.node, &movement);
                }
            }
            Effect::Apply {
                attempt,
                outcome,
                drained,
                ..
            } => {
                let outcome = as_drafted(&outcome);
                let used = self
                    .node
                    .movements
                    .iter()
                    .find(|movement| movement.plan.attempt == attempt);
                let made = |movement: &Movement| {
                    movement
                        .published
                        .as_ref()
                        .is_some_and(|(_, of)| of.is_none())
                        || movement.makes(&outcome)
                };
                let held = used.is_some_and(|movement| movement.held && made(movement));
                self.node.movements.clear();
                self.state.check_applied(&self.node, &outcome, held);
                self.begin_round(&outcome, drained);
            }
            Effect::Fail(_) => self.state.violate(Violation::GaveUp),
            Effect::MustRejoin => {
                self.state.check_must_rejoin(&self.node);
                self.leave_out();
            }
            Effect::Resigned(true) => self.leave_out(),
            Effect::Resigned(false)
            | Effect::Stands(_)
            | Effect::Waiting(_)
            | Effect::Stragglers(_)
            | Effect::CheckpointAsked(_)
            | Effect::Ordered(..)
            | Effect::Unsound(..) => {}
        }
    }

    fn open(&mut self, plan: Arc<Plan>) {
        let contributes = plan.contributes();
        self.state.facts.change(|facts| {
            facts
                .entry((plan.attempt, plan.me))
                .or_default()
                .contributed |= contributes
        });
        self.node.movements.push(Movement {
            plan,
            published: None,
            told: false,
            held: false,
            ready: false,
        });
    }

    fn leave_out(&mut self) {
        self.node.is_left_out = true;
        self.node.waits_to_contribute = false;
        self.node.lost.clear();
    }

    fn begin_round(&mut self, outcome: &Outcome, drained: bool) {
        let round = outcome.round.next();
        self.node.applied = outcome.round;
        self.node.drained = drained;
        self.node.is_left_out = false;
        self.node.waits_to_contribute = round <= self.until && !drained;
        let machine = &self.node.machine;
        let concerns = |id: NodeId| {
            let votes = machine
                .voters()
                .is_some_and(|voters| voters.of(id).is_some());
            votes || machine.view().is_some_and(|view| view.contains(id))
        };
        self.node.lost.retain(|(id, _)| concerns(*id));
        if matches!(self.setup.planted, Some(Planted::ForgetsVotes)) {
            self.node.saved = Some(Box::new(self.node.machine.clone()));
        }
        self.forget_what_is_over(round);
    }

    /// Forgets what was sent in rounds that every live node has left behind.
    fn forget_what_is_over(&mut self, round: Round) {
        let behind = |node: &&Marked<Node>| {
            node.lives() && node.id() != self.node.id() && node.machine.round_view().is_some()
        };
        let oldest = self
            .state
            .nodes
            .iter()
            .filter(behind)
            .map(|node| node.machine.place().round)
            .min()
            .unwrap_or(round)
            .min(round);
        if self
            .state
            .facts
            .keys()
            .any(|(attempt, _)| attempt.round < oldest)
        {
            self.state
                .facts
                .change(|facts| facts.retain(|(attempt, _), _| attempt.round >= oldest));
        }
        self.state.watch.change(|watch| watch.forget_before(oldest));
    }

    fn send(&mut self, to: NodeId, frame: Frame) {
        let Frame::V1 { header, message } = frame;
        debug_assert_eq!(header.cluster, CLUSTER);
        self.state.check_sent(&mut self.node, &header, &message);
        if self.state.node(to).is_some_and(Node::lives) {
            self.state
                .links
                .entry((self.node.id(), to))
                .or_default()
                .push_back(Marked::new(Letter { header, message }));
        }
    }
}

/// Lets every owner that has all contributions average them.
fn reduce(state: &mut State) {
    let reduces = |node: &&Marked<Node>| node.lives() && node.may_reduce(&state.facts);
    let keys = state
        .nodes
        .iter()
        .filter(reduces)
        .filter_map(|node| Some((node.moving()?.plan.attempt, node.id())));
    let new: Vec<_> = keys
        .filter(|key| state.facts.get(key).is_none_or(|fact| !fact.reduced))
        .collect();
    if !new.is_empty() {
        state.facts.change(|facts| {
            new.into_iter()
                .for_each(|key| facts.entry(key).or_default().reduced = true)
        });
    }
}

/// Drops the frames of a past round to which their receiver would not answer.
fn drop_what_is_over(state: &mut State) {
    let State { nodes, links, .. } = state;
    links.retain(|(_, to), frames| {
        let Some(node) = nodes.iter().find(|node| node.id() == *to) else {
            return false;
        };
        let idle = |letter: &Letter| {
            let place = node.machine.place();
            if !place.lineage.is_decided() || letter.header.round >= place.round {
                return false;
            }
            let mut machine = node.machine.clone();
            let mut out = Outbox::default();
            machine.handle(
                In::Frame {
                    header: letter.header,
                    message: letter.message.clone(),
                },
                NOW,
                &mut out,
            );
            out.take().is_empty() && machine == node.machine
        };
        frames.retain(|letter| !idle(letter));
        !frames.is_empty()
    });
}
