//! TLS between client and server: who is let in, what the rest hear, and what is counted.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use net::time::wall_clock;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use sbi::{
    ApiRoot, Bound, CallError, Client, ClientConfig, Created, Credentials, Guard, Router, Scheme, Server,
    ServerConfig, Tls, TlsMode,
    access::{AccessTokenClaims, Audience, SigningKey},
    model::{common::*, nrf::*},
    op::{nrf::*, udm::*},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const DAY: Duration = Duration::from_secs(86_400);
/// The instance in certificates that need no particular one.
const SOMEBODY: NfInstanceId = NfInstanceId::from_random(7);

/// An authority that signs for anybody.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// PEM of authority, certificate and key.
type Files = [String; 3];

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn files(&self, names: Vec<SanType>, edit: impl FnOnce(&mut CertificateParams)) -> Files {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        edit(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        [self.pem.clone(), certificate.pem(), key.serialize_pem()]
    }

    /// What an NF at an address needs.
    fn nf(&self, address: &str, instance: NfInstanceId) -> Files {
        self.files(vec![ip(address), urn(instance)], |_| ())
    }

    fn tls(&self, address: &str) -> Tls {
        tls(&self.nf(address, SOMEBODY)).unwrap()
    }
}

fn ip(address: &str) -> SanType {
    SanType::IpAddress(address.parse::<IpAddr>().unwrap())
}

fn urn(instance: NfInstanceId) -> SanType {
    SanType::URI(format!("urn:uuid:{instance}").as_str().try_into().unwrap())
}

fn tls([authority, certificate, key]: &Files) -> Result<Tls, sbi::tls::TlsError> {
    Tls::new(authority, certificate, key)
}

/// A client's end without the checks that [`Tls::new`] makes of its own certificate: strangers make none.
fn stranger(trusts: &Authority, shows: Option<&Files>) -> tokio_rustls::TlsConnector {
    use tokio_rustls::rustls::{
        ClientConfig, RootCertStore,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    };
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusts.pem.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shows {
        Some([_, certificate, key]) => config
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config).into()
}

/// What a stranger reads after it has sent the beginning of HTTP/2: nothing, when it is refused.
async fn read_as(connector: tokio_rustls::TlsConnector, root: &ApiRoot) -> Vec<u8> {
    let at = root.authority().parse().unwrap();
    let stream = net::tcp::connect(at, Duration::from_secs(5)).await.unwrap();
    let name = tokio_rustls::rustls::pki_types::ServerName::from(IpAddr::from([127, 0, 0, 1]));
    let Ok(mut stream) = connector.connect(name, stream).await else { return Vec::new() };
    let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    let mut read = vec![0; 64];
    let length = stream.read(&mut read).await.unwrap_or(0);
    read.truncate(length);
    read
}

/// Connections that the server of this process did not accept, for this reason.
fn refused(reason: &str) -> u64 {
    let counters = telemetry::counters::snapshot();
    let family = counters.get("sbi_server_connection_errors");
    family.and_then(|family| family["values"][reason].as_u64()).unwrap_or(0)
}

