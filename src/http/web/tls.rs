//! `tls_server_config`, as rustls takes it.

use std::path::Path;
use std::sync::Arc;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
    SupportedProtocolVersion, version,
};
use serde::Deserialize;

use super::certificate::{alternative_names, validity};
use super::settings::Complaints;
use super::{Asked, Reader};
use crate::config::yaml;
use crate::policy::check::{Complaint, Step, steps};

/// A text that is empty is as good as none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Settings {
    cert: String,
    key: String,
    client_ca: String,
    cert_file: String,
    key_file: String,
    client_ca_file: String,
    client_auth_type: String,
    client_allowed_sans: Option<Vec<String>>,
    min_version: String,
    max_version: String,
    cipher_suites: Vec<String>,
    prefer_server_cipher_suites: bool,
    curve_preferences: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let none = String::new;
        Self {
            cert: none(),
            key: none(),
            client_ca: none(),
            cert_file: none(),
            key_file: none(),
            client_ca_file: none(),
            client_auth_type: none(),
            client_allowed_sans: None,
            min_version: none(),
            max_version: none(),
            cipher_suites: Vec::new(),
            prefer_server_cipher_suites: true,
            curve_preferences: Vec::new(),
        }
    }
}

/// What is asked of clients, in the words of Go's crypto/tls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    NoClientCert,
    RequestClientCert,
    RequireAnyClientCert,
    VerifyClientCertIfGiven,
    RequireAndVerifyClientCert,
}

const POLICIES: [(&str, Policy); 6] = [
    ("NoClientCert", Policy::NoClientCert),
    ("RequestClientCert", Policy::RequestClientCert),
    ("RequireAnyClientCert", Policy::RequireAnyClientCert),
    ("VerifyClientCertIfGiven", Policy::VerifyClientCertIfGiven),
    ("RequireAndVerifyClientCert", Policy::RequireAndVerifyClientCert),
    // So it was called once, and the toolkit still takes it.
    ("RequireClientCert", Policy::RequireAnyClientCert),
];

impl Policy {
    fn demands(self) -> bool {
        matches!(self, Self::RequireAnyClientCert | Self::RequireAndVerifyClientCert)
    }

    fn name(self) -> Option<&'static str> {
        POLICIES.iter().find(|(_, policy)| *policy == self).map(|(name, _)| *name)
    }

    fn verifies(self) -> bool {
        matches!(self, Self::VerifyClientCertIfGiven | Self::RequireAndVerifyClientCert)
    }
}

/// The suites of Go that rustls has not: they encrypt in CBC mode.
const WITHOUT: [&str; 4] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
];

const CURVES: [(&str, &dyn rustls::crypto::SupportedKxGroup); 3] = [
    ("X25519", ring::kx_group::X25519),
    ("CurveP256", ring::kx_group::SECP256R1),
    ("CurveP384", ring::kx_group::SECP384R1),
];

/// The protocols that clients may name in their greeting. Those who name none are served as well.
const PROTOCOLS: [&[u8]; 2] = [b"http/1.1", b"http/1.0"];

/// Who renews certificates has done it by then, or has not noticed that it fails.
const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// What is served, and how long.
pub(super) struct Tls {
    pub config: Arc<ServerConfig>,
    /// From when until when the certificate is good, in UTC.
    validity: Option<(DateTime, DateTime)>,
    /// Where it is named.
    at: Vec<Step>,
}

impl Tls {
    pub fn until(&self) -> Option<DateTime> {
        self.validity.map(|(_, until)| until)
    }

    /// What clients will make of it, now or soon. It is no error: the clock may be wrong, and the next certificate on its way.
    pub fn warning(&self, now: DateTime) -> Option<Complaint> {
        let (from, until) = self.validity?;
        let what = if now > until {
            format!("warning: the certificate has expired at {until}Z, and clients refuse it")
        } else if now < from {
            format!("warning: the certificate is not good before {from}Z, and clients refuse it")
        } else if until.duration_since(now) < SOON {
            format!("warning: the certificate expires at {until}Z")
        } else {
            return None;
        };
        Some(Complaint { at: self.at.clone(), what })
    }
}

