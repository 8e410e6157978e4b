//! Checks across sections (addresses used twice, overlapping pools), and each NF's own `validate`.

use std::net::{IpAddr, SocketAddr};

use upf::interface::Backend;
use upf::interfaces::Interfaces;

use super::yaml::{Node, Value};
use super::{Config, Problem};

/// Checks a configuration whose sections are each well-formed, and appends the problems.
pub fn check(config: &Config, root: &Node, problems: &mut Vec<Problem>) {
    let sections = [
        ("nrf", config.nrf.validate().map_err(|error| error.to_string())),
        ("amf", config.amf.validate().map_err(|error| error.to_string())),
        ("pcf", config.pcf.validate().map_err(|error| error.to_string())),
        ("smf", config.smf.validate().map_err(|error| error.to_string())),
        ("upf", config.upf.validate().map_err(|error| error.to_string())),
        ("udm", config.udm.validate().map_err(|error| error.to_string())),
    ];
    for (section, result) in sections {
        if let Err(message) = result {
            problems.push(from_validate(root, section, &message));
        }
    }
    for (node, gateway) in config.gateways() {
        if let Err(error) = gateway.validate(node) {
            problems.push(from_validate(root, node.name(), &error.to_string()));
        }
    }
    if let Some(cu) = &config.cu {
        central_unit(cu, root, problems);
    }
    if let Some(du) = &config.du {
        distributed_unit(du, config.cu.as_ref(), root, problems);
    }
    if let Some(Err(message)) = config.ran.as_ref().map(ue::Config::check) {
        problems.push(from_validate(root, "ran", &message));
    }
    if let Err(error) = telemetry::log::validate(&config.log) {
        problems.push(Problem::at(root.line_of("log"), "log", error.to_string()));
    }
    duplicate_addresses(root, problems);
    data_networks(config, root, problems);
}

/// A CU that is run by itself has a control plane: it needs F1-C and N2.
fn central_unit(cu: &cu::Config, root: &Node, problems: &mut Vec<Problem>) {
    if let Err(message) = cu.check() {
        problems.push(from_validate(root, "cu", &message));
    }
    let line = root.line_of("cu");
    if cu.f1c.is_none() {
        let message = "is missing: the address at which DUs connect, such as 127.0.0.21:38472";
        problems.push(Problem::at(line, "cu.f1c", message));
    }
    if cu.n2.is_none() {
        let message = "is missing: `{address: 127.0.0.21, amf: [\"127.0.0.5:38412\"]}`, for example";
        problems.push(Problem::at(line, "cu.n2", message));
    }
}

/// A DU needs F1-C. If its CU is in the same file, both must agree about the cell.
fn distributed_unit(du: &du::Config, cu: Option<&cu::Config>, root: &Node, problems: &mut Vec<Problem>) {
    if let Err(message) = du.check() {
        problems.push(from_validate(root, "du", &message));
    }
    let Some(f1c) = &du.f1c else {
        let message = "is missing: `{local: 127.0.0.22, cu: \"127.0.0.21:38472\"}`, for example";
        return problems.push(Problem::at(root.line_of("du"), "du.f1c", message));
    };
    let Some(cu) = cu.filter(|cu| cu.f1c == Some(f1c.cu)) else { return };
    let of_cell = du.cell >> CELL_BITS;
    if of_cell != u64::from(cu.gnb_id) {
        let message = format!(
            "`{}` is a cell of gNB {of_cell}, but cu.gnb_id is {}: its cells are {} and those that follow",
            du.cell,
            cu.gnb_id,
            u64::from(cu.gnb_id) << CELL_BITS
        );
        problems.push(Problem::at(root.line_of("du.cell"), "du.cell", message));
    }
    if du.tac != cu.tac {
        let message = format!("`{}` is not the tracking area of its CU, {}", du.tac, cu.tac);
        problems.push(Problem::at(root.line_of("du.tac"), "du.tac", message));
    }
}

/// Bits of a cell's number within its gNB, at the end of the NR Cell Identity (36 bits, 24 of them the gNB's).
const CELL_BITS: u32 = 12;

/// A data network whose addresses the SMF hands out, or a gateway of 4G.
struct HandedOut<'c> {
    /// The key.
    path: String,
    name: &'c types::Dnn,
    pool: ipam::UePool,
}

/// All of them.
fn handed_out(config: &Config) -> Vec<HandedOut<'_>> {
    let smf = config.smf.dnn.iter().enumerate().map(|(index, dnn)| HandedOut {
        path: format!("smf.dnn[{index}]"),
        name: &dnn.name,
        pool: dnn.ue_pool,
    });
    let gateways = config.gateways().flat_map(|(node, gateway)| {
        gateway.apn.iter().enumerate().map(move |(index, apn)| HandedOut {
            path: format!("{}.apn[{index}]", node.name()),
            name: &apn.name,
            pool: apn.ue_pool,
        })
    });
    smf.chain(gateways).collect()
}

