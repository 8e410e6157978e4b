//! What a running core may do and what other users can read: capabilities, modes of files, keys in
//! captures.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use net::capability::Capability;
use net::link::{Cidr, Links};
use simulator::Ue;
use testkit::world::{World, establish, network, ping, plain, try_ping};

use crate::captures::{has_tshark, tshark};

/// A field of `/proc/<pid>/task/<tid>/status`.
fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

/// Every thread of the core has these capabilities and no others, also children get no more.
fn assert_only_kept(world: &World, kept: &[Capability]) {
    let kept = kept.iter().fold(0, |set, capability| set | 1_u64 << *capability as u8);
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
}

/// The capabilities that are kept suffice to create a device again that somebody deleted.
#[test]
fn a_running_core_has_given_up_what_it_does_not_need() {
    plain(async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        assert_only_kept(world, &[Capability::NetAdmin, Capability::NetRaw]);
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

/// Waits until echoes pass N3 and N6, both ways. The first ones may take the way through the kernel, while the
/// UPF resolves the next hop; then come some that do not.
async fn served(ue: &mut Ue, when: &str) {
    for _ in 0..5 {
        if try_ping(ue, 1).await {
            for _ in 0..3 {
                ping(ue, 1).await;
            }
            return;
        }
    }
    panic!("no echo {when}");
}

/// N3 and N6 on AF_XDP are served with what the core keeps, also after their interfaces have gone down, or were
/// deleted and made again: programs, memory and sockets are set up anew then. Captures show what goes past the
/// kernel.
#[test]
fn af_xdp_needs_no_more_than_what_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let pcap = folder.path().to_owned();
    let af_xdp = |options: &mut lab::Options| {
        options.pcap = Some(pcap);
        options.edit = Box::new(|configuration| {
            let upf = &mut configuration["upf"];
            let gtpu = upf.as_object_mut().unwrap().remove("gtpu");
            upf["interfaces"] = serde_json::json!([
                {"name": "access", "role": "n3", "gtpu": gtpu, "backend": "af_xdp", "device": "n2"},
                {"name": "wan", "role": "n6", "backend": "af_xdp", "device": "n6"},
            ]);
            upf["dnn"][0]["interfaces"] = serde_json::json!(["wan"]);
            upf["dnn"][0].as_object_mut().unwrap().remove("tun");
        });
    };
    network(af_xdp, async |world| {
        let gnb = world.gnb(0).await;
        let mut ue = world.ue(&gnb, 0);
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        served(&mut ue, "at first").await;
        let kept = [Capability::NetAdmin, Capability::NetRaw, Capability::Bpf, Capability::IpcLock];
        assert_only_kept(world, &kept);

        let (core, dn) = (Links::in_ns(world.lab.core()).unwrap(), Links::in_ns(world.lab.dn()).unwrap());
        for device in ["n6", "n2"] {
            core.down(device).await.unwrap();
            core.up(device).await.unwrap();
            served(&mut ue, &format!("after {device} was down")).await;
        }
        core.delete("n6").await.unwrap();
        core.add_veth("n6", "n6", world.lab.dn()).await.unwrap();
        for (links, address) in [(&core, lab::CORE_N6), (&dn, lab::DN)] {
            links.up("n6").await.unwrap();
            links.add_address("n6", Cidr::new(address.into(), 24).unwrap()).await.unwrap();
        }
        let pool = "10.45.0.0/16".parse().unwrap();
        dn.add_route(pool, Some(lab::CORE_N6.into()), Some("n6")).await.unwrap();
        served(&mut ue, "after n6 was made again").await;
    });
    if !has_tshark() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let dn = lab::DN;
        for (point, only) in [("n3", "gtp && icmp"), ("n6", "eth && icmp && !gtp")] {
            let file = folder.path().join(format!("{point}.pcapng"));
            for direction in [format!("ip.dst == {dn}"), format!("ip.src == {dn}")] {
                let shown = tshark(&file, &format!("{only} && {direction}")).await;
                assert!(shown.len() >= 4, "{point}, {direction}: {shown:#?}");
            }
            assert!(tshark(&file, "_ws.malformed || _ws.short").await.is_empty(), "{point}");
        }
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
