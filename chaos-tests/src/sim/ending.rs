//! Checks how a training ends: the nodes leave in order after their last step, and a node that was
//! left out of the last rounds is told that it is over.

use super::mail::Mail;
use super::network::Process;
use super::node::training::Doing;
use super::world::World;
use slowmo_protocol::membership;
use slowmo_protocol::node::{self, ToMembership};
use slowmo_protocol::trace::Start;
use slowmo_protocol::wire::Message;

/// The rule that nobody waits for a training that is over.
const ENDING: &str = "training_ends";

/// The incarnation that says in this message that it leaves for good.
pub(super) fn leaver(mail: &Mail) -> Option<Start> {
    let Mail::Node(node::Mail::Membership(ToMembership::In(membership::In::Frame {
        header,
        message,
    }))) = mail
    else {
        return None;
    };
    matches!(**message, Message::Leave { contributes: false }).then_some(Start {
        node: header.sender,
        incarnation: header.incarnation,
    })
}

impl World {
    /// Whether no other member of the newest outcome still trains.
    pub(super) fn others_are_done(&self, process: Process) -> bool {
        let trains = |other: Process| {
            let running = &self.processes[other];
            let leaves = matches!(running.node.training.doing, Doing::Leaving | Doing::Ended);
            other != process && running.alive && !leaves
        };
        !self.members().into_iter().any(trains)
    }

    /// The processes that the newest outcome counts on.
    fn members(&self) -> Vec<Process> {
        let furthest = self.watch.history().furthest();
        let next: &[Start] = furthest.map_or(&[], |known| &known.decided.next);
        let processes = 0..self.processes.len();
        let counts = |process: &Process| next.contains(&self.processes[*process].node.start);
        processes.filter(counts).collect()
    }

    /// Whether what a process waits for is the newest view, and not an earlier one.
    fn knows_the_newest_view(&self, process: Process) -> bool {
        let next = self.watch.history().furthest();
        let next = next.map_or(&[][..], |known| &known.decided.next);
        let sought = self.processes[process].node.membership.sought();
        sought.is_none_or(|sought| {
            let ids = sought.view.members().iter().map(|member| member.id);
            ids.eq(next.iter().map(|start| start.node))
        })
    }

    /// Breaks a rule if a process neither ended nor says why it waits, or if it waits for a quorum of
    /// the newest view although all its members told it that they leave. Somebody who slept meanwhile
    /// may still be a member of an earlier view: the others then wait for it.
    pub(super) fn judge_ending(&mut self) {
        let members = self.members();
        let nobody_stands = self.nobody_stands();
        let living: Vec<Process> = self.living().collect();
        for process in living {
            let waits = {
                let node = &self.processes[process].node;
                // One that leaves waits for its last messages, as long as for a round.
                let leaves = node.training.doing == Doing::Leaving;
                leaves || node.membership.waiting.is_some() || node.rounds.waiting.is_some()
            };
            let told = |member: &&Process| {
                let running = &self.processes[**member];
                let said_so = self.processes[process]
                    .leavers
                    .contains(&running.node.start);
                said_so && !running.alive && !running.draining
            };
            let others = || members.iter().filter(|member| **member != process);
            let all_told = others().all(|member| told(&member)) && others().count() > 0;
            let knows = all_told && self.knows_the_newest_view(process);
            if !waits || (knows && nobody_stands) {
                let what = format!("the training is over, and {}", self.describe(process));
                self.watch.broken(self.now, ENDING, what);
            }
        }
    }
}
