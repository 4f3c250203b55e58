//! StatusDigest: a node's status report in one datagram, sent to a node whose status page somebody
//! watches. It influences no decision.

use super::{Content, DATAGRAM_BYTES_MAX, Datagram, bounded};
use crate::ident::{Epoch, Incarnation, Lineage, NodeId, Round, Step};
use serde::{Deserialize, Serialize, Serializer};
use std::net::SocketAddr;

/// Maximum number of values that a training reports under its own names.
pub const MEASURES_MAX: usize = 4;
/// Maximum length of such a name, in bytes.
pub const MEASURE_NAME_BYTES_MAX: usize = 24;
/// Maximum number of links in a digest: those with the most traffic.
pub const LINKS_MAX: usize = 16;
/// Maximum number of events in a digest.
pub const HAPPENED_MAX: usize = 4;
/// Maximum length of an event, in bytes; a longer one is cut.
pub const HAPPENED_BYTES_MAX: usize = 120;

/// Status of a node in one datagram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusDigest {
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its clock, in microseconds since 1970.
    pub at_us: u64,
    /// Its member state.
    pub stands: Stands,
    /// The model history.
    pub lineage: Lineage,
    /// The view's number.
    pub epoch: Epoch,
    /// The next round.
    pub round: Round,
    /// The inner step at which its training is.
    pub step: Step,
    /// The values of that report, by name.
    #[serde(deserialize_with = "bounded::list::<_, _, MEASURES_MAX>")]
    pub measures: Vec<Measure>,
    /// `‖x − x̄‖ / ‖x̄‖` at its last contribution.
    pub disagreement: Option<f32>,
    /// Push-sum weight of its numerators, if it gossips.
    pub weight: Option<f64>,
    /// Whether, as far as it knows, no round can be decided.
    pub waits: bool,
    /// Address of its status page, if it serves one.
    pub http: Option<SocketAddr>,
    /// UDP payload that it sent, in bytes.
    pub sent_bytes: u64,
    /// UDP payload that it received, in bytes.
    pub received_bytes: u64,
    /// Its links to others, the busiest first.
    #[serde(deserialize_with = "bounded::list::<_, _, LINKS_MAX>")]
    pub links: Vec<Link>,
    /// Events since the requested time, oldest first; more may follow.
    #[serde(deserialize_with = "bounded::list::<_, _, HAPPENED_MAX>")]
    pub happened: Vec<Happened>,
}

/// Member state of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stands {
    /// It has met no other node, or waits for the bootstrap.
    #[default]
    Bootstrapping,
    /// It asks to be admitted.
    Joining,
    /// It is a member.
    Member,
    /// It is a member and is leaving.
    Leaving,
    /// It has left.
    Left,
}

impl Stands {
    /// All member states, in the order in which a node goes through them.
    pub const ALL: [Self; 5] = [
        Self::Bootstrapping,
        Self::Joining,
        Self::Member,
        Self::Leaving,
        Self::Left,
    ];

    /// Its name in reports and on the status page.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bootstrapping => "bootstrapping",
            Self::Joining => "joining",
            Self::Member => "member",
            Self::Leaving => "leaving",
            Self::Left => "left",
        }
    }
}

impl std::fmt::Display for Stands {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A value that a training reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Its name.
    #[serde(
        serialize_with = "name",
        deserialize_with = "bounded::text::<_, MEASURE_NAME_BYTES_MAX>"
    )]
    pub name: String,
    /// The inner step.
    pub step: Step,
    /// The value.
    pub value: f64,
}

/// One direction between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The receiving node.
    pub to: NodeId,
    /// UDP payload sent to it since the connection began, in bytes.
    pub sent_bytes: u64,
    /// The smoothed round-trip time, in microseconds; 0 if it was not measured.
    pub round_trip_us: u32,
}

/// An event on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happened {
    /// Time, in microseconds since 1970 by the reporting node's clock.
    pub at_us: u64,
    /// Human-readable description.
    #[serde(
        serialize_with = "what",
        deserialize_with = "bounded::text::<_, HAPPENED_BYTES_MAX>"
    )]
    pub what: String,
}

fn name<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    bounded::cut::<_, MEASURE_NAME_BYTES_MAX>(text, serializer)
}

fn what<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    bounded::cut::<_, HAPPENED_BYTES_MAX>(text, serializer)
}

impl StatusDigest {
    /// The datagram, with as much content as fits: the oldest events and the busiest links.
    #[must_use]
    pub fn fitted(mut self) -> Datagram {
        self.measures.truncate(MEASURES_MAX);
        self.links.truncate(LINKS_MAX);
        self.happened.truncate(HAPPENED_MAX);
        loop {
            let datagram = Datagram::V1(Content::StatusDigest(Box::new(self.clone())));
            let fits = super::encoded_bytes(&datagram) <= DATAGRAM_BYTES_MAX;
            // Two events are always kept if there are that many: links change every second, but an
            // event is reported only once.
            let shortened = fits
                || if self.happened.len() > 2 {
                    self.happened.pop().is_some()
                } else {
                    self.links.pop().is_some()
                };
            if fits || !shortened {
                return datagram;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples;
    use super::*;

    #[test]
    fn as_much_as_fits_is_told() {
        let long = |at_us| Happened {
            at_us,
            what: "ä".repeat(200),
        };
        let link = |to| Link {
            to: NodeId(to),
            sent_bytes: u64::MAX,
            round_trip_us: 7,
        };
        let measure = Measure {
            name: "a name that is longer than a name may be".to_owned(),
            step: Step(1),
            value: 0.5,
        };
        let mut digest = examples::digest();
        digest.happened = (0..100).map(long).collect();
        digest.links = (0..100).map(link).collect();
        digest.measures = vec![measure; 100];
        let bytes = digest.fitted().encode().unwrap();
        let Ok(Datagram::V1(Content::StatusDigest(read))) = Datagram::decode(&bytes) else {
            panic!("no digest")
        };
        assert_eq!(read.measures.len(), MEASURES_MAX);
        assert_eq!(read.measures[0].name.len(), MEASURE_NAME_BYTES_MAX);
        assert!(
            read.happened.len() >= 2
                && read.happened[0].at_us == 0
                && read.happened[1].what.len() == HAPPENED_BYTES_MAX
        );
        assert!(
            read.links.len() > 8 && read.links[0].to == NodeId(0),
            "{}",
            read.links.len()
        );
    }
}
