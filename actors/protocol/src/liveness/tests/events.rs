//! Single events, and bytes that no correct node sends.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::ident::{ClusterId, Incarnation, NodeId};
use crate::liveness::codec::{PACKET_BYTES_MAX, bytes, packet};
use crate::liveness::{DownCause, Effect, In, Liveness, POLL_EVERY, Settings};
use crate::machine::{Identity, Machine, Outbox};
use crate::time::{Instant, Span};
use crate::wire::{
    Content, DATAGRAM_BYTES_MAX, Datagram, Life, LifeState, LifeUpdate, SwimMessage, SwimPacket,
};
use proptest::prelude::*;

const TWO: NodeId = NodeId(2);
const FIRST: Incarnation = Incarnation(1);

/// Node 1, which watches nodes 2 and 3.
struct Watcher {
    machine: Liveness,
    now: Instant,
}

impl Watcher {
    fn new() -> Self {
        let identity = Identity {
            cluster: ClusterId(1),
            node: NodeId(1),
            incarnation: FIRST,
        };
        let mut watcher = Self {
            machine: Liveness::new(Settings::new(identity)),
            now: Instant(0),
        };
        watcher.feed(In::Members(vec![
            (NodeId(1), FIRST),
            (TWO, FIRST),
            (NodeId(3), FIRST),
        ]));
        watcher
    }

    fn feed(&mut self, event: In) -> Vec<Effect> {
        let mut out = Outbox::default();
        self.machine.handle(event, self.now, &mut out);
        out.take()
    }

    /// Lets time pass in which only these are heard.
    fn pass(&mut self, span: Span, heard: &[NodeId]) -> Vec<Effect> {
        let end = self.now.after(span);
        let mut effects = Vec::new();
        while let Some(deadline) = self
            .machine
            .next_deadline()
            .filter(|deadline| *deadline <= end)
        {
            self.now = self.now.max(deadline);
            heard
                .iter()
                .for_each(|node| effects.extend(self.feed(In::Heard(*node))));
            effects.extend(self.feed(In::Tick));
        }
        self.now = end;
        effects
    }
}

fn verdicts(effects: Vec<Effect>) -> Vec<Effect> {
    effects
        .into_iter()
        .filter(|effect| matches!(effect, Effect::Down(..) | Effect::Up(..)))
        .collect()
}

fn down(cause: DownCause) -> Vec<Effect> {
    vec![Effect::Down(TWO, FIRST, cause)]
}

#[test]
fn deaths_that_are_told_are_believed_at_once_and_once() {
    for (event, cause) in [
        (In::Exited(TWO, Some(FIRST)), DownCause::Exited),
        (In::Exited(TWO, None), DownCause::Exited),
        (In::Gone(TWO), DownCause::Left),
        (In::PeerUp(TWO, Incarnation(2)), DownCause::Superseded),
        // Its clock may have stepped back in between: whoever connects is the start that lives.
        (In::PeerUp(TWO, Incarnation(0)), DownCause::Superseded),
    ] {
        let mut watcher = Watcher::new();
        watcher.now = Instant(5_000);
        assert_eq!(verdicts(watcher.feed(event.clone())), down(cause));
        assert_eq!(verdicts(watcher.feed(event)), []);
        assert!(watcher.machine.is_down(TWO) && !watcher.machine.is_down(NodeId(3)));
        assert_eq!(
            verdicts(watcher.feed(In::PeerUp(TWO, FIRST))),
            [Effect::Up(TWO, FIRST)]
        );
    }
    let mut watcher = Watcher::new();
    for event in [
        In::Exited(TWO, Some(Incarnation(9))),
        In::Gone(NodeId(9)),
        In::PortRefused(TWO),
    ] {
        assert_eq!(verdicts(watcher.feed(event)), []);
    }
}

#[test]
fn a_death_by_silence_probes_the_port_at_once_and_told_again_once_it_is_known_to_be_an_end() {
    let mut watcher = Watcher::new();
    let mut effects = Vec::new();
    while verdicts(effects.clone()).is_empty() {
        effects.extend(watcher.pass(Span::from_millis(100), &[NodeId(3)]));
        assert!(watcher.now.0 < 60_000_000);
    }
    assert!(
        matches!(
            verdicts(effects.clone())[..],
            [Effect::Down(TWO, FIRST, cause)] if !cause.has_ended()
        ),
        "{effects:?}"
    );
    let at = effects
        .iter()
        .position(|effect| matches!(effect, Effect::Down(..)))
        .unwrap();
    assert_eq!(effects[at + 1], Effect::PortProbe(TWO));
    assert_eq!(
        verdicts(watcher.feed(In::PortRefused(TWO))),
        down(DownCause::Refused)
    );
    for event in [
        In::PortRefused(TWO),
        In::Exited(TWO, None),
        In::Gone(TWO),
        In::PeerUp(TWO, Incarnation(2)),
    ] {
        assert_eq!(verdicts(watcher.feed(event)), [], "an end is told once");
    }
}

