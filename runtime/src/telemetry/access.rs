//! Authorization of orders over HTTP, and rate limits for all requests. Pure: the caller passes the
//! clock's time.

use crate::secret_file;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Requests that are answered immediately after a pause.
pub const REQUESTS_BURST_MAX: u32 = 200;
/// Requests that are answered in each further second.
pub const REQUESTS_PER_SECOND_MAX: u32 = 50;
/// Shortest token, in bytes.
pub const TOKEN_BYTES_MIN: usize = 16;
/// Longest token file that is read, in bytes.
const TOKEN_FILE_BYTES_MAX: u64 = 4096;

/// The reason why a token cannot be obtained.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The token file cannot be read.
    #[error("the token file {} cannot be read ({error}); check http_token_file", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The token is short enough to be guessed.
    #[error("the token is shorter than {TOKEN_BYTES_MIN} bytes; slowmo keygen writes a long one")]
    TooShort,
    /// The token has characters that no request can contain in a header.
    #[error(
        "the token has characters that an HTTP header cannot carry: use ASCII letters, digits and punctuation, as slowmo keygen does"
    )]
    NoHeader,
}

/// The secret that authorizes changes.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token(hidden)")
    }
}

impl Token {
    /// Reads the token from a file, without blanks around it.
    pub fn read(path: &Path) -> Result<Self, AccessError> {
        let failed = |error| AccessError::File {
            path: path.to_owned(),
            error,
        };
        let bytes = secret_file::read(path, TOKEN_FILE_BYTES_MAX).map_err(failed)?;
        Self::new(String::from_utf8_lossy(&bytes).trim())
    }

    /// Checks and wraps the text of a token.
    pub fn new(text: &str) -> Result<Self, AccessError> {
        if text.len() < TOKEN_BYTES_MIN {
            Err(AccessError::TooShort)
        } else if !text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() || byte == b' ')
        {
            Err(AccessError::NoHeader)
        } else {
            Ok(Self(text.to_owned()))
        }
    }

    /// Whether a request's `Authorization` contains the token. The comparison takes a time that
    /// does not depend on how much of it is right.
    pub fn is_given_by(&self, authorization: Option<&str>) -> bool {
        let token = |text: &'_ str| {
            text.split_once(' ')
                .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
                .map(|(_, given)| given.to_owned())
        };
        let given = authorization.and_then(token).unwrap_or_default();
        let given = given.as_bytes();
        let own = self.0.as_bytes();
        let differences = given
            .iter()
            .zip(own)
            .fold(0, |found, (one, other)| found | (one ^ other));
        given.len() == own.len() && std::hint::black_box(differences) == 0
    }
}

/// Whether a request's `Host` names this machine itself: an address or `localhost`, with or without
/// a port.
pub fn is_host_of_this_machine(host: Option<&str>) -> bool {
    let Some(host) = host else { return true };
    let name = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// A rate limit: a token bucket that fills with time.
#[derive(Debug)]
pub struct Allowance {
    most: f64,
    per_second: f64,
    left: f64,
    at: Instant,
}

impl Allowance {
    /// Creates a full bucket with this many requests at once and in each further second.
    pub fn new((burst, per_second): (u32, u32), now: Instant) -> Self {
        let most = f64::from(burst);
        let per_second = f64::from(per_second);
        Self {
            most,
            per_second,
            left: most,
            at: now,
        }
    }

    /// Takes one request from the bucket; returns whether it may be answered.
    pub fn take(&mut self, now: Instant) -> bool {
        let filled = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        self.left = (self.left + filled).min(self.most);
        self.at = now;
        let allowed = self.left >= 1.0;
        self.left -= if allowed { 1.0 } else { 0.0 };
        allowed
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_token_is_all_of_it_or_nothing() {
        let token = Token::new("0123456789abcdef").unwrap();
        assert!(
            token.is_given_by(Some("Bearer 0123456789abcdef"))
                && token.is_given_by(Some("bearer 0123456789abcdef"))
        );
        for wrong in [
            "",
            "Bearer ",
            "0123456789abcdef",
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789abcde",
        ] {
            assert!(!token.is_given_by(Some(wrong)), "{wrong}");
        }
        assert!(!token.is_given_by(None));
        assert!(matches!(Token::new("short"), Err(AccessError::TooShort)));
        assert!(matches!(
            Token::new("pässwort-pässwort"),
            Err(AccessError::NoHeader)
        ));
        assert_eq!(format!("{token:?}"), "Token(hidden)");
    }

    #[test]
    fn a_name_that_leads_here_is_not_this_machine() {
        for own in [
            "localhost",
            "LOCALHOST:7070",
            "127.0.0.1:7070",
            "127.1.2.3",
            "[::1]:7070",
            "[::1]",
        ] {
            assert!(is_host_of_this_machine(Some(own)), "{own}");
        }
        for other in [
            "",
            "evil.example",
            "evil.example:7070",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]:1",
            "[",
            "127.0.0.1.evil.example",
        ] {
            assert!(!is_host_of_this_machine(Some(other)), "{other}");
        }
    }

    #[test]
    fn who_asks_too_often_is_put_off_and_served_again_later() {
        let start = Instant::now();
        let mut allowance = Allowance::new((REQUESTS_BURST_MAX, REQUESTS_PER_SECOND_MAX), start);
        assert_eq!(
            (0..1000).filter(|_| allowance.take(start)).count(),
            REQUESTS_BURST_MAX as usize
        );
        let later = start + Duration::from_millis(100);
        assert_eq!(
            (0..1000).filter(|_| allowance.take(later)).count(),
            REQUESTS_PER_SECOND_MAX as usize / 10
        );
    }
}
