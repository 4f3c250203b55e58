//! A throwaway certificate: process 1 creates it, all processes use it, and it is deleted with the
//! folder.

use super::RawNodeError;
use super::meeting::wait_for_file;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The name in the certificate.
pub(super) const NAME: &str = "raw";

/// The certificate and its key, the same for every process of the folder.
pub(super) fn shared(
    folder: &Path,
    node: usize,
) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), RawNodeError> {
    let file = folder.join("raw.certificate");
    if node == 1 {
        create(&file)?;
    }
    // File layout: length of the certificate, certificate, key.
    let (certificate, key) = wait_for_file(&file, |bytes| {
        let (length, rest) = bytes.split_at_checked(8)?;
        let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
        let (certificate, key) = rest.split_at_checked(length)?;
        Some((certificate.to_vec(), key.to_vec()))
    })?;
    Ok((certificate.into(), PrivatePkcs8KeyDer::from(key).into()))
}

fn create(file: &Path) -> Result<(), RawNodeError> {
    let made = generate_simple_self_signed([NAME.to_owned()]);
    let CertifiedKey { cert, signing_key } =
        made.map_err(|error| RawNodeError::Certificate(error.to_string()))?;
    let mut bytes = (cert.der().len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(cert.der());
    bytes.extend_from_slice(signing_key.serialized_der());
    let unfinished = file.with_extension("part");
    let io = |source| RawNodeError::Io {
        doing: "writing the certificate",
        source,
    };
    let mut out = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)
        .map_err(io)?;
    std::io::Write::write_all(&mut out, &bytes).map_err(io)?;
    std::fs::rename(&unfinished, file).map_err(io)
}
