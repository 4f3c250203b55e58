//! A congestion controller that measures what the path delivers.
//!
//! The window is what the path holds: the measured rate times the shortest round trip, what
//! acknowledgements that come in batches hold back, and a few packets. In every eighth round trip
//! it is a quarter larger. If the path has rate to spare, the quarter is delivered too, and the
//! window grows quickly until the rate does not. Otherwise the quarter waits in a queue, which the
//! next round trip drains. The few packets are as many for every connection, so that connections
//! with one queue slowly come to have equal shares of its line. A connection that has little to send
//! keeps its window: nodes send much at once, and then compute.
//!
//! A rate is taken over the longer of two times: that in which packets were sent, and that in which
//! they were acknowledged. If a receiver or a router is busy for a while and then acknowledges much
//! at once, that is no higher rate. (The samples, and the bytes acknowledged in batches, follow
//! draft-ietf-ccwg-bbr, BBR congestion control.)
//!
//! Packets that a link loses at random say nothing of its rate: the window does not change for
//! them. If round trips lose more than [`LOSS_MAX`], a queue overflows, or a policer drops. Then the
//! bytes in flight are bounded. The bound grows again once losses are rare, slowly if such overloads
//! come again and again.
//!
//! No I/O and no clock: every time comes from quinn.

use quinn::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Window in units of what the path holds, while the rate grows quickly.
const START_GAIN: f64 = 2.0;
/// The same in the round trips of a cycle, once the rate is known: a look for more, its drain, and
/// the others.
const CYCLE_GAINS: [f64; 8] = [1.25, 0.92, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Growth of the rate in a look for more after which it may grow quickly.
const FOUND_GROWTH: f64 = 1.15;
/// Packets beyond what the path holds: as many as one acknowledgement covers, and a few more.
const SPARE_PACKETS: u64 = 16;
/// Most bytes for batches of acknowledgements, in units of what the path holds; but the initial
/// window is allowed.
const BATCH_MAX: f64 = 0.5;
/// Time over which a batch is looked for, if the shortest round trip is shorter: that for which a
/// peer may hold an acknowledgement back.
const BATCH_TIME_MIN: Duration = Duration::from_millis(5);
/// Window at least, once the rate is known, in units of the initial one. Acknowledgements may wait
/// behind values that come the other way, which no round trip of an empty path shows.
const KNOWN_SHARE: f64 = 0.5;
/// Time for which the window lasts at least then, if the initial one does. Neither end of a fast
/// path always runs at once.
const KNOWN_TIME: Duration = Duration::from_millis(3);
/// Growth of the rate in one round trip that counts as quick.
const START_GROWTH: f64 = 1.25;
/// Round trips without quick growth after which the rate counts as known.
const START_ROUNDS: u32 = 3;
/// Round trips of which the highest rate counts, and the largest batch of acknowledgements.
const RATE_ROUNDS: usize = 10;
/// Time for which the shortest round trip counts; it is looked for in halves of it.
const ROUND_TRIP_WINDOW: Duration = Duration::from_secs(10);
/// Share of lost bytes in the last round trips above which the path is overloaded.
const LOSS_MAX: f64 = 0.02;
/// Fewer lost packets than this say nothing, since a round trip may hold few.
const LOST_PACKETS_MIN: u64 = 8;
/// Weight of earlier losses, after each further round trip.
const LOSSES_KEPT: f64 = 0.875;
/// Bound of the bytes in flight after an overload, in units of what was delivered in its round
/// trip.
const OVERLOAD_CUT: f64 = 0.85;
/// Growth of that bound in the first round trip without an overload. Each further one grows it by so
/// much more.
const BOUND_GROWTH: f64 = 0.01;
/// The same at least, after several overloads: each halves this growth, so that a queue that is too
/// short for its connections overflows rarely. While none bounds the window, it doubles with each
/// round trip.
const BOUND_GROWTH_MIN: f64 = 0.0005;
/// Smallest window, in packets.
const WINDOW_PACKETS_MIN: u64 = 4;
/// Marks of sent packets that are kept; beyond that, every other one is dropped, and half as many
/// are made.
const MARKS_MAX: usize = 512;

/// Makes [`Delivery`] controllers.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeliveryConfig {
    /// Bytes that may be in flight at least, until the rate of the path is known.
    pub initial_window: u64,
}

impl ControllerFactory for DeliveryConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Delivery::new(self.initial_window, now, current_mtu))
    }
}

/// The bytes that were delivered when a packet was sent.
#[derive(Clone, Copy, Debug)]
struct Mark {
    sent: Instant,
    delivered: u64,
    delivered_at: Instant,
    /// When the newest packet that was acknowledged by then had been sent.
    acked_sent: Instant,
}

