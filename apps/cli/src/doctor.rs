//! `godwit doctor`: checks of this machine and of the configuration, with advice.
//!
//! The command changes nothing. Each check is a function that returns [`Finding`]s. The advice is a
//! command or setting to type, because most people give up on a core at "session up, no internet".

mod af_xdp;
mod memif;
mod workers;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use net::capability::{self, Capability};
use nf::TrustError;
use nf::certificate::{self, CertificateFiles};
use pktio::interface::Configured;
use sbi::model::common::DateTime;
use serde::Serialize;
use upf::interface::InterfaceConfig;

use crate::config::semantic::{self, Endpoint};
use crate::config::{self, yaml};
use crate::{ConfigArg, EXIT_FAILED, certs};
use output::{self, Format, Table};

/// Options of `godwit doctor`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArg,
    #[command(flatten)]
    format: Format,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// Works, with a restriction.
    Note,
    /// The core will not work until something is done.
    Problem,
}

#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    detail: String,
    /// What to do; empty if there is nothing to do.
    advice: String,
}

impl Finding {
    fn ok(check: &'static str, detail: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Ok, detail: detail.into(), advice: String::new() }
    }

    fn note(check: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Note, detail: detail.into(), advice: advice.into() }
    }

    fn problem(check: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { check, verdict: Verdict::Problem, detail: detail.into(), advice: advice.into() }
    }
}

/// Runs the checks; exit code 1 if one of them found a problem.
///
/// # Errors
/// When the result cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut findings = vec![kernel(), privileges(), open_files(), sctp(), tun(), namespaces()];
    findings.extend(programs());
    findings.push(hugepages());
    findings.push(dpdk());
    findings.push(forwarding());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    findings.push(runtime.block_on(forward_filter()));
    match std::fs::read_to_string(&args.config.config) {
        Ok(text) => match config::parse(&text) {
            Ok(config) => match yaml::parse(&text) {
                Ok(node) => {
                    let file = args.config.config.display();
                    findings.push(Finding::ok("configuration", format!("{file} is sound")));
                    findings.push(reached_by_ues(&config.upf));
                    let upf: Vec<Configured> =
                        config.upf.interfaces.iter().map(InterfaceConfig::configured).collect();
                    findings.extend(workers::workers("upf", &config.upf.workers, &upf));
                    findings.extend(configured(&node));
                    findings.extend(af_xdp::devices(&upf, &local_addresses()));
                    findings.extend(memif::memifs(&upf));
                    for unit in crate::gnb::units(&config) {
                        findings.extend(workers::workers(unit.name, unit.workers, &unit.links));
                        findings.extend(af_xdp::devices(&unit.links, &local_addresses()));
                        findings.extend(memif::memifs(&unit.links));
                    }
                    findings.push(access_tokens(&config.sbi));
                    findings.push(certificates(&config));
                }
                Err(problem) => findings.push(Finding::problem("configuration", problem.message, "")),
            },
            Err(problems) => findings.extend(problems.into_iter().map(|problem| {
                let place = format!("{}:{}: {}", args.config.config.display(), problem.line, problem.path);
                Finding::problem("configuration", format!("{place}: {}", problem.message), "")
            })),
        },
        Err(error) => findings.push(Finding::note(
            "configuration",
            format!("{}: {error}", args.config.config.display()),
            "name the file with -c to have its addresses and ports checked",
        )),
    }
    print(args.format, &findings)?;
    let bad = findings.iter().any(|finding| finding.verdict == Verdict::Problem);
    Ok(if bad { ExitCode::from(EXIT_FAILED) } else { ExitCode::SUCCESS })
}

fn print(format: Format, findings: &[Finding]) -> anyhow::Result<()> {
    if format.json {
        return output::json(&findings);
    }
    let mut table = Table::new(&["", "CHECK", "FOUND"]);
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Problem => "PROBLEM",
        };
        table.row([mark.to_owned(), finding.check.to_owned(), finding.detail.clone()]);
        if !finding.advice.is_empty() {
            table.row([String::new(), String::new(), format!("-> {}", finding.advice)]);
        }
    }
    Ok(output::text(&table.render())?)
}

