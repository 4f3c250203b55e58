//! Items that the other packages of this workspace use beside the API. They are no part of it and
//! may change at any time.

pub use crate::connection::Network;
pub use crate::printable::{printable, printable_json, printable_lines};
pub use slowmo_actors::messages::Inspection;
pub use slowmo_actors::ports::device::OnGpu;
pub use slowmo_actors::ports::transport::Traffic;
pub use slowmo_actors::unix_time::unix_us;

/// The admin socket's protocol.
pub mod admin {
    pub use crate::admin::{Answer, RecoveryReport, Request, bind};
    pub use crate::cluster::{ANSWERS_WAIT_MAX, ClusterStatus, Digest, NodeReport};
}

/// Manifests and folders of checkpoints.
pub mod checkpoints {
    #[cfg(feature = "testing")]
    pub use crate::checkpoints::is_tensor_file_for_tests;
    pub use crate::checkpoints::{
        Ancestor, Header, Kept, KeptShard, Kind, Listed, Name, Part, Tensor, list, newest_whole,
    };
}

/// The table of keys, and the types of the values that are rarely set by a program.
pub mod config {
    pub use crate::config::keys;
    pub use crate::config::{
        Bootstrap, ClusterKey, DeviceName, LatePeers, OnMomentumLoss, Quorum, RESERVED_VARIABLES,
        Resume, ResumeSampler, TopologyName, load_of,
    };
}

/// Shared memory of the workers of a node.
pub mod device {
    pub use crate::device::cpu;
}

/// Parsers of lists of nodes.
pub mod discovery {
    pub use crate::discovery::{list_file, slurm};
}

/// The launcher that started this process.
pub mod launcher {
    pub use crate::last_report::{Departure, LastReport};
    pub use crate::launcher::{
        Answer, LAUNCHER_VARIABLE, NODES_VARIABLE, Request, SOCKET_VARIABLE, watch,
    };
}

/// Files that hold a secret.
pub mod secret_file {
    pub use crate::secret_file::read;
}

/// Bounds of the HTTP endpoint.
pub mod telemetry {
    pub use crate::telemetry::{CONNECTIONS_MAX, PAGES_MAX, PAGES_PER_ADDRESS_MAX, STALL_MAX};
}

/// Copies of tensors to and from one vector.
pub mod tensors {
    pub use crate::tensors::{flat, freeze};
}

/// The transports.
pub mod transport {
    #[cfg(feature = "testing")]
    pub use crate::transport::faulty;
    pub use crate::transport::{memory, quic};
}
