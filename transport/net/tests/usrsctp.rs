//! Our user-space SCTP against an independent implementation, Debian's libusrsctp, across namespaces:
//! each as client and as server, on raw IP and in UDP, with PPID 60 and two streams in both directions.
//!
//! Needs `cc` and libusrsctp-dev (`make test` installs them) and the right to create namespaces.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use net::process::{Child, Command};
use net::sctp::{Association, CloseReason, Event, Listener, Message, PPID_NGAP, SctpConfig, SctpMode};
use net::time::timeout;

const LIMIT: Duration = Duration::from_secs(30);
const OURS: &str = "10.9.0.1";
const THEIRS: &str = "10.9.0.2";

/// Compiles the peer, once per mode, because the two tests run at the same time.
fn peer_program(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/usrsctp_peer.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("usrsctp_peer_{name}"));
    let status = std::process::Command::new("cc")
        .args(["-O1", "-o"])
        .args([&program, &source])
        .arg("-lusrsctp")
        .status()
        .expect("a C compiler");
    assert!(status.success(), "the peer compiles: is libusrsctp-dev installed?");
    program
}

/// Two namespaces with a link, ours and the peer's.
async fn link() -> (NetNs, NetNs) {
    let (ours, theirs) = (NetNs::new().expect("namespaces"), NetNs::new().unwrap());
    let (here, there) = (Links::in_ns(&ours).unwrap(), Links::in_ns(&theirs).unwrap());
    here.add_veth("eth0", "eth0", &theirs).await.unwrap();
    for (links, address) in [(&here, OURS), (&there, THEIRS)] {
        links.up("eth0").await.unwrap();
        links.add_address("eth0", format!("{address}/24").parse().unwrap()).await.unwrap();
    }
    (ours, theirs)
}

fn config(mode: SctpMode) -> SctpConfig {
    SctpConfig { mode, ..SctpConfig::default() }
}

/// Runs `work` on a runtime in our namespace.
fn inside<T: Send + 'static>(namespace: &NetNs, work: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = namespace.runtime(1).unwrap();
    let result = runtime.block_on(async { timeout(Duration::from_secs(60), runtime.spawn(work)).await });
    result.expect("in time").unwrap()
}

async fn start(program: &Path, namespace: &NetNs, role: &str, address: &str, port: u16, udp: u16) -> Child {
    Command::new(program)
        .args([role, address, &port.to_string(), &udp.to_string(), "40"])
        .namespace(namespace)
        .pipe_stdout()
        .spawn()
        .unwrap()
}

async fn finish(mut child: Child) {
    let status = timeout(LIMIT, child.wait()).await.expect("the peer ends").unwrap();
    assert!(status.success(), "the peer reports success, not {status}");
}

async fn next(association: &mut Association) -> Event {
    timeout(LIMIT, association.recv()).await.expect("an event in time").expect("not closed before")
}

/// The peer connects to us, and we echo.
async fn they_call(program: PathBuf, theirs: NetNs, mode: SctpMode, udp: u16) {
    let mut listener = Listener::bind(format!("{OURS}:38412").parse().unwrap(), config(mode)).await.unwrap();
    let peer = start(&program, &theirs, "client", OURS, 38412, udp).await;
    let mut association = timeout(LIMIT, listener.accept()).await.expect("a call").unwrap();
    assert_eq!(association.outgoing_streams(), 4, "the peer offers four");
    let mut messages = 0;
    loop {
        match next(&mut association).await {
            Event::Message(message) => {
                messages += 1;
                association.send(message).await.unwrap();
            }
            Event::Closed { reason } => {
                assert_eq!(reason, CloseReason::Shutdown);
                break;
            }
            Event::Restarted => panic!("nobody restarted"),
        }
    }
    assert_eq!(messages, 40);
    finish(peer).await;
    assert_eq!(listener.rejected().checksum + listener.rejected().malformed, 0);
}

/// We connect to the peer, and it echoes.
async fn we_call(program: PathBuf, theirs: NetNs, mode: SctpMode, udp: u16) {
    let mut peer = start(&program, &theirs, "server", THEIRS, 38413, udp).await;
    let mut output = peer.take_stdout().unwrap();
    let line = timeout(LIMIT, output.next_line()).await.expect("the peer starts").unwrap();
    assert_eq!(line.as_deref(), Some("ready"));
    let remote = format!("{THEIRS}:38413").parse().unwrap();
    let local = format!("{OURS}:0").parse().unwrap();
    let mut association = Association::connect(local, remote, config(mode)).await.unwrap();
    assert_eq!((association.peer(), association.outgoing_streams()), (remote, 4));
    for (number, length) in [1, 2, 3, 1000, 1452, 1480, 9000, 65_536, 100_000].into_iter().enumerate() {
        let payload = vec![number as u8; length].into();
        let message = Message { stream: number as u16 % 2, ppid: PPID_NGAP, payload };
        association.send(message.clone()).await.unwrap();
        assert_eq!(next(&mut association).await, Event::Message(message));
    }
    assert_eq!(association.shutdown().await, CloseReason::Shutdown);
    finish(peer).await;
}

fn both_ways(name: &str, mode: SctpMode, udp: u16) {
    let program = peer_program(name);
    let setup = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (ours, theirs) = setup.block_on(link());
    inside(&ours, they_call(program.clone(), theirs.clone(), mode, udp));
    inside(&ours, we_call(program, theirs, mode, udp));
}

#[test]
fn raw_ip() {
    both_ways("raw", SctpMode::Raw, 0);
}

#[test]
fn in_udp() {
    both_ways("udp", SctpMode::Udp { port: 9899 }, 9899);
}
