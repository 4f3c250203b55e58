//! Return to an earlier history. A node that resigned for a history which ranks higher keeps the
//! one that it was in until it is admitted. If nobody is left to admit it, it takes its place
//! again. Until then the others do not hear of it.
//!
//! A joiner has no place to return to. Among survivors, if it is ready with the entry that admits
//! it, and nobody else of that history is left, it continues with that entry.
//!
//! A voter that left a history may be admitted to it again. Its promises there still count.

use super::Coordinator;
use super::deciding::{Deciding, Lead};
use super::forking::forked;
use super::history::History;
use super::timers::Timer;
use crate::coordinator::acceptor::Acceptor;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::Outcome;
use crate::coordinator::voters::Voter;
use crate::forks::FORKS_MAX;
use crate::ident::{Lineage, Round, Term};
use crate::machine::Outbox;
use crate::policy::Quorum;
use crate::published::Signed;
use crate::time::Instant;
use crate::view::View;
use std::collections::BTreeMap;

/// Maximum number of histories that this node left and still knows its promises in.
pub const LEFT_MAX: usize = 16;

/// A history that this node was in, with all its data and promises of the round under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Aside {
    history: History,
    deciding: Deciding,
}

/// What this node promised and accepted in the newest round of each history that it left. A voter
/// that is admitted there again must not vote as if it had not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Promised(BTreeMap<Lineage, PromisedRound>);

/// What this node promised in one round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PromisedRound {
    /// The round before it.
    after: Round,
    acceptor: Acceptor<Outcome>,
    /// The entry for which the leader of the highest term asked votes: it may ask for no other.
    asked: Option<(Term, Signed)>,
}

impl Promised {
    fn keep(&mut self, history: &History, deciding: &Deciding) {
        let known = self.0.get(&history.lineage);
        let is_newer = known.is_none_or(|known| known.after <= history.round);
        let asked = deciding.seen.asked;
        let is_new = deciding.acceptor == Acceptor::new(history.first_term()) && asked.is_none();
        if !is_newer || is_new {
            return;
        }
        let kept = PromisedRound {
            after: history.round,
            acceptor: deciding.acceptor.clone(),
            asked,
        };
        self.0.insert(history.lineage, kept);
        if self.0.len() > LEFT_MAX {
            // The history with the lowest round is the least likely one to admit this node again.
            let rounds = self.0.iter().map(|(lineage, kept)| (kept.after, *lineage));
            if let Some((_, lineage)) = rounds.min() {
                self.0.remove(&lineage);
            }
        }
    }

    /// The state of the round that follows `history`, with what this node promised in it before.
    pub fn resume(&mut self, history: &History) -> Deciding {
        let mut deciding = Deciding::new(history.first_term());
        let kept = self.0.get(&history.lineage);
        if kept.is_none_or(|kept| kept.after > history.round) {
            return deciding;
        }
        if let Some(kept) = self.0.remove(&history.lineage)
            && kept.after == history.round
        {
            deciding.highest = deciding.highest.max(kept.acceptor.promised());
            deciding.acceptor = kept.acceptor;
            deciding.seen.asked = kept.asked;
        }
        deciding
    }
}

impl Coordinator {
    /// Called when the history `lineage` begins to admit this node: another history that it was in
    /// is kept until it is admitted.
    pub(super) fn leave_for(&mut self, lineage: Lineage, out: &mut Outbox<Effect>) {
        self.discard_where(|movement| !movement.ready, out);
        if self.aside.is_none()
            && let Some(history) = self
                .history
                .take_if(|history| history.lineage != lineage && history.last.is_some())
            && let Some(deciding) = self.deciding.take()
        {
            self.aside = Some(Aside { history, deciding });
        } else if !self.keep_place(out) {
            self.remember_promises();
            self.discard_where(|_| true, out);
        }
    }

    /// Notes what this node promised in the round under way, which it leaves.
    pub(super) fn remember_promises(&mut self) {
        if let (Some(history), Some(deciding)) = (&self.history, &self.deciding) {
            self.promised.keep(history, deciding);
        }
    }

