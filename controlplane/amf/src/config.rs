//! Configuration of the AMF: the `amf:` section of `godwit.yaml` plus the shared values the command line
//! program passes on (`plmn`, `slices`).
//!
//! Everything is checked by [`Config::validate`] before anything starts; messages say what to change.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nas::{CipheringAlgorithm, IntegrityAlgorithm};
use net::link::Cidr;
use serde::{Deserialize, Serialize};
use types::{AmfId, Plmn, SNssai, Tac};

/// Configuration of one AMF.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address and port of the service-based interface (Namf and callbacks).
    pub sbi: SocketAddr,
    /// N2: address and port that gNBs connect to (SCTP; 38412 by convention).
    pub ngap: SocketAddr,
    /// Transport of SCTP: `auto` (the kernel's SCTP if there is one, else raw IP), `kernel`, `raw`, or
    /// UDP encapsulation.
    #[serde(default)]
    pub sctp: net::sctp::SctpMode,
    /// Serving network.
    pub plmn: Plmn,
    /// The AMF's name in NG Setup Response.
    #[serde(default = "default_name")]
    pub name: String,
    /// Region, set and pointer: with `plmn` the GUAMI of this AMF.
    #[serde(default = "default_amf_id", with = "amf_id_form")]
    pub amf_id: AmfId,
    /// Tracking areas served. A gNB that serves none of them is refused.
    #[serde(default = "default_tac")]
    pub tac: Vec<Tac>,
    /// Slices served, most preferred first. This list replaces a separate NSSF (CP-1).
    #[serde(default = "default_slices")]
    pub slices: Vec<SNssai>,
    /// NAS integrity algorithms, most preferred first.
    #[serde(default = "default_integrity")]
    pub integrity: Vec<IntegrityAlgorithm>,
    /// NAS ciphering algorithms, most preferred first.
    #[serde(default = "default_ciphering")]
    pub ciphering: Vec<CipheringAlgorithm>,
    /// Relative capacity in NG Setup Response (0..=255), with which gNBs balance load between the AMFs
    /// of a set.
    #[serde(default = "default_capacity")]
    pub relative_capacity: u8,
    /// gNBs that may connect; empty: all. List them if N2 is not a network of its own.
    #[serde(default)]
    pub allowed_gnbs: Vec<AllowedGnb>,
    /// NAS and guard timers.
    #[serde(default)]
    pub timers: Timers,
    /// Limits of memory that gNBs and UEs can make the AMF use.
    #[serde(default)]
    pub limits: Limits,
}

/// gNBs that may connect: `{address: 10.1.0.0/16}` or `{address: 10.1.0.7/32, id: 0x1}`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedGnb {
    /// Network that the association comes from.
    #[serde(with = "cidr_form")]
    pub address: Cidr,
    /// gNB identity that may be used from that network; none: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
}

/// Timers. Retransmission timers are in milliseconds, the others in seconds; defaults are those of TS 24.501
/// table 10.2.2 (network side).
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timers {
    /// T3550, milliseconds: waiting for REGISTRATION COMPLETE.
    pub t3550_ms: u64,
    /// T3560, milliseconds: waiting for AUTHENTICATION RESPONSE or SECURITY MODE COMPLETE.
    pub t3560_ms: u64,
    /// T3555, milliseconds: waiting for CONFIGURATION UPDATE COMPLETE.
    pub t3555_ms: u64,
    /// T3570, milliseconds: waiting for IDENTITY RESPONSE.
    pub t3570_ms: u64,
    /// T3522, milliseconds: waiting for DEREGISTRATION ACCEPT.
    pub t3522_ms: u64,
    /// T3513, milliseconds: waiting for the answer to paging (value left to the network).
    pub t3513_ms: u64,
    /// T3512, seconds: periodic registration update, sent to the UE.
    pub t3512_s: u64,
    /// T3502, seconds: how long a UE waits after five failed registrations, sent to the UE.
    pub t3502_s: u64,
    /// T3346, seconds: longest back-off of a UE that is refused because of congestion. Each UE gets its
    /// own time, at random between a quarter of this and all of it.
    pub t3346_s: u64,
    /// Mobile reachable timer, seconds; 0 means T3512 + 4 minutes, the default of the standard.
    pub mobile_reachable_s: u64,
    /// Implicit deregistration timer, seconds; 0 means T3512 + 4 minutes.
    pub implicit_deregistration_s: u64,
    /// Guard on the gNB's answers (context set-up, resource set-up, release complete), milliseconds.
    pub n2_guard_ms: u64,
    /// Guard on the SMF's N1N2 transfer after the SMF has accepted a session, milliseconds. Must be
    /// below the UE's T3580 (16 s).
    pub smf_guard_ms: u64,
    /// How long a registration waits for its turn when many UEs register at once, milliseconds. Then it
    /// is refused with 5GMM cause #22. This and the time of a registration over a busy radio together must
    /// be below the UE's T3510 (15 s).
    pub admission_ms: u64,
    /// How long an association without NG Setup may exist, milliseconds.
    pub ng_setup_ms: u64,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            t3550_ms: 6_000,
            t3555_ms: 6_000,
            t3560_ms: 6_000,
            t3570_ms: 6_000,
            t3522_ms: 6_000,
            t3513_ms: 4_000,
            t3512_s: 54 * 60,
            t3502_s: 12 * 60,
            t3346_s: 60,
            mobile_reachable_s: 0,
            implicit_deregistration_s: 0,
            n2_guard_ms: 10_000,
            smf_guard_ms: 10_000,
            admission_ms: 12_000,
            ng_setup_ms: 10_000,
        }
    }
}

