//! The part of a peer's hello that is kept. It is small, because there may be as many peers as a
//! view has members, and each hello lists all of them.

use super::settings::{bounded, differing_settings};
use crate::ident::{GroupId, Incarnation, Lineage, NodeId};
use crate::model::ModelSize;
use crate::published::PublicKey;
use crate::view::Member;
use crate::wire::{Header, Hello};
use std::net::SocketAddr;

/// A peer, from its latest hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub node: NodeId,
    pub incarnation: Incarnation,
    address: SocketAddr,
    devices: u16,
    group: GroupId,
    key: PublicKey,
    /// Its settings, if they differ from this node's.
    settings: Option<String>,
    /// Size of the model it trains; `None` until it called `synchronize`.
    pub model: Option<ModelSize>,
    /// The history whose state it brings.
    pub lineage: Option<Lineage>,
    /// The history that it is a member of, if any.
    pub stands_in: Option<Lineage>,
}

impl Known {
    /// Extracts what is kept of a hello; `ours` are this node's settings.
    pub fn of(header: &Header, hello: &Hello, ours: &str) -> Self {
        let differs = !differing_settings(ours, &hello.settings).is_empty();
        Self {
            node: header.sender,
            incarnation: header.incarnation,
            address: hello.address,
            devices: hello.devices,
            group: hello.group,
            key: hello.key,
            settings: differs.then(|| bounded(&hello.settings).to_owned()),
            model: hello.model,
            lineage: hello.lineage,
            stands_in: hello.standing.as_ref().map(|standing| standing.lineage),
        }
    }

    /// Address at which it is dialed.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its settings; `ours` are this node's.
    pub fn settings<'a>(&'a self, ours: &'a str) -> &'a str {
        self.settings.as_deref().unwrap_or(ours)
    }

    /// Its settings, if they differ from this node's.
    pub fn other_settings(&self) -> Option<&str> {
        self.settings.as_deref()
    }

    /// Whether its settings differ from this node's.
    pub fn differs(&self) -> bool {
        self.settings.is_some()
    }

    /// The peer as a member of a view.
    pub fn member(&self) -> Member {
        let Self {
            node: id,
            incarnation,
            address,
            devices,
            group,
            key,
            ..
        } = *self;
        Member {
            id,
            incarnation,
            address,
            devices,
            group,
            key,
        }
    }
}
