//! Which messages met which phase of a round under which fault: the combinations that a number of
//! seeds has really tried.

use super::mail::Mail;
use slowmo_protocol::node::{self, ToGossip, ToMembership, ToRounds};
use slowmo_protocol::wire::Message;
use slowmo_protocol::{coordinator, gossip_peer, membership};
use std::collections::{BTreeMap, BTreeSet};

/// Time for which a fault counts as felt after it happened, in microseconds.
pub const FELT: u64 = 1_000_000;

/// A combination of message, phase and fault that was seen.
pub type Triple = (&'static str, &'static str, &'static str);

/// The combinations that were seen.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    seen: BTreeSet<Triple>,
    fault: Option<&'static str>,
}

impl Coverage {
    /// Sets the fault that is felt from now on.
    pub fn under(&mut self, fault: Option<&'static str>) {
        self.fault = fault;
    }

    /// Notes that a node in this phase takes a message.
    pub fn seen(&mut self, mail: &Mail, phase: &'static str) {
        if let Some(message) = name(mail) {
            self.seen
                .insert((message, phase, self.fault.unwrap_or("none")));
        }
    }

    /// Adds the combinations of another run.
    pub fn add(&mut self, other: &Self) {
        self.seen.extend(other.seen.iter().copied());
    }

    /// Number of triples that were seen.
    #[must_use]
    pub fn triples(&self) -> usize {
        self.seen.len()
    }

    /// For each message and phase, the faults under which they met.
    #[must_use]
    pub fn pairs(&self) -> BTreeMap<(&'static str, &'static str), BTreeSet<&'static str>> {
        let mut pairs: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (message, phase, fault) in &self.seen {
            pairs.entry((*message, *phase)).or_default().insert(*fault);
        }
        pairs
    }

    /// Table with a line per message and a column per phase: under how many kinds of faults they
    /// met, and the kinds that exist.
    #[must_use]
    pub fn table(&self) -> String {
        let pairs = self.pairs();
        let mut text = String::new();
        let phases: BTreeSet<_> = pairs.keys().map(|(_, phase)| *phase).collect();
        let messages: BTreeSet<_> = pairs.keys().map(|(message, _)| *message).collect();
        let faults: BTreeSet<_> = pairs.values().flatten().copied().collect();
        let width = |phase: &str| phase.len().max(3) + 2;
        text.push_str(&format!("{:16}", ""));
        phases
            .iter()
            .for_each(|phase| text.push_str(&format!("{phase:>0$}", width(phase))));
        for message in messages {
            text.push_str(&format!("\n{message:16}"));
            for phase in &phases {
                let met = pairs
                    .get(&(message, *phase))
                    .map_or_else(|| "·".to_owned(), |faults| faults.len().to_string());
                text.push_str(&format!("{met:>0$}", width(phase)));
            }
        }
        let faults: Vec<_> = faults.into_iter().collect();
        text.push_str(&format!("\nof {}: {}\n", faults.len(), faults.join(", ")));
        text
    }

    /// All triples that were seen.
    pub fn iter(&self) -> impl Iterator<Item = &Triple> {
        self.seen.iter()
    }
}

/// The message's name, if it came over the network.
fn name(mail: &Mail) -> Option<&'static str> {
    let message = match mail {
        Mail::Node(node::Mail::Membership(ToMembership::In(membership::In::Frame {
            message,
            ..
        })))
        | Mail::Node(node::Mail::Rounds(ToRounds::In(coordinator::In::Frame {
            message, ..
        })))
        | Mail::Node(node::Mail::Gossip(ToGossip::In(gossip_peer::In::Frame {
            message, ..
        }))) => message,
        Mail::Node(node::Mail::Rounds(ToRounds::Stream(_))) => return Some("round stream"),
        Mail::Node(node::Mail::Gossip(ToGossip::Stream(_))) => return Some("gossip stream"),
        _ => return None,
    };
    Some(match **message {
        Message::Hello(_) => "Hello",
        Message::Bootstrap { .. } => "Bootstrap",
        Message::Join => "Join",
        Message::Refused(_) => "Refused",
        Message::Leave { .. } => "Leave",
        Message::Contribute(_) => "Contribute",
        Message::Prepare => "Prepare",
        Message::Promise { .. } => "Promise",
        Message::Open => "Open",
        Message::Opened => "Opened",
        Message::Closed => "Closed",
        Message::Attempt(_) => "Attempt",
        Message::Admit { .. } => "Admit",
        Message::Ready(_) => "Ready",
        Message::Accept { .. } => "Accept",
        Message::Accepted(_) => "Accepted",
        Message::Overtaken => "Overtaken",
        Message::Decide { .. } => "Decide",
        Message::Learn => "Learn",
        Message::Learned => "Learned",
        Message::Fork { .. } => "Fork",
        Message::Broken(_) => "Broken",
        Message::Accuse(_) => "Accuse",
        Message::Abandon(_) => "Abandon",
        Message::GossipMixed { .. } => "GossipMixed",
        Message::GossipRefused { .. } => "GossipRefused",
        Message::GossipSkipped { .. } => "GossipSkipped",
        Message::GossipAsk { .. } => "GossipAsk",
        Message::GossipReclaimed { .. } => "GossipReclaimed",
        Message::Compare => "Compare",
        Message::Published(_) => "Published",
        Message::Equivocated { .. } => "Equivocated",
        Message::GoesOn => "GoesOn",
        Message::AskCheckpoint => "AskCheckpoint",
        Message::TwoEntries { .. } => "TwoEntries",
        Message::Undecided => "Undecided",
        Message::AskSettings { .. } => "AskSettings",
    })
}
