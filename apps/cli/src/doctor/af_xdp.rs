//! Checks of the devices of interfaces with the backend `af_xdp`.

use std::io;
use std::net::IpAddr;

use pktio::af_xdp::device::Device;
use upf::interface::{Backend, InterfaceConfig};

use super::Finding;

const CHECK: &str = "af_xdp";

/// A finding for each interface by AF_XDP. `kernel` are the addresses of this machine.
pub fn devices(upf: &upf::Config, kernel: &[IpAddr]) -> Vec<Finding> {
    let own = upf.interfaces.iter().filter(|interface| interface.backend == Backend::AfXdp);
    let check = |interface: &InterfaceConfig| match Device::find(interface.device()) {
        Ok(device) => check(interface, &device, device.takes_tags_off(), kernel),
        Err(error) => missing(interface, &error),
    };
    own.map(check).collect()
}

fn missing(interface: &InterfaceConfig, error: &io::Error) -> Finding {
    let (name, device) = (&interface.name, interface.device());
    let advice = format!("`ip -brief link` lists the interfaces; {name} needs one of Ethernet");
    Finding::problem(CHECK, format!("{name}: {device}: {error}"), advice)
}

fn check(interface: &InterfaceConfig, device: &Device, takes_tags_off: bool, kernel: &[IpAddr]) -> Finding {
    let name = &interface.name;
    let mtu = match interface.mtu_on(device) {
        Ok(mtu) => mtu,
        // The error says what to do.
        Err(error) => return Finding::problem(CHECK, format!("{name}: {error}"), ""),
    };
    let own = interface.addresses.iter().map(|own| own.address());
    if let Some(own) = own.clone().find(|own| kernel.contains(own)) {
        return Finding::problem(
            CHECK,
            format!("{name}: the kernel has {own} too, which is an address of the interface's own"),
            format!("remove it (`ip address show to {own}`), or leave out `addresses` of {name}"),
        );
    }
    if takes_tags_off && !interface.vlan.is_empty() {
        return Finding::note(
            CHECK,
            format!("{name}: the driver of {} takes VLAN tags off; the UPF switches that off", device.name),
            format!("ethtool -K {} rxvlan off; drivers that refuse cannot be used with `vlan`", device.name),
        );
    }
    let whose = if interface.has_own_addresses() { "the UPF's" } else { "the kernel's" };
    Finding::ok(CHECK, format!("{name}: {}, MTU {mtu}, {whose} addresses", device.name))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn devices_vlans_and_addresses_are_checked() {
        let interface = |more: &str| -> InterfaceConfig {
            let text =
                format!(r#"{{"name": "n6", "role": "n6", "backend": "af_xdp", "device": "eth0"{more}}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let index = u32::MAX;
        let device = Device { name: "eth0".into(), index, mac: [2, 0, 0, 0, 0, 1], mtu: 1500, queues: 1 };
        let own = r#", "addresses": ["10.0.0.1/24", "fd00::1/64"]"#;
        let found = |more: &str, tags_off, kernel: &[IpAddr]| {
            let found = check(&interface(more), &device, tags_off, kernel);
            (found.verdict, found.detail + "; " + &found.advice)
        };
        let kernel: [IpAddr; 2] = [[10, 0, 0, 2].into(), "fd00::1".parse().unwrap()];
        for (more, tags_off, kernel, verdict, said) in [
            ("", false, &kernel[..], Verdict::Ok, "MTU 1500, the kernel's"),
            ("", true, &kernel, Verdict::Ok, "the kernel's"),
            (own, false, &[], Verdict::Ok, "the UPF's"),
            (own, false, &kernel, Verdict::Problem, "fd00::1 too"),
            (&format!(r#"{own}, "vlan": 7"#), true, &[], Verdict::Note, "ethtool -K eth0 rxvlan off"),
            (&format!(r#"{own}, "mtu": 1600"#), false, &[], Verdict::Problem, "ip link set eth0 mtu 1600"),
            (&format!(r#"{own}, "mtu": 1400"#), false, &[], Verdict::Ok, "MTU 1400"),
            (r#", "vlan": [7, 8]"#, false, &[], Verdict::Problem, "type vlan proto 802.1ad id 7"),
        ] {
            let (found, text) = found(more, tags_off, kernel);
            assert!(found == verdict && text.contains(said), "{more}: {found:?} {text}");
        }
        let absent = missing(&interface(""), &io::ErrorKind::NotFound.into());
        assert!(absent.verdict == Verdict::Problem && absent.detail.starts_with("n6: eth0: "));
    }
}
