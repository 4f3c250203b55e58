//! The way out that is no leaving: a node gives its place up and asks to be admitted again, and the
//! coordinator, which knows first what was decided, has the last word.

use super::{Effect, Membership};
use crate::coordinator::GivesUp;
use crate::ident::Round;
use crate::machine::Outbox;
use crate::time::{Instant, Span};
use crate::view::Member;

/// How long a history that was to admit this node may be deserted before it returns to the one that
/// it stood in.
pub const RETURN_WAIT: Span = Span::from_millis(2_000);
/// How often the coordinator is told so from then on: it may have to wait itself before it goes on.
const RETURN_AGAIN_EVERY: Span = Span::from_millis(500);

impl Membership {
    /// Is no member any more.
    pub(super) fn resign(&mut self, gives_up: GivesUp, out: &mut Outbox<Effect>) {
        let standing = self.life.standing.take();
        let bootstrap = standing.filter(|standing| standing.round == Round::BOOTSTRAP);
        let gives_up = if bootstrap.is_some() {
            gives_up
        } else {
            GivesUp::Membership
        };
        self.life.resigning.push_back(bootstrap);
        self.life.is_bound = false;
        self.life.asked = None;
        self.life.wished = None;
        self.life.candidates.clear();
        self.life.dead.clear();
        self.life.elsewhere.clear();
        out.push(Effect::Resign(gives_up));
        out.push(Effect::Search(true));
    }

    /// The coordinator has taken note, or keeps to a founding: then this node stands there again,
    /// unless it has gone on from there.
    pub(super) fn resigned(&mut self, obeyed: bool, out: &mut Outbox<Effect>) {
        let given_up = self.life.resigning.pop_front().flatten();
        let left_a_bootstrap = obeyed && given_up.is_some();
        let kept = if obeyed {
            None
        } else {
            self.life.kept.take().or(given_up)
        };
        if !self.life.resigning.is_empty() {
            self.life.kept = kept;
        } else if let Some(bootstrap) = kept {
            self.life.standing = Some(bootstrap);
            self.adopted = None;
            self.life.cluster = None;
            self.life.is_bound = true;
            out.push(Effect::Search(false));
            self.watch(out);
            self.say_where_it_stands(out);
        } else {
            if left_a_bootstrap {
                // Whoever met it there waits for that founding.
                self.say_where_it_stands(out);
            }
            self.form_when_connected(out);
            self.join_when_ready(out);
            self.found_when_complete(out);
        }
    }

    /// Takes its place again where it stood before, once nobody is left of the history that was to
    /// admit it. Whoever holds that one's newest state is gone, so what this node holds is needed.
    /// That of a joiner is, too: it may hold the entry that admits it.
    pub(super) fn return_when_deserted(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let waits = self.life.standing.is_none()
            && self.life.leaving.is_none()
            && self.life.resigning.is_empty();
        let Some(deserted) = self
            .life
            .cluster
            .as_ref()
            .filter(|cluster| waits && self.is_deserted(cluster))
        else {
            self.life.returns_at = None;
            self.life.returns = false;
            return;
        };
        let ended = deserted
            .view
            .members()
            .iter()
            .all(|member| self.has_ended(member));
        if now >= *self.life.returns_at.get_or_insert(now.after(RETURN_WAIT)) {
            self.life.returns_at = Some(now.after(RETURN_AGAIN_EVERY));
            self.life.returns = true;
            out.push(Effect::Return { ended });
        }
    }

    /// Back in an old view: whoever is connected under a member's id, and is not that start of it,
    /// came after it.
    pub(super) fn notice_later_starts(&mut self, out: &mut Outbox<Effect>) {
        let members = self
            .life
            .standing
            .iter()
            .flat_map(|standing| standing.view.members());
        let later = |member: &&Member| {
            self.connected
                .get(&member.id)
                .is_some_and(|start| *start != member.incarnation)
        };
        let ended: Vec<Member> = members.filter(later).cloned().collect();
        for member in ended {
            self.down(member.id, member.incarnation, true, out);
        }
    }

    pub(super) fn say_where_it_stands(&self, out: &mut Outbox<Effect>) {
        self.connected
            .keys()
            .for_each(|peer| self.send(*peer, self.hello(), out));
    }
}
