//! An operator's own CA, and the files that it makes.

use crate::raw_peer::pem;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason, RevokedCertParams, date_time_ymd,
};
use slowmo::internal::transport::quic::{
    ClusterName, Identity, IdentityError, OperatorFiles, PeerName,
};
use slowmo_protocol::ident::NodeId;

/// The name that each node's certificate must carry in these tests.
pub const PEER_NAME: &str = "node-{id}.train.example";
/// When the certificates of these tests expire.
pub const EXPIRY_YEAR: i32 = 2090;

pub struct Operator {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

impl Operator {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        Self {
            issuer: CertifiedIssuer::self_signed(params, key).unwrap(),
        }
    }

    pub fn ca(&self) -> String {
        pem("CERTIFICATE", self.issuer.der())
    }

    /// A certificate with this name and serial number.
    pub fn issue(&self, name: &str, serial: u64) -> Issued {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.serial_number = Some(serial.into());
        params.not_after = date_time_ymd(EXPIRY_YEAR, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued {
            certificate: pem("CERTIFICATE", certificate.der()),
            key: pem("PRIVATE KEY", &key.serialize_der()),
        }
    }

    /// The certificate of a node, with its id as serial number.
    pub fn issue_for(&self, node: u64) -> Issued {
        self.issue(&PEER_NAME.replace("{id}", &node.to_string()), node)
    }

    /// A list that revokes the certificates with these serial numbers.
    pub fn revoke(&self, serials: &[u64]) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(EXPIRY_YEAR, 1, 1),
            crl_number: 1u64.into(),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).unwrap();
        pem("X509 CRL", list.der())
    }
}

/// The identity of a node that these files make.
pub fn identity(
    ca: &str,
    issued: &Issued,
    revoked: Option<&str>,
    peer_name: Option<&str>,
    node: u64,
) -> Result<Identity, IdentityError> {
    let files = OperatorFiles {
        ca: ca.as_bytes(),
        certificate: issued.certificate.as_bytes(),
        key: issued.key.as_bytes(),
        revoked: revoked.map(str::as_bytes),
    };
    let cluster: ClusterName = "run-7".parse().unwrap();
    let peer_name: Option<PeerName> = peer_name.map(|name| name.parse().unwrap());
    Identity::of_operator(files, Some(&cluster), peer_name.as_ref(), NodeId(node))
}