impl Settings {
    pub fn asked(&self) -> Asked {
        let certificate = self.policy().is_some_and(Policy::demands);
        let authority = self.policy() == Some(Policy::RequireAndVerifyClientCert);
        let policy = self.policy().filter(|policy| *policy != Policy::NoClientCert).and_then(Policy::name);
        Asked { policy, certificate, authority, name: self.client_allowed_sans.is_some() }
    }

    fn policy(&self) -> Option<Policy> {
        let word = if self.client_auth_type.is_empty() { "NoClientCert" } else { &self.client_auth_type };
        POLICIES.iter().find(|(name, _)| *name == word).map(|(_, policy)| *policy)
    }

    /// `None` where there is something to complain about.
    pub fn server_config(self, directory: &Path, reader: &mut Reader, complaints: &mut Complaints) -> Option<Tls> {
        let mut pem = |name: &'static str, text: &str, file: &str| {
            let source = Source { name, text, file, directory };
            source.pem(reader, complaints)
        };
        let cert = pem("cert", &self.cert, &self.cert_file);
        let key = pem("key", &self.key, &self.key_file);
        let client_ca = pem("client_ca", &self.client_ca, &self.client_ca_file);
        self.must_have("cert", "certificate", &self.cert, &self.cert_file, complaints);
        self.must_have("key", "key", &self.key, &self.key_file, complaints);
        let versions = self.versions(complaints);
        let provider = Arc::new(CryptoProvider {
            cipher_suites: self.cipher_suites(complaints),
            kx_groups: self.curves(complaints),
            ..ring::default_provider()
        });
        let roots = client_ca.and_then(|pem| roots(&pem, complaints));
        let verifier = self.verifier(roots, &provider, complaints);
        let (cert, key) = (cert?, key?);
        let at = steps!["tls_server_config", cert.key.as_str()];
        let identity = identity(cert, key, &provider, complaints)?;
        let validity = identity.cert.first().and_then(|certificate| validity(certificate));