/// Waits until one more was refused for a reason than `before`: the server counts after the client has noticed.
async fn until_refused(reason: &str, before: u64) {
    for _ in 0..500 {
        if refused(reason) > before {
            return;
        }
        net::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{reason}: {:?}", telemetry::counters::snapshot());
}

/// A server that creates authentications, so that there is a `Location`, and grants tokens, which needs none.
async fn server(tls: Tls, guard: Option<Guard>) -> (Server, ApiRoot) {
    let read_timeout = Duration::from_millis(500);
    let config = ServerConfig { read_timeout, max_connections_per_address: 20, ..ServerConfig::default() };
    let bound = Bound::bind("127.0.0.1:0".parse().unwrap(), config).await.unwrap().secured(tls);
    let root = bound.api_root();
    let bound = match guard {
        Some(guard) => bound.guarded(guard),
        None => bound,
    };
    let router = Router::new(Arc::new(()))
        .on::<ConfirmAuth>(async |_: Arc<()>, request: ConfirmAuthRequest| {
            Ok(Created { location: "/imsi-1/auth-events/1".to_owned(), body: request.body })
        })
        .on_behalf::<RequestToken, _, _>(async |_: Arc<()>, _, caller| {
            let certified = caller.certified().map(|id| id.to_string()).unwrap_or_default();
            Err(AccessTokenErr::new("invalid_client", certified))
        });
    (bound.serve(router), root)
}

fn request() -> ConfirmAuthRequest {
    let body = sbi::model::udm::AuthEvent {
        nf_instance_id: NfInstanceId::from_random(1),
        success: true,
        time_stamp: std::time::UNIX_EPOCH.into(),
        auth_type: AuthType::FiveGAka,
        serving_network_name: "5G:mnc070.mcc999.3gppnetwork.org".to_owned(),
        auth_removal_ind: None,
    };
    ConfirmAuthRequest { supi: "imsi-999700000000001".parse().unwrap(), body }
}

async fn call(tls: Option<Tls>, root: &ApiRoot) -> Result<String, CallError> {
    let client = Client::new(ClientConfig { tls, ..ClientConfig::default() });
    client.call::<ConfirmAuth>(root, request()).await.map(|created| created.location)
}

#[tokio::test]
async fn both_sides_show_certificates_of_one_authority() {
    let authority = Authority::new("ours");
    let (_server, root) = server(authority.tls("127.0.0.1"), None).await;
    assert_eq!(root.scheme(), Scheme::Https);
    let location = call(Some(authority.tls("127.0.0.2")), &root).await.unwrap();
    assert_eq!(location, format!("{root}/nudm-ueau/v1/imsi-1/auth-events/1"));
    assert!(location.starts_with("https://"));

    // It is the certificate that matters: the same stranger's program with a good one reads the server's settings.
    let good = authority.nf("127.0.0.2", SOMEBODY);
    assert!(!read_as(stranger(&authority, Some(&good)), &root).await.is_empty());
    let other = Authority::new("theirs");
    let yesterday = wall_clock() - DAY;
    let names = || vec![ip("127.0.0.2"), urn(SOMEBODY)];
    let expired = authority.files(names(), |params| {
        params.not_before = (yesterday - 30 * DAY).into();
        params.not_after = yesterday.into();
    });
    let tomorrow = authority.files(names(), |params| params.not_before = (wall_clock() + DAY).into());
    let nameless = authority.files(vec![ip("127.0.0.2")], |_| ());
    for (shows, reason) in [
        (None, "tls_no_certificate"),
        (Some(other.nf("127.0.0.2", SOMEBODY)), "tls_unknown_authority"),
        (Some(expired), "tls_expired"),
        (Some(tomorrow), "tls_expired"),
        (Some(nameless), "tls_no_instance"),
    ] {
        let before = refused(reason);
        let read = read_as(stranger(&authority, shows.as_ref()), &root).await;
        assert!(read.is_empty(), "{reason}: {read:?}");
        until_refused(reason, before).await;
    }
    // Our own client with a certificate of another authority does not believe the server, and says so.
    let before = refused("tls_refused");
    let error = call(Some(other.tls("127.0.0.2")), &root).await.unwrap_err().to_string();
    assert!(error.contains("not signed by an authority"), "{error}");
    until_refused("tls_refused", before).await;
    // One that believes it hears why the server does not believe it back.
    let mut mixed = other.nf("127.0.0.2", SOMEBODY);
    let both = format!("{}{}", mixed[0], authority.pem);
    mixed[0] = both;
    let error = call(Some(tls(&mixed).unwrap()), &root).await.unwrap_err().to_string();
    assert!(error.contains("UnknownCA"), "{error}");
    // It still serves those it knows.
    call(Some(authority.tls("127.0.0.2")), &root).await.unwrap();
}

#[tokio::test]
async fn what_is_no_tls_costs_a_place_for_the_read_timeout_at_most() {
    let authority = Authority::new("ours");
    let (server, root) = server(authority.tls("127.0.0.1"), None).await;
    let hello = {
        // The beginning of a real ClientHello, with an absurd length in its session identifier.
        let mut hello = vec![0x16, 3, 1, 0, 42, 1, 0, 0, 38, 3, 3];
        hello.extend([0xaa; 32]);
        hello.extend([0xff, 0, 0, 0]);
        hello
    };
    let version_1_2 = [
        // A ClientHello of TLS 1.2: one cipher suite, no extensions.
        &[0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3][..],
        &[0x55; 32],
        &[0, 0, 2, 0xc0, 0x2b, 1, 0],
    ]
    .concat();
    for (sent, reason) in [
        (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], "tls_not_tls"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "tls_not_tls"),
        (&hello, "tls_protocol"),
        (&version_1_2, "tls_incompatible"),
        // Nothing, half a record: until the time is over.
        (b"", "tls_timeout"),
        (&[0x16, 3, 1, 2, 0, 1], "tls_timeout"),
    ] {
        let before = refused(reason);
        let mut stream = net::tcp::connect(server.address(), Duration::from_secs(5)).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let mut read = Vec::new();
        let end = stream.read_to_end(&mut read);
        // An alert, and the end; a server that resets what is left has closed it, too.
        let _ = net::time::timeout(Duration::from_secs(5), end).await.expect("closed in time");
        assert!(read.len() < 16 && !read.windows(4).any(|four| four == b"HTTP"), "{reason}: {read:?}");
        until_refused(reason, before).await;
    }
    let before = refused("tls_closed");
    drop(net::tcp::connect(server.address(), Duration::from_secs(5)).await.unwrap());
    until_refused("tls_closed", before).await;
    // In clear, with our own client: refused before the call when that is configured, else by the server.
    let plain = ApiRoot::from(server.address());
    call(None, &plain).await.unwrap_err();
    let strict = ClientConfig { tls_mode: TlsMode::Required, ..ClientConfig::default() };
    let error = Client::new(strict).call::<ConfirmAuth>(&plain, request()).await.unwrap_err().to_string();
    assert!(error.contains("https"), "{error}");
    let error = call(None, &root).await.unwrap_err().to_string();
    assert!(error.contains("godwit certs"), "{error}");
}

