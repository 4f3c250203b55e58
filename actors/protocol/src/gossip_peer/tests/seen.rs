//! What happened in simulated runs, for whoever looks into them: `SLOWMO_TRACE=1`, with
//! `--nocapture`.

use super::scenario::Class;
use crate::gossip_peer::{Effect, In, Plan};
use crate::ident::NodeId;
use crate::topology::Peers;
use crate::wire::Frame;
use std::fmt::Debug;
use std::sync::OnceLock;

/// Longest description of one event.
const WIDTH: usize = 300;

/// Figures of one run, or of many.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub events: u64,
    /// The longest wait of a gossip, and of a settling node, in simulated microseconds.
    pub waited: u64,
    pub settled_after: u64,
    pub late: usize,
    /// Times that a node waited in vain for a peer that was not late.
    pub wrong_waits: usize,
    pub refused: usize,
    pub reclaimed: usize,
    pub debts: usize,
    pub jumps: usize,
    pub detours: usize,
    pub silent: usize,
    pub withheld: usize,
    pub written_off: usize,
    pub held: usize,
    pub parked: usize,
    pub models: usize,
    pub weight_min: f64,
    pub weight_max: f64,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            events: 0,
            waited: 0,
            settled_after: 0,
            late: 0,
            wrong_waits: 0,
            refused: 0,
            reclaimed: 0,
            debts: 0,
            jumps: 0,
            detours: 0,
            silent: 0,
            withheld: 0,
            written_off: 0,
            held: 0,
            parked: 0,
            models: 0,
            weight_min: 1.0,
            weight_max: 1.0,
        }
    }
}

impl Seen {
    pub fn weight(&mut self, weight: f64) {
        self.weight_min = self.weight_min.min(weight);
        self.weight_max = self.weight_max.max(weight);
    }

    pub fn shipped(&mut self, nominal: Peers, plan: &Plan) {
        self.detours += plan
            .out
            .iter()
            .filter(|to| !nominal.out.contains(to))
            .count();
        self.silent += nominal.out.len().saturating_sub(plan.out.len());
        self.weight(plan.split.kept);
    }

    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        for (mine, theirs) in [
            (&mut self.late, other.late),
            (&mut self.wrong_waits, other.wrong_waits),
            (&mut self.refused, other.refused),
            (&mut self.reclaimed, other.reclaimed),
            (&mut self.debts, other.debts),
            (&mut self.jumps, other.jumps),
            (&mut self.detours, other.detours),
            (&mut self.silent, other.silent),
            (&mut self.withheld, other.withheld),
            (&mut self.written_off, other.written_off),
        ] {
            *mine += theirs;
        }
        for (mine, theirs) in [
            (&mut self.held, other.held),
            (&mut self.parked, other.parked),
            (&mut self.models, other.models),
        ] {
            *mine = theirs.max(*mine);
        }
        self.waited = self.waited.max(other.waited);
        self.settled_after = self.settled_after.max(other.settled_after);
        self.weight(other.weight_min);
        self.weight(other.weight_max);
    }
}

impl Seen {
    /// What a class of runs is for has happened in them.
    pub fn shows(&self, class: Class) {
        assert!(
            self.late > 0
                && self.refused > 0
                && self.jumps > 0
                && self.detours > 0
                && self.silent > 0,
            "{class:?}: {self:?}"
        );
        let breaks = matches!(class, Class::Lossy | Class::Churn | Class::Doubt);
        assert_eq!(
            self.wrong_waits + self.withheld + self.written_off > 0,
            breaks,
            "{class:?}: {self:?}"
        );
        let dies = matches!(class, Class::Churn | Class::Doubt);
        assert_eq!(
            self.reclaimed > 0 && self.debts > 0,
            dies,
            "{class:?}: {self:?}"
        );
    }
}

pub fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var_os("SLOWMO_TRACE").is_some())
}

pub fn trace(now: u64, what: &str, of: &dyn Debug) {
    if is_on() {
        let of: String = format!("{of:?}").chars().take(WIDTH).collect();
        eprintln!("{now} {what} {of}");
    }
}

pub fn told(now: u64, id: NodeId, event: &In) {
    if !is_on() {
        return;
    }
    match event {
        In::Tick => {}
        In::Frame { header, message } => trace(
            now,
            &format!("{id} <= {} round {}", header.sender, header.round.0),
            message,
        ),
        In::Offered {
            header,
            step,
            weight,
        } => trace(
            now,
            &format!("{id} <= {} OFFERS", header.sender),
            &(header.round, step, weight),
        ),
        other => trace(now, &format!("{id} <="), other),
    }
}

pub fn effect(now: u64, id: NodeId, effect: &Effect) {
    if !is_on() {
        return;
    }
    match effect {
        Effect::Send {
            to,
            frame: Frame::V1 { message, .. },
        } => trace(now, &format!("{id} -> {to}"), message),
        Effect::Ship(plan) => trace(
            now,
            &format!("{id} SHIP"),
            &(plan.step, plan.place.round, &plan.out, plan.split.share),
        ),
        other => trace(now, &format!("{id}"), other),
    }
}