/// The reachability timers are this much longer than T3512 (TS 24.501 §5.3.7).
const REACHABLE_MARGIN: Duration = Duration::from_secs(4 * 60);

impl Timers {
    /// Mobile reachable timer (TS 24.501 §5.3.7).
    pub fn mobile_reachable(&self) -> Duration {
        self.or_t3512_plus_margin(self.mobile_reachable_s)
    }

    /// Implicit deregistration timer (TS 24.501 §5.3.7).
    pub fn implicit_deregistration(&self) -> Duration {
        self.or_t3512_plus_margin(self.implicit_deregistration_s)
    }

    fn or_t3512_plus_margin(&self, seconds: u64) -> Duration {
        match seconds {
            0 => Duration::from_secs(self.t3512_as_told()) + REACHABLE_MARGIN,
            s => Duration::from_secs(s),
        }
    }

    /// T3512 as the UE gets it, seconds. GPRS timer 3 has 31 steps of each unit (TS 24.008 §10.5.7.4a),
    /// so 54 minutes become an hour. The AMF must not count a UE as lost before the UE's own timer has
    /// expired.
    fn t3512_as_told(&self) -> u64 {
        let units = [2, 30, 60, 600, 3_600, 36_000, 1_152_000];
        let unit = units.into_iter().find(|unit| self.t3512_s <= 31 * unit).unwrap_or(1_152_000);
        self.t3512_s.div_ceil(unit) * unit
    }
}

/// Limits. Beyond them new work is refused and counted; existing contexts are not affected.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// gNB associations at once.
    pub gnbs: usize,
    /// Of these, associations from one IPv4 address or IPv6 /64.
    pub gnbs_per_address: usize,
    /// UEs with proven identity at once. Beyond: 5GMM cause #22 with T3346.
    pub ues: usize,
    /// Memory for UEs without proven identity, in MiB. The gNBs of one address may take as much as is still
    /// free.
    /// Beyond: 5GMM cause #22 with T3346.
    pub unproven_mb: usize,
    /// Registrations under way at the same time, of UEs that have not proven who they are; others wait for their turn.
    pub registrations: usize,
    /// Registrations that call other NFs at the same time; others wait for their turn.
    pub registration_calls: usize,
    /// Messages waiting for one UE. Beyond: the message is dropped and counted.
    pub ue_queue: usize,
    /// PDU sessions of one UE (the standard allows 15).
    pub sessions_per_ue: usize,
    /// Samples kept for `GET /procedures`.
    pub procedure_samples: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            gnbs: 1024,
            gnbs_per_address: 256,
            ues: 100_000,
            unproven_mb: 128,
            registrations: 512,
            registration_calls: 64,
            ue_queue: 32,
            sessions_per_ue: 15,
            procedure_samples: 100_000,
        }
    }
}