#[tokio::test]
async fn handshakes_under_way_count_as_connections_of_their_address() {
    let authority = Authority::new("ours");
    let (server, root) = server(authority.tls("127.0.0.1"), None).await;
    let before = refused("evicted");
    let mut silent = Vec::new();
    for _ in 0..60 {
        silent.push(net::tcp::connect(server.address(), Duration::from_secs(5)).await.unwrap());
    }
    // Of 60 handshakes, 20 have a place; and a newcomer finds one at once.
    call(Some(authority.tls("127.0.0.2")), &root).await.unwrap();
    until_refused("evicted", before + 40).await;
}

#[tokio::test]
async fn a_server_must_be_who_was_called() {
    let authority = Authority::new("ours");
    let elsewhere = authority.tls("192.0.2.1");
    let (_server, root) = server(elsewhere.clone(), None).await;
    let error = call(Some(authority.tls("127.0.0.2")), &root).await.unwrap_err().to_string();
    assert!(error.contains("does not name 127.0.0.1"), "{error}");
    assert!(elsewhere.names("192.0.2.1:1".parse().unwrap()));
    assert!(!elsewhere.names("127.0.0.1:1".parse().unwrap()));
}

#[tokio::test]
async fn a_token_is_taken_from_the_instance_it_was_given_to_only() {
    let authority = Authority::new("ours");
    let key = SigningKey::from_pkcs8(&SigningKey::generate().unwrap()).unwrap();
    let guard = Guard::new(NfType::Udm, NfInstanceId::from_random(3), key.public());
    let (_server, root) = server(authority.tls("127.0.0.1"), Some(guard)).await;
    let [ausf, thief] = [21, 22].map(NfInstanceId::from_random);
    let claims = AccessTokenClaims {
        iss: NfInstanceId::from_random(1).to_string(),
        sub: ausf,
        aud: Audience::Type("UDM".to_owned()),
        scope: "nudm-ueau".to_owned(),
        exp: sbi::access::jws::seconds(wall_clock()) + 1000,
        nf_type: Some(NfType::Ausf),
    };
    let token = key.sign(&claims).unwrap();
    // An NRF that gives everybody this token.
    let router = Router::new(Arc::new(token)).on::<RequestToken>(async |token: Arc<String>, _| {
        Ok(AccessTokenRsp {
            access_token: (*token).clone().into(),
            token_type: "Bearer".to_owned(),
            expires_in: Some(1000),
            scope: None,
        })
    });
    let nrf = sbi::serve(router, "127.0.0.1:0".parse().unwrap(), ServerConfig::default()).await.unwrap();
    let client = |id| {
        let tls = tls(&authority.nf("127.0.0.2", id)).unwrap();
        let credentials = Credentials { id, nf_type: NfType::Ausf, secret: None };
        Client::new(ClientConfig {
            tls: Some(tls),
            credentials: Some(Arc::new(credentials)),
            nrf: Some(nrf.address().into()),
            ..ClientConfig::default()
        })
    };
    client(ausf).call::<ConfirmAuth>(&root, request()).await.unwrap();
    let refused = client(thief).call::<ConfirmAuth>(&root, request()).await.unwrap_err();
    assert_eq!(refused.status(), Some(403));
    assert!(refused.is("TOKEN_OF_ANOTHER_INSTANCE"), "{refused}");
    // Whoever asks for a token is known by its certificate.
    let body = AccessTokenReq {
        grant_type: AccessTokenReq::CLIENT_CREDENTIALS.to_owned(),
        nf_instance_id: ausf,
        nf_type: Some(NfType::Ausf),
        target_nf_type: Some(NfType::Udm),
        scope: "nudm-ueau".to_owned(),
        target_nf_instance_id: None,
        client_assertion_type: None,
        client_assertion: None,
    };
    let asked = client(thief).call::<RequestToken>(&root, RequestTokenRequest { body }).await.unwrap_err();
    assert_eq!(asked.refusal().unwrap().description.as_deref(), Some(thief.to_string().as_str()));
}

