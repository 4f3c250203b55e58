//! Carries out the faults of a schedule in a simulated world, and checks the world after every
//! event.

use super::coverage::FELT;
use super::event::Event;
use super::network::Process;
use super::schedule::{Deed, Settings};
use super::world::World;
use slowmo_protocol::coordinator;
use slowmo_protocol::gossip_peer::PARKED_MAX;
use slowmo_protocol::ident::{NodeId, ShardId};
use slowmo_protocol::membership;
use slowmo_protocol::node::PARKED_MAX as STREAMS_PARKED_MAX;
use slowmo_protocol::trace::Fault;
use slowmo_protocol::trace::{End, Event as Traced};
use std::collections::BTreeSet;

impl World {
    pub(super) fn fault(&mut self, index: usize) {
        if self.quiet {
            return;
        }
        let (at, deed) = self.deeds[index].clone();
        let done = match deed.clone() {
            Deed::Fault(fault) => self.carry_out(fault),
            Deed::Start(node, settings, clock_back) => {
                let allowed = self.begins(&Fault::Start { node });
                if allowed {
                    self.start(node, settings, clock_back);
                }
                allowed
            }
            Deed::Equivocate(node) => {
                let process = self.process(node);
                if let Some(process) = process {
                    self.processes[process].lies = true;
                    self.processes[process].lied = true;
                }
                process.is_some()
            }
            Deed::Set(node, values) => {
                let process = self.process(node);
                if let Some(process) = process {
                    self.tell(process, coordinator::In::AskSettings(values), 0);
                }
                process.is_some()
            }
            Deed::KillHolders(shard) => {
                let mut killed = false;
                for node in self.holders(shard) {
                    killed |= self.carry_out(Fault::Kill { node });
                }
                killed
            }
        };
        if !done {
            self.not_done.push((at, deed));
        }
    }

    /// All holders of a shard, with the index counted around through the shards that have holders.
    fn holders(&self, shard: u32) -> Vec<NodeId> {
        let living: Vec<(NodeId, &[ShardId])> = self
            .living()
            .filter_map(|process| {
                let start = self.processes[process].node.start;
                self.holds
                    .get(&start)
                    .map(|shards| (start.node, shards.as_slice()))
            })
            .collect();
        let shards: BTreeSet<ShardId> = living
            .iter()
            .flat_map(|(_, shards)| shards.iter().copied())
            .collect();
        let chosen = shards
            .iter()
            .nth(shard as usize % shards.len().max(1))
            .copied();
        let holds = |shards: &[ShardId]| chosen.is_some_and(|chosen| shards.contains(&chosen));
        living
            .into_iter()
            .filter(|(_, shards)| holds(shards))
            .map(|(node, _)| node)
            .collect()
    }

    /// Records a fault, if it is allowed.
    fn begins(&mut self, fault: &Fault) -> bool {
        let allowed = self.is_allowed(fault);
        if allowed {
            self.coverage.under(Some(fault.name()));
            self.felt_until = self.now + FELT;
            self.record(Traced::Faulted {
                fault: fault.clone(),
            });
        }
        allowed
    }

    fn carry_out(&mut self, fault: Fault) -> bool {
        if !self.begins(&fault) {
            return false;
        }
        match fault {
            Fault::Kill { node } => {
                self.with(node, |world, process| world.end(process, End::Killed))
            }
            Fault::Start { node } => _ = self.start(node, Settings::Joins, 0),
            Fault::Pause { node, span } => self.with(node, |world, process| {
                let until = world.now + span.0;
                let running = &mut world.processes[process];
                running.paused_until = running.paused_until.max(until);
            }),
            Fault::Drain { node } => self.with(node, Self::drain),
            Fault::Slow { node, hundredths } => self.with(node, |world, process| {
                world.processes[process].node.training.slowness = hundredths.into();
            }),
            Fault::SlowDisk { node, span } => self.with(node, |world, process| {
                world.processes[process].node.rounds.work = span.0
            }),
            Fault::Drift { node, millionths } => self.with(node, |world, process| {
                let now = world.now;
                world.processes[process].clock.drift(now, millionths.into());
            }),
            Fault::Links { from, to, link } => {
                let opened = self.network.set(&from, &to, link);
                opened
                    .into_iter()
                    .for_each(|(from, to)| self.open(from, to));
            }
            Fault::Break { one, other } => self.break_between(one, other),
            Fault::Heal => self.heal(),
            // Checkpoints have no part in the protocol.
            Fault::FullDisk { .. } => {}
        }
        true
    }

    /// The living process of a node.
    pub(super) fn process(&self, node: NodeId) -> Option<Process> {
        self.newest
            .get(&node)
            .copied()
            .filter(|process| self.processes[*process].alive)
    }

    fn with(&mut self, node: NodeId, act: impl FnOnce(&mut Self, Process)) {
        if let Some(process) = self.process(node) {
            act(self, process);
        }
    }

    fn drain(&mut self, process: Process) {
        self.processes[process].draining = true;
        self.tell(process, membership::In::Drain, 0);
    }

