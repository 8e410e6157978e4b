//! TLS and Wireshark: with the connection's secrets tshark decrypts it, and its ALPN name selects the dissector (CO-11,
//! CO-12).

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cotcp::Config;
use cotcp::driver::client::Client;
use cotcp::driver::handler::Request;
use cotcp::driver::server::Server;
use cotcp::driver::stream::Address;
use cotcp::driver::tls::{Identity, client_config, server_config};
use tokio_rustls::rustls::KeyLog;

use crate::ours::runtime;
use crate::process;
use crate::tap::Tap;

/// Secrets as Wireshark reads them: a label, the client's random and the secret in each line.
#[derive(Debug, Default)]
struct Secrets(Mutex<String>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let hex =
            |octets: &[u8]| octets.iter().fold(String::new(), |text, octet| text + &format!("{octet:02x}"));
        let mut text = self.0.lock().unwrap();
        writeln!(text, "{label} {} {}", hex(client_random), hex(secret)).unwrap();
    }
}

#[test]
fn wireshark_reads_cotcp_inside_tls() {
    if !process::present("tshark") {
        return;
    }
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (chain, key) = (certified.cert.pem(), certified.signing_key.serialize_pem());
    let identity = Identity { chain: chain.as_bytes(), key: key.as_bytes() };
    let secrets = Arc::new(Secrets::default());
    let mut config = (*client_config(chain.as_bytes(), None).unwrap()).clone();
    config.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
    let runtime = runtime();
    let tap = runtime.block_on(async {
        let server = Server::bind("127.0.0.1:0", Config::default()).await.unwrap();
        let server = server.with_tls(server_config(identity, None).unwrap());
        let tap = Tap::new(server.local_addr().unwrap());
        tokio::spawn(server.serve(|request: Request| async move { Ok(request.body) }));
        let address = Address::tls(&tap.address.to_string(), "localhost", Arc::new(config)).unwrap();
        let client = Client::connect(address, Config::default()).await.unwrap();
        assert_eq!(client.call("small").await, Ok("small".into()));
        let large = vec![b'l'; 100_000];
        assert_eq!(client.call(large.clone()).await, Ok(large.into()));
        client.close().await;
        tap
    });
    // Frees what the server holds of the connection.
    drop(runtime);
    let folder = tempfile::tempdir().unwrap();
    let (file, keys) = (folder.path().join("tls.pcap"), folder.path().join("keys.log"));
    let (_, capture) = tap.finish(1400);
    std::fs::write(&file, capture.finish()).unwrap();
    std::fs::write(&keys, &*secrets.0.lock().unwrap()).unwrap();
    let mut command = Command::new("tshark");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("dissector/cotcp.lua");
    command.env("HOME", folder.path()).env("XDG_CONFIG_HOME", folder.path());
    command.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(&file).args(["-n", "-2"]);
    command.arg("-o").arg(format!("tls.keylog_file:{}", keys.display()));
    // No port says that this is TLS.
    command.arg("-d").arg(format!("tcp.port=={},tls", crate::pcap::PORT));
    command.args(["-Y", "cotcp", "-T", "fields", "-e", "cotcp.from", "-e", "cotcp.message_length"]);
    let text = process::output(&mut command, Duration::from_secs(60));
    assert_eq!(text.matches("100000").count(), 2, "the large message, both ways:\n{text}");
}
