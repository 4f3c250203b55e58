//! The types of configuration values: parsing from text, and formatting as canonical text. Pure.

use super::group::GroupName;
use crate::checkpoints::Name;
use crate::transport::quic::{ClusterKey, ClusterName, PeerName};
use slowmo_protocol::algorithm::{BufferStrategy, LatePeers, TopologyName, WireType};
use slowmo_protocol::ident::Lineage;
use slowmo_protocol::policy::{Bootstrap, JoinerBuffers, OnMomentumLoss, OnQuorumLoss, Quorum};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Largest number of peers that may be listed; equal to the largest number of members of a view.
pub const PEERS_MAX: usize = 4096;

/// Number of hexadecimal digits of a lineage.
const LINEAGE_DIGITS: usize = 32;

/// A value that has one canonical text. `parse(show(x)) == Some(x)`.
pub(super) trait Value: Sized {
    /// Parses a value; `None` if the text is not valid.
    fn parse(text: &str) -> Option<Self>;
    /// Formats the value as its canonical text.
    fn show(&self) -> String;
}

/// Defines an enum with one configuration word per variant.
macro_rules! words {
    (
        $(#[$doc:meta])* $name:ident { $(
            $(#[$variant_doc:meta])* $variant:ident = $word:literal
        ),+ $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }
        words!(@value $name { $($variant = $word),+ });
    };
    (@value $name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl Value for $name {
            fn parse(text: &str) -> Option<Self> {
                match text {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
            fn show(&self) -> String {
                match self {
                    $(Self::$variant => $word.to_owned(),)+
                }
            }
        }
    };
}

words!(
    /// Base algorithm between outer rounds (key `base`).
    BaseName {
        /// Exact averages every `frequency` steps.
        #[default]
        LocalSgd = "local_sgd",
        /// Push-sum gossip after every step.
        Sgp = "sgp",
        /// Exact gradient mean over all nodes at every step.
        AllReduce = "all_reduce",
        /// No base algorithm: only outer rounds.
        None = "none",
    }
);
words!(
    /// The outer optimizer (key `outer`).
    OuterName {
        /// SlowMo with `alpha` and `beta`.
        #[default]
        SlowMo = "slowmo",
        /// DiLoCo's Nesterov with `eta` and `mu`.
        Nesterov = "nesterov",
        /// Blockwise model update filtering with `eta` and `mu`.
        BmufNbm = "bmuf_nbm",
    }
);
words!(
    /// Congestion control of the connections (key `congestion`).
    Congestion {
        /// Measures the path's rate: fills links, also those that lose packets at random.
        #[default]
        Rate = "rate",
        /// Cubic: fills clean links, collapses on links that lose packets.
        Cubic = "cubic",
        /// BBR: keeps its rate on links that lose packets.
        Bbr = "bbr",
        /// New Reno.
        NewReno = "new_reno",
    }
);
words!(
    /// How values and control frames travel between nodes of one machine (key `same_host`).
    SameHost {
        /// Over Unix sockets, where both run as the same user on Linux.
        #[default]
        Auto = "auto",
        /// Over QUIC, as between hosts.
        Off = "off",
    }
);
words!(
    /// Device that holds the workers' copies of the model (key `device`).
    DeviceName {
        /// Main memory.
        #[default]
        Cpu = "cpu",
        /// GPUs, one for each worker.
        Cuda = "cuda",
    }
);
words!(
    /// Treatment, by a bootstrap that resumes, of the samples that the checkpoint says are left
    /// (key `resume_sampler`).
    ResumeSampler {
        /// Hands them out.
        #[default]
        Keep = "keep",
        /// Begins the samples anew.
        Reset = "reset",
    }
);
/// Checkpoint from which a bootstrap resumes (key `resume`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// The newest complete checkpoint, if there is one.
    #[default]
    Newest,
    /// The newest complete checkpoint; the node does not start if there is none.
    Required,
    /// No checkpoint.
    None,
    /// The checkpoint with this name.
    Named(Name),
}

impl Value for Resume {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "newest" => Some(Self::Newest),
            "required" => Some(Self::Required),
            "none" => Some(Self::None),
            name => Name::parse(name).map(Self::Named),
        }
    }
    fn show(&self) -> String {
        match self {
            Self::Newest => "newest".to_owned(),
            Self::Required => "required".to_owned(),
            Self::None => "none".to_owned(),
            Self::Named(name) => name.to_string(),
        }
    }
}

words!(@value LatePeers { Wait = "wait", Skip = "skip" });
words!(@value WireType { Float32 = "f32", BFloat16 = "bf16", Int8 = "int8" });
words!(@value TopologyName {
    Exponential = "exponential",
    Ring = "ring",
    BipartiteExponential = "bipartite",
    Complete = "complete",
    BandwidthAware = "bandwidth"
});
words!(@value Bootstrap { Auto = "auto", Yes = "yes", No = "no" });
words!(@value Quorum { Majority = "majority", Survivors = "survivors" });
words!(@value OnQuorumLoss { Wait = "wait", Fork = "fork" });
words!(@value OnMomentumLoss { Reset = "reset", Stop = "stop" });
words!(@value JoinerBuffers { Reset = "reset", Copy = "copy" });
words!(@value BufferStrategy { Maintain = "maintain", Reset = "reset", Average = "average" });

/// Implements [`Value`] through `FromStr` and a format.
macro_rules! through_from_str {
    ($($type:ty, $format:literal);+) => {
        $(impl Value for $type {
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
            fn show(&self) -> String {
                format!($format, self)
            }
        })+
    };
}

through_from_str!(
    u16,
    "{}"; u32,
    "{}"; u64,
    "{}"; usize,
    "{}"; bool,
    "{}"; f32,
    "{:?}"; SocketAddr,
    "{}"; ClusterName,
    "{}"; PeerName,
    "{}"; GroupName,
    "{}"
);

impl Value for PathBuf {
    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self::from(text))
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

/// Hexadecimal digits, as status shows them.
impl Value for Lineage {
    fn parse(text: &str) -> Option<Self> {
        let digits =
            text.len() == LINEAGE_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !digits {
            return None;
        }
        let lineage = Self(u128::from_str_radix(text, 16).ok()?);
        lineage.is_decided().then_some(lineage)
    }
    fn show(&self) -> String {
        format!("{:032x}", self.0)
    }
}

/// A `host:port`; the name is resolved when the node starts.
impl Value for String {
    fn parse(text: &str) -> Option<Self> {
        is_host_and_port(text).then(|| text.to_owned())
    }
    fn show(&self) -> String {
        self.clone()
    }
}

/// A list of `host:port`, separated by commas; names are resolved when they are dialed.
impl Value for Vec<String> {
    fn parse(text: &str) -> Option<Self> {
        let entries: Self = text
            .split(',')
            .map(|entry| entry.trim().to_owned())
            .filter(|entry| !entry.is_empty())
            .collect();
        (entries.len() <= PEERS_MAX && entries.iter().all(|entry| is_host_and_port(entry)))
            .then_some(entries)
    }
    fn show(&self) -> String {
        self.join(",")
    }
}

/// Whether a text is `host:port`, with an IPv6 address in brackets.
pub(crate) fn is_host_and_port(entry: &str) -> bool {
    let Some((host, port)) = entry.rsplit_once(':') else {
        return false;
    };
    let host_is_plain = !host.is_empty() && !host.contains(char::is_whitespace);
    let host_is_unambiguous = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
    host_is_plain && host_is_unambiguous && port.parse().is_ok_and(|port: u16| port != 0)
}

impl Value for ClusterKey {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn show(&self) -> String {
        self.to_hex()
    }
}