        // What follows of what was said is not said.
        let versions = versions.filter(|_| complaints.are_none())?;
        let Ok(builder) = ServerConfig::builder_with_provider(provider).with_protocol_versions(&versions) else {
            let what = "no suite of TLS 1.2 is among these and `max_version` allows no other, expected one";
            complaints.at(steps!["tls_server_config", "cipher_suites"], what);
            return None;
        };
        let resolver = Arc::new(SingleCertAndKey::from(identity));
        let mut config = builder.with_client_cert_verifier(verifier?).with_cert_resolver(resolver);
        config.ignore_client_order = self.prefer_server_cipher_suites;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        Some(Tls { config: Arc::new(config), validity, at })
    }

    fn must_have(&self, name: &str, what: &str, text: &str, file: &str, complaints: &mut Complaints) {
        if text.is_empty() && file.is_empty() {
            complaints.at(steps!["tls_server_config"], format!("no {what}, expected `{name}_file` or `{name}`"));
        }
    }

    /// From `min_version` to `max_version`.
    fn versions(&self, complaints: &mut Complaints) -> Option<Vec<&'static SupportedProtocolVersion>> {
        let mut read = |key: &str, word: &str, default: u8| match word {
            "" => Some(default),
            "TLS12" => Some(12),
            "TLS13" => Some(13),
            "TLS10" | "TLS11" => {
                let what = format!("`{word}` is broken and cannot be served, expected TLS12 or TLS13");
                complaints.at(steps!["tls_server_config", key], what);
                None
            }
            _ => {
                let what = format!("unknown version `{word}`, expected TLS12 or TLS13");
                complaints.at(steps!["tls_server_config", key], what);
                None
            }
        };
        let (min, max) = (read("min_version", &self.min_version, 12), read("max_version", &self.max_version, 13));
        let (min, max) = (min?, max?);
        if min > max {
            complaints.at(steps!["tls_server_config", "max_version"], "older than min_version, expected none older");
        }
        let all = [(13, &version::TLS13), (12, &version::TLS12)];
        Some(all.into_iter().filter(|(number, _)| (min..=max).contains(number)).map(|(_, version)| version).collect())
    }

    /// The list is of those of TLS 1.2; those of 1.3 are always there.
    fn cipher_suites(&self, complaints: &mut Complaints) -> Vec<rustls::SupportedCipherSuite> {
        let all = ring::ALL_CIPHER_SUITES;
        if self.cipher_suites.is_empty() {
            return all.to_vec();
        }
        let name = |suite: &rustls::SupportedCipherSuite| format!("{:?}", suite.suite()).replace("TLS13_", "TLS_");
        let mut suites: Vec<_> = all.iter().filter(|suite| suite.tls13().is_some()).copied().collect();
        for (number, word) in self.cipher_suites.iter().enumerate() {
            let at = steps!["tls_server_config", "cipher_suites", number];
            match all.iter().find(|suite| name(suite) == *word) {
                Some(suite) if suites.contains(suite) => {}
                Some(suite) => suites.push(*suite),
                None if WITHOUT.contains(&word.as_str()) => {
                    complaints.at(at, format!("`{word}` cannot be served, expected suites with GCM or CHACHA20"));
                }
                None => {
                    let names: Vec<String> = all.iter().map(name).collect();
                    complaints.at(at, unknown("suite", word, &names.iter().map(String::as_str).collect::<Vec<_>>()));
                }
            }
        }
        suites
    }

    fn curves(&self, complaints: &mut Complaints) -> Vec<&'static dyn rustls::crypto::SupportedKxGroup> {
        if self.curve_preferences.is_empty() {
            return ring::ALL_KX_GROUPS.to_vec();
        }
        let mut curves = Vec::new();
        for (number, word) in self.curve_preferences.iter().enumerate() {
            let at = steps!["tls_server_config", "curve_preferences", number];
            match CURVES.iter().find(|(name, _)| name == word) {
                Some((_, curve)) => curves.push(*curve),
                None if word == "CurveP521" => {
                    complaints.at(at, "`CurveP521` cannot be served, expected X25519, CurveP256 or CurveP384");
                }
                None => complaints.at(at, unknown("curve", word, &CURVES.map(|(name, _)| name))),
            }
        }
        curves
    }

    fn verifier(
        &self,
        roots: Option<RootCertStore>,
        provider: &Arc<CryptoProvider>,
        complaints: &mut Complaints,
    ) -> Option<Arc<dyn ClientCertVerifier>> {
        let at = |key: &str| steps!["tls_server_config", key];
        let Some(policy) = self.policy() else {
            let names: Vec<&str> = POLICIES[..5].iter().map(|(name, _)| *name).collect();
            complaints.at(at("client_auth_type"), unknown("policy", &self.client_auth_type, &names));
            return None;
        };
        let has_ca = !self.client_ca.is_empty() || !self.client_ca_file.is_empty();
        if has_ca && policy == Policy::NoClientCert {
            let key = if self.client_ca_file.is_empty() { "client_ca" } else { "client_ca_file" };
            complaints
                .at(at(key), "of no use without a policy, expected `client_auth_type: RequireAndVerifyClientCert`");
        }
        if !has_ca && policy.verifies() {
            let what =
                format!("`{}` has nothing to verify with, expected `client_ca_file` beside it", self.client_auth_type);
            complaints.at(at("client_auth_type"), what);
        }
        match &self.client_allowed_sans {
            Some(names) if names.is_empty() => {
                complaints.at(at("client_allowed_sans"), "an empty list, expected one name at least, or no such key");
            }
            Some(_) if !policy.demands() => complaints.at(
                at("client_allowed_sans"),
                "a client may have no certificate, expected `client_auth_type: RequireAndVerifyClientCert`",
            ),
            _ => {}
        }
        if policy == Policy::NoClientCert {
            return Some(WebPkiClientVerifier::no_client_auth());
        }
        let verified = match roots.filter(|_| policy.verifies()) {
            Some(roots) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
                let key = if self.client_ca_file.is_empty() { "client_ca" } else { "client_ca_file" };
                Some(verifier.map_err(|error| complaints.at(at(key), format!("{error}, expected certificates"))).ok()?)
            }
            // What is wrong with the certificates was said.
            None if policy.verifies() => return None,
            None => None,
        };
        Some(Arc::new(Clients {
            policy,
            verified,
            names: self.client_allowed_sans.clone(),
            provider: provider.clone(),
        }))
    }
}

