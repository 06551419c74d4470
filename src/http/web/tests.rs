use std::fs;

use expect_test::expect_file;
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use super::*;

/// A folder with a certificate and its key, another key, and what is no certificate.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = identity();
    write(&folder, "server.crt", &certificate);
    write(&folder, "server.key", &key);
    write(&folder, "other.key", &KeyPair::generate().unwrap().serialize_pem());
    write(&folder, "none.pem", "nothing\n");
    write(&folder, "bent.crt", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n");
    folder
}

fn identity() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn write(folder: &TempDir, name: &str, text: &str) {
    // As those do who renew certificates: a new file in the place of the old one.
    let new = folder.path().join("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, folder.path().join(name)).unwrap();
}

fn told(folder: &TempDir, text: &str) -> Vec<String> {
    let errors = errors(&folder.path().join("web.yml"), text).into_iter();
    let here = format!("{}/", folder.path().display());
    errors.map(|error| error.to_string().replace(&here, "")).collect()
}

const TLS: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";
const USERS: &str = "basic_auth_users:\n  alice: $2y$04$UP1pYMSgnHBbXBf5SlkG2uIhq.I6X5OEOLs7LUyI4HcRcdHkAWCbW\n";

/// Each is the end of a file that begins with the certificate and its key.
const BROKEN_TLS: &[&str] = &[
    "cert: inline",
    "key: inline",
    "certificate: x",
    "client_ca_file: server.crt",
    "client_auth_type: RequireAndVerifyClientCert",
    "client_auth_type: VerifyClientCertIfGiven",
    "client_auth_type: RequireAndVerifyClientCrt",
    "client_auth_type: {}",
    "{client_auth_type: RequireAndVerifyClientCert, client_ca_file: gone.crt}",
    "{client_auth_type: RequireAndVerifyClientCert, client_ca_file: none.pem}",
    "{client_auth_type: RequireAndVerifyClientCert, client_ca_file: bent.crt}",
    "{client_auth_type: RequireAndVerifyClientCert, client_ca_file: .}",
    "{client_auth_type: RequireAnyClientCert, client_allowed_sans: []}",
    "{client_auth_type: RequestClientCert, client_allowed_sans: [prometheus]}",
    "client_allowed_sans: [prometheus]",
    "min_version: TLS10",
    "min_version: TLS11",
    "max_version: SSL3",
    "{min_version: TLS13, max_version: TLS12}",
    "min_version: 1.2",
    "cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA]",
    "cipher_suites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA257]",
    "{cipher_suites: [TLS_AES_128_GCM_SHA256], max_version: TLS12}",
    "curve_preferences: [X25519, CurveP521]",
    "curve_preferences: [P256]",
    "prefer_server_cipher_suites: perhaps",
];

const BROKEN: &[&str] = &[
    "",
    "# nothing yet",
    "tls_server_confg: {}",
    "tls_server_config: {}",
    "tls_server_config:",
    "tls_server_config: {cert_file: gone.crt, key_file: gone.key}",
    "tls_server_config: {cert_file: none.pem, key_file: none.pem}",
    "tls_server_config: {cert_file: bent.crt, key_file: server.key}",
    "tls_server_config: {cert_file: server.crt, key_file: other.key}",
    "tls_server_config: {cert_file: server.crt, key_file: server.crt}",
    "tls_server_config: {cert_file: server.crt}",
    "http_server_config: {http2: perhaps}",
    "http_server_config: {http3: true}",
    "http_server_config: {headers: {X-Frame-Options: allow}}",
    "http_server_config: {headers: {X-Content-Type-Options: sniff}}",
    "http_server_config: {headers: {Server: gpuwarden}}",
    "http_server_config: {headers: {Content-Security-Policy: \"a\\nb\"}}",
    "basic_auth_users: {alice: secret}",
    "basic_auth_users: {alice: }",
    "basic_auth_users: {\"a:b\": $2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG}",
    "basic_auth_users: {alice: $2y$31$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG}",
    "basic_auth_users: [alice]",
    "rate_limit: {burst: 5}",
    "rate_limit: {interval: 1s}",
    "rate_limit: {interval: 1, burst: 5}",
    "rate_limit: {interval: soon, burst: 5}",
    "rate_limit: {interval: 1s, burst: -1}",
    "rate_limit: {interval: 1s, burst: 5, per: client}",
];

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let folder = folder();
    let with_tls = |end: &&str| {
        let lines = end.trim_matches(['{', '}']).replace(", client_", "\n  client_").replace(", max_", "\n  max_");
        format!("{TLS}  {}", if end.starts_with('{') { lines } else { (*end).to_owned() })
    };
    let texts = BROKEN.iter().map(|text| (*text).to_owned()).chain(BROKEN_TLS.iter().map(with_tls));
    let mut all = String::new();
    for text in texts {
        let told = told(&folder, &text);
        assert!(!told.is_empty(), "nothing is told of {text}");
        let short = text.strip_prefix(TLS).map_or(text.clone(), |end| format!("...\n{end}"));
        all += &format!("{short}\n    {}\n\n", told.join("\n    "));
    }
    expect_file![concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/web-errors.txt")].assert_eq(&all);
}

#[test]
fn what_the_toolkit_takes_is_taken() {
    let folder = folder();
    let (certificate, key) = identity();
    let inline = |name: &str, pem: &str| format!("  {name}: |\n    {}\n", pem.trim().replace('\n', "\n    "));
    let ca = "  client_ca_file: server.crt\n";
    let mut good = vec![
        TLS.to_owned(),
        USERS.to_owned(),
        format!("{TLS}{USERS}"),
        format!("tls_server_config:\n{}{}", inline("cert", &certificate), inline("key", &key)),
        format!("{TLS}{ca}  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [a, 192.0.2.1]\n"),
        format!("{TLS}{ca}  client_auth_type: VerifyClientCertIfGiven\n"),
        format!("{TLS}{}  client_auth_type: RequireAndVerifyClientCert\n", inline("client_ca", &certificate)),
        format!("{TLS}  client_auth_type: \"\"\n  client_ca_file: \"\"\n  min_version: TLS12\n  max_version: TLS13\n"),
        format!("{TLS}  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]\n"),
        format!("{TLS}  curve_preferences: [CurveP384, X25519]\n  prefer_server_cipher_suites: false\n"),
        "http_server_config: {http2: true}\n".into(),
        "http_server_config: {http2: false, headers: {X-Frame-Options: deny, X-XSS-Protection: \"\"}}\n".into(),
        "http_server_config: {headers: {Strict-Transport-Security: max-age=31536000}}\n".into(),
        "basic_auth_users: {}\n".into(),
        "rate_limit: {interval: 1s, burst: 20}\n".into(),
        "rate_limit: {interval: 0, burst: 0}\n".into(),
        "rate_limit: {interval: 0s}\n".into(),
    ];
    for policy in ["NoClientCert", "RequestClientCert", "RequireAnyClientCert", "RequireClientCert"] {
        good.push(format!("{TLS}  client_auth_type: {policy}\n"));
    }
    for text in good {
        assert_eq!(told(&folder, &text), Vec::<String>::new(), "{text}");
    }
}

/// A web configuration that is in force, and the same files later.
fn live(folder: &TempDir, text: &str) -> Live {
    write(folder, "web.yml", text);
    Live::open(&folder.path().join("web.yml")).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn tls(live: &Live) -> Arc<ServerConfig> {
    live.web().tls.clone().unwrap()
}

#[test]
fn a_renewed_certificate_is_taken_and_a_broken_one_is_not() {
    let folder = folder();
    let live = live(&folder, TLS);
    let first = tls(&live);
    assert!(Arc::ptr_eq(&first, &tls(&live)), "nothing has changed");
    let (certificate, key) = identity();
    write(&folder, "server.crt", &certificate);
    assert!(Arc::ptr_eq(&first, &tls(&live)), "its key is still to come");
    write(&folder, "server.key", &key);
    let second = tls(&live);
    assert!(!Arc::ptr_eq(&first, &second));
    fs::remove_file(folder.path().join("server.crt")).unwrap();
    assert!(Arc::ptr_eq(&second, &tls(&live)), "it is gone for a moment");
    write(&folder, "server.crt", &certificate);
    assert!(!Arc::ptr_eq(&second, &tls(&live)), "it is back");
}

#[test]
fn a_broken_file_leaves_the_old_one_in_force_until_it_is_mended() {
    let folder = folder();
    let live = live(&folder, USERS);
    let first = live.web();
    write(&folder, "web.yml", "basic_auth_users: [");
    assert!(Arc::ptr_eq(&first, &live.web()));
    write(&folder, "web.yml", &format!("{USERS}  bob: $2y$04$UP1pYMSgnHBbXBf5SlkG2uIhq.I6X5OEOLs7LUyI4HcRcdHkAWCbW\n"));
    assert_eq!(format!("{:?}", live.web().users), "2 users");
}

#[test]
fn no_change_of_a_file_opens_the_door() {
    let folder = folder();
    let demands = format!("{TLS}  client_auth_type: RequireAnyClientCert\n");
    let (ca, name) = ("  client_ca_file: server.crt\n", "  client_allowed_sans: [prometheus]\n");
    let verifies = format!("{TLS}{ca}  client_auth_type: RequireAndVerifyClientCert\n");
    for (before, after) in [
        (format!("{TLS}{USERS}"), USERS.to_owned()),
        (format!("{TLS}{USERS}"), TLS.to_owned()),
        (format!("{TLS}{USERS}"), format!("{TLS}basic_auth_users: {{}}\n")),
        (demands.clone(), TLS.to_owned()),
        (format!("{demands}{name}"), demands.clone()),
        (verifies.clone(), format!("{demands}{ca}")),
        (verifies.clone(), format!("{TLS}{ca}  client_auth_type: VerifyClientCertIfGiven\n")),
    ] {
        let live = live(&folder, &before);
        let first = live.web();
        write(&folder, "web.yml", &after);
        assert!(Arc::ptr_eq(&first, &live.web()), "{before}\n{after}");
        write(&folder, "web.yml", &before);
        assert!(!Arc::ptr_eq(&first, &live.web()), "what follows is read again");
    }
}

#[test]
fn what_is_logged_of_it_holds_no_secret() {
    let folder = folder();
    let web = live(&folder, &format!("{TLS}{USERS}")).web();
    let shown = format!("{web:?}");
    assert!(!shown.contains("UP1pYMSgnHBbXBf5SlkG2u") && !shown.contains("PRIVATE"), "{shown}");
}

#[test]
fn what_could_not_be_read_for_a_while_is_read_once_it_can_be() {
    let folder = folder();
    let live = live(&folder, USERS);
    let first = live.web();
    write(&folder, "web.yml", &format!("{USERS}  bob: $2y$04$UP1pYMSgnHBbXBf5SlkG2uIhq.I6X5OEOLs7LUyI4HcRcdHkAWCbW\n"));
    // As when all descriptors are in use.
    let file = folder.path().join("web.yml");
    let unread = Diagnostic::of_file(&file, "cannot be read: Too many open files");
    let reading = Reading { files: vec![(file.clone(), Stamp::of(&file))], web: Err(vec![unread]) };
    live.now.lock().unwrap().take(reading);
    assert!(Arc::ptr_eq(&first, &live.web()), "not with each question");
    live.now.lock().unwrap().trouble.as_mut().unwrap().again = Instant::now();
    assert_eq!(format!("{:?}", live.web().users), "2 users");
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_not_waited_for() {
    use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
    let folder = folder();
    let (file, pipe) = (folder.path().join("server.key"), folder.path().join("pipe"));
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
    let begun = Instant::now();
    let (done, is_done) = std::sync::mpsc::channel();
    let read = file.clone();
    std::thread::spawn(move || {
        let came: Vec<bool> = (0..20_000).map(|_| Reader::default().read(&read).is_ok()).collect();
        done.send(came)
    });
    let came = loop {
        renameat_with(CWD, &file, CWD, &pipe, RenameFlags::EXCHANGE).unwrap();
        match is_done.try_recv() {
            Err(std::sync::mpsc::TryRecvError::Empty) if begun.elapsed() < Duration::from_secs(20) => {}
            came => break came,
        }
    };
    let came = came.expect("it waits for the pipe");
    assert!(came.contains(&true) && came.contains(&false));
}

#[test]
fn who_renews_certificates_is_warned_a_week_before() {
    let folder = folder();
    let key = KeyPair::generate().unwrap();
    let warned = |days: i64| {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let now = std::time::SystemTime::now();
        let (from, until) = (now - Duration::from_secs(86_400), now + Duration::from_secs(days as u64 * 86_400 + 60));
        (params.not_before, params.not_after) = (from.into(), until.into());
        write(&folder, "server.crt", &params.self_signed(&key).unwrap().pem());
        write(&folder, "server.key", &key.serialize_pem());
        warnings(&folder.path().join("web.yml"), TLS)
    };
    assert_eq!(warned(8), vec![]);
    let soon = warned(6);
    assert_eq!(soon.len(), 1);
    assert_eq!(soon[0].place(), (2, 14));
    assert!(soon[0].message.starts_with("warning: the certificate expires at 2"), "{}", soon[0]);
}