/// Whether the core authenticates the callers of the service-based interface.
fn access_tokens(sbi: &nf::security::Config) -> Finding {
    use nf::security::Tokens;
    const CHECK: &str = "access tokens";
    let remedy = "remove sbi.tokens from the configuration";
    match sbi.tokens {
        Tokens::Off => Finding::note(
            CHECK,
            "switched off: anybody who reaches the service-based interface can read subscribers' keys",
            remedy,
        ),
        Tokens::ExceptCallbacks => {
            Finding::note(CHECK, "notifications need none: anybody who reaches an NF can send one", remedy)
        }
        Tokens::Required => match std::fs::read_dir(&sbi.trust) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Finding::note(
                CHECK,
                format!("{}: {error}", sbi.trust.display()),
                "run doctor as the core's user",
            ),
            _ => Finding::ok(CHECK, format!("needed by every call; keys in {}", sbi.trust.display())),
        },
    }
}

/// Whether NFs that others reach can speak TLS.
fn certificates(config: &config::Config) -> Finding {
    const CHECK: &str = "TLS";
    if config.sbi.tls == nf::security::TlsMode::Off {
        let detail =
            "switched off: anybody on the path can read and change the messages of network functions";
        return Finding::note(CHECK, detail, "remove sbi.tls from the configuration");
    }
    let needed: Vec<_> =
        certs::network_functions(config).into_iter().filter(|(_, at)| config.sbi.tls.applies(*at)).collect();
    if needed.is_empty() {
        return Finding::ok(CHECK, "not needed: every SBI address is a loopback address");
    }
    let (mut wrong, mut soon) = (Vec::new(), Vec::new());
    let mut first: Option<SystemTime> = None;
    for (nf_type, address) in needed {
        match CertificateFiles::of(&config.sbi.trust, &nf_type, Some(address)).load() {
            Ok(tls) => {
                first = Some(first.map_or(tls.expires(), |first| first.min(tls.expires())));
                if certificate::expires_soon(tls.expires()) {
                    soon.push(format!(
                        "that of the {nf_type} expires on {}",
                        DateTime::from(tls.expires()).0
                    ));
                }
            }
            Err(error) if error.is_denied() => {
                return Finding::note(CHECK, error.to_string(), "run doctor as the core's user");
            }
            Err(error) => wrong.push(error),
        }
    }
    if let Some(error) = wrong.first() {
        let missing = wrong.iter().all(|error| matches!(error, TrustError::NoCertificate { .. }));
        let advice = if missing { "godwit certs" } else { "godwit certs --renew" };
        let others = match wrong.len() - 1 {
            0 => String::new(),
            others => format!("; and {others} more"),
        };
        Finding::problem(CHECK, format!("{error}{others}"), advice)
    } else if !soon.is_empty() {
        Finding::note(CHECK, format!("certificates: {}", soon.join("; ")), "godwit certs --renew")
    } else {
        let until = first.map(|first| DateTime::from(first).0).unwrap_or_default();
        Finding::ok(CHECK, format!("certificates in {}, valid until {until}", config.sbi.trust.display()))
    }
}

fn kernel() -> Finding {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Finding::ok("kernel", format!("Linux {}", release.trim()))
}

fn privileges() -> Finding {
    let missing: Vec<&str> = [Capability::NetAdmin, Capability::NetRaw]
        .into_iter()
        .filter(|capability| !capability.held())
        .map(Capability::name)
        .collect();
    if missing.is_empty() {
        return Finding::ok("privileges", "CAP_NET_ADMIN and CAP_NET_RAW are held");
    }
    Finding::note(
        "privileges",
        format!(
            "without {}: `godwit run` cannot make the N6 device or a raw SCTP socket",
            missing.join(" and ")
        ),
        "run as root, or: setcap cap_net_admin,cap_net_raw,cap_net_bind_service+ep $(command -v godwit). \
         `godwit demo` works without",
    )
}

