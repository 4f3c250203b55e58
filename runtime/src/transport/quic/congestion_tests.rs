//! The controller over simulated links. Each node has one line to the others, and one from them,
//! each with a queue in front of it; between them lie a delay and losses.
#![allow(clippy::unwrap_used)]

use super::super::settings::ACK_DELAY_MAX;
use super::*;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;

const PACKET: u64 = 1450;
/// Packets that one acknowledgement covers.
const ACK_PACKETS: usize = 10;
/// Reordering after which a packet counts as lost.
const REORDERED: u64 = 3;
const INITIAL_WINDOW: u64 = 256 << 10;
/// Time without an acknowledgement after which a flow sends again.
const PROBE: Duration = Duration::from_millis(300);

/// Bytes of an acknowledgement.
const ACKNOWLEDGEMENT: u64 = 90;

/// The lines of every node, and what lies between them.
#[derive(Clone, Copy)]
struct Link {
    bytes_per_second: f64,
    /// Delay of packets and acknowledgements together.
    round_trip: Duration,
    queue_bytes: f64,
    loss: f64,
    /// Acknowledgements arrive together, so many apart: a busy receiver, or a router on the way.
    ack_batches: Duration,
}

const fn megabits(rate: u64) -> f64 {
    rate as f64 * 1e6 / 8.0
}

/// A flow from one node to another.
struct Flow {
    from: usize,
    to: usize,
    controller: Delivery,
    next: u64,
    in_flight: BTreeMap<u64, Instant>,
    delivered: u64,
    lost: u64,
    round_trip: Duration,
    /// When the pacer allows the next packet.
    paced: Instant,
    /// Packets at the receiver that are not acknowledged yet.
    received: Vec<u64>,
    starts: Instant,
    /// Whether its window allows more than it has.
    lacks_data: bool,
}

enum Event {
    /// So many bytes reach the line to a node; then something happens.
    Reach(usize, u64, Box<Event>),
    Arrive(usize, u64),
    /// The acknowledgement of what a flow's receiver has, which is due at the latest.
    Late(usize, u64),
    /// What a flow sent is lost, if none of it was acknowledged since so much was delivered.
    Silent(usize, u64),
    Ack(usize, Vec<u64>),
}

/// An exact average: every flow carries its share of a contribution, and then of the sums that its
/// node makes of the contributions that reach it.
#[derive(Clone, Copy)]
struct Average {
    share: u64,
}

/// The measurements of each flow, over a simulation's second half.
struct Seen {
    /// Share of the line.
    shares: Vec<f64>,
    /// Share of its packets that were lost.
    losses: Vec<f64>,
    /// Longest time in the queue.
    waited: Duration,
}

struct Network {
    link: Link,
    flows: Vec<Flow>,
    events: BTreeMap<(Instant, u64), Event>,
    numbered: u64,
    start: Instant,
    /// When the lines from the nodes are free, and those to them.
    up: Vec<Instant>,
    down: Vec<Instant>,
    /// What flows carry; without it they always have data. And what they had delivered before.
    average: Option<Average>,
    before: Vec<u64>,
    now: Instant,
    random: ChaCha8Rng,
    waited: Duration,
}

impl Network {
    /// Flows from one node to another, which start so late.
    fn new(link: Link, starts: &[Duration]) -> Self {
        let flows: Vec<_> = starts.iter().map(|start| (0, 1, *start)).collect();
        Self::of(link, 2, &flows)
    }

    /// A flow from each node to each other.
    fn mesh(link: Link, nodes: usize) -> Self {
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        let flows: Vec<_> = pairs
            .filter(|(from, to)| from != to)
            .map(|(from, to)| (from, to, Duration::ZERO))
            .collect();
        Self::of(link, nodes, &flows)
    }

    fn of(link: Link, nodes: usize, flows: &[(usize, usize, Duration)]) -> Self {
        let now = Instant::now();
        let flows = flows.iter().map(|(from, to, start)| Flow {
            from: *from,
            to: *to,
            controller: Delivery::new(INITIAL_WINDOW, now, PACKET as u16),
            next: 0,
            in_flight: BTreeMap::new(),
            delivered: 0,
            lost: 0,
            round_trip: link.round_trip,
            paced: now + *start,
            received: Vec::new(),
            starts: now + *start,
            lacks_data: false,
        });
        let flows: Vec<Flow> = flows.collect();
        let silent = (0..flows.len()).map(|index| {
            let key = (now + PROBE, index as u64);
            (key, Event::Silent(index, 0))
        });
        Self {
            link,
            events: silent.collect(),
            numbered: flows.len() as u64,
            average: None,
            before: vec![0; flows.len()],
            flows,
            start: now,
            up: vec![now; nodes],
            down: vec![now; nodes],
            now,
            random: ChaCha8Rng::seed_from_u64(7),
            waited: Duration::ZERO,
        }
    }

