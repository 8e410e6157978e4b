//! `godwit.yaml`: one file with one section per NF. The whole file is checked before anything starts.
//!
//! Flow: [`load`] parses the file into a tree with line numbers ([`yaml`]), checks the top-level keys,
//! copies shared values into the sections that need them, reads each section as that NF's `Config`
//! ([`de`]), and finally checks sections against each other ([`semantic`]). All problems are reported
//! together, each as `file:line: key: what is wrong`.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use epc::Node as Gateway;
use types::{Plmn, SNssai};
use upf::config::{CoreSocket, Transport};

use self::yaml::{Key, Node, Value};

pub mod de;
pub mod semantic;
pub mod yaml;

/// The content of `godwit.yaml`.
#[derive(Clone, Debug)]
pub struct Config {
    /// The PLMN.
    pub plmn: Plmn,
    /// Slices offered.
    pub slices: Vec<SNssai>,
    /// Folder of the NFs' administration sockets.
    pub run_dir: PathBuf,
    /// The SQLite file.
    pub store: PathBuf,
    /// File of the key that encrypts subscribers' keys in the store. A systemd credential `store.key`
    /// takes precedence.
    pub store_key: PathBuf,
    /// Filter of the logs.
    pub log: String,
    /// The address at which Prometheus reads metrics; `None`: no metrics are served.
    pub metrics: Option<SocketAddr>,
    /// How the service-based interface is protected.
    pub sbi: nf::security::Config,
    /// NRF.
    pub nrf: nrf::Config,
    /// AMF.
    pub amf: amf::Config,
    /// AUSF.
    pub ausf: ausf::Config,
    /// UDM.
    pub udm: udm::Config,
    /// UDR.
    pub udr: udr::Config,
    /// PCF.
    pub pcf: pcf::Config,
    /// SMF.
    pub smf: smf::Config,
    /// UPF.
    pub upf: upf::Config,
    /// S-GW and P-GW of 4G in one; `None`: the file has no such section.
    pub spgw: Option<epc::Config>,
    /// S-GW alone.
    pub sgw: Option<epc::Config>,
    /// P-GW alone.
    pub pgw: Option<epc::Config>,
    /// Central unit of a gNB; `None`: the file has no such section.
    pub cu: Option<cu::Config>,
    /// Distributed unit of a gNB; `None`: the file has no such section.
    pub du: Option<du::Config>,
    /// The cells of `godwit ran --split`; `None`: the file has no such section.
    pub ran: Option<ue::Config>,
    /// The edge; `None`: the file has no such section.
    pub mec: Option<crate::mec::Config>,
}

impl Config {
    /// The gateways of 4G.
    pub fn gateways(&self) -> impl Iterator<Item = (Gateway, &epc::Config)> {
        Gateway::ALL.into_iter().filter_map(|node| Some((node, self.gateway(node)?)))
    }

    /// The section of a gateway of 4G.
    pub fn gateway(&self, node: Gateway) -> Option<&epc::Config> {
        match node {
            Gateway::Spgw => self.spgw.as_ref(),
            Gateway::Sgw => self.sgw.as_ref(),
            Gateway::Pgw => self.pgw.as_ref(),
        }
    }
}

/// Default path of the store's key: in another folder than the store, so that a copy of the store's
/// folder does not contain the key.
pub const STORE_KEY: &str = "/etc/godwit/store.key";

/// Keys of the top level that are not sections of an NF.
const SHARED: &[&str] = &["plmn", "slices", "run_dir", "store", "store_key", "log", "metrics", "sbi"];
/// Sections, named as the NFs, in the order of starting.
pub const SECTIONS: &[&str] = &["nrf", "udr", "udm", "ausf", "pcf", "upf", "smf", "amf"];

/// Sections of the units of a gNB in parts (docs/split-ran.md), in the order of starting. Each is run by its name only, and
/// each may be absent.
pub const GNB_SECTIONS: &[&str] = &["cu", "du"];

