//! The machine: opens a round when this node contributes or is told to take part, tells the leader when it holds all it must
//! hold, leads when every lower id is dead, applies what was decided, follows joiners, leavers and deaths into the next view.
//!
//! | file | holds |
//! |---|---|
//! | `current` | the round that is not decided yet |
//! | `early` | frames that came before their round |
//! | `history` | what was decided, and what follows from it: shard maps, next views, losses |
//! | `open` | the bookkeeping of the attempt under way |
//! | `reconnected` | peers that can be sent to again, and what was lost with their connections |
//! | `leading` | the leader's rules: take-over, whom to wait for, what to propose, when it is decided |
//! | `voting` | a member's rules: frames, promises, acceptance, decisions |
//! | `lives` | who of the view lives, and whether those are enough |
//! | `inspection` | what may be asked about it from outside |
//! | `joining` | the rules of a node that is no member yet |
//! | `apart` | members that live and cannot reach each other |

mod apart;
mod current;
mod early;
mod history;
mod inspection;
mod joining;
mod leading;
mod lives;
mod open;
mod reconnected;
mod voting;

use super::error::RoundError;
use super::events::{Effect, FOUNDING_KEPT, GivesUp, In, Settings};
use super::outcome::{RoundKind, Terms};
use super::plan::Attempt;
use crate::ballot::first_ballot;
use crate::ident::{Ballot, Epoch, Incarnation, Lineage, NodeId, Round};
use crate::machine::{Machine, Outbox, Place};
use crate::planted::{self, Bug};
use crate::time::{Instant, Span};
use crate::topology::Rates;
use crate::view::{Member, View};
use crate::wire::{Contributed, Message};
use apart::Away;
pub use apart::{ATTEMPT_WAIT_MAX, AWAY_WAIT, PAIRS_REPORTED_MAX, REPORTS_TO_PART, STAND_IN_STEP, STAND_IN_STEPS_MAX};
use current::Current;
use early::Early;
pub use early::{EARLY_BYTES_MAX, EARLY_BYTES_PER_MEMBER_MAX, EARLY_FRAMES_MAX, EARLY_FRAMES_PER_MEMBER_MAX};
use history::{Decided, History, Maps};
use joining::SlowJoiners;
use open::Open;
use reconnected::Reconnected;
use std::collections::{BTreeMap, BTreeSet};

/// How long a broken stream may go unexplained before the leader is asked for another attempt: its other end may be found
/// dead, or another attempt may be on its way.
pub const STREAM_BROKEN_WAIT: Span = Span::from_millis(500);
/// How long a node that promised another's ballot leaves the lead to it.
pub const FOLLOW_WAIT: Span = Span::from_millis(500);

/// The SlowMo coordinator of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    settings: Settings,
    history: Option<History>,
    /// The decision with which this node left.
    left_with: Option<Decided>,
    current: Option<Current>,
    /// What this node was as a member, where it is left out of the round under way and admitted again.
    set_aside: Option<Box<(History, Current)>>,
    maps: Maps,
    /// Values of the rounds that take the slow step: how anchor and momentum are cut.
    state_elements: Option<u64>,
    /// Values of the base optimizer's buffers, as this node contributed them last.
    buffers: u64,
    mine: Option<Contributed>,
    /// The members' newest measured rates, as far as they told this node.
    rates: Rates,
    dead: BTreeSet<(NodeId, Incarnation)>,
    joiners: BTreeMap<NodeId, Member>,
    slow_joiners: SlowJoiners,
    reconnected: Reconnected,
    away: Away,
    leaving: BTreeMap<NodeId, (Incarnation, bool)>,
    early: Early,
    /// This node took part in a founding that gave way to another: streams of that other one may have been refused meanwhile.
    refounds: bool,
    waiting: Option<String>,
    stopped: Option<RoundError>,
}

