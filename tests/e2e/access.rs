//! Who may call the network functions: nobody without an access token, whichever process they run in.

use lab::Lab;
use net::time::Duration;
use serde_json::Value;

use testkit::world::{World, establish, network, ping};

/// The UDR's resource with the first subscriber's K and OPc.
const CREDENTIALS: &str = "http://127.0.0.20:7777/nudr-dr/v2/subscription-data/imsi-999700000000001\
                           /authentication-data/authentication-subscription";

/// Runs curl in the core's namespace and returns headers and content.
async fn curl(lab: &Lab, arguments: &[&str]) -> String {
    let fixed = ["--silent", "--include", "--http2-prior-knowledge", "--max-time", "5"];
    let output = lab.command(lab.core(), "curl").args(fixed).args(arguments);
    let output = output.output(Duration::from_secs(20)).await.unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// None of the answers contains a key of the subscriber.
fn holds_no_key(answer: &str) {
    let answer = answer.to_lowercase();
    for key in ["465b5ce8b199b49faa5f0a2ee238a6bc", "e8ed289deba952e4283b54e88e6183ca"] {
        assert!(!answer.contains(key), "{answer}");
    }
}

async fn a_ue_works(world: &mut World) {
    let gnb = world.gnb(0).await;
    let mut ue = world.ue(&gnb, 0);
    ue.register().await.unwrap();
    establish(&mut ue, 1).await.unwrap();
    ping(&mut ue, 1).await;
    ue.deregister(false).await.unwrap();
    // Every call within the core had the right token.
    for nf in lab::NFS {
        let status: Value = world.ask(nf, "/status").await;
        let refused = &status["counters"]["sbi_server_rejected"]["values"];
        for cause in ["ACCESS_TOKEN_MISSING", "ACCESS_TOKEN_INVALID", "INSUFFICIENT_SCOPE"] {
            assert!(refused[cause].is_null(), "{nf}: {refused}");
        }
    }
}

async fn strangers_are_refused(world: &mut World) {
    let lab = &world.lab;
    let bare = curl(lab, &[CREDENTIALS]).await;
    assert!(bare.starts_with("HTTP/2 401"), "{bare}");
    assert!(bare.to_lowercase().contains("www-authenticate: bearer"), "{bare}");
    holds_no_key(&bare);
    let invented = curl(lab, &["-H", "Authorization: Bearer eyJhbGciOiJub25lIn0.e30.", CREDENTIALS]).await;
    assert!(invented.starts_with("HTTP/2 401") && invented.contains("invalid_token"), "{invented}");
    holds_no_key(&invented);
    // The NRF authenticates those who ask for a token or list the network functions.
    let form = "grant_type=client_credentials&nfType=UDM&targetNfType=UDR&scope=nudr-dr\
                &nfInstanceId=3a8bfe10-ec98-8bba-923e-aa926b1cdc8c";
    let token = curl(lab, &["-d", form, "http://127.0.0.10:7777/oauth2/token"]).await;
    assert!(token.starts_with("HTTP/2 400") && token.contains("invalid_client"), "{token}");
    let list = curl(lab, &["http://127.0.0.10:7777/nnrf-nfm/v1/nf-instances"]).await;
    assert!(list.starts_with("HTTP/2 401"), "{list}");
}

#[test]
fn nobody_reads_a_subscribers_keys_without_a_token() {
    network(
        |_| (),
        async |world| {
            a_ue_works(world).await;
            strangers_are_refused(world).await;
        },
    );
}

#[test]
fn processes_of_one_machine_trust_each_other_after_any_restart() {
    network(
        |options| options.processes = true,
        async |world| {
            a_ue_works(world).await;
            for nf in ["nrf", "udr", "udm"] {
                world.lab.kill(nf).await.unwrap();
                world.lab.restart(nf).await.unwrap();
            }
            a_ue_works(world).await;
            strangers_are_refused(world).await;
        },
    );
}

#[test]
fn access_tokens_can_be_switched_off_and_that_is_said() {
    network(
        |options| options.edit = Box::new(|configuration| configuration["sbi"]["tokens"] = "off".into()),
        async |world| {
            a_ue_works(world).await;
            let open = curl(&world.lab, &[CREDENTIALS]).await;
            assert!(open.starts_with("HTTP/2 200"), "{open}");
            assert!(world.lab.log("core").contains("access tokens are switched off (sbi.tokens)"));
            let doctor = world.lab.godwit(&["doctor"]).output(Duration::from_secs(20)).await.unwrap();
            let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
            assert!(doctor.contains("access tokens") && doctor.contains("switched off"), "{doctor}");
        },
    );
}

/// Ports of the core's functions in [`off_loopback`].
const PORTS: [(&str, u16); 7] = [
    ("nrf", 7771),
    ("udr", 7772),
    ("udm", 7773),
    ("ausf", 7774),
    ("pcf", 7775),
    ("smf", 7776),
    ("amf", 7777),
];

/// The service-based interface on an address that other machines reach.
fn off_loopback(tls: &'static str) -> impl FnOnce(&mut lab::Options) {
    move |options| {
        options.processes = true;
        options.certificates = tls != "off";
        options.edit = Box::new(move |configuration| {
            configuration["sbi"]["tls"] = tls.into();
            for (nf, port) in PORTS {
                configuration[nf]["sbi"] = format!("{}:{port}", lab::CORE_N2).into();
            }
        });
    }
}

/// What is on the wire between the core's functions while an AMF starts, asks for its tokens and serves a UE.
async fn wire(world: &mut World) -> Vec<u8> {
    let file = world.lab.folder().join("wire.pcap");
    let lab = &world.lab;
    let capture = lab.command(lab.core(), "dumpcap").args(["-q", "-i", "lo", "-f", "tcp", "-w"]).arg(&file);
    let mut capture = capture.spawn().unwrap();
    let size = || std::fs::metadata(&file).map_or(0, |found| found.len());
    for _ in 0..500 {
        if size() > 0 {
            break;
        }
        net::time::sleep(Duration::from_millis(10)).await;
    }
    world.lab.kill("amf").await.unwrap();
    world.lab.restart("amf").await.unwrap();
    a_ue_works(world).await;
    // Dumpcap takes packets from the kernel in blocks, and loses those that it has not taken when it ends.
    net::time::sleep(Duration::from_secs(2)).await;
    capture.stop(Duration::from_secs(10)).await.unwrap();
    let wire = std::fs::read(&file).unwrap();
    assert!(wire.len() > 20_000, "{} octets", wire.len());
    wire
}

/// Texts that stand in requests for tokens and in answers to them.
const OF_TOKENS: [&[u8]; 3] = [b"access_token", b"client_assertion", b"nfInstanceId"];

fn contains(wire: &[u8], text: &[u8]) -> bool {
    wire.windows(text.len()).any(|window| window == text)
}

#[test]
fn off_loopback_the_core_speaks_tls_to_those_with_a_certificate_of_its_authority() {
    network(off_loopback("auto"), async |world| {
        a_ue_works(world).await;
        let wire = wire(world).await;
        for text in OF_TOKENS {
            assert!(!contains(&wire, text), "{} in clear", String::from_utf8_lossy(text));
        }
        strangers_get_no_tls(&world.lab).await;
        // The UDR has counted the strangers by what they lacked.
        let status: Value = world.ask("udr", "/status").await;
        let counted = &status["counters"]["sbi_server_connection_errors"]["values"];
        for reason in ["tls_not_tls", "tls_no_certificate", "tls_unknown_authority"] {
            assert!(counted[reason].as_u64() > Some(0), "{reason}: {counted}");
        }
    });
}

/// From the gNBs' side of the link, as from another machine.
async fn strangers_get_no_tls(lab: &Lab) {
    let out = lab.folder().join("other");
    let made = lab.godwit(&["certs", "--out", &out.to_string_lossy()]).output(Duration::from_secs(20)).await;
    assert!(made.unwrap().status.success());
    let path = CREDENTIALS.split_once("7777").unwrap().1;
    let at = format!("{}:{}{path}", lab::CORE_N2, PORTS[1].1);
    let [plain, secure] = [format!("http://{at}"), format!("https://{at}")];
    let ask = async |arguments: &[&str]| {
        let fixed = ["--silent", "--include", "--max-time", "5"];
        let curl = lab.command(lab.ran(), "curl").args(fixed).args(arguments);
        let output = curl.output(Duration::from_secs(20)).await.unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let file = |folder: &std::path::Path, name: &str| folder.join(name).to_string_lossy().into_owned();
    let foreign = [file(&out, "amf.pem"), file(&out, "amf.key")];
    for arguments in [
        &["--http2-prior-knowledge", &plain][..],
        &["--http1.1", &plain],
        &["--insecure", &secure],
        &["--insecure", "--cert", &foreign[0], "--key", &foreign[1], &secure],
        &["--insecure", "--tls-max", "1.2", &secure],
    ] {
        let answer = ask(arguments).await;
        assert!(answer.is_empty(), "{arguments:?}: {answer}");
    }
    // With the AMF's certificate the UDR answers, and still wants a token.
    let trust = lab.folder().join("trust");
    let [ca, cert, key] = ["ca.pem", "amf.pem", "amf.key"].map(|name| file(&trust, name));
    let known = ask(&["--cacert", &ca, "--cert", &cert, "--key", &key, &secure]).await;
    assert!(known.starts_with("HTTP/2 401"), "{known}");
}

/// What the test above looks for would be found.
#[test]
fn without_tls_tokens_can_be_read_on_the_wire_and_doctor_says_so() {
    network(off_loopback("off"), async |world| {
        let wire = wire(world).await;
        for text in OF_TOKENS {
            assert!(contains(&wire, text), "{}", String::from_utf8_lossy(text));
        }
        let doctor = world.lab.godwit(&["doctor"]).output(Duration::from_secs(20)).await.unwrap();
        let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
        assert!(doctor.contains("TLS") && doctor.contains("switched off"), "{doctor}");
        assert!(world.lab.log("amf").contains("TLS is switched off (sbi.tls)"));
    });
}

/// On one machine without certificates: a core off loopback says what to do, and starts after that was done.
#[test]
fn a_core_off_loopback_does_not_start_without_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let shipped = include_str!("../../godwit.yaml");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let text = shipped
        .replace("127.0.0.10:7777", "192.0.2.10:7777")
        .replace("/var/lib/godwit/trust", &path("trust"))
        .replace("/var/lib/godwit/godwit.db", &path("godwit.db"))
        .replace("/etc/godwit/store.key", &path("store.key"))
        .replace("/run/godwit", &path("run"));
    let file = path("godwit.yaml");
    std::fs::write(&file, text).unwrap();
    let godwit = |arguments: &[&str]| {
        let program = lab::find_godwit().unwrap();
        let output =
            std::process::Command::new(program).args(arguments).args(["-c", &file]).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    // The NRF, which would serve TLS, and the AUSF, which would call it.
    for nf in ["nrf", "ausf"] {
        let (started, said) = godwit(&["run", "--nf", nf]);
        assert!(!started && said.contains("TLS is needed"), "{said}");
        assert!(said.contains("godwit certs") && said.contains("sbi.tls: off"), "{said}");
    }
    let (_, doctor) = godwit(&["doctor"]);
    assert!(doctor.contains("nrf.pem: not there") && doctor.contains("-> godwit certs"), "{doctor}");
    let (made, certs) = godwit(&["certs"]);
    assert!(made && certs.contains("TLS is served by nrf;"), "{certs}");
    let (_, doctor) = godwit(&["doctor"]);
    assert!(doctor.contains("valid until"), "{doctor}");
    // Now only the address is missing here.
    let (started, said) = godwit(&["run", "--nf", "nrf"]);
    assert!(!started && said.contains("cannot listen on 192.0.2.10:7777"), "{said}");
}
