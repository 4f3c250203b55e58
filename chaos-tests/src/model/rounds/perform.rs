//! Carries out steps: hands an event to a machine, executes its effects, lets the checks see both.

use super::shell::{CLUSTER, Movement, Node, STARTS, member};
use super::state::{Letter, Marked, State};
use super::watch::{Violation, Watch};
use super::{Announced, Planted, Setup, Step, TICKS_UNTIL};
use slowmo_protocol::coordinator::{Coordinator, Effect, GivesUp, In};
use slowmo_protocol::ident::{Epoch, Lineage, NodeId, Round};
use slowmo_protocol::machine::{Machine, Outbox};
use slowmo_protocol::time::Instant;
use slowmo_protocol::view::View;
use slowmo_protocol::wire::Frame;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const NOW: Instant = Instant(0);

/// One node at work on a step.
struct Stage<'a> {
    setup: &'a Setup,
    /// The last round to which nodes contribute.
    until: Round,
    state: State,
    index: usize,
    node: Node,
}

/// Whether a node may be told that it holds everything.
pub(super) fn may_hold(setup: &Setup, state: &State, node: &Node) -> bool {
    let Some(movement) = node.movement.as_ref().filter(|movement| !movement.told && movement.published.is_some()) else { return false };
    let early = setup.planted == Some(Planted::HoldsNothing) && movement.plan.attempt.round > Round::FOUNDING;
    early || node.may_hold(&state.facts)
}

/// The next deadline whose passing has an effect. Only who leads acts on one.
fn next_tick(machine: &Coordinator) -> Option<Instant> {
    let mut machine = Some(machine).filter(|machine| machine.leads())?.clone();
    while let Some(deadline) = machine.next_deadline().filter(|deadline| *deadline < TICKS_UNTIL) {
        let mut out = Outbox::default();
        machine.handle(In::Tick, deadline, &mut out);
        if !out.take().is_empty() {
            return Some(deadline);
        }
        if machine.next_deadline() == Some(deadline) {
            return None;
        }
    }
    None
}

/// The state after `step`.
pub(super) fn perform(setup: &Setup, last: &State, step: Step) -> State {
    perform_until(setup, setup.last_round(), last, step)
}

fn perform_until(setup: &Setup, until: Round, last: &State, step: Step) -> State {
    let actor = match step {
        Step::Deliver(_, id) | Step::Hold(id) | Step::Contribute(id) | Step::Tick(id) => id,
        Step::Lost(id, _) | Step::Back(id, _) | Step::Resign(id) | Step::Announce(id) => id,
        Step::Crash(id) | Step::Restart(id) | Step::Forget(id) => id,
    };
    let Some((index, node)) = last.take(actor) else { return last.clone() };
    let mut stage = Stage { setup, until, state: last.clone(), index, node };
    stage.carry_out(step);
    stage.finish()
}

/// A cluster that has decided its founding; everybody is about to contribute to the first round, or did so.
pub(super) fn founded(setup: &Setup) -> State {
    let ids: Vec<NodeId> = (1..=setup.members.max(1)).map(NodeId).collect();
    let joiner = setup.joins.map(|_| NodeId(setup.members + 1));
    let members: Vec<_> = ids.iter().map(|id| member(*id, STARTS[0])).collect();
    #[allow(clippy::expect_used)]
    let view = View::new(Epoch::FOUNDING, members).expect("at least one member, all with different ids");
    let mut state = State {
        founding: Arc::new(view.clone()),
        nodes: ids.iter().copied().chain(joiner).map(|id| Marked::new(Node::new(id, STARTS[0], setup))).collect(),
        links: BTreeMap::new(),
        facts: Marked::new(BTreeMap::new()),
        watch: Marked::new(Watch::default()),
        crashes: 0,
        wrong_verdicts: 0,
        joiner: joiner.map(|id| member(id, STARTS[0])),
        unannounced: BTreeSet::new(),
        restarted: None,
        forgot: false,
        violation: None,
    };
    let formed = In::Formed { view, lineage: Lineage::founded(1) };
    for id in ids.iter().copied().chain(joiner) {
        let events = if joiner == Some(id) { vec![] } else { vec![formed.clone()] };
        state = told(setup, Round::FOUNDING, &state, id, events);
    }
    for id in ids.iter().copied().chain(joiner) {
        state = contributed(setup, Round::FOUNDING, &state, id);
    }
    // One order of the founding; all end in the same state.
    while let Some(step) = any_step(setup, &state) {
        state = perform_until(setup, Round::FOUNDING, &state, step);
    }
    state.facts = Marked::new(BTreeMap::new());
    state.watch = Marked::new(Watch::default());
    begin(setup, state, &ids, joiner)
}

