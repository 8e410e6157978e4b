//! TLS: who gets in, who does not, and who never finishes shaking hands (CO-11).

use std::net::SocketAddr;
use std::time::Duration;

use cotcp::tls::{Identity, client_config, server_config};
use cotcp::{Address, Client, ClientConfig, Failure, Request, Server, ServerConfig, ServerHandle};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::support::{eventually, soon};

/// An authority, and certificates of it.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

fn identity((chain, key): &(String, String)) -> Identity<'_> {
    Identity { chain: chain.as_bytes(), key: key.as_bytes() }
}

async fn serve(authority: &Authority, clients: Option<&Authority>) -> (SocketAddr, ServerHandle) {
    let own = authority.issue("server.test");
    let tls = server_config(identity(&own), clients.map(|clients| clients.pem.as_bytes())).unwrap();
    let config = ServerConfig { handshake_timeout: Duration::from_millis(300), ..ServerConfig::default() };
    let server = Server::bind("127.0.0.1:0", config).await.unwrap().with_tls(tls);
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    tokio::spawn(server.serve(|request: Request| async move { Ok::<_, Failure>(request.body) }));
    (address, handle)
}

fn address(to: SocketAddr, name: &str, trusted: &Authority, own: Option<&(String, String)>) -> Address {
    let config = client_config(trusted.pem.as_bytes(), own.map(identity)).unwrap();
    Address::tls(&to.to_string(), name, config).unwrap()
}

#[tokio::test]
async fn calls_go_through_tls() {
    let authority = Authority::new();
    let (to, _handle) = serve(&authority, None).await;
    let client = address(to, "server.test", &authority, None);
    let client = Client::connect(client, ClientConfig::default()).await.unwrap();
    let large = vec![3; 1 << 20];
    assert_eq!(soon(client.call("small")).await.unwrap(), "small");
    assert_eq!(soon(client.call(large.clone())).await.unwrap(), large);
    let tasks: Vec<_> = (0..100)
        .map(|number: u32| {
            let client = client.clone();
            tokio::spawn(async move { client.call(number.to_string()).await.unwrap() == number.to_string() })
        })
        .collect();
    for task in tasks {
        assert!(soon(task).await.unwrap());
    }
}

#[tokio::test]
async fn a_server_that_is_not_who_it_should_be_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (to, handle) = serve(&authority, None).await;
    for wrong in [address(to, "server.test", &other, None), address(to, "else.test", &authority, None)] {
        let error = Client::connect(wrong.clone(), ClientConfig::default()).await.err().unwrap();
        assert!(error.to_string().contains("certificate"), "{error}");
        let config = ClientConfig { wait_for_connection: Duration::from_millis(100), ..Default::default() };
        let error = soon(Client::lazy(wrong, config).call("x")).await.unwrap_err();
        assert!(error.to_string().contains("TLS"), "{error}");
    }
    eventually(|| handle.metrics().connections.failed >= 2).await;
    assert_eq!(handle.metrics().connections.made, 0);
}

/// Mutual authentication: no certificate, one of somebody else, the right one.
#[tokio::test]
async fn only_clients_that_are_vouched_for_get_in() {
    let (authority, clients, other) = (Authority::new(), Authority::new(), Authority::new());
    let (to, handle) = serve(&authority, Some(&clients)).await;
    let (right, wrong) = (clients.issue("client.test"), other.issue("client.test"));
    let config = || ClientConfig { wait_for_connection: Duration::from_millis(300), ..Default::default() };
    for own in [None, Some(&wrong)] {
        let client = Client::lazy(address(to, "server.test", &authority, own), config());
        let error = soon(client.call("x")).await.unwrap_err();
        assert!(error.to_string().contains("TLS"), "{error}");
    }
    eventually(|| handle.metrics().connections.failed >= 2).await;
    let client = address(to, "server.test", &authority, Some(&right));
    let client = Client::connect(client, config()).await.unwrap();
    assert_eq!(soon(client.call("in")).await.unwrap(), "in");
}

/// A peer that says nothing, or nonsense, is gone after the hand-shake's time and takes nothing with it.
#[tokio::test]
async fn a_hand_shake_that_does_not_end_is_ended() {
    let authority = Authority::new();
    let (to, handle) = serve(&authority, None).await;
    let silent = tokio::net::TcpStream::connect(to).await.unwrap();
    let nonsense = tokio::net::TcpStream::connect(to).await.unwrap();
    nonsense.try_write(b"\0\0\0\x01\0\x02hi").unwrap();
    eventually(|| handle.metrics().connections.failed == 2).await;
    assert_eq!(handle.connections(), 0);
    drop((silent, nonsense));
}

#[test]
fn texts_that_are_no_pem_are_refused() {
    let authority = Authority::new();
    assert!(client_config(b"", None).is_err());
    let own = authority.issue("a");
    let mixed = Identity { chain: own.0.as_bytes(), key: b"" };
    assert!(server_config(mixed, None).is_err());
    assert!(Address::tls("127.0.0.1:1", "", client_config(authority.pem.as_bytes(), None).unwrap()).is_err());
}
