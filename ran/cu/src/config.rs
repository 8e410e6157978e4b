//! The section `cu` of the configuration: the gNB's identity, F1-C, N2, its interfaces to DUs and UPFs, and its worker.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use l2::pdcp::SnLength;
use l2::security;
use net::sctp::SctpMode;
use pktio::interface::{Configured, Content, DpdkConfig, LinkConfig, WorkersConfig};
use serde::{Deserialize, Serialize};
use types::{Plmn, SNssai, Tac};

/// A CU.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The gNB's identity: 24 bits, with which the identities of its cells begin.
    #[serde(default = "default_gnb_id")]
    pub gnb_id: u32,
    /// Its name; without it one is made of the identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The network it belongs to.
    #[serde(default = "default_plmn")]
    pub plmn: Plmn,
    /// The tracking area of its cells.
    #[serde(default = "default_tac")]
    pub tac: Tac,
    /// Slices it supports.
    #[serde(default = "default_slices")]
    pub slices: Vec<SNssai>,
    /// Where it waits for DUs; a CU without control plane has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f1c: Option<SocketAddr>,
    /// Its AMF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n2: Option<N2>,
    /// How SCTP is carried, on F1-C and N2.
    #[serde(default)]
    pub sctp: SctpMode,
    /// Ciphering algorithms, the preferred one first. Integrity protection of signalling is always NIA2.
    #[serde(default = "default_ciphering")]
    pub ciphering: Vec<Ciphering>,
    /// Length of PDCP's sequence numbers on data bearers: 12 or 18 bits.
    #[serde(default = "default_pdcp_sn_bits")]
    pub pdcp_sn_bits: u8,
    /// Seconds of silence after which a UE's connection is released; without it none is.
    #[serde(default = "default_inactivity_s", skip_serializing_if = "Option::is_none")]
    pub inactivity_s: Option<u64>,
    /// Most UEs with a connection.
    #[serde(default = "default_max_ues")]
    pub max_ues: usize,
    /// Echo on F1-U and N3.
    #[serde(default)]
    pub echo: Echo,
    /// Which link leads to which DU, where there are several. A DU that is not named here is reached by the first one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dus: Vec<DuLink>,
    /// The links to DUs: one for all, or one for each, such as a memif.
    pub f1u: Vec<LinkConfig>,
    /// The link to UPFs. Without it the first one to DUs leads to UPFs as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n3: Option<LinkConfig>,
    /// The thread that forwards packets.
    #[serde(default)]
    pub workers: WorkersConfig,
    /// Start options of DPDK.
    #[serde(default)]
    pub dpdk: DpdkConfig,
}

/// Where the AMF is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct N2 {
    /// The CU's address.
    pub address: IpAddr,
    /// Addresses of AMFs; the first that answers is used.
    pub amf: Vec<SocketAddr>,
}

/// A ciphering algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ciphering {
    /// None.
    Nea0,
    /// AES.
    Nea2,
}

/// The link on F1-U to a DU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DuLink {
    /// The DU's identity.
    pub id: u64,
    /// Position of its link in `f1u`.
    pub f1u: u8,
}

/// When paths are looked after (TS 29.281 §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Echo {
    /// Time from an answer to the next request, milliseconds: 60,000 at least, by the standard.
    pub interval_ms: u64,
    /// T3-RESPONSE, milliseconds.
    pub response_ms: u64,
    /// N3-REQUESTS: requests without answer with which a path has failed.
    pub requests: u8,
}

impl Default for Echo {
    fn default() -> Echo {
        Echo { interval_ms: 60_000, response_ms: 3_000, requests: 3 }
    }
}