/// The networks of a pool by family.
fn families(pool: ipam::UePool) -> [(&'static str, Option<net::link::Cidr>); 2] {
    let cidr = |text: Option<String>| text.and_then(|text| text.parse().ok());
    [
        ("ipv4", cidr(pool.ipv4.map(|pool| pool.to_string()))),
        ("ipv6", cidr(pool.ipv6.map(|pool| pool.to_string()))),
    ]
}

/// SMF, gateway and UPF must agree about data networks: the UPF routes the addresses that the others hand out, and no address is
/// handed out by two.
fn data_networks(config: &Config, root: &Node, problems: &mut Vec<Problem>) {
    let all = handed_out(config);
    for (index, HandedOut { path, name, pool }) in all.iter().enumerate() {
        let Some(served) = config.upf.dnn.iter().find(|other| other.name == **name) else {
            let names: Vec<String> = config.upf.dnn.iter().map(|other| other.name.to_string()).collect();
            let message =
                format!("`{name}` is not a data network of upf.dnn, which has {}", names.join(", "));
            problems.push(Problem::at(root.line_of(path), &format!("{path}.name"), message));
            continue;
        };
        let routed = [("ipv4", served.ue_pool.ipv4), ("ipv6", served.ue_pool.ipv6)];
        for ((family, pool), (_, routed)) in families(*pool).into_iter().zip(routed) {
            let Some(pool) = pool else { continue };
            let path = format!("{path}.ue_pool.{family}");
            if !routed.is_some_and(|routed| overlap(routed, pool) && routed.prefix() <= pool.prefix()) {
                let routed = routed.map_or_else(|| "nothing".to_owned(), |routed| routed.to_string());
                let message = format!("`{pool}` is handed out, but upf.dnn routes {routed} for `{name}`");
                problems.push(Problem::at(root.line_of(&path), &path, message));
            }
            let twice = |other: &&HandedOut<'_>| {
                let mut pools = families(other.pool).into_iter().filter_map(|(_, pool)| pool);
                other.name == *name && pools.any(|other| overlap(other, pool))
            };
            if let Some(other) = all.iter().take(index).find(twice) {
                let message =
                    format!("`{pool}` is handed out by {}, too: give each a part of the network", other.path);
                problems.push(Problem::at(root.line_of(&path), &path, message));
            }
        }
    }
    let pools = config.upf.dnn.iter().enumerate().flat_map(|(index, dnn)| {
        let families = [("ipv4", dnn.ue_pool.ipv4), ("ipv6", dnn.ue_pool.ipv6)];
        families.into_iter().filter_map(move |(family, pool)| {
            Some((format!("upf.dnn[{index}].ue_pool.{family}"), pool?, dnn.name.to_string()))
        })
    });
    let pools: Vec<(String, net::link::Cidr, String)> = pools.collect();
    for (index, (path, pool, dnn)) in pools.iter().enumerate() {
        let clashes = |(_, earlier, other): &&(String, net::link::Cidr, String)| {
            overlap(*earlier, *pool) && !apart(config, dnn, other)
        };
        if let Some((other, ..)) = pools.iter().take(index).find(clashes) {
            problems.push(Problem::at(root.line_of(path), path, format!("`{pool}` overlaps {other}")));
        }
        for (name, address) in sockets(config) {
            if overlap(net::link::Cidr::host(address), *pool) {
                let message = format!("`{pool}` contains {address}, the address of {name}");
                problems.push(Problem::at(root.line_of(path), path, message));
            }
        }
    }
}

/// Addresses of this core that the UE pools must not cover.
fn sockets(config: &Config) -> Vec<(String, IpAddr)> {
    let fixed = [
        ("amf.ngap", config.amf.ngap.ip()),
        ("smf.pfcp", config.smf.pfcp.ip()),
        ("upf.pfcp", config.upf.pfcp.ip()),
    ];
    let gateways = config.gateways().flat_map(|(node, gateway)| {
        [gateway.gtpc, gateway.pfcp, gateway.gtpu].map(|address| (node.name().to_owned(), address.ip()))
    });
    let interfaces = Interfaces::of(&config.upf);
    let gtpu = interfaces.tunnels().map(|interface| (interface.place.clone(), interface.local().ip()));
    let cu = config.cu.iter().flat_map(|cu| {
        let links = cu.f1u.iter().chain(&cu.n3).filter_map(|link| link.gtpu);
        links.chain(cu.f1c).map(|address| ("cu".to_owned(), address.ip()))
    });
    let du = config.du.iter().flat_map(|du| {
        let links = [&du.f1u, &du.uu].into_iter().filter_map(|link| link.gtpu);
        links.map(|address| ("du".to_owned(), address.ip()))
    });
    let fixed = fixed.map(|(name, address)| (name.to_owned(), address)).into_iter();
    fixed.chain(gtpu).chain(gateways).chain(cu).chain(du).collect()
}

/// Whether two data networks can have the same UE addresses: in different network instances, unless the kernel routes
/// to both.
fn apart(config: &Config, one: &str, other: &str) -> bool {
    let interfaces = Interfaces::of(&config.upf);
    let of = |name: &str| {
        let name = name.to_owned();
        let all = interfaces.iter();
        all.filter(move |own| own.dnn.as_ref().is_some_and(|dnn| dnn.name.to_string() == name))
    };
    let by_kernel = |name| of(name).any(|own| own.config.link.backend == Backend::Kernel);
    let shared = of(one).any(|own| of(other).any(|theirs| own.instance == theirs.instance));
    !shared && (!by_kernel(one) || !by_kernel(other))
}