    fn at(&mut self, when: Instant, event: Event) {
        self.numbered += 1;
        self.events.insert((when, self.numbered), event);
    }

    fn is_lost_at_random(&mut self) -> bool {
        f64::from(self.random.next_u32()) < self.link.loss * f64::from(u32::MAX)
    }

    /// How much longer a line that is free then is busy.
    fn queued(&self, free: Instant) -> Duration {
        free.saturating_duration_since(self.now)
    }

    /// Whether a queue of so long has no room.
    fn is_full(&self, queued: Duration) -> bool {
        queued.as_secs_f64() * self.link.bytes_per_second > self.link.queue_bytes
    }

    fn sending(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.link.bytes_per_second)
    }

    /// Puts bytes on the line from a node; something happens once they are through the line to the
    /// other. Queues without room drop them.
    fn pass(&mut self, (from, to): (usize, usize), bytes: u64, then: Event) {
        let queued = self.queued(self.up[from]);
        if self.is_full(queued) || self.is_lost_at_random() {
            return;
        }
        self.waited = self.waited.max(queued);
        self.up[from] = self.up[from].max(self.now) + self.sending(bytes);
        let reaches = self.up[from] + self.link.round_trip / 2;
        self.at(reaches, Event::Reach(to, bytes, Box::new(then)));
    }

    /// Bytes that a flow may have sent by now.
    fn has(&self, index: usize) -> u64 {
        let Some(average) = self.average else {
            return u64::MAX;
        };
        let done = |other: usize| self.flows[other].delivered - self.before[other];
        let node = self.flows[index].from;
        let reached = (0..self.flows.len())
            .filter(|other| self.flows[*other].to == node)
            .map(|other| done(other).min(average.share))
            .min();
        self.before[index] + average.share + reached.unwrap_or_default()
    }

    /// Sends what windows and pacers allow now; returns when a pacer allows more.
    fn send(&mut self) -> Option<Instant> {
        let mut next = None;
        for index in 0..self.flows.len() {
            let has = self.has(index);
            loop {
                let flow = &mut self.flows[index];
                let window = flow.controller.window();
                let in_flight = flow.in_flight.len() as u64 * PACKET;
                flow.lacks_data = flow.delivered + in_flight >= has && in_flight < window;
                if flow.lacks_data {
                    break;
                }
                if self.now < flow.starts || in_flight >= window {
                    if self.now < flow.starts {
                        next = Some(next.unwrap_or(flow.starts).min(flow.starts));
                    }
                    break;
                }
                if self.now < flow.paced {
                    next = Some(next.unwrap_or(flow.paced).min(flow.paced));
                    break;
                }
                let pause = flow
                    .round_trip
                    .mul_f64(PACKET as f64 / (1.25 * window as f64));
                flow.paced = flow.paced.max(self.now) + pause;
                let number = flow.next;
                flow.next += 1;
                flow.in_flight.insert(number, self.now);
                flow.controller.on_sent(self.now, PACKET, number);
                let way = (flow.from, flow.to);
                self.pass(way, PACKET, Event::Arrive(index, number));
            }
        }
        next
    }

    fn acknowledge(&mut self, flow: usize) {
        let packets = std::mem::take(&mut self.flows[flow].received);
        if !packets.is_empty() {
            let way = (self.flows[flow].to, self.flows[flow].from);
            self.pass(way, ACKNOWLEDGEMENT, Event::Ack(flow, packets));
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Reach(node, bytes, then) => {
                let queued = self.queued(self.down[node]);
                if self.is_full(queued) {
                    return;
                }
                self.down[node] = self.down[node].max(self.now) + self.sending(bytes);
                let mut when = self.down[node];
                if let Event::Ack(..) = *then
                    && let batches = self.link.ack_batches.as_nanos()
                    && let Some(late) = (when - self.start).as_nanos().checked_rem(batches)
                {
                    when += Duration::from_nanos((batches - late) as u64);
                }
                self.at(when, *then);
            }
            Event::Arrive(index, number) => {
                let received = &mut self.flows[index].received;
                received.push(number);
                if received.len() >= ACK_PACKETS {
                    self.acknowledge(index);
                } else if received.len() == 1 {
                    self.at(self.now + ACK_DELAY_MAX, Event::Late(index, number));
                }
            }
            Event::Late(index, number) => {
                if self.flows[index].received.first() == Some(&number) {
                    self.acknowledge(index);
                }
            }
            Event::Ack(index, packets) => self.acknowledged(index, &packets),
            Event::Silent(index, before) => {
                let flow = &mut self.flows[index];
                if flow.delivered == before {
                    flow.lost += flow.in_flight.len() as u64 * PACKET;
                    flow.in_flight.clear();
                }
                let delivered = flow.delivered;
                self.at(self.now + PROBE, Event::Silent(index, delivered));
            }
        }
    }

    fn acknowledged(&mut self, index: usize, packets: &[u64]) {
        let flow = &mut self.flows[index];
        let largest = packets.iter().copied().max().unwrap();
        for number in packets {
            let Some(sent) = flow.in_flight.remove(number) else {
                continue;
            };
            flow.delivered += PACKET;
            flow.round_trip = (flow.round_trip * 7 + (self.now - sent)) / 8;
            flow.controller.acked(self.now, sent, PACKET);
        }
        let in_flight = flow.in_flight.len() as u64 * PACKET;
        flow.controller
            .on_end_acks(self.now, in_flight, flow.lacks_data, Some(largest));
        let lost: Vec<(u64, Instant)> = flow
            .in_flight
            .range(..largest.saturating_sub(REORDERED))
            .map(|(number, sent)| (*number, *sent))
            .collect();
        if let Some((_, sent)) = lost.last() {
            let bytes = lost.len() as u64 * PACKET;
            flow.lost += bytes;
            flow.controller
                .on_congestion_event(self.now, *sent, false, bytes);
        }
        for (number, _) in lost {
            flow.in_flight.remove(&number);
        }
    }

    fn run(&mut self, time: Duration) {
        self.run_until(self.now + time, |_| false);
    }

    /// Runs until then, or until something is so.
    fn run_until(&mut self, end: Instant, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            let paced = self.send();
            let event = self.events.first_key_value().map(|((when, _), _)| *when);
            let next = [paced, event].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else {
                self.now = end;
                return;
            };
            self.now = next;
            while let Some(entry) = self.events.first_entry()
                && entry.key().0 <= next
            {
                let event = entry.remove();
                self.happen(event);
            }
        }
    }

    /// An exact average of flows with such shares, and a pause after it; returns its time.
    fn average(&mut self, share: u64) -> Duration {
        let begun = self.now;
        self.before = self.flows.iter().map(|flow| flow.delivered).collect();
        self.average = Some(Average { share });
        self.run_until(begun + Duration::from_secs(60), |network| {
            let mut flows = network.flows.iter().zip(&network.before);
            flows.all(|(flow, before)| flow.delivered >= before + 2 * share)
        });
        let took = self.now - begun;
        self.run(Duration::from_millis(700));
        took
    }

    /// Runs twice this time and looks at the second half.
    fn see(&mut self, time: Duration) -> Seen {
        self.run(time);
        let before: Vec<(u64, u64)> = self
            .flows
            .iter()
            .map(|flow| (flow.delivered, flow.lost))
            .collect();
        self.waited = Duration::ZERO;
        self.run(time);
        let line = self.link.bytes_per_second * time.as_secs_f64();
        let changes = || self.flows.iter().zip(&before);
        Seen {
            shares: changes()
                .map(|(flow, (delivered, _))| (flow.delivered - delivered) as f64 / line)
                .collect(),
            losses: changes()
                .map(|(flow, (delivered, lost))| {
                    let lost = (flow.lost - lost) as f64;
                    lost / (lost + (flow.delivered - delivered) as f64)
                })
                .collect(),
            waited: self.waited,
        }
    }
}

