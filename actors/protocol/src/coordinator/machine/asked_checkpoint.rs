//! Checkpoints beside the schedule: those that a member asks for, and the one with which all
//! members leave.

use super::Coordinator;
use crate::changeable::ChangedSettings;
use crate::checkpoint::Points;
use crate::coordinator::events::{Effect, MemberOrder};
use crate::coordinator::outcome::{Outcome, RoundSpec};
use crate::coordinator::voters::Voter;
use crate::ident::NodeId;
use crate::machine::Outbox;
use crate::wire::Message;

impl Coordinator {
    /// This node asks for a checkpoint, and tells every member, since any of them may lead next.
    pub(super) fn ask_for_checkpoint(&mut self, out: &mut Outbox<Effect>) {
        let members: Vec<NodeId> = self
            .view()
            .into_iter()
            .flat_map(|view| view.ids())
            .collect();
        if self.settings.checkpoints.is_some() && !members.is_empty() {
            self.note_checkpoint_asked(self.me(), out);
            self.broadcast(members, &Message::AskCheckpoint, out);
        }
    }

    pub(super) fn note_checkpoint_asked(&mut self, by: NodeId, out: &mut Outbox<Effect>) {
        if self.checkpoint_asked.is_none() {
            if by != self.me() {
                out.push(Effect::Ordered(by, MemberOrder::Checkpoint));
            }
            self.checkpoint_asked = Some(self.place().round);
            out.push(Effect::CheckpointAsked(true));
        }
    }

    /// The rounds after which the state can be checkpointed, by the settings in force.
    fn checkpoint_points(&self) -> Option<Points> {
        let points = self.settings.checkpoints?;
        Some(points.changed(self.changed_settings().values))
    }

    /// Whether an attempt of this node makes a checkpoint whatever the schedule says. What was
    /// asked for in this very round is made later: not all members have lent their optimizer's
    /// buffers. They have where the schedule so far has one due, so an entry that changes the
    /// schedule still follows that.
    pub(super) fn makes_checkpoint(
        &self,
        spec: RoundSpec,
        participants: &[NodeId],
        changed: ChangedSettings,
    ) -> bool {
        let points = self.checkpoint_points();
        let allowed = points.is_some_and(|points| points.contain(&spec));
        let last_of_schedule = changed != self.changed_settings()
            && points.is_some_and(|points| points.are_due(&spec));
        let asked = self
            .checkpoint_asked
            .is_some_and(|asked| asked < self.place().round);
        last_of_schedule || allowed && (asked || self.all_leave(participants))
    }

    /// Whether members that all leave stay for now: a later round allows a checkpoint, and they
    /// still contribute to it.
    pub(super) fn leaving_waits_for_a_checkpoint(&self, spec: RoundSpec) -> bool {
        let Some(history) = &self.history else {
            return false;
        };
        let idle = |member| self.peers.leaves_idle(Voter::from(member));
        self.checkpoint_points()
            .is_some_and(|points| !points.contain(&spec))
            && !history.view.members().iter().any(idle)
    }

    /// Whether the only member of the next view, which leaves too, stays for now. It may have begun
    /// to leave only after this entry was composed, so that the entry makes no checkpoint though
    /// nobody goes on.
    pub(super) fn last_waits_for_a_checkpoint(&self, outcome: &Outcome) -> bool {
        self.settings.checkpoints.is_some()
            && !outcome.checkpoint
            && !self.peers.leaves_idle(self.myself())
    }

    /// This node leaves. If all others do too, it leaves with a checkpoint.
    pub(super) fn expect_checkpoint_of_leavers(&mut self, leaver: Voter, out: &mut Outbox<Effect>) {
        if leaver == self.myself() && self.settings.checkpoints.is_some() {
            out.push(Effect::CheckpointAsked(true));
        }
    }

    fn all_leave(&self, participants: &[NodeId]) -> bool {
        let Some(history) = &self.history else {
            return false;
        };
        let leaves = |node: &NodeId| {
            history
                .view
                .member(*node)
                .is_some_and(|member| self.peers.is_leaving(Voter::from(member)))
        };
        participants.iter().all(leaves)
    }

    /// Notes that the checkpoint that was asked for is being written.
    pub(super) fn checkpoint_made(&mut self, outcome: &Outcome, out: &mut Outbox<Effect>) {
        if outcome.checkpoint && self.checkpoint_asked.take().is_some() {
            out.push(Effect::CheckpointAsked(false));
        }
    }
}
