//! Certificates: what those of nodes carry, and how they are read.

use super::identity_error::IdentityError;
use crate::transport::session::KeyDigest;
use ::ring::digest::{SHA256, digest};
use rcgen::{CertificateParams, DnType};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use slowmo_protocol::ident::{Incarnation, NodeId};
use std::fmt;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Certificates are valid from January 1 of the first year to January 1 of the second. The range is
/// wide because nodes' clocks may be wrong; trust rests on the key.
const VALID_YEARS: (i32, i32) = (2020, 2120);

/// Crypto provider with AES-128 first: QUIC needs it anyway, and it is the cheapest on processors
/// with AES instructions.
pub(super) fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(provider)
}

/// An error of this certificate or file.
pub(super) fn unusable<E: fmt::Display>(what: &'static str) -> impl Fn(E) -> IdentityError {
    move |error| IdentityError::Certificate {
        what,
        reason: error.to_string(),
    }
}

/// Returns the parameters that the certificates of a cluster key have in common.
pub(super) fn certificate_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.not_before = rcgen::date_time_ymd(VALID_YEARS.0, 1, 1);
    params.not_after = rcgen::date_time_ymd(VALID_YEARS.1, 1, 1);
    params
}

/// The DNS name that a node's certificate carries.
pub(super) fn peer_name(node: NodeId, incarnation: Incarnation) -> String {
    format!("n{}.i{}.slowmo", node.0, incarnation.0)
}

/// The inverse of [`peer_name`].
pub(super) fn parse_peer_name(name: &str) -> Option<(NodeId, Incarnation)> {
    let (node, incarnation) = name.strip_suffix(".slowmo")?.split_once('.')?;
    let node = node.strip_prefix('n')?.parse().ok()?;
    let incarnation = incarnation.strip_prefix('i')?.parse().ok()?;
    Some((NodeId(node), Incarnation(incarnation)))
}

/// The DNS names and URIs in a certificate.
pub(super) fn names_in(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = names.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}

/// When the first of these certificates expires, in seconds since 1970.
pub(super) fn expiry_of(chain: &[CertificateDer<'_>]) -> Option<i64> {
    let parsed = chain
        .iter()
        .filter_map(|certificate| X509Certificate::from_der(certificate).ok());
    parsed
        .map(|(_, certificate)| certificate.validity().not_after.timestamp())
        .min()
}

/// A digest of the public key in a certificate.
pub(super) fn key_in(certificate: &[u8]) -> Option<KeyDigest> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let digest = digest(&SHA256, certificate.public_key().raw);
    digest.as_ref().try_into().ok()
}

/// The node id and incarnation in a certificate, if it carries them.
pub(super) fn name_in(certificate: &[u8]) -> Option<(NodeId, Incarnation)> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    names
        .value
        .general_names
        .iter()
        .find_map(|name| match name {
            GeneralName::DNSName(name) => parse_peer_name(name),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_names_are_read_back() {
        let name = peer_name(NodeId(u64::MAX), Incarnation(3));
        assert_eq!(
            parse_peer_name(&name),
            Some((NodeId(u64::MAX), Incarnation(3)))
        );
        for wrong in [
            "",
            "n1.i2",
            "n1.slowmo",
            "n1.ix.slowmo",
            "n1.i2.slowmo.org",
            "n99999999999999999999.i1.slowmo",
        ] {
            assert_eq!(parse_peer_name(wrong), None, "{wrong}");
        }
    }
}