/// Sections of 4G (docs/epc.md). Each is run by its name only, and may be absent.
pub const EPC_SECTIONS: &[&str] = &[Gateway::Spgw.name(), Gateway::Pgw.name(), Gateway::Sgw.name()];

/// Names of everything that `godwit run --nf` can run, in the order of starting.
pub fn runnable() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().chain(EPC_SECTIONS).chain(GNB_SECTIONS).copied()
}

/// Whether a section may be absent, and is run by its name only.
pub fn is_optional(name: &str) -> bool {
    GNB_SECTIONS.iter().chain(EPC_SECTIONS).any(|section| *section == name)
}

/// One mistake in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// 1-based line.
    pub line: usize,
    /// The key with the mistake, from the top: `amf.tac[1]`. Empty for the whole file.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl Problem {
    /// A mistake on a line.
    pub fn at(line: usize, path: &str, message: impl Into<String>) -> Self {
        Problem { line, path: path.to_owned(), message: message.into() }
    }
}

/// All mistakes in one file.
#[derive(Debug)]
pub struct Problems {
    /// The file as named on the command line.
    pub file: PathBuf,
    /// At least one problem.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            write!(f, "{}:{}: ", self.file.display(), problem.line)?;
            if !problem.path.is_empty() {
                write!(f, "{}: ", problem.path)?;
            }
            writeln!(f, "{}", problem.message)?;
        }
        write!(f, "nothing was started")
    }
}

impl std::error::Error for Problems {}

/// Reads and checks a configuration.
///
/// # Errors
/// [`Problems`] when the file is wrong; another error when it cannot be read.
pub fn load(file: &Path) -> anyhow::Result<Config> {
    use anyhow::Context as _;
    let text = std::fs::read_to_string(file).with_context(|| {
        format!(
            "cannot read {} (name another file with -c, or copy godwit.yaml of the sources)",
            file.display()
        )
    })?;
    parse(&text).map_err(|problems| Problems { file: file.to_owned(), problems }.into())
}

/// Checks the text of a configuration.
///
/// # Errors
/// Every problem that was found; at least one.
pub fn parse(text: &str) -> Result<Config, Vec<Problem>> {
    let root = yaml::parse(text).map_err(|problem| vec![problem])?;
    if !matches!(root.value, Value::Mapping(_)) {
        return Err(vec![Problem::at(root.line, "", "keys and values are expected, such as `log: info`")]);
    }
    let mut reader = Reader { root: &root, problems: Vec::new() };
    reader.top_level_keys();
    let plmn = reader.required::<Plmn>("plmn");
    let slices = reader.optional("slices", || vec![SNssai::from_octets(1, None)]);
    let run_dir = reader.optional("run_dir", || PathBuf::from("/run/godwit"));
    let store = reader.optional("store", || PathBuf::from("/var/lib/godwit/godwit.db"));
    let store_key = reader.optional("store_key", || PathBuf::from(STORE_KEY));
    let log = reader.optional("log", || "info".to_owned());
    let metrics = reader.optional("metrics", || None);
    let sbi = reader.optional("sbi", nf::security::Config::default);
    let nrf = reader.section::<nrf::Config>("nrf", &[]);
    let amf = reader.section::<amf::Config>("amf", &["plmn", "slices"]);
    let ausf = reader.section::<ausf::Config>("ausf", &[]);
    let udm = reader.section::<udm::Config>("udm", &[]);
    let udr = reader.section::<udr::Config>("udr", &[]);
    let pcf = reader.section::<pcf::Config>("pcf", &[]);
    let smf = reader.section::<smf::Config>("smf", &["slices"]);
    let mut upf = reader.section::<upf::Config>("upf", &[]);
    let [spgw, sgw, pgw] = Gateway::ALL.map(|node| reader.absent_or::<epc::Config>(node.name(), &[]));
    let cu = reader.absent_or::<cu::Config>("cu", &["plmn", "slices"]);
    let du = reader.absent_or::<du::Config>("du", &["plmn", "slices"]);
    let ran = reader.absent_or::<ue::Config>("ran", &[]);
    let mec = reader.absent_or::<crate::mec::Config>("mec", &[]);
    reader.problems.extend(mec.iter().flatten().find_map(|mec| crate::mec::check(mec, &root)));
    if let Some(upf) = &mut upf {
        sockets(&root, Transport::Tcp, &mut upf.core);
    }
    let mut problems = reader.problems;
    let config = (|| {
        Some(Config {
            plmn: plmn?,
            slices: slices?,
            run_dir: run_dir?,
            store: store?,
            store_key: store_key?,
            log: log?,
            metrics: metrics?,
            sbi: sbi?,
            nrf: nrf?,
            amf: amf?,
            ausf: ausf?,
            udm: udm?,
            udr: udr?,
            pcf: pcf?,
            smf: smf?,
            upf: upf?,
            spgw: spgw?,
            sgw: sgw?,
            pgw: pgw?,
            cu: cu?,
            du: du?,
            ran: ran?,
            mec: mec?,
        })
    })();
    match config {
        Some(mut config) if problems.is_empty() => {
            // Unless others are named, the UPF serves the SMF and the gateways of the same file.
            if config.upf.smf.is_empty() {
                let gateways: Vec<SocketAddr> = config.gateways().map(|(_, gateway)| gateway.pfcp).collect();
                let all = [config.smf.pfcp].into_iter().chain(gateways);
                config.upf.smf.extend(all.map(upf::config::Smf::at));
            }
            semantic::check(&config, &root, &mut problems);
            if problems.is_empty() { Ok(config) } else { Err(sorted(problems)) }
        }
        _ => Err(sorted(problems)),
    }
}