    fn heal(&mut self) {
        let opened = self.network.heal();
        opened
            .into_iter()
            .for_each(|(from, to)| self.open(from, to));
    }

    fn break_between(&mut self, one: NodeId, other: NodeId) {
        if let (Some(one), Some(other)) = (self.process(one), self.process(other)) {
            self.end_session(one, other, false);
            self.end_session(other, one, false);
        }
    }

    /// Whether a fault leaves a node that holds the model: without one there is no state to
    /// continue from.
    fn is_allowed(&self, fault: &Fault) -> bool {
        match fault {
            Fault::Kill { node } | Fault::Drain { node } => self
                .process(*node)
                .is_some_and(|process| self.may_go(process)),
            Fault::Start { node } => self.process(*node).is_none(),
            Fault::Pause { node, .. } => self.process(*node).is_some(),
            _ => true,
        }
    }

    /// Whether a process may go: another member of the furthest history stays, so that what was
    /// decided last is held by one that can continue from it.
    fn may_go(&self, process: Process) -> bool {
        let Some(furthest) = self.watch.history().furthest() else {
            return self.processes[process].node.rounds.applied == 0 && self.now > 0;
        };
        let stays = |start: &&slowmo_protocol::trace::Start| {
            let other = self.process(start.node).filter(|other| *other != process);
            other.is_some_and(|other| {
                let running = &self.processes[other];
                running.node.start == **start && !running.draining
            })
        };
        furthest.decided.next.iter().any(|start| stays(&start))
    }

    /// Ends the faults. Dead nodes come back. So do nodes that left, if those that stay cannot
    /// continue without them: they left while those were taken for dead. Bootstrap members may
    /// still bootstrap if nothing was decided.
    pub(super) fn fall_quiet(&mut self) {
        self.mend();
        let gone: Vec<NodeId> = self
            .newest
            .keys()
            .copied()
            .filter(|node| self.process(*node).is_none())
            .collect();
        let goes_on = self.goes_on();
        let nothing_decided = self.watch.history().furthest().is_none();
        for node in gone {
            let founds = nothing_decided && self.config.founders.contains(&node);
            if !self.left(node) || !goes_on {
                self.start(
                    node,
                    if founds {
                        Settings::Founds
                    } else {
                        Settings::Joins
                    },
                    0,
                );
            }
        }
        self.coverage.under(None);
        self.record(Traced::Quiet);
    }

    /// Ends the faults, but dead nodes stay dead until it was checked whether the others continue.
    pub(super) fn fall_still(&mut self) {
        self.fall_mended();
        self.still = Some(self.now);
        self.at(self.now + super::going_on::LOOK_EVERY, Event::GoesOn);
    }

    /// Ends the faults of a run that ends with its training: the dead stay dead.
    pub(super) fn fall_mended(&mut self) {
        self.record(Traced::Faulted { fault: Fault::Heal });
        self.mend();
    }

    /// Restores links, clocks and speeds.
    fn mend(&mut self) {
        self.heal();
        // A node that lied is left out until its process is restarted, so it is killed. The only
        // member that is left stays, and may still be shown its lie.
        let lie = |process: &Process| self.processes[*process].lies;
        let liars: Vec<Process> = self.living().filter(lie).collect();
        for process in liars {
            self.processes[process].lies = false;
            let node = self.id(process);
            self.carry_out(Fault::Kill { node });
        }
        self.quiet = true;
        let now = self.now;
        for running in &mut self.processes {
            running.node.training.slowness = 100;
            running.node.rounds.work = 0;
            running.clock.drift(now, super::clock::RIGHT);
        }
    }

    /// Whether the newest incarnation of a node left in order.
    fn left(&self, node: NodeId) -> bool {
        self.newest
            .get(&node)
            .is_some_and(|process| self.processes[*process].ended == Some(End::Left))
    }

    /// Whether a member on which the furthest history counts is alive.
    fn goes_on(&self) -> bool {
        let furthest = self.watch.history().furthest();
        furthest.is_none_or(|known| {
            known
                .decided
                .next
                .iter()
                .any(|start| self.watch.history().living().contains(start))
        })
    }

    /// Checks after every event that nothing exceeds its bound.
    pub(super) fn check(&mut self, process: Process) {
        if self.now >= self.felt_until {
            self.coverage.under(None);
        }
        let running = &self.processes[process];
        let start = running.node.start;
        let models_kept_max = self.models_kept_max;
        let gauges = [
            (
                "parked round streams",
                running.node.rounds.parked() as u64,
                STREAMS_PARKED_MAX as u64,
            ),
            (
                "parked gossip streams",
                running.node.gossip.parked() as u64,
                PARKED_MAX as u64,
            ),
            (
                "models kept for gossip",
                running.node.gossip.models() as u64,
                models_kept_max,
            ),
        ];
        for (name, value, bound) in gauges {
            let most = self.fullest.entry(name).or_default();
            if value > *most {
                *most = value;
                self.record(Traced::Gauge {
                    start,
                    name: name.to_owned(),
                    value,
                    bound,
                });
            }
        }
    }
}