fn any_step(setup: &Setup, state: &State) -> Option<Step> {
    let deliver = state.links.keys().next().map(|(from, to)| Step::Deliver(*from, *to));
    deliver.or_else(|| state.nodes.iter().find(|node| may_hold(setup, state, node)).map(|node| Step::Hold(node.id())))
}

/// Begins the first round after the founding.
fn begin(setup: &Setup, mut state: State, ids: &[NodeId], joiner: Option<NodeId>) -> State {
    if joiner.is_some() {
        state.unannounced = ids.iter().copied().collect();
    }
    if setup.joins == Some(Announced::AtOnce) {
        for id in ids {
            state = perform(setup, &state, Step::Announce(*id));
        }
    }
    for id in ids {
        state.nodes.iter_mut().filter(|node| node.id() == *id).for_each(|node| node.change(|node| node.waits_to_contribute = true));
        if !setup.late {
            state = perform(setup, &state, Step::Contribute(*id));
        }
    }
    state
}

fn told(setup: &Setup, until: Round, last: &State, id: NodeId, events: Vec<In>) -> State {
    let Some((index, node)) = last.take(id) else { return last.clone() };
    let mut stage = Stage { setup, until, state: last.clone(), index, node };
    events.into_iter().for_each(|event| stage.feed(event, NOW));
    stage.finish()
}

fn contributed(setup: &Setup, until: Round, last: &State, id: NodeId) -> State {
    let terms = setup.terms(Round::FOUNDING);
    let contribute = In::Contribute { round: Round::FOUNDING, terms, samples: None, rates: Vec::new(), buffers: 0 };
    told(setup, until, last, id, vec![contribute])
}