/// An invalid configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A list that needs entries is empty.
    #[error("amf.{0}: the list is empty; give at least one entry")]
    Empty(&'static str),
    /// A list has more entries than the messages can carry.
    #[error("amf.{0}: {1} entries, at most {2} fit the standard's messages")]
    TooMany(&'static str, usize, usize),
    /// A list has the same entry twice.
    #[error("amf.{0}: an entry is listed twice")]
    Duplicate(&'static str),
    /// Null integrity would switch NAS protection off.
    #[error(
        "amf.integrity: NIA0 protects nothing and is allowed only for emergency services; use NIA2 or NIA1"
    )]
    NullIntegrity,
    /// A duration that must not be zero.
    #[error("amf.timers.{0}: must be greater than 0")]
    ZeroTimer(&'static str),
    /// A limit that must not be zero.
    #[error("amf.limits.{0}: must be greater than 0")]
    ZeroLimit(&'static str),
    /// More sessions than session identities.
    #[error("amf.limits.sessions_per_ue: {0}, but PDU session identities are 1 to 15")]
    Sessions(usize),
    /// A name that NGAP cannot carry.
    #[error("amf.name: must have 1 to 150 printable ASCII characters")]
    Name,
}

impl Config {
    /// Whether an association from `address` may be accepted, for gNB identity `id` if it is already
    /// known.
    pub fn allows_gnb(&self, address: IpAddr, id: Option<u32>) -> bool {
        let fits = |allowed: &AllowedGnb| {
            allowed.address.contains(address) && (id.is_none() || allowed.id.is_none() || allowed.id == id)
        };
        self.allowed_gnbs.is_empty() || self.allowed_gnbs.iter().any(fits)
    }

    /// Checks rules that deserialization cannot check.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_list("tac", &self.tac, 16)?;
        check_list("slices", &self.slices, 8)?;
        check_list("integrity", &self.integrity, 4)?;
        check_list("ciphering", &self.ciphering, 4)?;
        if self.integrity.contains(&IntegrityAlgorithm::Nia0) {
            return Err(ConfigError::NullIntegrity);
        }
        let printable = self.name.bytes().all(|b| (0x20..0x7f).contains(&b));
        if self.name.is_empty() || self.name.len() > 150 || !printable {
            return Err(ConfigError::Name);
        }
        let t = &self.timers;
        let timers = [
            ("t3550_ms", t.t3550_ms),
            ("t3555_ms", t.t3555_ms),
            ("t3560_ms", t.t3560_ms),
            ("t3570_ms", t.t3570_ms),
            ("t3522_ms", t.t3522_ms),
            ("t3513_ms", t.t3513_ms),
            ("t3512_s", t.t3512_s),
            ("n2_guard_ms", t.n2_guard_ms),
            ("smf_guard_ms", t.smf_guard_ms),
            ("admission_ms", t.admission_ms),
            ("ng_setup_ms", t.ng_setup_ms),
        ];
        if let Some((name, _)) = timers.into_iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::ZeroTimer(name));
        }
        let l = &self.limits;
        let limits = [
            ("gnbs", l.gnbs),
            ("gnbs_per_address", l.gnbs_per_address),
            ("ues", l.ues),
            ("unproven_mb", l.unproven_mb),
            ("registrations", l.registrations),
            ("registration_calls", l.registration_calls),
            ("ue_queue", l.ue_queue),
            ("sessions_per_ue", l.sessions_per_ue),
            ("procedure_samples", l.procedure_samples),
        ];
        if let Some((name, _)) = limits.into_iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::ZeroLimit(name));
        }
        if l.sessions_per_ue > 15 {
            return Err(ConfigError::Sessions(l.sessions_per_ue));
        }
        Ok(())
    }
}

fn check_list<T: PartialEq>(name: &'static str, list: &[T], most: usize) -> Result<(), ConfigError> {
    if list.is_empty() {
        return Err(ConfigError::Empty(name));
    }
    if list.len() > most {
        return Err(ConfigError::TooMany(name, list.len(), most));
    }
    if list.iter().enumerate().any(|(i, a)| list.iter().skip(i + 1).any(|b| a == b)) {
        return Err(ConfigError::Duplicate(name));
    }
    Ok(())
}

fn default_name() -> String {
    "godwit-amf".to_owned()
}

/// Region 2, set 1, pointer 0.
fn default_amf_id() -> AmfId {
    AmfId::from_octets([2, 0, 0x40])
}

fn default_tac() -> Vec<Tac> {
    vec![Tac::from_octets([0, 0, 1])]
}

fn default_slices() -> Vec<SNssai> {
    vec![SNssai::from_octets(1, None)]
}

fn default_capacity() -> u8 {
    255
}

fn default_integrity() -> Vec<IntegrityAlgorithm> {
    vec![IntegrityAlgorithm::Nia2, IntegrityAlgorithm::Nia1]
}

fn default_ciphering() -> Vec<CipheringAlgorithm> {
    vec![CipheringAlgorithm::Nea2, CipheringAlgorithm::Nea1, CipheringAlgorithm::Nea0]
}

/// `amf_id: {region: 2, set: 1, pointer: 0}`: named parts, where the SBI has six hexadecimal digits.
mod amf_id_form {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use types::AmfId;