/// Whether two prefixes share an address.
fn overlap(a: net::link::Cidr, b: net::link::Cidr) -> bool {
    let length = a.prefix().min(b.prefix());
    match (net::link::Cidr::new(a.address(), length), net::link::Cidr::new(b.address(), length)) {
        (Some(a), Some(b)) => a.network() == b.network(),
        _ => false,
    }
}

/// Makes a problem of an error of `validate`. The error begins with the key (`amf.tac: …` or `tac: …`),
/// which gives the line.
fn from_validate(root: &Node, section: &str, message: &str) -> Problem {
    if let Some((path, rest)) = message.split_once(": ")
        && !path.contains(' ')
    {
        let within = path.strip_prefix(section).and_then(|rest| rest.strip_prefix('.')).unwrap_or(path);
        let path = format!("{section}.{within}");
        return Problem::at(root.line_of(&path), &path, rest);
    }
    // An item of a list by its name: `upf.interfaces access: …`.
    if let Some((place, rest)) = message.split_once(": ")
        && let Some((list, name)) = place.split_once(' ')
        && let Some(key) = list.strip_prefix(section).and_then(|rest| rest.strip_prefix('.'))
        && let Some(at) = root.get(section).and_then(|section| position(section.get(key)?, name))
    {
        let path = format!("{list}[{at}]");
        return Problem::at(root.line_of(&path), &path, rest);
    }
    Problem::at(root.line_of(section), section, message)
}

/// The position of the item with a name in a list.
fn position(list: &Node, name: &str) -> Option<usize> {
    let Value::Sequence(items) = &list.value else { return None };
    items.iter().position(|item| {
        item.get("name")
            .is_some_and(|value| matches!(&value.value, Value::Scalar { text, .. } if text == name))
    })
}

/// A socket that the configuration asks for.
pub struct Endpoint {
    /// Its key.
    pub path: String,
    /// Line of the key's value.
    line: usize,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: &'static str,
    /// Where it listens.
    pub address: SocketAddr,
    /// Whether the kernel has it: not on interfaces that bypass the kernel.
    pub of_kernel: bool,
}

/// All sockets of a configuration.
pub fn endpoints(root: &Node) -> Vec<Endpoint> {
    let mut found = Vec::new();
    let scalar = |node: &Node| match &node.value {
        Value::Scalar { text, .. } => Some(text.clone()),
        _ => None,
    };
    let mut add = |path: String, value: &Node, protocol: &'static str, of_kernel: bool| {
        if let Some(address) = scalar(value).and_then(|text| text.parse().ok()) {
            found.push(Endpoint { path, line: value.line, protocol, address, of_kernel });
        }
    };
    for (section, content) in root.entries() {
        for (key, value) in content.entries() {
            let protocol = match key.name.as_str() {
                "sbi" => "tcp",
                "ngap" | "f1c" => "sctp",
                "pfcp" | "gtpu" => "udp",
                _ => continue,
            };
            add(format!("{}.{}", section.name, key.name), value, protocol, true);
        }
        for (key, link) in links(content) {
            let backend = link.get("backend").and_then(scalar);
            let of_kernel = match backend.as_deref() {
                Some("dpdk" | "memif") => false,
                Some("af_xdp") => !link.get("addresses").is_some_and(|own| is_filled(&own.value)),
                _ => true,
            };
            if let Some(value) = link.get("gtpu") {
                add(format!("{}.{key}.gtpu", section.name), value, "udp", of_kernel);
            }
        }
    }
    found
}

/// The links of a section with their keys within it: items of lists, and links by themselves.
fn links(section: &Node) -> Vec<(String, &Node)> {
    let mut found = Vec::new();
    for (key, value) in section.entries() {
        match (key.name.as_str(), &value.value) {
            (list @ ("interfaces" | "f1u"), Value::Sequence(items)) => {
                found.extend(items.iter().enumerate().map(|(at, item)| (format!("{list}[{at}]"), item)));
            }
            (link @ ("f1u" | "n3" | "uu"), Value::Mapping(_)) => found.push((link.to_owned(), value)),
            _ => {}
        }
    }
    found
}

/// Whether a list has entries.
fn is_filled(value: &Value) -> bool {
    matches!(value, Value::Sequence(entries) if !entries.is_empty())
}

/// Two sockets of one protocol cannot have the same address.
fn duplicate_addresses(root: &Node, problems: &mut Vec<Problem>) {
    let mut seen: Vec<Endpoint> = Vec::new();
    for own in endpoints(root) {
        let same = |other: &&Endpoint| (other.protocol, other.address) == (own.protocol, own.address);
        match seen.iter().find(same) {
            Some(other) => {
                let message = format!("`{}` is the address of {} already", own.address, other.path);
                problems.push(Problem::at(own.line, &own.path, message));
            }
            None => seen.push(own),
        }
    }
}