impl Stage<'_> {
    fn carry_out(&mut self, step: Step) {
        match step {
            Step::Deliver(from, to) => self.deliver(from, to),
            Step::Hold(_) => self.hold(),
            Step::Contribute(_) => self.contribute(),
            Step::Tick(_) => {
                // Those before it pass too, without an effect.
                if let Some(deadline) = self.node.tick {
                    self.feed(In::Tick, deadline);
                }
            }
            Step::Resign(_) => self.feed(In::Resign(GivesUp::Membership), NOW),
            Step::Lost(_, other) => {
                let Some(found) = self.state.node(other) else { return };
                let (start, wrong) = (self.node.start_of(found), found.takes_part() && self.node.knows_start_of(found));
                self.state.wrong_verdicts += u8::from(wrong);
                self.node.lost.insert((other, start));
                self.feed(In::Lost(other, start), NOW);
            }
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
            Step::Crash(id) => {
                self.state.crashes += 1;
                self.node.alive = false;
                self.state.links.retain(|(_, to), _| *to != id);
            }
            Step::Restart(id) => {
                self.node = Node::new(id, STARTS[1], self.setup);
                (self.state.restarted, self.state.joiner) = (Some(id), Some(self.node.member.clone()));
                let others = self.state.nodes.iter().filter(|node| node.takes_part() && node.machine.view().is_some());
                self.state.unannounced = others.map(|node| node.id()).collect();
                self.contribute();
            }
            Step::Forget(_) => {
                self.state.forgot = true;
                if let Some(saved) = self.node.saved.clone() {
                    (self.node.machine, self.node.movement) = (*saved, None);
                    self.contribute();
                }
            }
        }
    }

    /// Puts the node back, and what follows from what it did for the others.
    fn finish(self) -> State {
        let Self { mut state, index, mut node, .. } = self;
        node.tick = next_tick(&node.machine);
        let gone = !node.takes_part();
        let id = node.id();
        state.nodes[index] = Marked::new(node);
        if gone {
            state.links.retain(|(_, to), _| *to != id);
        }
        reduce(&mut state);
        drop_what_is_over(&mut state);
        state
    }

    fn deliver(&mut self, from: NodeId, to: NodeId) {
        let Some(frames) = self.state.links.get_mut(&(from, to)) else { return };
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
        if let Some(movement) = &mut self.node.movement {
            (movement.told, movement.held) = (true, held);
        }
        events.into_iter().for_each(|event| self.feed(event, NOW));
    }

    fn contribute(&mut self) {
        self.node.waits_to_contribute = false;
        let round = self.node.machine.place().round;
        let terms = self.setup.terms(round);
        self.feed(In::Contribute { round, terms, samples: None, rates: Vec::new(), buffers: 0 }, NOW);
    }

    fn feed(&mut self, event: In, now: Instant) {
        let mut out = Outbox::default();
        self.node.machine.handle(event, now, &mut out);
        for effect in out.take() {
            self.execute(effect);
        }
        if let Some((ballot, _)) = self.node.machine.accepted() {
            let (round, id, ballot) = (self.node.machine.place().round, self.node.id(), *ballot);
            if !self.state.watch.has_vote(round, ballot, id) {
                self.state.watch.change(|watch| watch.note_vote(round, ballot, id));
            }
        }
        if self.node.waits_to_contribute && !self.setup.late && self.until > Round::FOUNDING {
            self.contribute();
        }
    }

    fn execute(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, frame } => self.send(to, frame),
            Effect::Open(plan) => {
                let (attempt, contributes) = (plan.attempt, plan.contributes());
                self.state.facts.change(|facts| facts.entry((attempt, plan.me)).or_default().contributed |= contributes);
                self.node.movement = Some(Movement { plan, published: None, told: false, held: false });
            }
            Effect::Publish(publication) => {
                let key = (publication.attempt, self.node.id());
                self.state.facts.change(|facts| facts.entry(key).or_default().moved = true);
                let outcome = self.state.watch.outcome_of(publication.attempt);
                if let Some(movement) = &mut self.node.movement {
                    movement.published = Some((publication, outcome));
                }
            }
            Effect::Discard(_) => self.node.movement = None,
            Effect::Apply { attempt, outcome, .. } => {
                let held = self.node.movement.take().is_some_and(|movement| {
                    let of = movement.published.as_ref().and_then(|(_, outcome)| outcome.as_deref());
                    movement.held && movement.plan.attempt == attempt && of.is_none_or(|of| *of == outcome)
                });
                self.state.check_applied(self.node.id(), &outcome, held);
                self.begin_round(outcome.round.next());
            }
            Effect::Fail(_) => self.state.violate(Violation::GaveUp),
            Effect::Stranded | Effect::Resigned(true) => self.node.stranded = true,
            Effect::Resigned(false) | Effect::Waiting(_) => {}
        }
    }

    fn begin_round(&mut self, round: Round) {
        self.node.waits_to_contribute = round <= self.until;
        self.node.lost.retain(|(id, _)| self.node.machine.view().is_some_and(|view| view.contains(*id)));
        if self.setup.planted == Some(Planted::ForgetsVotes) {
            self.node.saved = Some(Box::new(self.node.machine.clone()));
        }
        let behind = self.state.nodes.iter().filter(|node| node.takes_part() && node.id() != self.node.id());
        let oldest = behind.map(|node| node.machine.place().round).min().unwrap_or(round).min(round);
        if self.state.facts.keys().any(|(attempt, _)| attempt.round < oldest) {
            self.state.facts.change(|facts| facts.retain(|(attempt, _), _| attempt.round >= oldest));
        }
    }

    fn send(&mut self, to: NodeId, frame: Frame) {
        let Frame::V1 { header, message } = frame;
        debug_assert_eq!(header.cluster, CLUSTER);
        self.state.check_sent(&self.node, &header, &message);
        if self.state.node(to).is_some_and(Node::takes_part) {
            self.state.links.entry((self.node.id(), to)).or_default().push_back(Marked::new(Letter { header, message }));
        }
    }
}

/// Every owner that has all contributions averages them.
fn reduce(state: &mut State) {
    let reduces = |node: &&Marked<Node>| node.takes_part() && node.may_reduce(&state.facts);
    let keys = state.nodes.iter().filter(reduces).filter_map(|node| Some((node.movement.as_ref()?.plan.attempt, node.id())));
    let new: Vec<_> = keys.filter(|key| state.facts.get(key).is_none_or(|fact| !fact.reduced)).collect();
    if !new.is_empty() {
        state.facts.change(|facts| new.into_iter().for_each(|key| facts.entry(key).or_default().reduced = true));
    }
}

/// Drops the frames of a past round to which their receiver would not answer.
fn drop_what_is_over(state: &mut State) {
    let State { nodes, links, .. } = state;
    links.retain(|(_, to), frames| {
        let Some(node) = nodes.iter().find(|node| node.id() == *to) else { return false };
        let idle = |letter: &Letter| {
            let place = node.machine.place();
            if !place.lineage.is_decided() || letter.header.round >= place.round {
                return false;
            }
            let (mut machine, mut out) = (node.machine.clone(), Outbox::default());
            machine.handle(In::Frame { header: letter.header, message: letter.message.clone() }, NOW, &mut out);
            out.take().is_empty() && machine == node.machine
        };
        frames.retain(|letter| !idle(letter));
        !frames.is_empty()
    });
}