    #[derive(Deserialize, Serialize)]
    #[serde(deny_unknown_fields)]
    struct Form {
        region: u8,
        set: u16,
        pointer: u8,
    }

    pub fn serialize<S: Serializer>(id: &AmfId, s: S) -> Result<S::Ok, S::Error> {
        Form { region: id.region(), set: id.set(), pointer: id.pointer() }.serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<AmfId, D::Error> {
        let Form { region, set, pointer } = Form::deserialize(d)?;
        AmfId::new(region, set, pointer).map_err(serde::de::Error::custom)
    }
}

/// `10.1.0.0/16`, or one address without prefix length.
mod cidr_form {
    use net::link::Cidr;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(cidr: &Cidr, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(cidr)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Cidr, D::Error> {
        let text = String::deserialize(d)?;
        match text.parse() {
            Ok(address) => Ok(Cidr::host(address)),
            Err(_) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimal() -> serde_json::Value {
        serde_json::json!({
            "sbi": "127.0.0.5:7777",
            "ngap": "127.0.0.5:38412",
            "plmn": {"mcc": "999", "mnc": "70"},
        })
    }

    fn with(key: &str, value: serde_json::Value) -> Config {
        let mut json = minimal();
        json[key] = value;
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_minimal_section_is_enough() {
        let config: Config = serde_json::from_value(minimal()).unwrap();
        assert_eq!(config.validate(), Ok(()));
        assert_eq!(config.amf_id, AmfId::new(2, 1, 0).unwrap());
        // 54 minutes are sent to the UE as 60.
        assert_eq!(config.timers.mobile_reachable(), Duration::from_secs(64 * 60));
        // The serialized form can be read again.
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<Config>(&text).unwrap().amf_id, config.amf_id);
    }

    #[test]
    fn what_cannot_work_is_named() {
        assert_eq!(with("tac", serde_json::json!([])).validate(), Err(ConfigError::Empty("tac")));
        assert_eq!(with("tac", serde_json::json!([1, 1])).validate(), Err(ConfigError::Duplicate("tac")));
        let nia0 = with("integrity", serde_json::json!(["NIA2", "NIA0"]));
        assert_eq!(nia0.validate(), Err(ConfigError::NullIntegrity));
        let zero = with("timers", serde_json::json!({"t3560_ms": 0}));
        assert_eq!(zero.validate(), Err(ConfigError::ZeroTimer("t3560_ms")));
        let many = with("limits", serde_json::json!({"sessions_per_ue": 16}));
        assert_eq!(many.validate(), Err(ConfigError::Sessions(16)));
        assert_eq!(with("name", serde_json::json!("é")).validate(), Err(ConfigError::Name));
    }

    #[test]
    fn allowed_gnbs_are_networks_and_identities() {
        let address = |text: &str| text.parse().unwrap();
        let everyone: Config = serde_json::from_value(minimal()).unwrap();
        assert!(everyone.allows_gnb(address("192.0.2.1"), Some(7)));
        let list = serde_json::json!([{"address": "10.1.0.0/16"}, {"address": "10.2.0.1", "id": 7}, {"address": "fd00::/64"}]);
        let config = with("allowed_gnbs", list);
        let cases = [
            ("10.1.255.255", Some(1), true),
            ("10.2.0.1", None, true),
            ("10.2.0.1", Some(7), true),
            ("10.2.0.1", Some(8), false),
            ("10.2.0.2", None, false),
            ("fd00::1", Some(1), true),
            ("fd00:0:0:1::1", Some(1), false),
            ("127.0.0.1", None, false),
        ];
        for (from, id, allowed) in cases {
            assert_eq!(config.allows_gnb(address(from), id), allowed, "{from} {id:?}");
        }
        let text = serde_json::to_string(&config).unwrap();
        assert!(serde_json::from_str::<Config>(&text).unwrap().allows_gnb(address("10.1.0.1"), None));
        let mut json = minimal();
        json["allowed_gnbs"] = serde_json::json!([{"address": "10.1.0.0/33"}]);
        assert!(serde_json::from_value::<Config>(json).is_err());
    }

    #[test]
    fn unknown_keys_and_impossible_identifiers_are_refused() {
        let mut json = minimal();
        json["tacs"] = serde_json::json!([1]);
        assert!(serde_json::from_value::<Config>(json).unwrap_err().to_string().contains("tacs"));
        let mut json = minimal();
        json["amf_id"] = serde_json::json!({"region": 2, "set": 1024, "pointer": 0});
        assert!(serde_json::from_value::<Config>(json).unwrap_err().to_string().contains("below 1024"));
    }
}
