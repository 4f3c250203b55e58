//! Whether those who live go on without those who do not, once nothing goes wrong any more.

use super::network::Process;
use super::node::Founding;
use super::world::World;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::trace::{Decided, End, Start};

impl World {
    /// Breaks a rule unless everybody who lives is a member, and rounds are decided; where no quorum lives, everybody says why it waits.
    pub(super) fn judge_going_on(&mut self) {
        if let Err(what) = self.going_on() {
            self.watch.broken(self.now, "liveness", what);
        }
    }

    fn going_on(&self) -> Result<(), String> {
        let still = self.still.unwrap_or(self.now);
        let within = (self.now - still) / 1_000;
        let living: Vec<Process> = self.living().filter(|process| !self.processes[*process].draining).collect();
        let starts: Vec<Start> = living.iter().map(|process| self.processes[*process].node.start).collect();
        let Some(known) = self.watch.history().furthest() else {
            let founders = living.iter().filter(|process| self.processes[**process].founding != Founding::Never).count();
            let can = founders >= self.config.min_nodes;
            return if can { Err(format!("nobody founded within {within} ms; {starts:?} live")) } else { self.all_wait(&living, still) };
        };
        if !self.can_go_on(&known.decided) {
            return self.all_wait(&living, still);
        }
        if known.at.0 < still {
            return Err(format!("no round was decided within {within} ms; {starts:?} live, and {:?} are the members", known.decided.next));
        }
        match starts.iter().find(|start| !known.decided.next.contains(start)) {
            Some(start) => Err(format!("{} is no member {within} ms after the faults", start.node)),
            None => Ok(()),
        }
    }

    /// Whether enough of those live who may decide what comes next.
    fn can_go_on(&self, decided: &Decided) -> bool {
        let history = self.watch.history();
        let goes_on = |start: &Start| {
            let process = self.process(start.node).filter(|process| self.processes[*process].node.start == *start);
            process.is_some_and(|process| !self.processes[process].draining)
        };
        if !decided.next.iter().any(goes_on) {
            return false;
        }
        let voters = decided.next_voters();
        let starts = voters.iter().map(|voter| Start { node: voter.node, incarnation: voter.incarnation });
        let there = starts.filter(|start| history.living().contains(start) && (decided.next.contains(start) || !self.leaves(*start)));
        self.config.quorum == Quorum::Survivors || voters.is_quorum(there.map(|start| start.node))
    }

    /// Whether a start left in order, or is about to.
    fn leaves(&self, start: Start) -> bool {
        let running = self.processes.iter().find(|running| running.node.start == start);
        running.is_some_and(|running| running.draining || running.ended == Some(End::Left))
    }

    fn all_wait(&self, living: &[Process], still: u64) -> Result<(), String> {
        let silent = |process: &&Process| {
            let node = &self.processes[**process].node;
            let goes_on = self.watch.history().applied(node.start).is_some_and(|(_, at)| at.0 >= still);
            !goes_on && node.membership.waiting.is_none() && node.rounds.waiting.is_none()
        };
        let silent: Vec<NodeId> = living.iter().filter(silent).map(|process| self.processes[*process].node.start.node).collect();
        if silent.is_empty() { Ok(()) } else { Err(format!("no quorum lives, and {silent:?} do not say why they wait")) }
    }
}