#[test]
fn a_refusal_counts_only_while_nothing_was_heard_since_the_probe() {
    let mut watcher = Watcher::new();
    let effects = watcher.pass(Span::from_millis(100), &[NodeId(3)]);
    assert!(
        effects.contains(&Effect::PortProbe(TWO))
            && !effects.contains(&Effect::PortProbe(NodeId(3)))
    );
    watcher.feed(In::Heard(TWO));
    assert_eq!(verdicts(watcher.feed(In::PortRefused(TWO))), []);
    watcher.pass(Span::from_millis(100), &[NodeId(3)]);
    assert_eq!(
        verdicts(watcher.feed(In::PortRefused(TWO))),
        down(DownCause::Refused)
    );
}

#[test]
fn the_silent_are_suspected_until_they_are_heard_or_dead() {
    let mut watcher = Watcher::new();
    let suspected = |watcher: &Watcher| watcher.machine.suspected().collect::<Vec<_>>();
    watcher.pass(Span::from_millis(300), &[NodeId(3)]);
    assert_eq!(suspected(&watcher), [TWO]);
    watcher.feed(In::Heard(TWO));
    assert_eq!(suspected(&watcher), []);
    assert_eq!(
        verdicts(watcher.pass(Span::from_millis(1_400), &[NodeId(3)])).len(),
        1
    );
    assert_eq!(suspected(&watcher), [], "it is known to be dead");
}

/// Every deadline moves by the time for which this process was stopped, and by a grace.
#[test]
fn a_pause_of_this_process_is_nobodys_silence() {
    let mut watcher = Watcher::new();
    let three = [NodeId(3)];
    watcher.pass(Span::from_millis(600), &three);
    watcher.now = watcher.now.after(Span::from_millis(5_000));
    assert_eq!(verdicts(watcher.feed(In::Tick)), []);
    let suspected: Vec<_> = watcher.machine.suspected().collect();
    assert_eq!(suspected, [TWO], "node 3 was heard before the pause");
    assert_eq!(verdicts(watcher.pass(Span::from_millis(400), &three)), []);
    let found = verdicts(watcher.pass(Span::from_millis(600), &three));
    assert_eq!(found.len(), 1, "the rest of its time is over: {found:?}");
}

fn told(state: LifeState) -> In {
    told_after(0, state)
}

/// The same after so many refutations.
fn told_after(refutations: u16, state: LifeState) -> In {
    let life = |node| Life {
        node: NodeId(node),
        incarnation: FIRST,
        renewals: 0,
    };
    let updates = vec![LifeUpdate {
        life: life(2),
        refutations,
        state,
    }];
    let packet = SwimPacket {
        source: life(3),
        refutations: 0,
        destination: life(1),
        message: SwimMessage::Gossip,
        updates,
    };
    In::Datagram {
        from: NodeId(3),
        bytes: Datagram::V1(Content::Swim(packet)).encode().unwrap(),
    }
}

#[test]
fn an_unconfirmed_death_is_believed_of_the_silent_only() {
    let both = [TWO, NodeId(3)];
    let mut watcher = Watcher::new();
    watcher.pass(Span::from_millis(500), &both);
    assert_eq!(verdicts(watcher.feed(told(LifeState::Down))), []);
    assert_eq!(
        verdicts(watcher.pass(Span::from_millis(3_000), &both)),
        [],
        "it is heard: the death was wrong"
    );
    assert_eq!(verdicts(watcher.feed(told(LifeState::Down))), []);
    let found = verdicts(watcher.pass(Span::from_millis(300), &[NodeId(3)]));
    assert_eq!(
        found,
        down(DownCause::Told(NodeId(3))),
        "silence confirms it"
    );

    let mut watcher = Watcher::new();
    watcher.pass(Span::from_millis(400), &[NodeId(3)]);
    assert_eq!(
        verdicts(watcher.feed(told(LifeState::Down))),
        down(DownCause::Told(NodeId(3)))
    );
}

#[test]
fn who_refutes_a_suspicion_is_given_its_whole_time_again() {
    for (refutations, deaths) in [(0, 1), (1, 0)] {
        let mut watcher = Watcher::new();
        watcher.pass(Span::from_millis(600), &[NodeId(3)]);
        watcher.feed(told_after(refutations, LifeState::Alive));
        let found = verdicts(watcher.pass(Span::from_millis(700), &[NodeId(3)]));
        assert_eq!(found.len(), deaths, "{refutations} refutations");
    }
}

