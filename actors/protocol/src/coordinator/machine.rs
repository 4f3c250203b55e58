//! State machine of one node for the round under way, in its roles as a member, a voter and a
//! leader.
//!
//! | file | holds |
//! |---|---|
//! | `history` | decided entries, and what follows: shard maps, next views and voters, losses |
//! | `deciding` | the round that is not decided yet |
//! | `data` | attempts whose data this node moves or holds, and what it still lacks for them |
//! | `following` | a member's rules: frames, contributions, admission |
//! | `attempting` | a member's rules for attempts: proposals and their data |
//! | `voting` | a voter's rules: promise, open, accept |
//! | `leading` | the leader's rules: attempts and votes |
//! | `taking_over` | a later leader's rules: promises, and what may have been chosen |
//! | `comparing` | receivers that hold different values: which owner published them |
//! | `votes`, `seen` | votes that go to everybody: leaders that have two entries voted for |
//! | `believing` | whose word on a decision counts |
//! | `proofs` | proofs that nodes lied, shown to leaders that do not know them |
//! | `learning` | decisions: received, requested, applied; the end of a node that leaves |
//! | `forking` | survivors that continue without a quorum |
//! | `returning` | the return to a history that this node gave up for another one |
//! | `asked_checkpoint`, `asked_settings` | what members ask for, and entries grant |
//! | `peers` | living, joining and leaving nodes, and whether they are a quorum |
//! | `links` | living members that cannot reach each other |
//! | `early` | frames that arrived before their round |
//! | `stragglers` | members that live and miss rounds |
//! | `timers` | every wait, by name |
//! | `inspection` | read-only queries from outside |

mod asked_checkpoint;
mod asked_settings;
mod attempting;
mod believing;
mod comparing;
mod data;
mod deciding;
mod early;
mod following;
mod forking;
mod history;
mod inspection;
mod leading;
mod learning;
mod links;
mod peers;
mod proofs;
mod reports;
mod returning;
mod seen;
mod stragglers;
mod taking_over;
mod timers;
mod votes;
mod voting;

use super::error::RoundError;
use super::events::{Effect, GivesUp, In, Settings};
use super::outcome::{RoundKind, RoundSpec};
use super::plan::Attempt;
use super::voters::Voter;
use crate::ident::{Epoch, Lineage, NodeId, Round, Term};
use crate::machine::{Machine, Outbox, Place};
use crate::time::Instant;
use crate::topology::Rates;
use crate::view::View;
use crate::wire::{ContributionNotice, Message};
use asked_settings::AskedSettings;
pub use comparing::{COMPARE_WAIT, COMPARED_MAX, Claim, Statement};
pub use data::ATTEMPTS_KEPT_MAX;
use data::Movement;
use deciding::Deciding;
use early::Early;
pub use early::{
    EARLY_BYTES_MAX, EARLY_BYTES_PER_MEMBER_MAX, EARLY_FRAMES_MAX, EARLY_FRAMES_PER_MEMBER_MAX,
};
pub use forking::Recovery;
use history::{History, Maps};
pub use leading::FOLLOW_WAIT;
pub use learning::LEAVE_ACKNOWLEDGED_WAIT;
use learning::Left;
use links::Links;
pub use links::{
    ATTEMPT_WAIT_MAX, AWAY_WAIT, STAND_IN_STEP, STAND_IN_STEPS_MAX, STREAM_BROKEN_WAIT,
};
pub use peers::OVER_WAIT;
use peers::Peers;
pub use proofs::PROOFS_MAX;
use proofs::Proofs;
pub use reports::{PAIRS_REPORTED_MAX, REPORTS_TO_PART};
pub use returning::LEFT_MAX;
use returning::{Aside, Promised};
pub use seen::TOLD_MAX;
use std::collections::VecDeque;
use stragglers::Stragglers;
pub use stragglers::{AWAITED_TOLD_MAX, MISSES_WAITED_FOR, ROUNDS_UNWAITED_MAX};
pub use taking_over::PROMISE_WAIT;
use timers::{Timer, Timers};
use votes::Applied;
pub use votes::{DOUBTFUL_MAX, VOTES_WAIT};

