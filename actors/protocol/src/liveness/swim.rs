//! Wrapper of foca with its packets and timers as data. Performs no I/O; draws from a seeded
//! generator.
//!
//! Suspicions are not timed here: foca's request for a suspicion timer comes out as
//! [`Change::Suspected`], and the machine, which knows which nodes were heard meanwhile, declares
//! the death.

use super::codec::{self, Layout, PACKET_BYTES_MAX};
use crate::ident::{Incarnation, NodeId};
use crate::time::Span;
use crate::wire::{Life, SwimMessage, SwimPacket};
use core::num::{NonZeroU8, NonZeroUsize};
use core::time::Duration;
use foca::{
    Config, Foca, Identity, Member, NoCustomBroadcast, Notification, PeriodicParams, Runtime,
    State, Timer,
};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

/// Number of nodes that are asked to probe a silent one, and that news is sent to at once.
const FAN_OUT: usize = 3;
/// Number of times that a piece of news is sent along.
const TRANSMISSIONS: u8 = 10;

impl Identity for Life {
    /// Each incarnation of a node by itself: incarnations have no order, so none replaces another.
    type Addr = (NodeId, Incarnation);

    fn renew(&self) -> Option<Self> {
        Some(Self {
            renewals: self.renewals.saturating_add(1),
            ..*self
        })
    }

    fn addr(&self) -> Self::Addr {
        (self.node, self.incarnation)
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.renewals > adversary.renewals
    }
}

/// Everything that foca requested during one call.
#[derive(Default)]
pub(super) struct Outputs {
    pub packets: Vec<SwimPacket>,
    /// Timers, each with the time until it is due.
    pub timers: Vec<(Timer<Life>, Span)>,
    pub changes: Vec<Change>,
}

/// A change that foca reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Up(Life),
    Down(Life),
    /// A probe failed: the life is dead unless it is heard, or refutes with more refutations than
    /// this number.
    Suspected(Life, u16),
    /// This node was declared dead and begins another life.
    Renewed,
}

impl Runtime<Life> for Outputs {
    fn notify(&mut self, notification: Notification<'_, Life>) {
        match notification {
            Notification::MemberUp(life) => self.changes.push(Change::Up(*life)),
            Notification::MemberDown(life) => self.changes.push(Change::Down(*life)),
            Notification::Rejoin(_) => self.changes.push(Change::Renewed),
            _ => {}
        }
    }

    fn send_to(&mut self, _to: Life, data: &[u8]) {
        // The codec can read what it wrote.
        self.packets.extend(codec::packet(data));
    }

    fn submit_after(&mut self, event: Timer<Life>, after: Duration) {
        match event {
            Timer::ChangeSuspectToDown {
                member_id,
                incarnation,
                ..
            } => self.changes.push(Change::Suspected(member_id, incarnation)),
            timer => self.timers.push((
                timer,
                Span(u64::try_from(after.as_micros()).unwrap_or(u64::MAX)),
            )),
        }
    }
}

/// The SWIM protocol of one node.
pub(super) struct Swim {
    foca: Foca<Life, Layout, ChaCha8Rng, NoCustomBroadcast>,
    /// The life that is being probed, and the probe's number.
    probing: Option<(Life, u8)>,
    /// Calls that foca refused; only packets that no correct node sends should cause any.
    pub errors: u64,
}

impl Swim {
    pub(super) fn new(
        node: NodeId,
        incarnation: Incarnation,
        probe_interval: Span,
        seed: u64,
    ) -> Self {
        let life = Life {
            node,
            incarnation,
            renewals: 0,
        };
        let foca = Foca::new(
            life,
            config(probe_interval),
            ChaCha8Rng::seed_from_u64(seed),
            Layout,
        );
        Self {
            foca,
            probing: None,
            errors: 0,
        }
    }

    /// This node's life.
    pub(super) fn life(&self) -> Life {
        *self.foca.identity()
    }