/// What was acknowledged since a time at which no more had been than the rate explains.
#[derive(Clone, Copy, Debug)]
struct Batch {
    begun: Instant,
    bytes: u64,
}

/// The shortest round trip of a time, in two halves: the current one and the one before.
#[derive(Clone, Copy, Debug)]
struct Shortest {
    before: Option<Duration>,
    current: Option<Duration>,
    begun: Instant,
}

impl Shortest {
    fn add(&mut self, sample: Duration, now: Instant) {
        if now.saturating_duration_since(self.begun) >= ROUND_TRIP_WINDOW / 2 {
            self.before = self.current.take();
            self.begun = now;
        }
        self.current = Some(self.current.map_or(sample, |known| known.min(sample)));
    }

    fn get(&self) -> Option<Duration> {
        match (self.before, self.current) {
            (Some(before), Some(current)) => Some(before.min(current)),
            (before, current) => before.or(current),
        }
    }
}

/// Whether the rate is still being found.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The rate at the last quick growth, and the round trips since.
    Start { rate: f64, rounds: u32 },
    /// The rate is known: the place in [`CYCLE_GAINS`], and the rate when the cycle began.
    Known { place: usize, rate: f64 },
}

/// Bytes sent and lost in the last round trips, older ones for less. One round trip may hold too few
/// packets to tell.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    sent: f64,
    lost: f64,
}

impl Losses {
    /// Adds a round trip. Returns whether more than [`LOSS_MAX`] is lost, and more than `least`
    /// bytes; then it begins anew.
    fn overload(&mut self, sent: f64, lost: f64, least: f64) -> bool {
        self.sent = self.sent * LOSSES_KEPT + sent;
        self.lost = self.lost * LOSSES_KEPT + lost;
        let is_overload = self.lost > (LOSS_MAX * self.sent).max(least);
        if is_overload {
            *self = Self::default();
        }
        is_overload
    }
}

/// Bound of the bytes in flight after an overload, and by how much it grows next.
#[derive(Clone, Copy, Debug)]
struct Bound {
    bytes: f64,
    growth: f64,
}

/// The controller of one path.
#[derive(Clone, Debug)]
struct Delivery {
    mtu: u64,
    initial_window: u64,
    window: u64,
    /// Bytes acknowledged so far, and when the last ones were.
    delivered: u64,
    delivered_at: Instant,
    /// Whether nothing is in flight.
    is_idle: bool,
    /// Marks of sent packets, in their order.
    marks: VecDeque<Mark>,
    /// A packet in so many gets a mark, and the packets since the last that did.
    mark_every: u32,
    unmarked: u32,
    /// The latest sending time among the packets of the acknowledgement that is being read.
    newest_acked: Option<Instant>,
    /// The latest sending time among all that were acknowledged.
    acked_sent: Instant,
    /// Bytes that the acknowledgement that is being read acknowledges.
    newly_acked: u64,
    batch: Batch,
    shortest: Shortest,
    /// Highest rate of each of the last round trips, in bytes a second; the current one is last.
    rates: VecDeque<f64>,
    /// Bytes of the largest batch of acknowledgements in the same round trips, beyond what the rate
    /// explains.
    batches: VecDeque<f64>,
    phase: Phase,
    /// A round trip ends when a packet is acknowledged that was sent after this.
    round_begun: Instant,
    /// Bytes acknowledged and lost in the current round trip.
    round_delivered: u64,
    round_lost: u64,
    /// Whether a router marked one of its packets.
    round_marked: bool,
    /// Whether its rate was limited by the path, not by the data that there was to send.
    round_fills: bool,
    losses: Losses,
    bound: Option<Bound>,
    /// Growth of the next bound in its first round trip.
    bound_growth: f64,
}

impl Delivery {
    fn new(initial_window: u64, now: Instant, mtu: u16) -> Self {
        Self {
            mtu: u64::from(mtu),
            initial_window,
            window: initial_window,
            delivered: 0,
            delivered_at: now,
            is_idle: true,
            marks: VecDeque::new(),
            mark_every: 1,
            unmarked: 0,
            newest_acked: None,
            acked_sent: now,
            newly_acked: 0,
            batch: Batch {
                begun: now,
                bytes: 0,
            },
            shortest: Shortest {
                before: None,
                current: None,
                begun: now,
            },
            rates: VecDeque::from([0.0]),
            batches: VecDeque::from([0.0]),
            phase: Phase::Start {
                rate: 0.0,
                rounds: 0,
            },
            round_begun: now,
            round_delivered: 0,
            round_lost: 0,
            round_marked: false,
            round_fills: false,
            losses: Losses::default(),
            bound: None,
            bound_growth: BOUND_GROWTH,
        }
    }