/// The SlowMo coordinator of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    settings: Settings,
    /// Decided state; `None` outside of every history.
    history: Option<History>,
    /// The undecided round that follows `history`.
    deciding: Option<Deciding>,
    /// The history that this node was in, kept while it is on its way into another one or, among
    /// survivors, back into the same.
    aside: Option<Aside>,
    /// What this node promised in histories that it left.
    promised: Promised,
    /// The entry with which this node left, or that excluded it.
    left_with: Option<Left>,
    peers: Peers,
    stragglers: Stragglers,
    links: Links,
    proofs: Proofs,
    early: Early,
    timers: Timers,
    maps: Maps,
    /// Number of values in the rounds that take the slow step; determines how anchor and momentum
    /// are cut into shards.
    state_elements: Option<u64>,
    /// Number of values in the base optimizer's buffers, from this node's last contribution.
    buffers: u64,
    mine: Option<ContributionNotice>,
    /// Newest measured rates of the members, as far as they reported them to this node.
    rates: Rates,
    /// Whether this node took part in a bootstrap that gave way to another one, whose streams may
    /// have been refused meanwhile.
    rebootstraps: bool,
    /// The entry that was applied last. Others may have applied another one, and say so late.
    applied: Option<Applied>,
    /// Entries applied before, as far as only their leaders' votes made a quorum for them.
    doubtful: VecDeque<Applied>,
    /// The round in which a member asked for a checkpoint that no entry has granted yet.
    checkpoint_asked: Option<Round>,
    asked_settings: AskedSettings,
    waiting: Option<String>,
    stopped: Option<RoundError>,
}

impl Machine for Coordinator {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        match event {
            In::Formed { view, lineage } => self.formed(view, lineage, now, out),
            In::Contribute {
                round,
                spec,
                samples,
                rates,
                buffers,
            } => {
                self.buffers = buffers;
                self.contribute(
                    round,
                    ContributionNotice {
                        spec,
                        samples,
                        rates,
                    },
                    now,
                    out,
                );
            }
            In::Frame { header, message } => self.arrive(header, *message, now, out),
            In::Reduced(attempt, signed) => {
                self.hold(attempt, |movement| movement.take_own(signed))
            }
            In::ParametersHeld(attempt, owner, signed) => {
                self.hold(attempt, |movement| movement.take_parameters(owner, signed))
            }
            In::StateHeld(attempt, from) => {
                self.hold(attempt, |movement| movement.take_state(from))
            }
            In::BuffersHeld(attempt, from) => {
                self.hold(attempt, |movement| movement.take_buffers(from))
            }
            In::SpecsDiffer(attempt, other, spec) => {
                self.specs_differ(attempt, other, spec, now, out)
            }
            In::StreamBroken(attempt, node) => self.stream_broken(attempt, node, now),
            In::Unsound(attempt, node) => self.unsound(attempt, node, now, out),
            In::Distrust(node) => self.distrust(node),
            In::Overflowed(attempt, element) => self.overflowed(attempt, element, out),
            In::Lost {
                node,
                incarnation,
                ended,
            } => self.lost(Voter { node, incarnation }, ended, out),
            In::Back(node) => self.peers.back(node),
            In::PeerUp(node) => self.peer_up(node, out),
            In::PeerDown(node) => self.links.lost(node, now),
            In::Unheard(nodes) => self.hears_all_but(&nodes, now),
            In::Joiners { epoch, members } => self.candidates(epoch, members),
            In::JoinAsked(node) => self.join_asked(node, out),
            // Outside of every history, departures are ignored: the id may belong to another
            // incarnation by the time this node joins.
            In::Leaving {
                node,
                incarnation,
                contributes,
            } => {
                if self.history.is_some() {
                    let leaver = Voter { node, incarnation };
                    self.peers.leaves(leaver, contributes);
                    self.expect_checkpoint_of_leavers(leaver, out);
                }
            }
            In::Resign(gives_up) => self.resign(gives_up, out),
            In::Recover(lineage) => self.recover(lineage, now, out),
            In::Return { ended } => self.return_to_history(ended, now, out),
            In::TrainingGoesOn => self.training_goes_on(out),
            In::AskCheckpoint => self.ask_for_checkpoint(out),
            In::AskSettings(values) => self.ask_for_settings(values, out),
            In::Tick => self.tick(now, out),
        }
        self.advance(now, out);
        debug_assert_eq!(self.verify(), Ok(()));
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.stopped.is_some() {
            return None;
        }
        let of_round = self.deciding.as_ref().and(self.links_deadline());
        self.timers.next().into_iter().chain(of_round).min()
    }
}

