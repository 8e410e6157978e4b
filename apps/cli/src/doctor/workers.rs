//! Checks of the user plane's workers: their cores, and the queues of their interfaces.

use std::path::Path;

use pktio::af_xdp::device::Device;
use pktio::interface::{Backend, Configured, WorkersConfig};

use super::Finding;

const CHECK: &str = "workers";

/// `section` is the node's: a finding for the cores, and one for each interface that does not suit the workers.
pub fn workers(section: &str, workers: &WorkersConfig, interfaces: &[Configured<'_>]) -> Vec<Finding> {
    let key = format!("{section}.workers");
    let mut findings = vec![cores(&key, workers)];
    if let Some(count @ 2..) = workers.count {
        let queues = |interface: &Configured<'_>| match interface.link.backend {
            Backend::AfXdp => Device::find(interface.link.device()).ok().map(|device| device.queues),
            Backend::Dpdk => packet_socket_queues(interface.link.device()),
            Backend::Kernel | Backend::Memif => None,
        };
        let short = |interface| too_few(&key, interface, queues(interface)?, count);
        findings.extend(interfaces.iter().filter_map(short));
    }
    let far = |interface| far_cores(&key, interface, &workers.cores, Path::new("/sys"));
    findings.extend(interfaces.iter().filter_map(far));
    findings
}

/// Whether the workers can have the cores that they ask for.
fn cores(key: &str, workers: &WorkersConfig) -> Finding {
    if let Err(problem) = workers.check_cores() {
        return Finding::problem(CHECK, format!("{key}.cores: {problem}"), "");
    }
    let there = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match workers.count {
        Some(count) if count as usize > there => Finding::note(
            CHECK,
            format!("{count} workers for {there} cores: they take turns, which delays packets"),
            format!("{key}.count: {there}, or less"),
        ),
        Some(count) if workers.cores.is_empty() => {
            let advice =
                format!("{key}.cores gives each worker a core of its own; isolcpus= keeps others off it");
            Finding::note(CHECK, format!("{count} workers on cores that the system chooses"), advice)
        }
        Some(_) => Finding::ok(CHECK, format!("on cores {:?}", workers.cores)),
        None => Finding::ok(CHECK, "one for each direction, or for each queue of the backend"),
    }
}

/// Pairs of queues of a device of DPDK's `net_af_packet`. Those of other devices are known only to their drivers.
fn packet_socket_queues(device: &str) -> Option<u32> {
    let mut parts = device.split(',');
    parts.next()?.strip_prefix("net_af_packet")?;
    let pairs = parts.find_map(|part| part.strip_prefix("qpairs=")?.parse().ok());
    Some(pairs.unwrap_or(1))
}

fn too_few(key: &str, interface: &Configured<'_>, queues: u32, count: u32) -> Option<Finding> {
    let Configured { name, link, .. } = interface;
    let served = link.queues.map_or(queues, |wanted| wanted.min(queues));
    if served >= count {
        return None;
    }
    let device = link.device();
    let advice = match link.backend {
        Backend::Dpdk => format!("qpairs={count} in the device of {name}, or {key}.count: {served}"),
        _ if served < queues => format!("queues: {count} of {name}, or {key}.count: {served}"),
        _ => format!(
            "ethtool -L {device} combined {count} (or `rx {count} tx {count}`), or {key}.count: {served}"
        ),
    };
    Some(Finding::problem(CHECK, format!("{count} workers, but {name} has {served} queues to serve"), advice))
}

/// Cores whose memory is not the one that the card writes to.
fn far_cores(key: &str, interface: &Configured<'_>, cores: &[usize], sys: &Path) -> Option<Finding> {
    let device = interface.link.device().split(',').next()?;
    let node = match interface.link.backend {
        Backend::Dpdk => sys.join("bus/pci/devices").join(device),
        Backend::AfXdp | Backend::Kernel => sys.join("class/net").join(device).join("device"),
        Backend::Memif => return None,
    };
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    // Machines with one node, and devices of software, have -1 or no such file.
    let node: u32 = read(&node.join("numa_node"))?.trim().parse().ok()?;
    let near = read(&sys.join(format!("devices/system/node/node{node}/cpulist")))?;
    let is_near = |core: &usize| list(&near).any(|(first, last)| (first..=last).contains(core));
    let far: Vec<_> = cores.iter().filter(|core| !is_near(core)).collect();
    if far.is_empty() {
        return None;
    }
    Some(Finding::note(
        CHECK,
        format!("cores {far:?} are on another NUMA node than {} ({device})", interface.name),
        format!("choose {key}.cores of node {node}: {}", near.trim()),
    ))
}