#[test]
fn round_trips_lengthen_the_patience() {
    let dies_after = |round_trip: u64| {
        let mut watcher = Watcher::new();
        watcher.feed(In::RoundTrip(TWO, Span::from_millis(round_trip)));
        (0..500)
            .find(|_| !verdicts(watcher.pass(POLL_EVERY, &[NodeId(3)])).is_empty())
            .unwrap()
            * POLL_EVERY.as_millis()
    };
    let near = dies_after(1);
    let far = dies_after(300);
    assert!(
        (1_150..1_300).contains(&near) && (2_300..2_700).contains(&far),
        "{near} ms, {far} ms"
    );
}

#[test]
fn who_is_not_named_is_forgotten() {
    let mut watcher = Watcher::new();
    watcher.feed(In::Exited(TWO, None));
    watcher.feed(In::Members(vec![(NodeId(3), FIRST)]));
    assert_eq!(watcher.machine.listens_to(), [NodeId(3)]);
    assert_eq!(verdicts(watcher.feed(told(LifeState::Alive))), []);
    watcher.feed(In::Members(vec![(TWO, Incarnation(2)), (NodeId(3), FIRST)]));
    assert!(
        !watcher.machine.is_down(TWO),
        "another start is another life"
    );
    watcher.feed(In::Members(Vec::new()));
    assert_eq!(watcher.machine.listens_to(), []);
}

#[test]
fn what_foca_writes_fits_a_datagram() {
    let life = Life {
        node: NodeId(u64::MAX),
        incarnation: FIRST,
        renewals: u32::MAX,
    };
    let update = LifeUpdate {
        life,
        refutations: u16::MAX,
        state: LifeState::Down,
    };
    let message = SwimMessage::PingRequest {
        target: life,
        probe: 255,
    };
    let of = |updates: usize| SwimPacket {
        source: life,
        refutations: 1,
        destination: life,
        message,
        updates: vec![update; updates],
    };
    let fits = |updates: &usize| bytes(&of(*updates)).unwrap().len() <= PACKET_BYTES_MAX;
    let largest = (0..100).take_while(fits).last().unwrap();
    let encoded = Datagram::V1(Content::Swim(of(largest))).encode().unwrap();
    assert!(largest > 30 && encoded.len() <= DATAGRAM_BYTES_MAX);
    assert_eq!(packet(&bytes(&of(largest)).unwrap()), Ok(of(largest)));
}

fn lives() -> impl Strategy<Value = Life> {
    (0..5u64, 0..3u64, prop_oneof![0..3u32, Just(u32::MAX)]).prop_map(|(node, start, renewals)| {
        Life {
            node: NodeId(node),
            incarnation: Incarnation(start),
            renewals,
        }
    })
}

fn packets() -> impl Strategy<Value = SwimPacket> {
    let states = prop_oneof![
        Just(LifeState::Alive),
        Just(LifeState::Suspect),
        Just(LifeState::Down)
    ];
    let update =
        (lives(), any::<u16>(), states).prop_map(|(life, refutations, state)| LifeUpdate {
            life,
            refutations,
            state,
        });
    let message = (0..11u8, lives(), any::<u8>()).prop_map(|(number, life, probe)| match number {
        0 => SwimMessage::Ping { probe },
        1 => SwimMessage::Acknowledge { probe },
        2 => SwimMessage::PingRequest {
            target: life,
            probe,
        },
        3 => SwimMessage::IndirectPing {
            origin: life,
            probe,
        },
        4 => SwimMessage::IndirectAcknowledge {
            target: life,
            probe,
        },
        5 => SwimMessage::ForwardedAcknowledge {
            origin: life,
            probe,
        },
        6 => SwimMessage::Announce,
        7 => SwimMessage::Feed,
        8 => SwimMessage::Gossip,
        9 => SwimMessage::Broadcast,
        _ => SwimMessage::BelievedDead,
    });
    let updates = proptest::collection::vec(update, 0..6);
    (lives(), any::<u16>(), lives(), message, updates).prop_map(
        |(source, refutations, destination, message, updates)| SwimPacket {
            source,
            refutations,
            destination,
            message,
            updates,
        },
    )
}

proptest! {
    /// An authenticated peer may say anything: a node that is heard is not marked down, one that is
    /// silent is, and nothing panics.
    #[test]
    fn hostile_packets_bury_nobody_who_is_heard(
        packets in proptest::collection::vec((2..5u64, packets()), 1..40)
    ) {
        let mut watcher = Watcher::new();
        for (from, packet) in packets {
            let bytes = Datagram::V1(Content::Swim(packet)).encode().unwrap();
            let effects = watcher.feed(In::Datagram { from: NodeId(from), bytes });
            prop_assert_eq!(verdicts(effects), []);
            prop_assert_eq!(verdicts(watcher.pass(Span::from_millis(30), &[TWO, NodeId(3)])), []);
        }
        watcher.pass(Span::from_millis(3_000), &[NodeId(3)]);
        prop_assert!(watcher.machine.is_down(TWO) && !watcher.machine.is_down(NodeId(3)));
    }
}
