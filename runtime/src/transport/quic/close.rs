//! Closing of connections: close codes on the wire, and the mapping of a connection's error to a
//! reason.

use crate::printable::{printable, printable_bytes};
use quinn::{Connection, ConnectionError, VarInt};
use slowmo_actors::ports::transport::{DialError, DownReason};
use slowmo_protocol::ident::NodeId;
use std::time::Duration;

/// Longest reason text that is sent, and that is read of a peer's, in bytes.
const REASON_BYTES_MAX: usize = 512;
/// TLS alerts about certificates, numbered as in RFC 8446 section 6; QUIC carries them in its error
/// codes (RFC 9001 section 4.8).
const CERTIFICATE_ALERTS: [u64; 8] = [42, 43, 44, 45, 46, 48, 51, 116];
/// The TLS alert for the case that the sides have no ALPN name in common.
const NO_APPLICATION_PROTOCOL_ALERT: u64 = 120;

/// Application close code on the wire: the reason why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum CloseCode {
    /// The process is gone or another connection of the session broke; also the code that quinn
    /// sends by itself.
    Gone = 0,
    /// The sender leaves in an orderly way.
    Leave = 1,
    /// The receiver of this code broke the protocol.
    Violation = 2,
    /// The receiver's introduction is invalid.
    BadPreface = 3,
    /// The receiver uses the sender's own node id.
    SameId = 4,
    /// Both ends are the same node, or are connected already; not an error.
    Needless = 6,
    /// The protocol versions were exchanged.
    Version = 7,
    /// The sender considers the receiver dead or broken; the receiver may connect again.
    Dropped = 8,
    /// Another incarnation of the receiver is connected and alive.
    Duplicate = 9,
    /// Another connection has taken this one's place, and everything sent on it was received.
    Renewed = 10,
}

/// Closes a connection with a code and a text, cut to [`REASON_BYTES_MAX`] bytes.
pub(super) fn close(connection: &Connection, code: CloseCode, reason: &str) {
    let reason = reason.as_bytes();
    connection.close(
        VarInt::from_u32(code as u32),
        &reason[..reason.len().min(REASON_BYTES_MAX)],
    );
}

/// Guard that closes a connection on drop unless it was kept, because an introduction may be
/// cancelled at any point.
pub(super) struct CloseOnDrop {
    connection: Connection,
    reason: Option<&'static str>,
}

impl CloseOnDrop {
    pub(super) fn new(connection: &Connection, reason: &'static str) -> Self {
        Self {
            connection: connection.clone(),
            reason: Some(reason),
        }
    }

    /// Returns the connection, which stays open.
    pub(super) fn keep(mut self) -> Connection {
        self.reason = None;
        self.connection.clone()
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(reason) = self.reason {
            close(&self.connection, CloseCode::Needless, reason);
        }
    }
}

/// Closes a peer's connection with the code that matches the reason of the session's end.
pub(super) fn close_for(connection: &Connection, reason: &DownReason) {
    match reason {
        DownReason::ClosedHere(text) => close(connection, CloseCode::Dropped, text),
        DownReason::Leaving(text) => close(connection, CloseCode::Leave, text),
        DownReason::ProtocolViolation(text) => close(connection, CloseCode::Violation, text),
        other => close(connection, CloseCode::Gone, &other.to_string()),
    }
}

/// Whether a connection ended because its dialer renewed it.
pub(super) fn is_renewed(connection: &Connection) -> bool {
    matches!(
        connection.close_reason(),
        Some(ConnectionError::ApplicationClosed(close))
            if u64::from(close.error_code) == CloseCode::Renewed as u64
    )
}