/// At its start the program raised its limit as far as it may.
fn open_files() -> Finding {
    const CHECK: &str = "open files";
    match net::limits::raise_open_files() {
        Ok(limit) if limit >= crate::run::OPEN_FILES_MIN => {
            Finding::ok(CHECK, format!("{limit} at once (`ulimit -n`)"))
        }
        Ok(limit) => Finding::problem(
            CHECK,
            format!("{limit} at once; the core needs at least {}", crate::run::OPEN_FILES_MIN),
            "raise the hard limit: `ulimit -Hn`, LimitNOFILE= of systemd, nofile in /etc/security/limits.conf",
        ),
        Err(error) => Finding::note(CHECK, format!("the limit cannot be read: {error}"), ""),
    }
}

fn sctp() -> Finding {
    if capability::kernel_sctp() {
        Finding::ok("SCTP", "in the kernel")
    } else if capability::raw_sctp() {
        Finding::ok(
            "SCTP",
            "not in the kernel; in user space over raw IP (protocol 132), which gNBs cannot tell apart",
        )
    } else {
        Finding::note(
            "SCTP",
            "neither in the kernel nor allowed as raw socket",
            "modprobe sctp, or run with CAP_NET_RAW; UDP encapsulation (`amf.sctp: udp`) works with gNBs that know it",
        )
    }
}

fn tun() -> Finding {
    match capability::tun_device() {
        Ok(()) => Finding::ok("TUN device", "/dev/net/tun can be opened"),
        Err(error) => {
            Finding::problem("TUN device", format!("/dev/net/tun: {error}"), tun_remedy(error.kind()))
        }
    }
}

/// If the device exists and only this user may not open it, loading its driver would not help.
fn tun_remedy(kind: std::io::ErrorKind) -> &'static str {
    match kind {
        std::io::ErrorKind::PermissionDenied => {
            "as root, chmod 0666 /dev/net/tun (its usual mode); in a container: --device /dev/net/tun"
        }
        _ => "modprobe tun; in a container: --device /dev/net/tun --cap-add NET_ADMIN",
    }
}