fn unknown(what: &str, word: &str, names: &[&str]) -> String {
    let near = yaml::did_you_mean(word, names);
    format!("unknown {what} `{word}`, expected one of {}{near}", names.join(", "))
}

/// PEM that stands in the file itself or in another.
struct Source<'a> {
    name: &'static str,
    text: &'a str,
    file: &'a str,
    directory: &'a Path,
}

/// PEM, and the key that it came from.
struct Pem {
    bytes: Vec<u8>,
    key: String,
}

impl Source<'_> {
    fn pem(&self, reader: &mut Reader, complaints: &mut Complaints) -> Option<Pem> {
        let in_file = format!("{}_file", self.name);
        let bytes = match (self.text, self.file) {
            ("", "") => return None,
            (text, "") => return Some(Pem { bytes: text.into(), key: self.name.into() }),
            ("", file) => reader.read(&self.directory.join(file)),
            _ => {
                let what = format!("beside `{in_file}`, expected only one of the two");
                complaints.at(steps!["tls_server_config", self.name], what);
                return None;
            }
        };
        match bytes {
            Ok(bytes) => Some(Pem { bytes, key: in_file }),
            Err(error) => {
                let path = self.directory.join(self.file);
                let what = format!("`{}` cannot be read: {error}, expected a file in PEM", path.display());
                complaints.at(steps!["tls_server_config", in_file.as_str()], what);
                None
            }
        }
    }
}

impl Pem {
    /// One certificate at least.
    fn certificates(&self, complaints: &mut Complaints) -> Option<Vec<CertificateDer<'static>>> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        let all = all.ok().filter(|all| !all.is_empty());
        if all.is_none() {
            complaints
                .at(steps!["tls_server_config", self.key.as_str()], "no certificate in PEM, expected one at least");
        }
        all
    }
}

fn roots(pem: &Pem, complaints: &mut Complaints) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in pem.certificates(complaints)? {
        if let Err(error) = roots.add(certificate) {
            let what = format!("not a certificate ({error}), expected those of authorities");
            complaints.at(steps!["tls_server_config", pem.key.as_str()], what);
            return None;
        }
    }
    Some(roots)
}

fn identity(cert: Pem, key: Pem, provider: &CryptoProvider, complaints: &mut Complaints) -> Option<CertifiedKey> {
    let chain = cert.certificates(complaints);
    let at_key = steps!["tls_server_config", key.key.as_str()];
    let Ok(private) = PrivateKeyDer::from_pem_slice(&key.bytes) else {
        complaints.at(at_key, "no private key in PEM, expected one that is not encrypted");
        return None;
    };
    match CertifiedKey::from_der(chain?, private, provider) {
        Ok(identity) => Some(identity),
        Err(Error::InconsistentKeys(_)) => {
            complaints.at(at_key, "not the key of this certificate, expected that one");
            None
        }
        Err(Error::InvalidCertificate(error)) => {
            let what = format!("not a certificate ({error}), expected one");
            complaints.at(steps!["tls_server_config", cert.key.as_str()], what);
            None
        }
        Err(_) => {
            complaints.at(
                at_key,
                "a key that cannot be used, expected one of RSA (2048 bits or more), P-256, P-384 or Ed25519",
            );
            None
        }
    }
}

/// Verifies clients as the policy says, and by their names.
#[derive(Debug)]
struct Clients {
    policy: Policy,
    verified: Option<Arc<dyn ClientCertVerifier>>,
    /// One of these must be among the names of the certificate.
    names: Option<Vec<String>>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        self.policy.demands()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verified.as_ref().map_or(&[], |verified| verified.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(verified) = &self.verified {
            verified.verify_client_cert(certificate, intermediates, now)?;
        }
        let Some(allowed) = &self.names else { return Ok(ClientCertVerified::assertion()) };
        let names = alternative_names(certificate).ok_or(CertificateError::BadEncoding)?;
        if names.iter().any(|name| allowed.contains(name)) {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