    fn acked(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.delivered += bytes;
        self.newly_acked += bytes;
        self.round_delivered += bytes;
        self.delivered_at = now;
        self.newest_acked = Some(self.newest_acked.map_or(sent, |newest| newest.max(sent)));
    }

    /// The mark of the last packet sent at or before this time. Earlier marks are dropped.
    fn mark_of(&mut self, sent: Instant) -> Option<Mark> {
        let after = self.marks.partition_point(|mark| mark.sent <= sent);
        let index = after.checked_sub(1)?;
        self.marks.drain(..index);
        self.marks.front().copied()
    }

    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// Takes what was delivered since the newest acknowledged packet was sent as a sample of the
    /// rate.
    fn sample(&mut self, mark: Mark, sent: Instant, now: Instant, is_limited_by_data: bool) {
        let acknowledging = now.saturating_duration_since(mark.delivered_at);
        let sending = sent.saturating_duration_since(mark.acked_sent);
        let elapsed = acknowledging.max(sending);
        // Acknowledgements that come in a burst tell of no rate.
        let is_long_enough = self
            .shortest
            .get()
            .is_some_and(|shortest| elapsed >= shortest);
        if elapsed.is_zero() || !is_long_enough {
            return;
        }
        let rate = (self.delivered - mark.delivered) as f64 / elapsed.as_secs_f64();
        if is_limited_by_data && rate < self.rate() {
            return;
        }
        if let Some(last) = self.rates.back_mut() {
            *last = last.max(rate);
        }
        self.round_fills |= !is_limited_by_data;
    }

    /// Looks how much more was acknowledged than the rate explains.
    fn note_batch(&mut self, now: Instant) {
        let newly = std::mem::take(&mut self.newly_acked);
        let since = now.saturating_duration_since(self.batch.begun);
        let mut explained = self.rate() * since.as_secs_f64();
        // Over a longer time a small error of the rate would look like a batch.
        let shortest = self.shortest.get().unwrap_or_default();
        let is_over = since >= shortest.max(BATCH_TIME_MIN);
        if is_over || self.batch.bytes as f64 <= explained {
            explained = 0.0;
            self.batch = Batch {
                begun: now,
                bytes: 0,
            };
        }
        self.batch.bytes += newly;
        let beyond = self.batch.bytes as f64 - explained;
        if let Some(largest) = self.batches.back_mut() {
            *largest = largest.max(beyond);
        }
    }

    /// Ends a round trip: looks at its losses and at the growth of the rate.
    fn end_round(&mut self, now: Instant) {
        // A round trip without a sample had too little to send, and says nothing of the path. What
        // is known of it outlasts the time in which the nodes compute.
        if self.rates.back().is_some_and(|rate| *rate > 0.0) || self.round_lost > 0 {
            self.learn_from_round();
        }
        self.round_begun = now;
        self.round_delivered = 0;
        self.round_lost = 0;
        self.round_marked = false;
        self.round_fills = false;
    }

    fn learn_from_round(&mut self) {
        let is_overloaded = self.losses.overload(
            (self.round_delivered + self.round_lost) as f64,
            self.round_lost as f64,
            (LOST_PACKETS_MIN * self.mtu) as f64,
        );
        let is_overloaded = is_overloaded || self.round_marked;
        if is_overloaded {
            let delivered = self.round_delivered as f64 * OVERLOAD_CUT;
            let held = self.shortest.get().unwrap_or_default().as_secs_f64() * self.rate();
            let least = held + (SPARE_PACKETS * self.mtu) as f64;
            self.bound = Some(Bound {
                bytes: delivered.max(least).min(self.bounded(f64::INFINITY)),
                growth: self.bound_growth,
            });
            self.bound_growth = (self.bound_growth / 2.0).max(BOUND_GROWTH_MIN);
        } else if let Some(bound) = self.bound {
            let grown = Bound {
                bytes: bound.bytes * (1.0 + bound.growth),
                growth: bound.growth + self.bound_growth,
            };
            // Below this a look for more would still be bounded.
            let free = self.free_window(CYCLE_GAINS[0]);
            self.bound = (grown.bytes < free).then_some(grown);
        } else {
            self.bound_growth = (self.bound_growth * 2.0).min(BOUND_GROWTH);
        }
        if self.rates.back().is_some_and(|rate| *rate > 0.0) {
            // While little is sent, the rate is not known, and may grow quickly.
            if self.round_fills || matches!(self.phase, Phase::Known { .. }) {
                self.phase = self.next_phase(is_overloaded);
            }
            self.rates.push_back(0.0);
            self.batches.push_back(0.0);
            if self.rates.len() > RATE_ROUNDS {
                self.rates.pop_front();
                self.batches.pop_front();
            }
        }
    }