fn namespaces() -> Finding {
    if Capability::SysAdmin.held() {
        return Finding::ok("namespaces", "may be created (the demo and the tests use them)");
    }
    match capability::user_namespaces() {
        Ok(()) => Finding::ok("namespaces", "user namespaces are allowed, so the demo works without root"),
        Err(reason) => Finding::note(
            "namespaces",
            format!("no user namespaces: {reason}"),
            "the demo needs them or root; sysctl -w user.max_user_namespaces=10000 \
             kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    }
}

fn programs() -> Vec<Finding> {
    // Program, Debian package, and what does not work without the program.
    let wanted = [
        ("ip", "iproute2", "looking at the network the core has set up"),
        ("nft", "nftables", "NAT of the data network (`nat: true`)"),
        ("ping", "iputils-ping", "the demo's ping"),
        ("curl", "curl", "the demo's download"),
    ];
    let mut findings = Vec::new();
    let mut found = Vec::new();
    for (program, package, purpose) in wanted {
        match capability::program(program) {
            Some(_) => found.push(program),
            None => findings.push(Finding::note(
                "programs",
                format!("`{program}` is missing; it is for {purpose}"),
                format!("apt-get install {package}"),
            )),
        }
    }
    if !found.is_empty() {
        findings.insert(0, Finding::ok("programs", found.join(", ")));
    }
    findings
}

/// Megabytes that DPDK asks for by default (`pktio::dpdk::eal::Options`).
const DPDK_MEGABYTES: u64 = 512;

fn hugepages() -> Finding {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    huge_pages(&meminfo, cfg!(feature = "dpdk"))
}

fn huge_pages(meminfo: &str, dpdk: bool) -> Finding {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let (total, free) = (field("HugePages_Total:"), field("HugePages_Free:"));
    let size_mb = field("Hugepagesize:") / 1024;
    let detail = format!("{free} of {total} free, {size_mb} MB each");
    if !dpdk {
        return Finding::ok("huge pages", format!("{detail} (only the backend dpdk would use them)"));
    }
    if size_mb == 0 || free * size_mb >= DPDK_MEGABYTES {
        return Finding::ok("huge pages", detail);
    }
    Finding::note(
        "huge pages",
        format!("{detail}: the backend dpdk takes ordinary pages and is slower; the others need none"),
        format!("sysctl vm.nr_hugepages={}", total + (DPDK_MEGABYTES / size_mb) - free),
    )
}

/// What the backend dpdk would find: whether it was built in, and the devices that it could drive
/// without the kernel.
fn dpdk() -> Finding {
    const CHECK: &str = "DPDK";
    if !cfg!(feature = "dpdk") {
        let how = "install libdpdk-dev, cargo build --release -p cli --features dpdk";
        return Finding::ok(CHECK, format!("not built in; for the backend dpdk: {how}"));
    }
    let devices: Vec<String> = ["vfio-pci", "uio_pci_generic", "igb_uio"]
        .into_iter()
        .filter_map(|driver| std::fs::read_dir(format!("/sys/bus/pci/drivers/{driver}")).ok())
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(|c: char| c.is_ascii_hexdigit()) && name.contains(':'))
        .collect();
    if devices.is_empty() {
        return Finding::ok(
            CHECK,
            "built in; no network card is bound to it, so memif, af_packet and af_xdp only",
        );
    }
    let iommu = std::fs::read_dir("/sys/kernel/iommu_groups").is_ok_and(|mut groups| groups.next().is_some());
    let detail = format!("built in; cards bound to it: {}", devices.join(", "));
    if iommu {
        return Finding::ok(CHECK, detail);
    }
    Finding::note(
        CHECK,
        format!("{detail}; there is no IOMMU"),
        "boot with intel_iommu=on (or amd_iommu=on), or: \
         echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
    )
}

fn forwarding() -> Finding {
    let on = net::sysctl::get("net.ipv4.ip_forward").is_ok_and(|value| value.trim() == "1");
    if on {
        Finding::ok("IP forwarding", "on")
    } else {
        Finding::ok("IP forwarding", "off; the UPF switches it on in its namespace when it starts")
    }
}

/// A firewall that drops forwarded packets is the usual reason for "session up, no internet".
async fn forward_filter() -> Finding {
    let check = "firewall";
    let limit = Duration::from_secs(5);
    let rules = match net::process::Command::new("nft").args(["list", "ruleset"]).output(limit).await {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => {
            return Finding::note(
                check,
                "the rules cannot be read",
                "run as root to have the firewall checked",
            );
        }
    };
    if rules.lines().any(drops_forwarded) {
        return Finding::problem(
            check,
            "a forward chain drops by default (Docker and firewalld do this): user packets would not leave",
            "let the UE pool through, for example: iptables -I FORWARD -s 10.45.0.0/16 -j ACCEPT; \
             iptables -I FORWARD -d 10.45.0.0/16 -j ACCEPT",
        );
    }
    Finding::ok(check, "no forward chain drops by default")
}

/// Whether a line of `nft list ruleset` begins a forward chain with policy drop.
fn drops_forwarded(line: &str) -> bool {
    line.contains("hook forward") && line.contains("policy drop")
}

/// Checks of the addresses, ports and pools of a configuration.
fn configured(node: &yaml::Node) -> Vec<Finding> {
    let endpoints: Vec<Endpoint> =
        semantic::endpoints(node).into_iter().filter(|own| own.of_kernel).collect();
    let mut findings = Vec::new();
    let ours = local_addresses();
    for Endpoint { path: name, address, .. } in &endpoints {
        if !address.ip().is_unspecified() && !address.ip().is_loopback() && !ours.contains(&address.ip()) {
            findings.push(Finding::problem(
                "addresses",
                format!("{name}: {} is not an address of this machine", address.ip()),
                format!("ip address add {}/32 dev lo, or write one of `ip -brief address`", address.ip()),
            ));
        }
    }
    if findings.is_empty() {
        findings
            .push(Finding::ok("addresses", format!("{} configured, all on this machine", endpoints.len())));
    }
    let in_use: Vec<String> = endpoints
        .iter()
        .filter(|own| bound(own.protocol).iter().any(|other| collides(*other, own.address)))
        .map(|own| format!("{} {}/{}", own.path, own.address, own.protocol))
        .collect();
    if in_use.is_empty() {
        findings.push(Finding::ok("ports", "all free"));
    } else {
        findings.push(Finding::note(
            "ports",
            format!("in use: {}", in_use.join(", ")),
            "either the core runs already, or another program does: ss -lnp",
        ));
    }
    findings.extend(n2_n3_reachable(&endpoints));
    findings.extend(pools(node));
    findings
}

fn collides(bound: SocketAddr, wanted: SocketAddr) -> bool {
    bound.port() == wanted.port() && (bound.ip() == wanted.ip() || bound.ip().is_unspecified())
}

/// Sockets bound on this machine, from /proc/net.
fn bound(protocol: &str) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for file in [format!("/proc/net/{protocol}"), format!("/proc/net/{protocol}6")] {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        for line in text.lines().skip(1) {
            let mut fields = line.split_whitespace().skip(1);
            let (local, state) = (fields.next(), fields.nth(1));
            // Only listening TCP sockets (state 0A) occupy an address.
            if protocol == "udp" || state == Some("0A") {
                found.extend(local.and_then(proc_address));
            }
        }
    }
    found
}

