//! State of one watched node: when it was last heard, asked and port-probed, and whether it is
//! suspected. Performs no I/O.

use super::{ASK_EVERY, BOUND_MAX, PORT_PROBE_AFTER, PORT_PROBE_EVERY, ROUND_TRIPS, Settings};
use crate::ident::{Incarnation, NodeId};
use crate::time::{Instant, Span};

/// A watched node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub incarnation: Incarnation,
    pub heard_at: Instant,
    pub down: bool,
    /// Its process is known to have ended.
    pub ended: bool,
    /// The node is marked down at `down_by` unless it is heard or refutes.
    pub suspicion: Option<Suspicion>,
    /// Unconfirmed death: another node reports it dead, although this one heard it a moment ago.
    pub unconfirmed: Option<UnconfirmedDeath>,
    round_trip: Span,
    port_probed_at: Option<Instant>,
    asked_at: Option<Instant>,
}

/// Suspicion of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspicion {
    pub down_by: Instant,
    /// A larger number of refutations than this ends the suspicion.
    pub refutations: u16,
}

/// An unconfirmed death: the node that reported it, and the time at which it is believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnconfirmedDeath {
    pub believed_by: Instant,
    pub teller: NodeId,
}

impl Peer {
    /// A node that counts as alive until it has been silent for long enough.
    pub(super) fn new(incarnation: Incarnation, now: Instant) -> Self {
        let round_trip = Span::default();
        Self {
            incarnation,
            heard_at: now,
            down: false,
            ended: false,
            suspicion: None,
            unconfirmed: None,
            round_trip,
            port_probed_at: None,
            asked_at: None,
        }
    }

    /// Notes a sign of life.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard_at = self.heard_at.max(now);
        self.suspicion = None;
        self.unconfirmed = None;
    }

    pub(super) fn silence(&self, now: Instant) -> Span {
        now.since(self.heard_at)
    }

    pub(super) fn measured(&mut self, round_trip: Span) {
        self.round_trip = round_trip;
    }

    /// How long an answer may take: half the probe interval, or [`ROUND_TRIPS`] measured round
    /// trips (at most [`BOUND_MAX`]) if that is longer.
    pub(super) fn answer_bound(&self, settings: &Settings) -> Span {
        let measured = Span(self.round_trip.0.saturating_mul(ROUND_TRIPS)).min(BOUND_MAX);
        measured.max(Span(settings.probe_interval.0 / 2))
    }

    /// Silence after which a node is suspected: it was asked, and the answer is overdue.
    pub(super) fn suspect_after(&self, settings: &Settings) -> Span {
        Span(ask_after(settings).0 + self.answer_bound(settings).0)
    }

    /// How long a suspected node has to show that it is alive.
    pub(super) fn suspect_for(&self, settings: &Settings) -> Span {
        settings.suspect.max(self.answer_bound(settings))
    }

    /// Whether to send a port probe now; if so, notes it as sent.
    pub(super) fn port_probe(&mut self, now: Instant) -> bool {
        let due = self.silence(now) >= PORT_PROBE_AFTER
            && self
                .port_probed_at
                .is_none_or(|at| now.since(at) >= PORT_PROBE_EVERY);
        if due {
            self.port_probed_at = Some(now);
        }
        due
    }

    /// Notes a port probe that is sent regardless of when the node was last heard: others say that
    /// it is dead, and it may have ended.
    pub(super) fn probe_port_at_once(&mut self, now: Instant) {
        self.port_probed_at = Some(now);
    }

    /// Whether it has been silent since the last port probe.
    pub(super) fn is_silent_since_port_probe(&self) -> bool {
        self.port_probed_at.is_some_and(|at| at > self.heard_at)
    }

    /// Whether to ask for a sign of life now; if so, notes it as asked.
    pub(super) fn ask(&mut self, settings: &Settings, now: Instant) -> bool {
        let wanted = self.silence(now) >= ask_after(settings)
            || self.unconfirmed.is_some()
            || self.suspicion.is_some();
        self.ask_again(wanted, now)
    }

    /// Like [`Peer::ask`], for a node that is believed to be dead and is told so at most every
    /// [`ASK_EVERY`].
    pub(super) fn tell_again(&mut self, now: Instant) -> bool {
        self.ask_again(true, now)
    }

    fn ask_again(&mut self, wanted: bool, now: Instant) -> bool {
        let due = wanted && self.asked_at.is_none_or(|at| now.since(at) >= ASK_EVERY);
        if due {
            self.asked_at = Some(now);
        }
        due
    }

    /// Moves pending deadlines by `away`, the time for which this node itself was paused.
    pub(super) fn forgive(&mut self, away: Span, now: Instant) {
        self.heard_at = self.heard_at.after(away).min(now);
        if let Some(suspicion) = &mut self.suspicion {
            suspicion.down_by = suspicion.down_by.after(away);
        }
        if let Some(unconfirmed) = &mut self.unconfirmed {
            unconfirmed.believed_by = unconfirmed.believed_by.after(away);
        }
    }
}

/// Silence after which a node is asked for a sign of life: half the probe interval.
fn ask_after(settings: &Settings) -> Span {
    Span(settings.probe_interval.0 / 2)
}