fn alone(link: Link) -> Seen {
    Network::new(link, &[Duration::ZERO]).see(Duration::from_millis(1500))
}

#[test]
fn clean_links_are_filled_and_their_queues_stay_short() {
    for (rate, milliseconds) in [(1000, 20), (1000, 1), (200, 20), (50, 100), (10, 40)] {
        let round_trip = Duration::from_millis(milliseconds);
        let seen = alone(Link {
            bytes_per_second: megabits(rate),
            round_trip,
            queue_bytes: 16e6,
            loss: 0.0,
            ack_batches: Duration::ZERO,
        });
        let share = seen.shares[0];
        assert!(share > 0.97, "{rate} Mbit/s, {round_trip:?}: {share}");
        // A quarter of what the path holds, what waits for acknowledgements, and the first window.
        let first = INITIAL_WINDOW as f64 / megabits(rate);
        let most = round_trip.mul_f64(0.3) + 2 * ACK_DELAY_MAX + Duration::from_secs_f64(first);
        assert!(seen.waited < most, "{rate} Mbit/s: {:?}", seen.waited);
    }
}

/// What arrives together came over a longer time than passes between two acknowledgements. If that
/// counted as a higher rate, the controller would look for more, and flood the queue.
#[test]
fn batches_of_acknowledgements_are_no_higher_rate() {
    for (rate, milliseconds) in [(1000, 2), (1000, 5), (1000, 10), (1000, 15), (200, 10)] {
        let link = Link {
            bytes_per_second: megabits(rate),
            round_trip: Duration::from_millis(40),
            queue_bytes: 2.5e6,
            loss: 0.0,
            ack_batches: Duration::from_millis(milliseconds),
        };
        let mut network = Network::new(link, &[Duration::ZERO]);
        let seen = network.see(Duration::from_secs(4));
        let rate = network.flows[0].controller.rate() / link.bytes_per_second;
        assert!(rate < 1.05, "{milliseconds} ms: {rate}");
        assert!(
            seen.losses[0] < 1e-3,
            "{milliseconds} ms: {}",
            seen.losses[0]
        );
        assert!(
            seen.shares[0] > 0.95,
            "{milliseconds} ms: {}",
            seen.shares[0]
        );
    }
}

