//! Checks of the devices of interfaces with the backend `af_xdp`.

use std::io;
use std::net::IpAddr;

use pktio::af_xdp::device::Device;
use pktio::interface::{Backend, Configured};

use super::Finding;

const CHECK: &str = "af_xdp";

/// A finding for each interface by AF_XDP. `kernel` are the addresses of this machine.
pub fn devices(interfaces: &[Configured<'_>], kernel: &[IpAddr]) -> Vec<Finding> {
    let own = interfaces.iter().filter(|interface| interface.link.backend == Backend::AfXdp);
    let check = |interface: &Configured<'_>| match Device::find(interface.link.device()) {
        Ok(device) => check(interface, &device, device.takes_tags_off(), kernel),
        Err(error) => missing(interface, &error),
    };
    own.map(check).collect()
}

fn missing(interface: &Configured<'_>, error: &io::Error) -> Finding {
    let (name, device) = (interface.name, interface.link.device());
    let advice = format!("`ip -brief link` lists the interfaces; {name} needs one of Ethernet");
    Finding::problem(CHECK, format!("{name}: {device}: {error}"), advice)
}

fn check(interface: &Configured<'_>, device: &Device, takes_tags_off: bool, kernel: &[IpAddr]) -> Finding {
    let Configured { name, link, .. } = interface;
    let mtu = match link.mtu_on(device) {
        Ok(mtu) => mtu,
        // The error says what to do.
        Err(error) => return Finding::problem(CHECK, format!("{name}: {error}"), ""),
    };
    let own = link.addresses.iter().map(|own| own.address());
    if let Some(own) = own.clone().find(|own| kernel.contains(own)) {
        return Finding::problem(
            CHECK,
            format!("{name}: the kernel has {own} too, which is an address of the interface's own"),
            format!("remove it (`ip address show to {own}`), or leave out `addresses` of {name}"),
        );
    }
    if takes_tags_off && !link.vlan.is_empty() {
        return Finding::note(
            CHECK,
            format!("{name}: the driver of {} takes VLAN tags off; the start switches that off", device.name),
            format!("ethtool -K {} rxvlan off; drivers that refuse cannot be used with `vlan`", device.name),
        );
    }
    let whose = if link.has_own_addresses() { "its own" } else { "the kernel's" };
    Finding::ok(CHECK, format!("{name}: {}, MTU {mtu}, {whose} addresses", device.name))
}

#[cfg(test)]
mod tests {
    use pktio::interface::{Content, LinkConfig};

    use super::super::Verdict;
    use super::*;

    #[test]
    fn devices_vlans_and_addresses_are_checked() {
        let link = |more: &str| -> LinkConfig {
            serde_json::from_str(&format!(r#"{{"backend": "af_xdp", "device": "eth0"{more}}}"#)).unwrap()
        };
        fn n6(link: &LinkConfig) -> Configured<'_> {
            Configured { name: "n6", content: Content::Packets, link }
        }
        let index = u32::MAX;
        let device = Device { name: "eth0".into(), index, mac: [2, 0, 0, 0, 0, 1], mtu: 1500, queues: 1 };
        let own = r#", "addresses": ["10.0.0.1/24", "fd00::1/64"]"#;
        let found = |more: &str, tags_off, kernel: &[IpAddr]| {
            let found = check(&n6(&link(more)), &device, tags_off, kernel);
            (found.verdict, found.detail + "; " + &found.advice)
        };
        let kernel: [IpAddr; 2] = [[10, 0, 0, 2].into(), "fd00::1".parse().unwrap()];
        for (more, tags_off, kernel, verdict, said) in [
            ("", false, &kernel[..], Verdict::Ok, "MTU 1500, the kernel's"),
            ("", true, &kernel, Verdict::Ok, "the kernel's"),
            (own, false, &[], Verdict::Ok, "its own"),
            (own, false, &kernel, Verdict::Problem, "fd00::1 too"),
            (&format!(r#"{own}, "vlan": 7"#), true, &[], Verdict::Note, "ethtool -K eth0 rxvlan off"),
            (&format!(r#"{own}, "mtu": 1600"#), false, &[], Verdict::Problem, "ip link set eth0 mtu 1600"),
            (&format!(r#"{own}, "mtu": 1400"#), false, &[], Verdict::Ok, "MTU 1400"),
            (r#", "vlan": [7, 8]"#, false, &[], Verdict::Problem, "type vlan proto 802.1ad id 7"),
        ] {
            let (found, text) = found(more, tags_off, kernel);
            assert!(found == verdict && text.contains(said), "{more}: {found:?} {text}");
        }
        let absent = missing(&n6(&link("")), &io::ErrorKind::NotFound.into());
        assert!(absent.verdict == Verdict::Problem && absent.detail.starts_with("n6: eth0: "));
    }
}