impl Machine for Coordinator {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        match event {
            In::Formed { view, lineage } => self.formed(view, lineage, now, out),
            In::Contribute { round, terms, samples, rates, buffers } => {
                self.buffers = buffers;
                self.contribute(round, Contributed { terms, samples, rates }, now, out);
            }
            In::Frame { header, message } => self.receive(header, *message, now, out),
            In::Reduced(attempt) => self.hold(attempt, |open| open.reducing = false),
            In::ParametersHeld(attempt, owner) => self.hold(attempt, |open| _ = open.parameters_from.remove(&owner)),
            In::StateHeld(attempt, from) => self.hold(attempt, |open| open.take_state(from)),
            In::BuffersHeld(attempt, from) => self.hold(attempt, |open| open.take_buffers(from)),
            In::TermsDiffer(attempt, other, terms) => self.terms_differ(attempt, other, terms, out),
            In::StreamBroken(attempt, node) => self.stream_broken(attempt, node, now),
            In::Lost(node, incarnation) => {
                self.dead.insert((node, incarnation));
                self.wait_for_the_silent_anew(now);
                self.resume((node, incarnation), now, out);
                self.tell_of_the_ballot_of_the_dead(out);
            }
            In::Back(node) => {
                self.back(node);
                self.wait_for_the_silent_anew(now);
            }
            In::PeerUp(node) => self.peer_up(node, out),
            In::PeerDown(node) => self.away.lost(node, now),
            In::Unheard(nodes) => self.away.unheard(&nodes, now),
            In::Joiners { epoch, members } => {
                self.candidates(epoch, members);
                self.tell_of_the_ballot_of_the_dead(out);
            }
            // Outside, who leaves is none of this node's business: it may be another start by the time this node joins.
            In::Leaving { node, incarnation, contributes } if self.history.is_some() => self.leaves((node, incarnation), contributes),
            In::Leaving { .. } => {}
            In::Resign(gives_up) => self.resign(gives_up, now, out),
            In::Tick => self.tick(now, out),
        }
        self.advance(now, out);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let current = self.current.as_ref().filter(|_| self.stopped.is_none())?;
        let broken = current.open.as_ref().and_then(|open| open.broken.map(|(_, deadline)| deadline));
        let lost = current.open.as_ref().and_then(|open| open.lost_by);
        let begun = current.begun.filter(|_| current.decided.is_none() && self.leads());
        let grace = begun.filter(|_| !current.grace_over).map(|begun| begun.after(self.settings.grace));
        let silent = current.silent_by.filter(|_| !current.silent_over);
        let deadlines = [
            silent,
            broken,
            lost,
            current.give_up,
            current.follow_until,
            current.promise_by,
            grace,
            current.joiners_by,
            self.away_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }
}