impl Coordinator {
    /// A coordinator of a node that belongs to no view yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            history: None,
            deciding: None,
            aside: None,
            promised: Promised::default(),
            left_with: None,
            peers: Peers::default(),
            stragglers: Stragglers::default(),
            links: Links::default(),
            proofs: Proofs::default(),
            early: Early::default(),
            timers: Timers::default(),
            maps: Maps::default(),
            state_elements: None,
            buffers: 0,
            mine: None,
            rates: Rates::new(),
            rebootstraps: false,
            applied: None,
            doubtful: VecDeque::new(),
            checkpoint_asked: None,
            asked_settings: AskedSettings::default(),
            waiting: None,
            stopped: None,
        }
    }

    /// This node's place in history.
    #[must_use]
    pub fn place(&self) -> Place {
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return Place {
                lineage: Lineage::NONE,
                epoch: Epoch(0),
                round: Round::BOOTSTRAP,
                term: Term::default(),
                attempt: 0,
            };
        };
        Place {
            lineage: history.lineage,
            epoch: history.view.epoch(),
            round: history.round,
            term: deciding.term(),
            attempt: deciding.number(),
        }
    }

    /// The view of the round; `None` if this node is not a member.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.history
            .as_ref()
            .filter(|history| history.member)
            .map(|history| &history.view)
    }

    fn me(&self) -> NodeId {
        self.settings.identity.node
    }

    /// This incarnation of the node.
    fn myself(&self) -> Voter {
        let identity = self.settings.identity;
        Voter {
            node: identity.node,
            incarnation: identity.incarnation,
        }
    }

    fn is_voter(&self) -> bool {
        self.history
            .as_ref()
            .is_some_and(|history| history.voters.contains(self.myself()))
    }

    fn formed(&mut self, view: View, lineage: Lineage, now: Instant, out: &mut Outbox<Effect>) {
        if self.history.is_some() {
            return;
        }
        let members: Vec<NodeId> = view.ids().collect();
        let lowest = view.lowest();
        let history = History::bootstrap(view, lineage, self.settings.origin);
        self.deciding = Some(Deciding::new(history.first_term()));
        self.history = Some(history);
        if let Some(mine) = self.mine.clone() {
            self.begin_contribution(mine, now, out);
        }
        self.replay(now, out);
        if std::mem::take(&mut self.rebootstraps) && lowest != self.me() {
            // The node that leads by now makes the attempt again.
            self.broadcast(members, &Message::Broken(self.me()), out);
        }
    }

    fn begin_contribution(
        &mut self,
        mine: ContributionNotice,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        self.note_contribution(self.me(), mine, now, out);
        if self.deciding.is_some() {
            self.timers
                .set(Timer::RoundTimeout, now.after(self.settings.round_timeout));
            self.timers
                .set(Timer::Ask, now.after(self.settings.ask_again));
        }
    }

    fn replay(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        for frame in self.early.take() {
            let signs = frame.header.term.node;
            let signer = self.key_of(signs).map(|(signer, _)| signer);
            if frame.signer.is_none() || frame.signer == signer {
                self.receive(frame.header, frame.message, now, out);
            }
        }
    }

    fn contribute(
        &mut self,
        round: Round,
        contributed: ContributionNotice,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        if let Some(error) = &self.stopped {
            return out.push(Effect::Fail(error.clone()));
        }
        self.note_state_elements(contributed.spec);
        let member = self.history.as_ref().filter(|history| history.member);
        if member.is_some_and(|history| history.round != round) {
            // Decided without this contribution: the outcome is on its way to the contributor.
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

    fn note_state_elements(&mut self, spec: RoundSpec) {
        if matches!(spec.kind, RoundKind::Bootstrap | RoundKind::Slow) {
            self.state_elements = Some(spec.elements);
        }
    }

    fn hold(&mut self, attempt: Attempt, mark: impl FnOnce(&mut Movement)) {
        if let Some(movement) = self
            .deciding
            .as_mut()
            .and_then(|deciding| deciding.data.moving_at(attempt))
        {
            mark(movement);
        }
    }

    fn stream_broken(&mut self, attempt: Attempt, node: NodeId, now: Instant) {
        let Some(movement) = self
            .deciding
            .as_mut()
            .and_then(|deciding| deciding.data.moving_at(attempt))
        else {
            return;
        };
        movement.broken.get_or_insert(node);
        self.timers
            .start(Timer::Broken, now.after(STREAM_BROKEN_WAIT));
    }

    /// Takes every step that has become possible.
    fn advance(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        loop {
            if self.stopped.is_some() || self.deciding.is_none() {
                return;
            }
            self.tell_leader(out);
            self.begin_plain_attempt(out);
            self.lead(now, out);
            self.begin_proposed_attempt(out);
            self.tell_when_ready(now, out);
            self.decide_when_all_voted();
            self.decide_when_believed(now);
            self.decide_when_accepted(out);
            self.watch_new_connections(now);
            self.tell_waiting(out);
            self.watch_for_the_end(now);
            if !self.apply_when_decided(now, out) {
                return;
            }
        }
    }

    /// Ends the run on this node: no further round can be decided with it.
    fn stop(&mut self, error: RoundError, out: &mut Outbox<Effect>) {
        if self.stopped.is_some() {
            return;
        }
        self.discard_where(|_| true, out);
        self.forget_aside(out);
        let waits = self.mine.take().is_some();
        self.stopped = Some(error.clone());
        if waits {
            out.push(Effect::Fail(error));
        }
    }

    fn discard_where(&mut self, drops: impl Fn(&Movement) -> bool, out: &mut Outbox<Effect>) {
        let dropped = self
            .deciding
            .as_mut()
            .map(|deciding| deciding.data.drop_where(drops))
            .unwrap_or_default();
        out.push_all(dropped.into_iter().map(Effect::Discard));
    }

    /// Gives up membership or a bootstrap, since the others continued without this node. A node
    /// that is to give up a bootstrap stays if the bootstrap is already decided, which the
    /// requester may not know yet. A member that resigns keeps its vote, and the data that it is
    /// ready for, until it learns the decision.
    fn resign(&mut self, gives_up: GivesUp, out: &mut Outbox<Effect>) {
        let Some(history) = self.history.as_mut().filter(|history| history.member) else {
            return out.push(Effect::Resigned(true));
        };
        let deciding = self.deciding.as_ref();
        let decided = history.round > Round::BOOTSTRAP
            || deciding.is_some_and(|deciding| deciding.decided.is_some());
        // A voter that was left out of the attempt may be asked for its vote all the same.
        let bound = deciding
            .is_some_and(|deciding| deciding.was_ready || deciding.acceptor.accepted().is_some());
        let stays = match gives_up {
            GivesUp::Membership => false,
            GivesUp::ForDecided => decided,
            GivesUp::ForBootstrap => decided || bound,
        };
        if stays {
            return out.push(Effect::Resigned(false));
        }
        out.push(Effect::Resigned(true));
        if decided {
            history.member = false;
            // The nodes that admit it tell it again which nodes live.
            self.peers.forget();
            self.forget_stragglers(out);
            self.step_down();
            self.timers.end_round();
            self.end_waiting(out);
        } else {
            self.leave_history(out);
        }
    }

    fn end_waiting(&mut self, out: &mut Outbox<Effect>) {
        if self.waiting.take().is_some() {
            out.push(Effect::Waiting(None));
        }
    }

    /// Gives up all state of this history, including the vote.
    fn leave_history(&mut self, out: &mut Outbox<Effect>) {
        self.discard_where(|_| true, out);
        self.rebootstraps |= self
            .history
            .as_ref()
            .is_some_and(|history| history.round == Round::BOOTSTRAP && history.member);
        self.history = None;
        self.deciding = None;
        self.timers.end_round();
        self.early = Early::default();
        self.peers.forget();
        self.forget_stragglers(out);
        self.rates.clear();
        self.asked_settings = AskedSettings::default();
        self.links.forget_new_connections();
        self.end_waiting(out);
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        self.pass_time_away(now);
        for timer in self.timers.passed(now) {
            self.pass(timer, now, out);
        }
    }

    fn pass(&mut self, timer: Timer, now: Instant, out: &mut Outbox<Effect>) {
        match timer {
            // The code that waits for these checks whether they still run.
            Timer::Follow | Timer::Promises | Timer::StandIn => {}
            Timer::Grace => self.with_deciding(|deciding| deciding.grace_over = true),
            Timer::Ask => self.ask_again(now, out),
            Timer::Fork => self.with_deciding(|deciding| deciding.fork_due = true),
            Timer::Over => self.end_with_the_others(out),
            Timer::Retry => self.with_deciding(|deciding| deciding.retry = true),
            Timer::Compare => self.leave_silent_ones_out(),
            Timer::Joiners => self.pass_slow_joiners_over(),
            Timer::Broken => self.tell_broken_stream(now, out),
            Timer::LostStreams => self.give_lost_streams_up(now, out),
            Timer::Votes => self.votes_are_over(now, out),
            Timer::Leave => self.leave_unacknowledged(out),
            Timer::RoundTimeout => self.time_out(now, out),
        }
    }

    fn with_deciding(&mut self, change: impl FnOnce(&mut Deciding)) {
        if let Some(deciding) = &mut self.deciding {
            change(deciding);
        }
    }

    fn tell_broken_stream(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let me = self.me();
        let attempt = Attempt::at(&self.place());
        let broken = self
            .deciding
            .as_mut()
            .and_then(|deciding| deciding.data.moving_at(attempt))
            .and_then(|movement| movement.broken.take());
        if let Some(node) = broken {
            self.ask_for_another_attempt(me, node, now, out);
        }
    }

    fn time_out(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        if !self.quorum_lives() {
            // The wait for a quorum ends only when the quorum returns or an operator orders it.
            return self
                .timers
                .set(Timer::RoundTimeout, now.after(self.settings.round_timeout));
        }
        let waiting_for = self.missing().into_iter().collect();
        let error = RoundError::TimedOut {
            round: self.place().round,
            after: self.settings.round_timeout,
            waiting_for,
        };
        self.stop(error, out);
    }

    fn broadcast(
        &self,
        to: impl IntoIterator<Item = NodeId>,
        message: &Message,
        out: &mut Outbox<Effect>,
    ) {
        for to in to.into_iter().filter(|to| *to != self.me()) {
            self.send(to, message.clone(), out);
        }
    }

    fn send(&self, to: NodeId, message: Message, out: &mut Outbox<Effect>) {
        self.send_from(self.place(), to, message, out);
    }

    fn send_from(&self, place: Place, to: NodeId, message: Message, out: &mut Outbox<Effect>) {
        out.push(Effect::Send {
            to,
            frame: self.settings.identity.frame(place, message),
        });
    }
}