/// `0100007F:1F90` as the kernel prints it: words in host order, port in hexadecimal.
fn proc_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = if address.len() == 8 {
        IpAddr::from(word(0)?)
    } else {
        let mut bytes = [0; 16];
        for (index, chunk) in bytes.chunks_exact_mut(4).enumerate() {
            chunk.copy_from_slice(&word(index * 8)?);
        }
        IpAddr::from(bytes)
    };
    Some(SocketAddr::new(ip, port))
}

/// Addresses of this machine's interfaces, from /proc/net.
fn local_addresses() -> Vec<IpAddr> {
    let mut found = Vec::new();
    let trie = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let mut last = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(last.map(IpAddr::from));
        }
    }
    let inet6 = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    for line in inet6.lines() {
        let address = line.split_whitespace().next().and_then(|text| u128::from_str_radix(text, 16).ok());
        found.extend(address.map(|bits| IpAddr::from(Ipv6Addr::from(bits))));
    }
    found
}

/// Which addresses of this machine and of the core's networks UEs can reach.
fn reached_by_ues(upf: &upf::Config) -> Finding {
    const CHECK: &str = "UEs";
    let exposed = upf.exposed();
    if !exposed.is_empty() {
        let advice = "take it out of upf.dnn[].open, or give the service an address and a port of its own";
        return Finding::problem(CHECK, exposed.join("; "), advice);
    }
    let opened = upf.opened();
    if opened.is_empty() {
        return Finding::ok(CHECK, "reach no address of this machine, nor of the core's networks");
    }
    let advice = "upf.dnn[].open says so; all else of this machine is closed to them";
    Finding::note(CHECK, opened.join("; "), advice)
}

/// gNBs on other machines cannot reach a loopback address.
fn n2_n3_reachable(endpoints: &[Endpoint]) -> Vec<Finding> {
    let local: Vec<String> = endpoints
        .iter()
        .filter(|Endpoint { path, address, .. }| {
            let outside = path == "amf.ngap" || path == "upf.gtpu" || path.starts_with("upf.interfaces");
            outside && address.ip().is_loopback()
        })
        .map(|own| format!("{}: {}", own.path, own.address))
        .collect();
    if local.is_empty() {
        return Vec::new();
    }
    vec![Finding::note(
        "N2 and N3",
        format!("only programs on this machine reach {}", local.join(", ")),
        "for real gNBs write an address of the network they are in",
    )]
}