    fn next_phase(&self, is_overloaded: bool) -> Phase {
        let highest = self.rate();
        match self.phase {
            Phase::Start { .. } if is_overloaded => Phase::Known {
                place: 1,
                rate: highest,
            },
            Phase::Start { rate, .. } if highest >= rate * START_GROWTH => Phase::Start {
                rate: highest,
                rounds: 0,
            },
            Phase::Start { rate, rounds } if rounds + 1 < START_ROUNDS => Phase::Start {
                rate,
                rounds: rounds + 1,
            },
            // What was sent beyond the rate is drained first.
            Phase::Start { .. } => Phase::Known {
                place: 1,
                rate: highest,
            },
            Phase::Known { place, rate } => {
                let found = place == 1 && highest >= rate * FOUND_GROWTH;
                let next = (place + 1) % CYCLE_GAINS.len();
                match next {
                    _ if found && !is_overloaded => Phase::Start {
                        rate: highest,
                        rounds: 0,
                    },
                    0 => Phase::Known {
                        place: 0,
                        rate: highest,
                    },
                    place => Phase::Known { place, rate },
                }
            }
        }
    }

    /// At most these bytes, if an overload bounds them.
    fn bounded(&self, bytes: f64) -> f64 {
        self.bound.map_or(bytes, |bound| bytes.min(bound.bytes))
    }

    /// The window now, in units of what the path holds.
    fn gain(&self) -> f64 {
        match self.phase {
            Phase::Start { .. } => START_GAIN,
            Phase::Known { place, .. } => CYCLE_GAINS[place],
        }
    }

    /// The window of a gain without a bound, in bytes.
    fn free_window(&self, gain: f64) -> f64 {
        let Some(shortest) = self.shortest.get() else {
            return self.initial_window as f64;
        };
        let held = self.rate() * shortest.as_secs_f64();
        let batch = self.batches.iter().copied().fold(0.0, f64::max);
        let initial = self.initial_window as f64;
        let batch = batch.min((BATCH_MAX * held).max(initial));
        let spare = (SPARE_PACKETS * self.mtu) as f64;
        let window = gain * held + batch + spare;
        match self.phase {
            Phase::Start { .. } => window.max(initial),
            Phase::Known { .. } => {
                let lasting = self.rate() * KNOWN_TIME.as_secs_f64();
                window.max(lasting.clamp(initial * KNOWN_SHARE, initial))
            }
        }
    }

    fn set_window(&mut self) {
        let window = self.bounded(self.free_window(self.gain()));
        // A cast of a float saturates.
        self.window = (window as u64).max(WINDOW_PACKETS_MIN * self.mtu);
    }
}

impl Controller for Delivery {
    fn on_sent(&mut self, now: Instant, _bytes: u64, _last_packet_number: u64) {
        if self.is_idle {
            // Nothing was under way: the time before this packet says nothing of the path.
            self.is_idle = false;
            self.delivered_at = now;
            self.acked_sent = now;
        }
        self.unmarked += 1;
        if self.unmarked < self.mark_every {
            return;
        }
        self.unmarked = 0;
        self.marks.push_back(Mark {
            sent: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            acked_sent: self.acked_sent,
        });
        if self.marks.len() >= MARKS_MAX {
            // Their number is even, so the newest mark stays, and the next is as far from it.
            let mut keep = true;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
            self.mark_every = self.mark_every.saturating_mul(2);
        } else if self.marks.len() < MARKS_MAX / 8 {
            self.mark_every = (self.mark_every / 2).max(1);
        }
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        _app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        self.acked(now, sent, bytes);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
    ) {
        let Some(sent) = self.newest_acked.take() else {
            return;
        };
        self.shortest.add(now.saturating_duration_since(sent), now);
        self.note_batch(now);
        if let Some(mark) = self.mark_of(sent) {
            self.sample(mark, sent, now, app_limited);
        }
        self.acked_sent = self.acked_sent.max(sent);
        self.is_idle = in_flight == 0;
        if sent >= self.round_begun {
            self.end_round(now);
        }
        self.set_window();
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        if is_persistent_congestion {
            // The path may be another one now: everything is measured anew.
            let mtu = u16::try_from(self.mtu).unwrap_or(u16::MAX);
            *self = Self::new(self.initial_window, now, mtu);
            self.window = WINDOW_PACKETS_MIN * self.mtu;
            return;
        }
        // A mark by a router (no bytes are lost) counts like an overload.
        self.round_marked |= lost_bytes == 0 && sent >= self.round_begun;
        self.round_lost += lost_bytes;
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = u64::from(new_mtu);
        self.set_window();
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.initial_window
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
#[path = "congestion_tests.rs"]
mod tests;