#[tokio::test]
async fn a_replaced_certificate_serves_the_next_connections() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (of_server, of_client) = (old.tls("127.0.0.1"), old.tls("127.0.0.2"));
    let (_server, root) = server(of_server.clone(), None).await;
    call(Some(of_client.clone()), &root).await.unwrap();
    of_server.replace(&new.tls("127.0.0.1"));
    call(Some(of_client.clone()), &root).await.unwrap_err();
    of_client.replace(&new.tls("127.0.0.2"));
    call(Some(of_client), &root).await.unwrap();
}

#[test]
fn files_that_do_not_fit_together_are_named() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    let good = authority.nf("127.0.0.1", SOMEBODY);
    let strange = other.nf("127.0.0.1", SOMEBODY);
    assert_eq!(tls(&good).unwrap().instance(), SOMEBODY);
    let with = |index: usize, text: &str| {
        let mut files = good.clone();
        files[index] = text.to_owned();
        tls(&files).unwrap_err().to_string()
    };
    assert!(with(0, "").contains("authority"));
    assert!(with(0, &strange[0]).contains("not signed by the authority"));
    assert!(with(1, "nothing").contains("certificate"));
    assert!(with(2, "").contains("key"));
    assert!(with(2, &strange[2]).contains("key"), "the key of another certificate");
    assert!(!with(2, &good[1]).is_empty());
    let names = vec![ip("127.0.0.1"), urn(SOMEBODY)];
    let dates = |from: SystemTime, to: SystemTime| {
        authority.files(names.clone(), |params| {
            params.not_before = from.into();
            params.not_after = to.into();
        })
    };
    let now = wall_clock();
    let expired = tls(&dates(now - 3 * DAY, now - DAY)).unwrap_err().to_string();
    let date = DateTime::from(now - DAY).0;
    assert!(expired.contains("expired") && expired.contains(&date[..10]), "{expired}");
    let to = now + 400 * DAY;
    let expires = tls(&dates(now - DAY, to)).unwrap().expires();
    assert!(to.duration_since(expires).unwrap() < Duration::from_secs(1));
    let nameless = tls(&authority.files(vec![ip("127.0.0.1")], |_| ())).unwrap_err().to_string();
    assert!(nameless.contains("urn:uuid"), "{nameless}");
}

#[test]
fn tls_is_needed_where_others_are_on_the_way() {
    for (address, auto) in [
        ("127.0.0.5:1", false),
        ("[::1]:1", false),
        ("[::ffff:127.0.0.1]:1", false),
        ("10.0.0.1:1", true),
        ("[2001:db8::1]:1", true),
        ("0.0.0.0:1", true),
    ] {
        let address = address.parse().unwrap();
        assert_eq!(TlsMode::Auto.applies(address), auto, "{address}");
        assert!(TlsMode::Required.applies(address) && !TlsMode::Off.applies(address));
    }
}

#[test]
fn uris_have_either_scheme() {
    for (uri, root) in [
        ("http://10.0.0.1:7777/a/b", Some("http://10.0.0.1:7777")),
        ("https://[2001:db8::1]:8443/x", Some("https://[2001:db8::1]:8443")),
        ("https://amf.example", Some("https://amf.example")),
        ("ftp://amf.example", None),
        ("https:/amf.example", None),
        ("https:///x", None),
        ("", None),
    ] {
        assert_eq!(ApiRoot::of_uri(uri).map(|r| r.to_string()).as_deref(), root, "{uri}");
    }
    let root: ApiRoot = "https://10.0.0.1:443/prefix/".parse().unwrap();
    assert_eq!((root.scheme(), root.authority(), root.prefix()), (Scheme::Https, "10.0.0.1:443", "/prefix"));
}