    /// The node that the probe under way asks.
    pub(super) fn probed(&self) -> Option<NodeId> {
        self.probing.map(|(life, _)| life.node)
    }

    /// Refutations of a node; `None` if it is down or unknown.
    pub(super) fn refutations(&self, node: NodeId) -> Option<u16> {
        self.member(node)
            .filter(|member| member.state() != State::Down)
            .map(Member::incarnation)
    }

    /// Begins to watch a node.
    pub(super) fn watch(&mut self, node: NodeId, incarnation: Incarnation) -> Outputs {
        self.apply(
            [Member::alive(Life {
                node,
                incarnation,
                renewals: 0,
            })],
            false,
        )
    }

    /// Forgets a node without telling others.
    pub(super) fn forget(&mut self, node: NodeId) {
        let Some(member) = self.member(node).cloned() else {
            return;
        };
        let _ = self.apply(
            [Member::new(*member.id(), member.incarnation(), State::Down)],
            false,
        );
        self.call(|foca, wishes| foca.handle_timer(Timer::RemoveDown(*member.id()), wishes));
        self.probing.take_if(|(life, _)| life.node == node);
    }

    /// Suspects a node, and tells others, including the node itself.
    pub(super) fn suspect(&mut self, node: NodeId) -> Outputs {
        let Some((life, refutations)) = self
            .member(node)
            .map(|member| (*member.id(), member.incarnation()))
        else {
            return Outputs::default();
        };
        let mut wishes = self.apply([Member::new(life, refutations, State::Suspect)], true);
        wishes.changes.push(Change::Suspected(life, refutations));
        wishes
    }

    /// Declares a node dead, and tells others.
    pub(super) fn mark_down(&mut self, node: NodeId) -> Outputs {
        let Some((life, refutations)) = self
            .member(node)
            .map(|member| (*member.id(), member.incarnation()))
        else {
            return Outputs::default();
        };
        let mut wishes = self.apply([Member::new(life, refutations, State::Down)], true);
        wishes.append(self.call(|foca, wishes| foca.gossip(wishes)));
        wishes.append(self.call(|foca, wishes| foca.gossip(wishes)));
        wishes
    }

    /// Revokes a node's death: it has proved to be alive.
    pub(super) fn revive(&mut self, node: NodeId) -> Outputs {
        let Some(life) = self.member(node).map(|member| *member.id()) else {
            return Outputs::default();
        };
        self.call(|foca, wishes| foca.handle_timer(Timer::RemoveDown(life), wishes));
        self.apply([Member::alive(life)], true)
    }

    /// Counts a sign of life as the answer to the probe under way, if that probe asks its sender.
    pub(super) fn heard(&mut self, node: NodeId) {
        let Some((target, probe)) = self.probing.take_if(|(life, _)| life.node == node) else {
            return;
        };
        let message = SwimMessage::Acknowledge { probe };
        let answer = SwimPacket {
            source: target,
            refutations: 0,
            destination: self.life(),
            message,
            updates: Vec::new(),
        };
        // foca requests nothing on an answer.
        let _ = self.receive(&answer);
    }

    /// Tells a node that it is believed to be dead.
    pub(super) fn tell_dead(&self, node: NodeId) -> Option<SwimPacket> {
        let destination = self.member(node).map(|member| *member.id())?;
        Some(SwimPacket {
            source: self.life(),
            refutations: 0,
            destination,
            message: SwimMessage::BelievedDead,
            updates: Vec::new(),
        })
    }

    /// Handles a packet from the network.
    pub(super) fn receive(&mut self, packet: &SwimPacket) -> Outputs {
        let Ok(data) = codec::bytes(packet) else {
            return Outputs::default();
        };
        let mut wishes = self.call(|foca, wishes| foca.handle_data(&data, wishes));
        if wishes.changes.contains(&Change::Renewed) {
            self.probing = None;
            wishes.append(self.apply([], true));
            wishes.append(self.introduce());
        }
        wishes
    }