#[test]
fn random_losses_cost_little() {
    for (loss, least) in [(0.001, 0.95), (0.01, 0.9)] {
        let share = alone(Link {
            bytes_per_second: megabits(200),
            round_trip: Duration::from_millis(20),
            queue_bytes: 1e6,
            loss,
            ack_batches: Duration::ZERO,
        })
        .shares[0];
        assert!(share > least, "{loss}: {share}");
    }
}

#[test]
fn a_short_queue_is_not_flooded() {
    let seen = alone(Link {
        bytes_per_second: megabits(200),
        round_trip: Duration::from_millis(20),
        queue_bytes: 50e3,
        loss: 0.0,
        ack_batches: Duration::ZERO,
    });
    assert!(seen.shares[0] > 0.85, "{}", seen.shares[0]);
    assert!(seen.losses[0] < 0.03, "{}", seen.losses[0]);
}

#[test]
fn a_short_queue_of_a_long_path_overflows_rarely() {
    let link = Link {
        bytes_per_second: megabits(1000),
        round_trip: Duration::from_millis(20),
        queue_bytes: 100e3,
        loss: 0.0,
        ack_batches: Duration::ZERO,
    };
    let seen = Network::new(link, &[Duration::ZERO]).see(Duration::from_secs(5));
    assert!(seen.shares[0] > 0.95, "{}", seen.shares[0]);
    assert!(seen.losses[0] < LOSS_MAX, "{}", seen.losses[0]);
}

/// Such a path is measured by bursts of a few round trips, with pauses of a minute.
#[test]
fn the_rate_of_a_long_path_is_known_after_many_pauses() {
    let link = Link {
        bytes_per_second: megabits(1000),
        round_trip: Duration::from_millis(100),
        queue_bytes: 16e6,
        loss: 0.0,
        ack_batches: Duration::ZERO,
    };
    let mut network = Network::new(link, &[Duration::ZERO]);
    network.run(Duration::from_secs(2));
    for pause in 0..12 {
        let pausing = network.now + Duration::from_secs(60);
        // What is under way arrives, and nothing more is sent.
        network.flows[0].starts = pausing;
        network.run(Duration::from_secs(60));
        let seen = network.see(Duration::from_millis(500));
        assert!(seen.shares[0] > 0.95, "{pause}: {}", seen.shares[0]);
    }
}

#[test]
fn flows_share_a_line() {
    let link = Link {
        bytes_per_second: megabits(1000),
        round_trip: Duration::from_millis(5),
        queue_bytes: 5e6,
        loss: 0.0,
        ack_batches: Duration::ZERO,
    };
    let starts = [0, 200, 400].map(Duration::from_millis);
    let seen = Network::new(link, &starts).see(Duration::from_secs(2));
    let all: f64 = seen.shares.iter().sum();
    assert!(all > 0.97, "{all}");
    for share in &seen.shares {
        assert!(*share > 0.15, "{:?}", seen.shares);
    }
}