/// UE pools must not overlap this machine's networks, and the session MTU must fit the links.
fn pools(node: &yaml::Node) -> Vec<Finding> {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let mut findings = Vec::new();
    let Some(yaml::Value::Sequence(networks)) =
        node.get("upf").and_then(|upf| upf.get("dnn")).map(|dnn| dnn.value.clone())
    else {
        return findings;
    };
    let mut devices = BTreeMap::new();
    for network in &networks {
        let text = |key: &str| match network.get(key).map(|node| &node.value) {
            Some(yaml::Value::Scalar { text, .. }) => text.clone(),
            _ => String::new(),
        };
        let pool = network.get("ue_pool").and_then(|pool| pool.get("ipv4")).map(|node| node.value.clone());
        if let Some(yaml::Value::Scalar { text: pool, .. }) = pool {
            devices.insert(text("tun"), pool);
        }
    }
    for (device, pool) in &devices {
        let Some((base, bits)) = parse_prefix(pool) else { continue };
        for line in routes.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (Some(name), Some(to), Some(mask)) = (fields.first(), fields.get(1), fields.get(7)) else {
                continue;
            };
            let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
            let (Some(to), Some(mask)) = (number(to), number(mask)) else { continue };
            let common = mask & bits;
            if mask != 0 && name != device && to & common == base & common {
                findings.push(Finding::problem(
                    "UE pool",
                    format!("{pool} overlaps {}/{} on {name}", Ipv4Addr::from(to), mask.leading_ones()),
                    "choose another ue_pool in smf.dnn and upf.dnn",
                ));
            }
        }
    }
    if findings.is_empty() && !devices.is_empty() {
        findings.push(Finding::ok("UE pool", "no overlap with networks of this machine"));
    }
    findings
}

/// `10.45.0.0/16` as address and mask.
fn parse_prefix(text: &str) -> Option<(u32, u32)> {
    let (address, length) = text.split_once('/')?;
    let length: u32 = length.parse().ok().filter(|length| *length <= 32)?;
    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
    Some((u32::from(address.parse::<Ipv4Addr>().ok()?), mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_that_are_missing_are_asked_for() {
        let meminfo = |free| {
            format!("HugePages_Total:     200\nHugePages_Free:      {free}\nHugepagesize:       2048 kB\n")
        };
        let few = huge_pages(&meminfo(100), true);
        assert_eq!((few.verdict, few.advice.as_str()), (Verdict::Note, "sysctl vm.nr_hugepages=356"));
        assert!(few.detail.starts_with("100 of 200 free, 2 MB each"), "{}", few.detail);
        for finding in [huge_pages(&meminfo(256), true), huge_pages(&meminfo(0), false), huge_pages("", true)]
        {
            assert_eq!(finding.verdict, Verdict::Ok);
        }
    }

    #[test]
    fn the_forms_of_proc_are_read() {
        assert_eq!(proc_address("0100007F:1F90"), Some("127.0.0.1:8080".parse().unwrap()));
        let six = proc_address("00000000000000000000000001000000:0050");
        assert_eq!(six, Some("[::1]:80".parse().unwrap()));
        assert_eq!(proc_address("zz:1"), None);
        assert_eq!(parse_prefix("10.45.0.0/16"), Some((0x0a2d_0000, 0xffff_0000)));
        assert_eq!(parse_prefix("10.45.0.0/33"), None);
        assert!(local_addresses().contains(&"127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn a_bound_port_is_in_the_way() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(bound("tcp").iter().any(|other| collides(*other, address)));
        let wild = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 7);
        assert!(collides(wild, "10.0.0.1:7".parse().unwrap()));
        assert!(!collides("10.0.0.2:7".parse().unwrap(), "10.0.0.1:7".parse().unwrap()));
    }

    #[test]
    fn a_forward_chain_that_drops_is_noticed() {
        assert!(drops_forwarded("type filter hook forward priority filter; policy drop;"));
        assert!(!drops_forwarded("type filter hook forward priority filter; policy accept;"));
        assert!(!drops_forwarded("type filter hook input priority filter; policy drop;"));
    }
}