/// The reason for which a connected peer is down, from its connection's error.
pub(super) fn down_reason(error: &ConnectionError, idle_timeout: Duration) -> DownReason {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            let text = printable_bytes(&close.reason, REASON_BYTES_MAX);
            match u64::from(close.error_code) {
                code if code == CloseCode::Violation as u64 => DownReason::Dropped(format!(
                    "it found that this node broke the protocol: {text}"
                )),
                code if code == CloseCode::Dropped as u64 => DownReason::Dropped(text),
                code if code == CloseCode::Leave as u64 => DownReason::ClosedByPeer(text),
                _ if text.is_empty() => DownReason::ClosedByPeer("its process ended".into()),
                _ => DownReason::Broken(format!("its end of the session is over: {text}")),
            }
        }
        ConnectionError::TimedOut => DownReason::Silent(idle_timeout),
        ConnectionError::LocallyClosed => {
            DownReason::ClosedHere("this node closed the connection".into())
        }
        other => DownReason::Broken(error_text(other)),
    }
}

/// The text of a connection's error, in which a peer's reason is bounded and printable.
pub(super) fn error_text(error: &ConnectionError) -> String {
    let told = |who: &str, reason: &[u8]| {
        let reason = printable_bytes(reason, REASON_BYTES_MAX);
        format!("closed by {who}: {reason}")
    };
    match error {
        ConnectionError::ApplicationClosed(close) => told("the peer", &close.reason),
        ConnectionError::ConnectionClosed(close) => told("the peer's QUIC", &close.reason),
        other => printable(&other.to_string()).into_owned(),
    }
}

/// The error of a handshake that did not complete. Its peer is not authenticated, so anybody may
/// have sent what ended it: nothing of its text is passed on, and none of its codes is believed but
/// those with which TLS itself refuses.
pub(super) fn handshake_error(error: &ConnectionError, ours: &str) -> DialError {
    match error {
        ConnectionError::TimedOut | ConnectionError::Reset => DialError::NoAnswer,
        ConnectionError::TransportError(error) => {
            tls_error(error.code.into(), &printable(&error.reason), ours)
        }
        ConnectionError::ConnectionClosed(close) => tls_error(close.error_code.into(), "", ours),
        ConnectionError::ApplicationClosed(_) => {
            DialError::Other("it closed the connection before it was authenticated".into())
        }
        other => DialError::Other(other.to_string()),
    }
}

/// The error of an introduction between authenticated peers; `None` if connecting was needless.
pub(super) fn dial_error(error: &ConnectionError, local: NodeId, ours: &str) -> Option<DialError> {
    Some(match error {
        ConnectionError::TimedOut | ConnectionError::Reset => DialError::NoAnswer,
        ConnectionError::TransportError(error) => {
            tls_error(error.code.into(), &printable(&error.reason), ours)
        }
        ConnectionError::ConnectionClosed(close) => tls_error(
            close.error_code.into(),
            &printable_bytes(&close.reason, REASON_BYTES_MAX),
            ours,
        ),
        ConnectionError::ApplicationClosed(close) => {
            let text = printable_bytes(&close.reason, REASON_BYTES_MAX);
            match u64::from(close.error_code) {
                code if code == CloseCode::Needless as u64 => return None,
                code if code == CloseCode::SameId as u64 => DialError::SameId(local),
                code if code == CloseCode::Duplicate as u64 => DialError::DuplicateId(local),
                code if code == CloseCode::BadPreface as u64
                    || code == CloseCode::Violation as u64 =>
                {
                    DialError::RefusedThere(text)
                }
                _ => DialError::Other(format!("it closed the connection: {text}")),
            }
        }
        other => DialError::Other(other.to_string()),
    })
}

fn tls_error(code: u64, reason: &str, ours: &str) -> DialError {
    let alert = code.wrapping_sub(0x100);
    if CERTIFICATE_ALERTS.contains(&alert) {
        let told = if reason.is_empty() {
            format!("TLS alert {alert}")
        } else {
            reason.to_owned()
        };
        return DialError::WrongClusterKey(told);
    }
    if alert == NO_APPLICATION_PROTOCOL_ALERT {
        return DialError::ProtocolVersion {
            theirs: "unknown".into(),
            ours: ours.to_owned(),
        };
    }
    if reason.is_empty() {
        return DialError::Other(format!("QUIC error {code:#x}"));
    }
    DialError::Other(format!("QUIC error {code:#x}: {reason}"))
}
