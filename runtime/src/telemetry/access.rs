//! Authorization of orders over HTTP, and rate limits for all requests. Pure: the caller passes the
//! clock's time.

use crate::secret_file;
use axum::http::{HeaderMap, Method, header};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Requests of one address that are answered immediately after a pause.
pub const REQUESTS_BURST_MAX: u32 = 200;
/// Requests of one address that are answered in each further second.
pub const REQUESTS_PER_SECOND_MAX: u32 = 50;
/// Number of addresses whose requests are counted. If there are more, the one that asked least
/// recently is forgotten; connections are limited in any case.
pub const ADDRESSES_MAX: usize = 1024;
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
        "the token has characters that an HTTP header cannot carry: use ASCII letters, digits and \
         punctuation, as slowmo keygen does"
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

    /// The secret itself.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
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

/// A rate limit for each address.
#[derive(Debug, Default)]
pub struct Allowances(HashMap<IpAddr, Allowance>);

impl Allowances {
    /// Takes one request from the bucket of an address; returns whether it may be answered.
    pub fn take(&mut self, address: IpAddr, now: Instant) -> bool {
        if !self.0.contains_key(&address) && self.0.len() >= ADDRESSES_MAX {
            let idle = self.0.iter().min_by_key(|(_, allowance)| allowance.at);
            let idle = idle.map(|(address, _)| *address);
            idle.and_then(|address| self.0.remove(&address));
        }
        self.0
            .entry(address)
            .or_insert_with(|| Allowance::new((REQUESTS_BURST_MAX, REQUESTS_PER_SECOND_MAX), now))
            .take(now)
    }
}

/// Returns the prefix that counts as one address: an IPv4 address, or the network of 64 bits of an
/// IPv6 address, of which a single host may take any.
pub fn prefix(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// Whether a browser sent the request for a page of another site, which must not reach this node
/// through its visitor. Following a link to the page is allowed.
pub fn is_cross_site(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    if let Some(site) = text("sec-fetch-site") {
        let is_navigation = text("sec-fetch-mode") == Some("navigate") && method == Method::GET;
        let is_link = is_navigation && path == "/";
        let is_own = ["same-origin", "none"].contains(&site);
        return !is_own && !is_link;
    }
    // Old browsers name only the origin.
    let Some(origin) = text(header::ORIGIN.as_str()) else {
        return false;
    };
    let host = text(header::HOST.as_str()).unwrap_or("");
    origin.split_once("://").map(|(_, authority)| authority) != Some(host)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn pages_of_other_sites_send_nothing_here() {
        let headers = |list: &[(&'static str, &'static str)]| -> HeaderMap {
            list.iter()
                .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
                .collect()
        };
        let is_cross = |method: Method, path: &str, list: &[(&'static str, &'static str)]| {
            is_cross_site(&method, path, &headers(list))
        };
        let link = ("sec-fetch-mode", "navigate");
        let own = ("host", "localhost:7070");
        assert!(!is_cross(Method::GET, "/metrics", &[own]), "no browser");
        for site in ["cross-site", "same-site", "unknown"] {
            assert!(is_cross(
                Method::GET,
                "/status",
                &[own, ("sec-fetch-site", site)]
            ));
            assert!(is_cross(
                Method::POST,
                "/drain",
                &[own, link, ("sec-fetch-site", site)]
            ));
            assert!(!is_cross(
                Method::GET,
                "/",
                &[own, link, ("sec-fetch-site", site)]
            ));
        }
        for site in ["same-origin", "none"] {
            assert!(!is_cross(
                Method::POST,
                "/drain",
                &[own, ("sec-fetch-site", site)]
            ));
        }
        for origin in ["http://evil.example", "null", "http://localhost:7071"] {
            assert!(
                is_cross(Method::POST, "/drain", &[own, ("origin", origin)]),
                "{origin}"
            );
        }
        assert!(!is_cross(
            Method::POST,
            "/drain",
            &[own, ("origin", "http://localhost:7070")]
        ));
    }

    #[test]
    fn each_address_has_its_own_limit_and_few_are_counted() {
        let start = Instant::now();
        let mut allowances = Allowances::default();
        let of = |number: u32| prefix(IpAddr::from(number.to_be_bytes()));
        assert_eq!(
            (0..1000).filter(|_| allowances.take(of(1), start)).count(),
            REQUESTS_BURST_MAX as usize
        );
        assert!(allowances.take(of(2), start));
        let later = start + Duration::from_millis(1);
        assert!((0..3 * ADDRESSES_MAX as u32).all(|number| allowances.take(of(9 + number), later)));
        assert_eq!(allowances.0.len(), ADDRESSES_MAX);
        let [one, other]: [IpAddr; 2] =
            ["2001:db8::1", "2001:db8::ffff:2"].map(|text| text.parse().unwrap());
        assert_eq!(prefix(one), prefix(other));
        assert_eq!(
            prefix("::ffff:10.0.0.1".parse().unwrap()),
            IpAddr::from([10, 0, 0, 1])
        );
    }

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