impl Echo {
    pub(crate) fn interval(self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    pub(crate) fn response(self) -> Duration {
        Duration::from_millis(self.response_ms.max(4))
    }
}

fn default_gnb_id() -> u32 {
    1
}

fn default_plmn() -> Plmn {
    Plmn::new("999", "70").expect("a test network's PLMN is a PLMN")
}

fn default_tac() -> Tac {
    Tac::new(1).expect("1 is a tracking area")
}

fn default_slices() -> Vec<SNssai> {
    SNssai::new(1, None).into_iter().collect()
}

fn default_ciphering() -> Vec<Ciphering> {
    vec![Ciphering::Nea2, Ciphering::Nea0]
}

fn default_pdcp_sn_bits() -> u8 {
    18
}

#[allow(clippy::unnecessary_wraps, reason = "the type of the field")]
fn default_inactivity_s() -> Option<u64> {
    Some(60)
}

fn default_max_ues() -> usize {
    10_000
}

/// A link with its place in the configuration.
pub(crate) struct Link<'a> {
    /// "f1u" or "n3".
    pub(crate) point: &'static str,
    /// Its name, unique within the section.
    pub(crate) name: String,
    pub(crate) config: &'a LinkConfig,
}

impl Config {
    /// A CU with these links and a worker with the usual settings.
    pub fn new(f1u: Vec<LinkConfig>, n3: Option<LinkConfig>) -> Config {
        Config {
            gnb_id: default_gnb_id(),
            name: None,
            plmn: default_plmn(),
            tac: default_tac(),
            slices: default_slices(),
            f1c: None,
            n2: None,
            sctp: SctpMode::default(),
            ciphering: default_ciphering(),
            pdcp_sn_bits: default_pdcp_sn_bits(),
            inactivity_s: default_inactivity_s(),
            max_ues: default_max_ues(),
            echo: Echo::default(),
            dus: Vec::new(),
            f1u,
            n3,
            workers: WorkersConfig::default(),
            dpdk: DpdkConfig::default(),
        }
    }