impl Coordinator {
    /// A coordinator of a node that belongs to no view yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            history: None,
            left_with: None,
            current: None,
            set_aside: None,
            maps: Maps::default(),
            state_elements: None,
            buffers: 0,
            mine: None,
            rates: Rates::new(),
            dead: BTreeSet::new(),
            joiners: BTreeMap::new(),
            slow_joiners: SlowJoiners::default(),
            reconnected: Reconnected::default(),
            away: Away::default(),
            leaving: BTreeMap::new(),
            early: Early::default(),
            refounds: false,
            waiting: None,
            stopped: None,
        }
    }

    /// Where in history this node stands.
    #[must_use]
    pub fn place(&self) -> Place {
        let (Some(history), Some(current)) = (&self.history, &self.current) else {
            return Place { lineage: Lineage::NONE, epoch: Epoch(0), round: Round::FOUNDING, ballot: Ballot::default() };
        };
        let History { lineage, round, view, .. } = history;
        Place { lineage: *lineage, epoch: view.epoch(), round: *round, ballot: current.ballot() }
    }

    /// The view of the round; `None` outside.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.history.as_ref().filter(|history| !history.joining).map(|history| &history.view)
    }

    fn me(&self) -> NodeId {
        self.settings.identity.node
    }

    fn formed(&mut self, view: View, lineage: Lineage, now: Instant, out: &mut Outbox<Effect>) {
        if self.history.is_some() {
            return;
        }
        let (first, members) = (view.lowest(), view.ids().collect::<Vec<_>>());
        self.current = Some(Current::new(self.me(), &view));
        self.history = Some(History::founding(view, lineage, self.settings.origin));
        if let Some(mine) = self.mine.clone() {
            self.begin_contribution(mine, now, out);
        }
        self.replay(now, out);
        if std::mem::take(&mut self.refounds) && first != self.me() && !planted::has(Bug::RefoundingUnasked) {
            // Whoever leads by now makes the attempt again.
            self.broadcast(members, &Message::Broken(self.me()), out);
        }
    }

    fn begin_contribution(&mut self, mine: Contributed, now: Instant, out: &mut Outbox<Effect>) {
        self.note_contribution(self.me(), mine, now, out);
        if let Some(current) = &mut self.current {
            current.give_up = Some(now.after(self.settings.round_timeout));
        }
    }

    fn replay(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        for (header, message) in self.early.take() {
            self.receive(header, message, now, out);
        }
    }

    fn contribute(&mut self, round: Round, contributed: Contributed, now: Instant, out: &mut Outbox<Effect>) {
        if let Some(error) = &self.stopped {
            return out.push(Effect::Fail(error.clone()));
        }
        self.note_state_elements(contributed.terms);
        let member = self.history.as_ref().filter(|history| !history.joining);
        if member.is_some_and(|history| history.round != round) {
            // Decided without this contribution: the outcome is on its way to whoever made it.
            return;
        }
        if self.mine.is_some() {
            return out.push(Effect::Fail(RoundError::RoundStillOpen(round)));
        }
        self.mine = Some(contributed.clone());
        if member.is_some() {
            self.begin_contribution(contributed, now, out);
        }
    }

    fn note_state_elements(&mut self, terms: Terms) {
        if matches!(terms.kind, RoundKind::Found | RoundKind::Slow) {
            self.state_elements = Some(terms.elements);
        }
    }

    fn hold(&mut self, attempt: Attempt, mark: impl FnOnce(&mut Open)) {
        if let Some(open) = self.current.as_mut().and_then(|current| current.open_at(attempt)) {
            mark(open);
        }
    }

    fn stream_broken(&mut self, attempt: Attempt, node: NodeId, now: Instant) {
        if let Some(open) = self.current.as_mut().and_then(|current| current.open_at(attempt)) {
            open.broken.get_or_insert((node, now.after(STREAM_BROKEN_WAIT)));
        }
    }

    /// Takes every step that became possible.
    fn advance(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        loop {
            if self.stopped.is_some() || self.current.is_none() {
                return;
            }
            self.tell_leader(out);
            self.open_default(out);
            self.lead(now, out);
            self.open_proposed(out);
            self.accept_when_held(now, out);
            self.decide_when_accepted(out);
            self.watch_reconnected(now);
            self.tell_waiting(out);
            if !self.apply_when_held(now, out) {
                return;
            }
        }
    }

    /// Ends the run on this node: no further round can be decided with it.
    fn stop(&mut self, error: RoundError, out: &mut Outbox<Effect>) {
        if self.stopped.is_some() {
            return;
        }
        self.discard(out);
        let waits = self.mine.take().is_some();
        self.stopped = Some(error.clone());
        if waits {
            out.push(Effect::Fail(error));
        }
    }

    fn discard(&mut self, out: &mut Outbox<Effect>) {
        if let Some(open) = self.current.as_mut().and_then(|current| current.open.take()) {
            out.push(Effect::Discard(open.plan.attempt.ballot));
        }
    }

    /// The others went on without this node. Who gives a founding up may not have heard yet that it is decided: then it stays.
    fn resign(&mut self, gives_up: GivesUp, now: Instant, out: &mut Outbox<Effect>) {
        let member = self.history.as_ref().filter(|history| !history.joining);
        let past = member.is_some_and(|history| history.round > Round::FOUNDING);
        let current = self.current.as_ref().filter(|_| member.is_some());
        let decided = past || current.is_some_and(|current| current.decided.is_some());
        let accepted = current.and_then(|current| current.accepted_at).is_some_and(|at| now < at.after(FOUNDING_KEPT));
        let stays = match gives_up {
            GivesUp::Membership => false,
            GivesUp::ForDecided => decided,
            GivesUp::ForFounding => decided || accepted,
        };
        if stays && !planted::has(Bug::FoundingGivenUp) {
            return out.push(Effect::Resigned(false));
        }
        out.push(Effect::Resigned(true));
        self.leave_history(out);
    }

    fn leave_history(&mut self, out: &mut Outbox<Effect>) {
        self.discard(out);
        self.refounds |= self.history.as_ref().is_some_and(|history| history.round == Round::FOUNDING && !history.joining);
        (self.history, self.current, self.set_aside) = (None, None, None);
        self.early = Early::default();
        self.joiners.clear();
        self.leaving.clear();
        self.dead.clear();
        self.rates.clear();
        self.reconnected.forget();
        if self.waiting.take().is_some() {
            out.push(Effect::Waiting(None));
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let (enough, grace) = (self.alive_are_enough(), self.settings.grace);
        self.pass_slow_joiners_over(now);
        self.pass_time_away(now);
        let Some(current) = &mut self.current else { return };
        current.follow_until.take_if(|until| now >= *until);
        current.promise_by.take_if(|until| now >= *until);
        current.silent_over |= current.silent_by.is_some_and(|until| now >= until);
        current.grace_over |= current.begun.is_some_and(|begun| now >= begun.after(grace));
        let ballot = current.ballot();
        let broken = current.open.as_mut().and_then(|open| {
            let of_this = open.plan.attempt.ballot == ballot;
            open.broken.take_if(|(_, deadline)| now >= *deadline).filter(|_| of_this)
        });
        if let Some((node, _)) = broken {
            self.ask_for_another_attempt((self.me(), node), now, out);
        }
        self.give_lost_streams_up(now, out);
        let Some(current) = &mut self.current else { return };
        if current.give_up.take_if(|deadline| now >= *deadline).is_none() {
            return;
        }
        if !enough {
            // Waiting for a quorum has no end but the quorum's return, or the operator's word.
            current.give_up = Some(now.after(self.settings.round_timeout));
            return;
        }
        let waiting_for = self.missing().into_iter().collect();
        let error = RoundError::TimedOut { round: self.place().round, after: self.settings.round_timeout, waiting_for };
        self.stop(error, out);
    }

    fn broadcast(&self, to: impl IntoIterator<Item = NodeId>, message: &Message, out: &mut Outbox<Effect>) {
        for to in to.into_iter().filter(|to| *to != self.me()) {
            self.send(to, message.clone(), out);
        }
    }

    fn send(&self, to: NodeId, message: Message, out: &mut Outbox<Effect>) {
        self.send_from(self.place(), to, message, out);
    }

    fn send_from(&self, place: Place, to: NodeId, message: Message, out: &mut Outbox<Effect>) {
        out.push(Effect::Send { to, frame: self.settings.identity.frame(place, message) });
    }

    /// The lowest ballot of the round, which needs no promises.
    fn first_ballot(&self) -> Option<Ballot> {
        self.history.as_ref().map(|history| first_ballot(&history.view))
    }
}
