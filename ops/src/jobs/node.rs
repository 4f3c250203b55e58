//! Requests to a node on its admin socket.

use super::exchange;
use slowmo::internal::admin::{Answer, Request};
use slowmo::status::Status;
use std::path::Path;
use std::time::Duration;

/// Longest time that a node may take to answer. The launcher queries the nodes on behalf of other
/// commands, so this must be well below [`super::ANSWER_MAX`].
pub const NODE_ANSWER_MAX: Duration = Duration::from_secs(2);

/// Reasons why a node did not carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The node does not answer.
    #[error(
        "{who} does not answer ({error}); it may not be up yet; if it is paused, it does what was \
         asked once it continues"
    )]
    Silent {
        /// Description of the node.
        who: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The node refused.
    #[error("{who} refused: {error}")]
    Refused {
        /// Description of the node.
        who: String,
        /// The reason.
        error: String,
    },
}

impl NodeError {
    /// Whether nothing serves the socket: the node has ended or never existed.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let Self::Silent { error, .. } = self else {
            return false;
        };
        matches!(
            error.kind(),
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
        )
    }
}

/// Sends a request to a node, on its admin socket `socket`.
///
/// # Errors
/// The node does not answer, or refuses.
pub fn ask(node: usize, socket: &Path, request: Request) -> Result<Answer, NodeError> {
    converse(format!("node {node}"), socket, request)
}

/// Sends a request to the node that serves this admin socket.
///
/// # Errors
/// The node does not answer, or refuses.
pub fn ask_at(socket: &Path, request: Request) -> Result<Answer, NodeError> {
    converse(format!("the node at {}", socket.display()), socket, request)
}

/// A node's report of itself, if it answers on its admin socket.
#[must_use]
pub fn report(node: usize, socket: &Path) -> Option<Status> {
    match ask(node, socket, Request::Status) {
        Ok(Answer::Status(report)) => Some(*report),
        _ => None,
    }
}

fn converse(who: String, socket: &Path, request: Request) -> Result<Answer, NodeError> {
    match exchange(socket, &request, NODE_ANSWER_MAX) {
        Ok(Answer::Refused { error }) => Err(NodeError::Refused { who, error }),
        Ok(answer) => Ok(answer),
        Err(error) => Err(NodeError::Silent { who, error }),
    }
}
