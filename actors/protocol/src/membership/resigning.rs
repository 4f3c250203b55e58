//! Resigning, as opposed to leaving: a node gives up its place and asks to be admitted again. The
//! coordinator, which learns first what was decided, has the last word.

use super::{BootstrapError, Effect, Membership};
use crate::coordinator::GivesUp;
use crate::ident::{Incarnation, NodeId, Round};
use crate::machine::Outbox;
use crate::time::{Instant, Span};
use crate::view::Member;
use crate::wire::MemberState;

/// How long the history that was to admit this node must be deserted before the node returns to the
/// history that it was in before.
pub const RETURN_WAIT: Span = Span::from_millis(2_000);
/// Time between further requests to return: the coordinator may have to wait itself before it goes
/// on.
const RETURN_AGAIN_EVERY: Span = Span::from_millis(500);

impl Membership {
    /// Gives up the membership and asks the coordinator to agree.
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

    /// Handles the coordinator's answer: it agreed (`obeyed`), or it keeps a bootstrap. In that
    /// case this node is in that bootstrap again, unless it has gone on from there.
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
                // A node that met this one there waits for that bootstrap.
                self.say_where_it_stands(out);
            }
            self.form_when_connected(out);
            self.join_when_ready(out);
            self.bootstrap_when_complete(out);
        }
    }

    /// Returns this node to its previous place once nobody is left of the history that was to admit
    /// it. The holders of that history's newest state are gone, so this node's state is needed.
    /// That includes a joiner's state: it may hold the entry that admits it.
    pub(super) fn return_when_deserted(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        if !self.life.resigning.is_empty() {
            // A return that led nowhere ends with a resignation.
            return;
        }
        // A node that was told to leave returns nowhere, and need not wait for those that left.
        let waits = self.life.standing.is_none() && !self.life.drained;
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
            if (self.life.returns || self.life.returned)
                && let Some(over) = self.over(deserted)
            {
                // The coordinator had nothing to return to, or learned there what it knew before:
                // those that left decided without it.
                self.life.returns_at = None;
                return self.fail(over, out);
            }
            self.life.returns_at = Some(now.after(RETURN_AGAIN_EVERY));
            self.life.returns = true;
            if self.life.leaving.is_none() {
                out.push(Effect::Return { ended });
            }
        }
    }

    /// The error of a node that waits for a training that is over: each member of the newest view
    /// said that it leaves for good, or ended, or waits in vain like this node. A member that the
    /// next view replaces says nothing like that. One that crashed may come back, but not if others
    /// left for good.
    fn over(&self, deserted: &MemberState) -> Option<BootstrapError> {
        let me = self.me();
        let mut left = Vec::new();
        for member in deserted.view.members() {
            let start = (member.id, member.incarnation);
            if self.life.done.contains(&start) {
                left.push(member.id);
                continue;
            }
            let crashed = self.has_ended(member) && !self.left.contains(&start);
            if member.id != me && !self.waits_too(member) && !crashed {
                return None;
            }
        }
        (!left.is_empty()).then(|| BootstrapError::Over {
            left,
            last: deserted.round.before(),
            ours: self.life.last_round,
        })
    }

    /// Whether a member can be sent to, and says that it is in no history.
    fn waits_too(&self, member: &Member) -> bool {
        let said = self.hellos.get(&member.id);
        self.can_send_to(member)
            && said.is_some_and(|known| {
                known.incarnation == member.incarnation && known.stands_in.is_none()
            })
    }

    /// After a return to an old view, marks members down that are connected in another incarnation:
    /// that one came after the view's.
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

    /// Marks members down of which another incarnation connected before this node entered the view:
    /// nobody tells it again.
    pub(super) fn notice_superseded(&mut self, out: &mut Outbox<Effect>) {
        let standing = self.life.standing.iter();
        let members = standing.flat_map(|standing| standing.view.members());
        let ended: Vec<(NodeId, Incarnation)> = members
            .chain(&self.life.retained)
            .map(|member| (member.id, member.incarnation))
            .filter(|start| self.superseded.contains(start))
            .collect();
        for (node, incarnation) in ended {
            self.down(node, incarnation, true, out);
        }
    }

    pub(super) fn say_where_it_stands(&self, out: &mut Outbox<Effect>) {
        self.connected
            .keys()
            .for_each(|peer| self.send(*peer, self.hello(), out));
    }
}