/// The ranges of a list such as `0-3,8`.
fn list(text: &str) -> impl Iterator<Item = (usize, usize)> {
    text.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse().ok()?, last.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use pktio::interface::{Content, LinkConfig};

    use super::super::Verdict;
    use super::*;

    const KEY: &str = "upf.workers";

    fn link(text: &str) -> LinkConfig {
        serde_json::from_str(&format!("{{{text}}}")).unwrap()
    }

    fn access(link: &LinkConfig) -> Configured<'_> {
        Configured { name: "access", content: Content::Tunnels, link }
    }

    #[test]
    fn workers_need_cores_that_exist() {
        let config = |text: &str| cores(KEY, &serde_json::from_str(text).unwrap());
        assert_eq!(config("{}").verdict, Verdict::Ok);
        let missing = config(r#"{"count": 1, "cores": [100000]}"#);
        assert_eq!(missing.verdict, Verdict::Problem);
        assert!(
            missing.detail.contains("core 100000") && missing.detail.contains("taskset"),
            "{}",
            missing.detail
        );
        let own = pktio::poll::cores().unwrap()[0];
        assert_eq!(config(&format!(r#"{{"count": 1, "cores": [{own}]}}"#)).verdict, Verdict::Ok);
        assert_eq!(config(r#"{"count": 256}"#).verdict, Verdict::Note);
    }

    #[test]
    fn workers_need_a_queue_each() {
        let af_xdp = link(r#""backend": "af_xdp", "device": "eth0""#);
        assert!(too_few(KEY, &access(&af_xdp), 4, 4).is_none());
        let few = too_few(KEY, &access(&af_xdp), 2, 4).unwrap();
        assert_eq!(few.verdict, Verdict::Problem);
        assert!(
            few.detail.contains("access has 2 queues") && few.advice.contains("ethtool -L eth0 combined 4")
        );
        let limited = link(r#""backend": "af_xdp", "device": "eth0", "queues": 1"#);
        assert!(too_few(KEY, &access(&limited), 8, 2).unwrap().advice.starts_with("queues: 2 of access"));
        let dpdk = link(r#""backend": "dpdk", "device": "net_af_packet0,iface=eth0,qpairs=2""#);
        assert_eq!(packet_socket_queues(dpdk.device()), Some(2));
        assert!(too_few(KEY, &access(&dpdk), 2, 3).unwrap().advice.starts_with("qpairs=3"));
        assert_eq!(packet_socket_queues("net_af_packet1,iface=eth0"), Some(1));
        assert_eq!(packet_socket_queues("0000:01:00.0"), None);
    }

    #[test]
    fn cores_of_another_node_than_the_card_are_noted() {
        let sys = std::env::temp_dir().join(format!("godwit-doctor-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = sys.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("bus/pci/devices/0000:01:00.0/numa_node", "1\n");
        write("class/net/eth0/device/numa_node", "-1\n");
        write("devices/system/node/node1/cpulist", "8-11,14\n");
        let card = link(r#""backend": "dpdk", "device": "0000:01:00.0,queues=1""#);
        assert!(far_cores(KEY, &access(&card), &[8, 11, 14], &sys).is_none());
        let far = far_cores(KEY, &access(&card), &[7, 9, 12], &sys).unwrap();
        assert_eq!(far.verdict, Verdict::Note);
        assert!(far.detail.contains("[7, 12]") && far.advice.ends_with("node 1: 8-11,14"), "{far:?}");
        let virtual_one = link(r#""backend": "af_xdp", "device": "eth0""#);
        assert!(far_cores(KEY, &access(&virtual_one), &[0], &sys).is_none());
        std::fs::remove_dir_all(&sys).unwrap();
    }
}
