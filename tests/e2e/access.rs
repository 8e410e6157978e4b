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
