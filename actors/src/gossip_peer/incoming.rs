//! Messages on their way in: streams wait until the machine wants them, and are read by tasks of their own.

use super::arithmetic::Part;
use super::{GossipPeerState, Payload, transfer, wire};
use crate::buffers::Assembled;
use crate::data::Arrived;
use slowmo_protocol::gossip_peer::{In, Key, PARKED_MAX};
use slowmo_protocol::node::ToGossip;
use slowmo_protocol::wire::Bulk;
use std::sync::Arc;
use transfer::ReadError;

impl GossipPeerState {
    /// A stream begins. A peer may have heard of a decided round, and of its view, before this node: it waits here.
    pub(super) fn offered(&mut self, arrived: Arrived) {
        let Bulk::Gossip { step, weight, scale, wire: theirs } = arrived.content else { return };
        let header = arrived.header;
        let key = (header.round, step, header.sender);
        let here = self.streams.contains_key(&key) || self.reading.contains_key(&key);
        // Nobody gives away more than it has.
        let is_part = scale > 0.0 && scale <= 1.0;
        if here || !is_part || theirs != wire(&self.context) || self.streams.len() >= PARKED_MAX {
            tracing::warn!(from = %header.sender, %step, round = header.round.0, "gossip stream refused");
            return;
        }
        self.streams.insert(key, arrived);
        self.fullest = self.fullest.max(self.streams.len());
        self.feed(In::Offered { header, step, weight });
    }

    /// Writes down, as a round is decided, how full it has been.
    pub(super) fn record_gauges(&mut self) {
        let fullest = std::mem::replace(&mut self.fullest, self.streams.len());
        if self.context.recorder.is_on() && self.machine.is_some() {
            self.context.gauge("parked gossip streams", fullest, PARKED_MAX);
        }
    }

    pub(super) fn receive(&mut self, key: Key) {
        let Some(arrived) = self.streams.remove(&key) else { return };
        let Bulk::Gossip { scale, .. } = arrived.content else { return };
        let (pool, myself, elements) = (Arc::clone(&self.context.pool), self.myself.clone(), self.elements);
        let wire = wire(&self.context);
        let task = tokio::spawn(async move {
            let values = transfer::read(&pool, arrived, elements, (wire, scale)).await;
            let values = values.inspect_err(|error| log(key, error));
            // A stopped gossip peer needs no result.
            _ = myself.cast(ToGossip::Read(key, values.ok()).into());
        });
        self.reading.insert(key, task.abort_handle());
    }

    pub(super) fn read(&mut self, key: Key, values: Option<Assembled>) {
        if self.reading.remove(&key).is_none() {
            return;
        }
        match values {
            Some(values) => {
                self.arrived.insert(key, Part { values: Payload::Float32(values), scale: 1.0 });
                self.feed(In::Arrived(key));
            }
            None => self.feed(In::Broken(key)),
        }
    }

    /// Drops the copy of a message that came last.
    pub(super) fn drop_message(&mut self, key: Key) {
        if self.streams.remove(&key).is_some() {
            return;
        }
        self.arrived.remove(&key);
        if let Some(reading) = self.reading.remove(&key) {
            reading.abort();
        }
    }
}

/// A broken stream may be the network's fault, a value that is not finite is the sender's.
fn log((_, step, from): Key, error: &ReadError) {
    match error {
        ReadError::Stream(_) => tracing::info!(%from, %step, %error, "a gossip message broke off"),
        ReadError::NotFinite(_) => tracing::warn!(%from, %step, %error, "a gossip message was refused"),
    }
}