/// A node sends to several others over one slow line, with a queue of 40 ms. Their first windows
/// alone are more than it holds, and round trips of some tens of packets tell losses late.
#[test]
fn flows_do_not_flood_a_slow_line() {
    for milliseconds in [1, 10] {
        let link = Link {
            bytes_per_second: megabits(50),
            round_trip: Duration::from_millis(milliseconds),
            queue_bytes: 250e3,
            loss: 0.0,
            ack_batches: Duration::ZERO,
        };
        let starts = [0, 10, 20, 30, 40].map(Duration::from_millis);
        let seen = Network::new(link, &starts).see(Duration::from_secs(4));
        let all: f64 = seen.shares.iter().sum();
        assert!(all > 0.97, "{milliseconds} ms: {all}");
        for loss in &seen.losses {
            assert!(*loss < 0.035, "{milliseconds} ms: {:?}", seen.losses);
        }
    }
}

/// Four nodes average 64 MiB between sites. A flow that gets less than the others holds all up. The
/// first average comes near to the line. Later ones begin with the windows of flows that were alone
/// on a line at last, and take a fourth longer. This test keeps that from becoming worse; it does
/// not say that more is impossible.
#[test]
fn nodes_that_all_send_to_each_other_fill_most_of_their_lines() {
    let link = Link {
        bytes_per_second: megabits(250),
        round_trip: Duration::from_millis(40),
        queue_bytes: 4e6,
        loss: 0.0,
        ack_batches: Duration::ZERO,
    };
    let mut network = Network::mesh(link, 4);
    let share = (16 << 20) / PACKET * PACKET;
    let line = 6.0 * share as f64 / link.bytes_per_second;
    let shares: Vec<f64> = (0..4)
        .map(|_| line / network.average(share).as_secs_f64())
        .collect();
    assert!(shares[0] > 0.8, "{shares:?}");
    assert!(shares.iter().all(|share| *share > 0.6), "{shares:?}");
}

#[test]
fn a_change_of_the_rate_is_followed() {
    let link = Link {
        bytes_per_second: megabits(1000),
        round_trip: Duration::from_millis(20),
        queue_bytes: 16e6,
        loss: 0.0,
        ack_batches: Duration::ZERO,
    };
    let mut network = Network::new(link, &[Duration::ZERO]);
    network.run(Duration::from_secs(1));
    network.link.bytes_per_second = megabits(100);
    let seen = network.see(Duration::from_secs(2));
    assert!(seen.shares[0] > 0.95, "down: {}", seen.shares[0]);
    network.link.bytes_per_second = megabits(1000);
    let seen = network.see(Duration::from_secs(1));
    assert!(seen.shares[0] > 0.95, "up: {}", seen.shares[0]);
}

/// Nodes compute between two rounds, and only show that they live.
#[test]
fn the_rate_is_known_after_a_pause() {
    let link = Link {
        bytes_per_second: megabits(200),
        round_trip: Duration::from_millis(40),
        queue_bytes: 16e6,
        loss: 0.0,
        ack_batches: Duration::ZERO,
    };
    let mut network = Network::new(link, &[Duration::ZERO]);
    network.run(Duration::from_secs(2));
    let controller = &mut network.flows[0].controller;
    let known = controller.rate();
    assert!(known > 0.97 * link.bytes_per_second, "{known}");
    let mut sent = network.now + Duration::from_secs(1);
    for number in 0..100 {
        controller.on_sent(sent, 50, number);
        let now = sent + link.round_trip;
        controller.acked(now, sent, 50);
        controller.on_end_acks(now, 0, true, Some(number));
        sent += Duration::from_millis(200);
    }
    assert!(controller.rate() >= known, "{}", controller.rate());
    // The pause may have begun while a queue was drained.
    let least = 0.9 * link.bytes_per_second * link.round_trip.as_secs_f64();
    assert!(
        controller.window() as f64 > least,
        "{}",
        controller.window()
    );
}

#[test]
fn a_silent_path_is_measured_anew() {
    let now = Instant::now();
    let mut controller = Delivery::new(INITIAL_WINDOW, now, PACKET as u16);
    controller.on_congestion_event(now, now, true, 10 * PACKET);
    assert_eq!(controller.window(), WINDOW_PACKETS_MIN * PACKET);
}
