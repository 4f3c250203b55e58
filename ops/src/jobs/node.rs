//! Asking a node on its admin socket.

use super::exchange;
use slowmo::admin::{Answer, Request};
use std::path::Path;
use std::time::Duration;

/// How long a node may take; the launcher, which asks for others, must answer them well within
/// [`super::ANSWER_MAX`].
pub const NODE_ANSWER_MAX: Duration = Duration::from_secs(2);

/// Why a node did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// It does not answer.
    #[error(
        "{who} does not answer ({source}); it may not be up yet, or be stopped, and then do what was asked once it goes on"
    )]
    Silent {
        /// Which node.
        who: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It refused.
    #[error("{who} refused: {error}")]
    Refused {
        /// Which node.
        who: String,
        /// Why.
        error: String,
    },
}

impl NodeError {
    /// Whether nobody serves the socket: the node has ended, or was never there.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let Self::Silent { source, .. } = self else {
            return false;
        };
        matches!(
            source.kind(),
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
        )
    }
}

/// Asks the node behind the launcher's `socket` for it.
///
/// # Errors
/// It does not answer, or refuses.
pub fn ask(node: usize, socket: &Path, request: Request) -> Result<Answer, NodeError> {
    converse(format!("node {node}"), socket, request)
}

/// Asks whichever node serves this admin socket.
///
/// # Errors
/// It does not answer, or refuses.
pub fn ask_at(socket: &Path, request: Request) -> Result<Answer, NodeError> {
    converse(format!("the node at {}", socket.display()), socket, request)
}

fn converse(who: String, socket: &Path, request: Request) -> Result<Answer, NodeError> {
    match exchange(socket, &request, NODE_ANSWER_MAX) {
        Ok(Answer::Refused { error }) => Err(NodeError::Refused { who, error }),
        Ok(answer) => Ok(answer),
        Err(source) => Err(NodeError::Silent { who, source }),
    }
}