    /// Called when the others decided without this node, or admit it to a later round. Among
    /// survivors, keeps its previous place, also if it has resigned from it: if all the others die
    /// before one of them admits this node again, it holds the newest model that is left. A joiner
    /// keeps the entry that admits it if it holds all of that entry's data. `true` if the place is
    /// kept.
    pub(super) fn keep_place(&mut self, out: &mut Outbox<Effect>) -> bool {
        if self.settings.quorum != Quorum::Survivors {
            return false;
        }
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return false;
        };
        let admitted = self.admission().is_some();
        let keeps = match &self.aside {
            None => history.last.is_some() && (history.holds || admitted),
            // The entry that admits this node is newer than all that it held before.
            Some(aside) => admitted && aside.history.lineage == history.lineage,
        };
        if !keeps {
            return false;
        }
        let history = History {
            member: false,
            ..history.clone()
        };
        let deciding = Deciding {
            decided: None,
            fork_due: false,
            lead: Lead::Follow,
            ..deciding.clone()
        };
        self.forget_aside(out);
        self.aside = Some(Aside { history, deciding });
        true
    }

    /// Restores the history put aside if it is `lineage`, which begins to admit this node: what
    /// this node promised there counts. `true` if it was restored.
    pub(super) fn restore_aside_of(&mut self, lineage: Lineage, out: &mut Outbox<Effect>) -> bool {
        let newer = self
            .history
            .as_ref()
            .is_some_and(|history| history.lineage == lineage);
        let Some(aside) = self
            .aside
            .take_if(|aside| !newer && aside.history.lineage == lineage)
        else {
            return false;
        };
        self.remember_promises();
        self.discard_where(|_| true, out);
        self.history = Some(aside.history);
        self.deciding = Some(aside.deciding);
        true
    }

    /// Drops the history put aside: this node is admitted, or the history is no longer its own.
    pub(super) fn forget_aside(&mut self, out: &mut Outbox<Effect>) {
        if let Some(mut aside) = self.aside.take() {
            self.promised.keep(&aside.history, &aside.deciding);
            let kept = aside.deciding.data.drop_where(|_| true);
            out.push_all(kept.into_iter().map(Effect::Discard));
        }
    }

    /// Called when nobody is left to admit this node; `ended` if they are known to have ended. The
    /// entry that was to admit it takes precedence: it is newer than the history that this node was
    /// in before.
    pub(super) fn return_to_history(
        &mut self,
        ended: bool,
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        if self.admission().is_none()
            && let Some(Aside { history, deciding }) = self.aside.take()
        {
            self.remember_promises();
            self.discard_where(|_| true, out);
            self.history = Some(history);
            self.deciding = Some(deciding);
        }
        if let Some(admission) = self.admission() {
            return self.go_on_with_admission(admission, ended, now);
        }
        let myself = self.myself();
        let Some(history) = self.history.as_mut().filter(|history| !history.member) else {
            return;
        };
        let counted = history
            .view
            .member(myself.node)
            .is_some_and(|member| member.incarnation == myself.incarnation);
        // The view may count on a node that never held its entry: one that was being admitted a
        // second time. It has no model to stand with.
        if !(counted && history.holds) {
            return;
        }
        let Some(last) = &history.last else { return };
        let standing = last.outcome.standing();
        history.member = true;
        self.with_deciding(|deciding| deciding.told.clear());
        out.push(Effect::Stands(standing));
        if let Some(mine) = self.mine.clone() {
            self.begin_contribution(mine, now, out);
        }
        self.replay(now, out);
    }

    /// Among survivors: the entry that admits this node, if it holds all of the entry's data and is
    /// not a member yet.
    fn admission(&self) -> Option<Outcome> {
        let myself = self.myself();
        let history = self
            .history
            .as_ref()
            .filter(|history| !history.member && history.forks.len() < FORKS_MAX)?;
        let counts_on_me = |view: &View| {
            view.members()
                .iter()
                .any(|member| Voter::from(member) == myself)
        };
        if self.settings.quorum != Quorum::Survivors || counts_on_me(&history.view) {
            return None;
        }
        let mut held = self.deciding.as_ref()?.data.complete_outcomes();
        held.find(|outcome| counts_on_me(&outcome.view)).cloned()
    }

    /// Continues with the entry that admits this node in a history of its own: every node that
    /// could say whether the entry was decided is gone, and the model may be nowhere else.
    fn go_on_with_admission(&mut self, admission: Outcome, ended: bool, now: Instant) {
        let myself = self.myself();
        let (Some(history), Some(deciding)) = (&self.history, &self.deciding) else {
            return;
        };
        if !(ended || deciding.fork_due) {
            // The membership repeats this event as long as it holds.
            return self
                .timers
                .start(Timer::Fork, now.after(self.settings.fork_after));
        }
        let term = deciding.highest.next_of(myself.node);
        let lineage = forked(history.began_in, history.round.0, term, &[myself]);
        self.enter_fork(lineage, false, vec![myself], myself.node);
        let entry = self.as_entry_of_this_history(admission);
        self.with_deciding(|deciding| deciding.decided = Some(entry));
    }
}