/// All sockets in a configuration: values of keys, items of lists, and parts of URLs. `transport` is what the key says.
fn sockets(node: &Node, transport: Transport, found: &mut Vec<CoreSocket>) {
    match &node.value {
        Value::Scalar { text, .. } => {
            let address = text.split_once("://").map_or(text.as_str(), |(_, rest)| rest);
            let address = address.split('/').next().unwrap_or_default();
            found.extend(address.parse().ok().map(|address| CoreSocket { address, transport }));
        }
        Value::Sequence(items) => items.iter().for_each(|item| sockets(item, transport, found)),
        Value::Mapping(entries) => {
            for (key, entry) in entries {
                let transport = match key.name.as_str() {
                    "ngap" | "f1c" | "local" | "cu" | "n2" | "amf" => Transport::Sctp,
                    "pfcp" | "gtpu" | "gtpc" | "upf" | "smf" => Transport::Udp,
                    _ => Transport::Tcp,
                };
                sockets(entry, transport, found);
            }
        }
    }
}

fn sorted(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort_by(|a, b| (a.line, &a.path).cmp(&(b.line, &b.path)));
    problems
}

/// Reads values of the tree and collects the problems.
struct Reader<'a> {
    root: &'a Node,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn top_level_keys(&mut self) {
        let known = || SHARED.iter().copied().chain(runnable()).chain(["ran", "mec"]);
        for (key, _) in self.root.entries() {
            if known().any(|name| name == key.name) {
                continue;
            }
            let message = match de::did_you_mean(&key.name, known()) {
                Some(candidate) => format!("unknown key; did you mean `{candidate}`?"),
                None => format!("unknown key; known are {}", known().collect::<Vec<_>>().join(", ")),
            };
            self.problems.push(Problem::at(key.line, &key.name, message));
        }
    }

    fn required<T: serde::de::DeserializeOwned>(&mut self, key: &str) -> Option<T> {
        match self.root.get(key) {
            Some(node) => self.keep(de::read(node, key)),
            None => {
                self.problems.push(Problem::at(self.root.line, key, "is missing"));
                None
            }
        }
    }

    fn optional<T: serde::de::DeserializeOwned>(
        &mut self,
        key: &str,
        default: impl FnOnce() -> T,
    ) -> Option<T> {
        match self.root.get(key) {
            Some(node) => self.keep(de::read(node, key)),
            None => Some(default()),
        }
    }

    /// Reads an NF's section with the shared values that it needs. In a missing section every value has
    /// its default.
    fn section<T: serde::de::DeserializeOwned>(&mut self, name: &str, shared: &[&str]) -> Option<T> {
        let empty = Node { line: self.root.line, value: Value::Mapping(Vec::new()) };
        let mut node = self.root.get(name).unwrap_or(&empty).clone();
        if let Value::Scalar { plain: true, text } = &node.value
            && text.is_empty()
        {
            node.value = Value::Mapping(Vec::new());
        }
        if let Value::Mapping(entries) = &mut node.value {
            for key in shared {
                let written =
                    entries.iter().find(|(entry, _)| entry.name == *key).map(|(entry, _)| entry.line);
                match (written, self.root.get(key)) {
                    (Some(line), _) => {
                        let message = "belongs at the top of the file, where every NF sees it";
                        self.problems.push(Problem::at(line, &format!("{name}.{key}"), message));
                        return None;
                    }
                    (None, Some(value)) => {
                        entries.push((Key { name: (*key).to_owned(), line: value.line }, value.clone()));
                    }
                    (None, None) => {}
                }
            }
        }
        self.keep(de::read(&node, name))
    }

    /// As [`Reader::section`]; `None` within if there is no such section.
    fn absent_or<T: serde::de::DeserializeOwned>(
        &mut self,
        name: &str,
        shared: &[&str],
    ) -> Option<Option<T>> {
        match self.root.get(name) {
            Some(_) => self.section(name, shared).map(Some),
            None => Some(None),
        }
    }

    fn keep<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.problems.push(problem)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: &str = include_str!("../../../../godwit.yaml");

    #[test]
    fn the_shipped_configuration_is_sound() {
        let config = parse(SHIPPED).unwrap();
        assert_eq!(config.plmn.to_string(), "999-70");
        assert_eq!(config.amf.plmn, config.plmn);
    }

    /// The shipped configuration with the examples of a gNB's units taken out of their comments.
    fn with_units() -> String {
        let (core, units) = SHIPPED.split_once("\n# cu:").unwrap();
        let units = format!("# cu:{units}");
        let lines = units.lines().map(|line| line.strip_prefix("# ").unwrap_or(line));
        format!("{core}\n{}\n", lines.collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn the_examples_of_a_gnb_in_parts_are_sound() {
        let config = parse(&with_units()).unwrap();
        let cu = config.cu.unwrap();
        assert_eq!((cu.plmn, cu.slices), (config.plmn, config.slices));
        assert_eq!(cu.n2.unwrap().amf, [config.amf.ngap]);
        let (du, ran) = (config.du.unwrap(), config.ran.unwrap());
        assert_eq!(Some(du.f1c.unwrap().cu), cu.f1c);
        assert_eq!((ran.cells[0].id, Some(ran.cells[0].du)), (du.cell, du.uu.gtpu));
        assert!(parse(SHIPPED).unwrap().cu.is_none(), "comments are comments");
    }

    #[test]
    fn mistakes_of_a_gnb_in_parts_are_reported_with_line_and_key() {
        let said = |from: &str, to: &str| {
            let text = with_units();
            assert!(text.contains(from), "{from}");
            let problems = parse(&text.replacen(from, to, 1)).unwrap_err();
            let line = text[..text.find(from).unwrap()].lines().count();
            let shown: Vec<String> =
                problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect();
            (shown.join("\n"), problems.iter().any(|problem| problem.line.abs_diff(line) <= 1))
        };
        for (from, to, expected, on_line) in [
            ("  gnb_id: 1 ", "  gnbid: 1 ", "cu.gnbid: unknown key; did you mean `gnb_id`?", true),
            ("  gnb_id: 1 ", "  gnb_id: 33554432 ", "cu.gnb_id: 0x2000000 has more than 24 bits", true),
            (
                "  f1c: 127.0.0.21:38472",
                "  # none",
                "cu.f1c: is missing: the address at which DUs connect",
                false,
            ),
            ("amf: [\"127.0.0.5:38412\"]", "amf: []", "cu.n2.amf: give the address of an AMF", true),
            ("{gtpu: \"127.0.0.21:2152\"}", "{backend: memif}", "cu.f1u", true),
            (
                "127.0.0.23:2152",
                "127.0.0.7:2152",
                "`127.0.0.7:2152` is the address of upf.gtpu already",
                true,
            ),
            (
                "  cell: 4097 ",
                "  cell: 8193 ",
                "du.cell: `8193` is a cell of gNB 2, but cu.gnb_id is 1",
                true,
            ),
            ("  cell: 4097 ", "  cell: 99999999999 ", "du.cell", true),
            (
                "127.0.0.22:2152",
                "127.0.0.21:2152",
                "`127.0.0.21:2152` is the address of cu.f1u[0].gtpu already",
                true,
            ),
            ("  f1c: {local", "  # {local", "du.f1c: is missing", false),
            ("{id: 4097, du:", "{id: 4097, dv:", "ran.cells[0].dv: unknown key; did you mean `du`?", true),
            ("127.0.0.23:2152", "10.45.0.9:2152", "contains 10.45.0.9, the address of cu", false),
        ] {
            let (shown, near) = said(from, to);
            assert!(shown.contains(expected), "{to}: {shown}");
            assert!(near || !on_line, "{to}: not near its line");
        }
    }

    fn problems(from: &str, to: &str) -> Vec<String> {
        assert!(SHIPPED.contains(from), "{from}");
        let line = SHIPPED[..SHIPPED.find(from).unwrap()].lines().count();
        let problems = parse(&SHIPPED.replacen(from, to, 1)).unwrap_err();
        problems
            .into_iter()
            .inspect(|problem| {
                assert!(problem.line.abs_diff(line) <= 1, "{problem:?} is not near line {line}")
            })
            .map(|problem| format!("{}: {}", problem.path, problem.message))
            .collect()
    }

    #[test]
    fn mistakes_are_reported_with_key_and_suggestion() {
        assert_eq!(problems("run_dir:", "run_dri:"), ["run_dri: unknown key; did you mean `run_dir`?"]);
        assert_eq!(problems("  ngap: 127", "  ngpa: 127")[0], "amf.ngpa: unknown key; did you mean `ngap`?");
        let bad = problems("mcc: \"999\"", "mcc: \"99\"");
        assert!(bad.iter().any(|problem| problem.starts_with("plmn")), "{bad:?}");
        let nia = problems("[NIA2, NIA1]", "[NIA2, NAI1]");
        assert!(nia[0].starts_with("amf.integrity[1]: ") && nia[0].contains("NIA1"), "{nia:?}");
        // Sections that contradict each other, and each NF's own rules.
        let pool = problems("ue_pool: {ipv4: 10.45.0.0/16", "ue_pool: {ipv4: 10.46.0.0/16");
        assert!(
            pool[0].contains("`10.46.0.0/16` is handed out, but upf.dnn routes 10.45.0.0/16"),
            "{pool:?}"
        );
        assert!(problems("sbi: 127.0.0.4:7777", "sbi: 127.0.0.5:7777")[0].contains("amf.sbi already"));
        let n9 = "pfcp: 127.0.0.7:8805\n  interfaces: [{name: n9, role: n9, gtpu: \"127.0.0.4:8805\"}]";
        let twice = problems("pfcp: 127.0.0.7:8805", n9);
        assert!(
            twice.iter().any(|problem| problem.contains("upf.interfaces[0].gtpu: `127.0.0.4:8805`")),
            "{twice:?}"
        );
        assert!(problems("tac: [1]", "tac: []")[0].starts_with("amf.tac: "));
        assert!(problems("upf: [127.0.0.7:8805]", "upf: []")[0].starts_with("smf.upf: "));
        assert!(problems("log: info", "log: chatty")[0].contains("\"chatty\" is no level"));
    }

    #[test]
    fn a_device_name_that_the_kernel_would_refuse_is_a_mistake() {
        let text = SHIPPED.replace("tun: gw0", "tun: gateway-of-internet");
        let problems = parse(&text).unwrap_err();
        assert!(
            problems[0].message.contains("\"gateway-of-internet\" is not an interface name"),
            "{problems:?}"
        );
    }

    #[test]
    fn the_sockets_of_the_core_are_closed_to_ues() {
        let text = SHIPPED.replace("sbi: 127.0.0.5:7777", "sbi: 192.0.2.5:7777");
        let open =
            "nat: true\n      open: [{address: 192.0.2.5, port: 7777}, {address: 10.45.0.1, port: 53}]";
        let upf = parse(&text.replacen("nat: true", open, 1)).unwrap().upf;
        let sbi = CoreSocket { address: "192.0.2.5:7777".parse().unwrap(), transport: Transport::Tcp };
        assert!(upf.core.contains(&sbi), "{:?}", upf.core);
        assert_eq!(upf.opened().len(), 2);
        assert_eq!(upf.exposed(), ["UEs of internet reach 192.0.2.5:7777, a socket of the core"]);
        let bad = open.replace("port: 53", "protocol: icmp, port: 53");
        let problems = parse(&text.replacen("nat: true", &bad, 1)).unwrap_err();
        assert!(problems[0].message.contains("ICMP has not"), "{problems:?}");
    }

    /// What `exposed` says is what the UPF lets through, by protocol.
    #[test]
    fn only_sockets_that_a_service_opens_are_exposed() {
        let text = SHIPPED
            .replace("sbi: 127.0.0.5:7777", "sbi: 192.0.2.5:7777")
            .replace("ngap: 127.0.0.5:38412", "ngap: 192.0.2.5:38412")
            .replace("gtpu: 127.0.0.7:2152", "gtpu: 192.0.2.5:2152")
            .replace("metrics: 127.0.0.1:9090", "metrics: 0.0.0.0:9090");
        let (sbi, n2, n3, metrics) = ("192.0.2.5:7777", "192.0.2.5:38412", "192.0.2.5:2152", "0.0.0.0:9090");
        let cases: [(&str, &[&str]); 10] = [
            ("port: 7777", &[sbi]),
            ("port: 7777, protocol: tcp", &[sbi]),
            ("port: 7777, protocol: udp", &[]),
            ("protocol: udp", &[]),
            ("protocol: icmp", &[]),
            ("protocol: tcp", &[metrics, sbi]),
            ("port: 38412", &[n2]),
            ("port: 2152", &[n3]),
            ("port: 2152, protocol: tcp", &[]),
            ("port: 9090", &[metrics]),
        ];
        for (service, expected) in cases {
            let open = format!("nat: true\n      open: [{{address: 192.0.2.5, {service}}}]");
            let upf = parse(&text.replacen("nat: true", &open, 1)).unwrap().upf;
            let line = |socket: &&str| format!("UEs of internet reach {socket}, a socket of the core");
            assert_eq!(upf.exposed(), expected.iter().map(line).collect::<Vec<_>>(), "{service}");
        }
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let text = SHIPPED.replace("run_dir:", "run_dri:").replace("127.0.0.20:7777", "127.0.0.20");
        let paths: Vec<String> = parse(&text).unwrap_err().into_iter().map(|problem| problem.path).collect();
        assert_eq!(paths, ["run_dri", "udr.sbi"]);
    }
}