    /// The gNB's name.
    pub(crate) fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("gnb-{:x}", self.gnb_id))
    }

    /// The algorithms by preference.
    pub(crate) fn ciphering(&self) -> Vec<security::CipheringAlgorithm> {
        let algorithm = |ciphering: &Ciphering| match ciphering {
            Ciphering::Nea0 => security::CipheringAlgorithm::Nea0,
            Ciphering::Nea2 => security::CipheringAlgorithm::Nea2,
        };
        self.ciphering.iter().map(algorithm).collect()
    }

    pub(crate) fn pdcp_sn(&self) -> SnLength {
        if self.pdcp_sn_bits == 12 { SnLength::Twelve } else { SnLength::Eighteen }
    }

    /// The number of the interface that leads to a DU.
    pub(crate) fn f1u_of(&self, du: u64) -> u8 {
        self.dus.iter().find(|link| link.id == du).map_or(0, |link| link.f1u)
    }

    /// The number of the interface that leads to UPFs.
    pub(crate) fn n3_number(&self) -> u8 {
        if self.n3.is_some() { self.f1u.len() as u8 } else { 0 }
    }

    /// Its links. Their positions are the numbers of its interfaces.
    pub(crate) fn links(&self) -> Vec<Link<'_>> {
        let name = |number: usize| if number == 0 { "f1u".to_owned() } else { format!("f1u[{number}]") };
        let f1u = self.f1u.iter().enumerate();
        let f1u = f1u.map(|(number, config)| Link { point: "f1u", name: name(number), config });
        let n3 = self.n3.iter().map(|config| Link { point: "n3", name: "n3".to_owned(), config });
        f1u.chain(n3).collect()
    }

    /// Checks the section. The error is text for a person.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn check(&self) -> Result<(), String> {
        if self.f1u.is_empty() {
            return Err("f1u needs a link: without one no DU can reach this CU".to_owned());
        }
        self.check_control()?;
        if self.workers.count.is_some_and(|count| count > 1) {
            return Err("workers: a CU has one worker; leave count out".to_owned());
        }
        self.workers.check().map_err(|error| format!("workers: {error}"))?;
        let links = self.links();
        let mut before: Vec<Configured<'_>> = Vec::new();
        for link in &links {
            link.config
                .check("the link", Content::Tunnels)
                .map_err(|error| format!("{}: {error}", link.name))?;
            let own = Configured { name: &link.name, content: Content::Tunnels, link: link.config };
            own.check_beside(&before).map_err(|error| format!("{}: {error}", link.name))?;
            before.push(own);
        }
        Ok(())
    }

    fn check_control(&self) -> Result<(), String> {
        if self.gnb_id >> n2::GNB_ID_BITS != 0 {
            return Err(format!("gnb_id: {:#x} has more than {} bits", self.gnb_id, n2::GNB_ID_BITS));
        }
        if self.n2.as_ref().is_some_and(|n2| n2.amf.is_empty()) {
            return Err("n2.amf: give the address of an AMF, such as 127.0.0.1:38412".to_owned());
        }
        if self.slices.is_empty() {
            return Err("slices: give at least one, such as {sst: 1}".to_owned());
        }
        if self.ciphering.is_empty() {
            return Err("ciphering: give at least one of nea2, nea0".to_owned());
        }
        if ![12, 18].contains(&self.pdcp_sn_bits) {
            return Err("pdcp_sn_bits: 12 or 18".to_owned());
        }
        if self.inactivity_s == Some(0) || self.max_ues == 0 || self.echo.requests == 0 {
            return Err("inactivity_s, max_ues and echo.requests: 1 or more".to_owned());
        }
        match self.dus.iter().find(|link| usize::from(link.f1u) >= self.f1u.len()) {
            Some(link) => Err(format!(
                "dus: DU {} is reached by f1u {}, but there are {} (the first is 0)",
                link.id,
                link.f1u,
                self.f1u.len()
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let config: Config = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn the_three_models_are_configurations() {
        let memif = |number: u8| {
            format!(
                r#"{{"gtpu": "10.0.{number}.1:2152", "backend": "memif", "addresses": ["10.0.{number}.1/24"],
                    "device": "memif{number},role=server,socket=/run/godwit/du{number}.sock", "mtu": 1600}}"#
            )
        };
        let kernel = r#"{"gtpu": "10.0.9.1:2152"}"#;
        for text in [
            format!(r#"{{"f1u": [{kernel}], "n3": {{"gtpu": "10.0.8.1:2152"}}}}"#),
            format!(r#"{{"f1u": [{}], "n3": {kernel}}}"#, memif(1)),
            format!(r#"{{"f1u": [{}, {}], "n3": {}}}"#, memif(1), memif(2), memif(3)),
            format!(r#"{{"f1u": [{kernel}], "workers": {{"cores": [0], "poll_us": 0}}}}"#),
        ] {
            let config = parse(&text).unwrap();
            let again = serde_json::from_value(serde_json::to_value(&config).unwrap()).unwrap();
            assert_eq!(config, again);
        }
        let both = parse(&format!(r#"{{"f1u": [{}, {}], "n3": {kernel}}}"#, memif(1), memif(2))).unwrap();
        let names: Vec<String> = both.links().into_iter().map(|link| link.name).collect();
        assert_eq!(names, ["f1u", "f1u[1]", "n3"]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_to_do() {
        for (text, said) in [
            (r#"{"f1u": []}"#, "f1u needs a link"),
            (r#"{"n3": {"gtpu": "10.0.0.1:2152"}}"#, "missing field `f1u`"),
            (r#"{"f1u": [{"backend": "kernel"}]}"#, "f1u: the link needs `gtpu:"),
            (r#"{"f1u": [{"gtpu": "10.0.0.1:2152", "backend": "af_xdp"}]}"#, "f1u"),
            (r#"{"f1u": [{"gtpu": "10.0.0.1:2152"}], "workers": {"count": 2}}"#, "one worker"),
            (r#"{"f1u": [{"gtpu": "10.0.0.1:2152"}], "n4": {}}"#, "unknown field `n4`"),
            (r#"{"f1u": [{"gtpu": "10.0.0.1:2152", "backend": "netmap"}]}"#, "netmap"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
