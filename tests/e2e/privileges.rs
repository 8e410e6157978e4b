//! What a running core may do and what other users can read: capabilities, modes of files, keys in
//! captures.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use net::capability::Capability;
use net::link::Links;
use testkit::world::{establish, network, ping, plain};

/// A field of `/proc/<pid>/task/<tid>/status`.
fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

/// Every thread has only the capabilities that the user plane needs, and its children get no more. They
/// suffice to create a device again that somebody deleted.
#[test]
fn a_running_core_has_given_up_what_it_does_not_need() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        let kept = [Capability::NetAdmin, Capability::NetRaw].map(|capability| 1_u64 << capability as u8);
        let kept = kept[0] | kept[1];
        let (_, process) = world.lab.processes().next().unwrap();
        let mut threads = 0;
        for thread in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
            let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            for set in ["CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb"] {
                assert_eq!(field(&status, set) & !kept, 0, "{set} of a thread:\n{status}");
            }
            assert_eq!(field(&status, "CapEff"), kept, "{status}");
            assert_eq!(field(&status, "NoNewPrivs"), 1);
            threads += 1;
        }
        assert!(threads > 4, "all threads of the process are looked at: {threads}");

        ping(&mut ue, 1).await;
        let device = "gw0";
        Links::in_ns(world.lab.core()).unwrap().delete(device).await.unwrap();
        world
            .until("upf", "/stats", |_| {
                let links = std::process::Command::new("nsenter")
                    .arg(format!("--net={}", world.lab.core().path().display()))
                    .args(["ip", "link", "show", device])
                    .output();
                links.is_ok_and(|output| output.status.success())
            })
            .await;
        ping(&mut ue, 1).await;
    });
}

#[test]
fn secrets_are_for_their_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let pcap = folder.path().to_owned();
    // A capture of an earlier run that every user may read.
    std::fs::write(folder.path().join("sbi.pcapng"), "old").unwrap();
    std::fs::set_permissions(folder.path().join("sbi.pcapng"), std::fs::Permissions::from_mode(0o666))
        .unwrap();
    network(
        |options| options.pcap = Some(pcap),
        async |world| {
            let gnb = world.gnb(0).await;
            let mut ue = world.ue(&gnb, 0);
            ue.register().await.unwrap();
            establish(&mut ue, 1).await.unwrap();
            for file in ["run/amf.sock", "run/upf.sock", "godwit.db", "store.key"] {
                assert_eq!(mode(&world.lab.folder().join(file)), 0o600, "{file}");
            }
        },
    );
    let mut captured = Vec::new();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        if path.ends_with("sbi.pcapng") {
            captured = std::fs::read(&path).unwrap();
        }
    }
    let text = String::from_utf8_lossy(&captured);
    // The subscriber's keys were sent over the SBI: the capture has the members' names and not their
    // values.
    for member in ["encPermanentKey", "kausf", "kseaf", "xresStar"] {
        let found: Vec<&str> = text.split(&format!("\"{member}\":\"")).skip(1).collect();
        assert!(!found.is_empty(), "no {member} in the capture");
        for value in found {
            let value = value.split('"').next().unwrap();
            assert!(value.len() >= 32 && value.bytes().all(|octet| octet == b'x'), "{member} is readable");
        }
    }
    let lower = text.to_ascii_lowercase();
    for key in ["465b5ce8b199b49faa5f0a2ee238a6bc", "e8ed289deba952e4283b54e88e6183ca"] {
        assert!(!lower.contains(key));
    }
}