    /// Handles a timer that is due.
    pub(super) fn fire(&mut self, timer: Timer<Life>) -> Outputs {
        self.call(|foca, wishes| foca.handle_timer(timer, wishes))
    }

    /// Announces a new life of this node to every member.
    fn introduce(&mut self) -> Outputs {
        let others: Vec<Life> = self
            .foca
            .iter_members()
            .map(|member| *member.id())
            .collect();
        let mut wishes = Outputs::default();
        for other in others {
            wishes.append(self.call(|foca, wishes| foca.announce(other, wishes)));
        }
        wishes
    }

    fn member(&self, node: NodeId) -> Option<&Member<Life>> {
        self.foca
            .iter_membership_state()
            .find(|member| member.id().node == node)
    }

    fn apply<const COUNT: usize>(&mut self, members: [Member<Life>; COUNT], tell: bool) -> Outputs {
        self.call(|foca, wishes| foca.apply_many(members.into_iter(), tell, wishes))
    }

    fn call(
        &mut self,
        call: impl FnOnce(
            &mut Foca<Life, Layout, ChaCha8Rng, NoCustomBroadcast>,
            &mut Outputs,
        ) -> Result<(), foca::Error>,
    ) -> Outputs {
        let mut wishes = Outputs::default();
        self.errors += u64::from(call(&mut self.foca, &mut wishes).is_err());
        let ping = wishes
            .packets
            .iter()
            .find_map(|packet| match packet.message {
                SwimMessage::Ping { probe } => Some((packet.destination, probe)),
                _ => None,
            });
        self.probing = ping.or(self.probing);
        wishes
    }
}

impl Outputs {
    fn append(&mut self, mut other: Self) {
        self.packets.append(&mut other.packets);
        self.timers.append(&mut other.timers);
        self.changes.append(&mut other.changes);
    }
}

fn config(probe_interval: Span) -> Config {
    let interval = Duration::from_micros(probe_interval.0.max(2));
    let fan_out = NonZeroUsize::new(FAN_OUT).unwrap_or(NonZeroUsize::MIN);
    Config {
        probe_period: interval,
        probe_rtt: interval / 2,
        num_indirect_probes: fan_out,
        max_transmissions: NonZeroU8::new(TRANSMISSIONS).unwrap_or(NonZeroU8::MIN),
        // The machine times suspicions.
        suspect_to_down_after: interval,
        remove_down_after: None,
        max_packet_size: NonZeroUsize::new(PACKET_BYTES_MAX).unwrap_or(NonZeroUsize::MIN),
        notify_down_members: true,
        periodic_announce: None,
        periodic_announce_to_down_members: None,
        periodic_gossip: Some(PeriodicParams {
            frequency: interval / 2,
            num_members: fan_out,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A probe of the previous incarnation fails after another one, whose clock stepped back, is
    /// watched.
    #[test]
    fn a_start_with_a_lower_incarnation_takes_the_place_of_the_one_before() {
        let mut swim = Swim::new(NodeId(1), Incarnation(1), Span::from_millis(100), 7);
        let mut timers = swim.watch(NodeId(2), Incarnation(9)).timers;
        let fire = |swim: &mut Swim, timers: &mut Vec<(Timer<Life>, Span)>| {
            let due: Vec<_> = std::mem::take(timers);
            due.into_iter()
                .for_each(|(timer, _)| timers.extend(swim.fire(timer).timers));
        };
        while swim.probed() != Some(NodeId(2)) {
            fire(&mut swim, &mut timers);
        }
        swim.forget(NodeId(2));
        timers.extend(swim.watch(NodeId(2), Incarnation(5)).timers);
        for _ in 0..4 {
            fire(&mut swim, &mut timers);
        }
        let known = swim.member(NodeId(2)).map(|member| member.id().incarnation);
        assert_eq!(known, Some(Incarnation(5)));
    }
}
