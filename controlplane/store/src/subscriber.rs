//! What the operator knows about a subscriber (TS 29.505: authentication and provisioned data).

use serde::{Deserialize, Serialize};
use types::{Ambr, Arp, BitRate, Dnn, FiveQi, Key, PduSessionType, SNssai, Supi};

/// Largest sequence number: 48 bits (TS 33.102 §6.3.2).
pub const SQN_MAX: u64 = (1 << 48) - 1;

/// One subscriber. The store owns it; the UDR reads it for every registration and session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subscriber {
    /// Permanent identity.
    pub supi: Supi,
    /// Telephone number without `+`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub msisdn: Option<String>,
    /// Credentials for 5G-AKA.
    pub authentication: Authentication,
    /// Aggregate maximum bit rate of all non-GBR flows of the UE.
    #[serde(default = "default_ambr")]
    pub ue_ambr: Ambr,
    /// Slices the UE may use, with their data networks; never empty.
    #[serde(default = "default_slices")]
    pub slices: Vec<SliceSubscription>,
}

impl Subscriber {
    /// A subscriber with Godwit's defaults: slice 1, data network `internet`, 1 Gbps each way.
    pub fn new(supi: Supi, authentication: Authentication) -> Self {
        Self { supi, msisdn: None, authentication, ue_ambr: default_ambr(), slices: default_slices() }
    }

    /// Checks rules that the types cannot express.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn validate(&self) -> Result<(), String> {
        if self.authentication.sqn > SQN_MAX {
            return Err("SQN needs more than 48 bits".into());
        }
        if self.slices.is_empty() {
            return Err("a subscriber needs at least one slice".into());
        }
        if !self.slices.iter().any(|s| s.default) {
            return Err("one slice must be the default".into());
        }
        for (i, slice) in self.slices.iter().enumerate() {
            if self.slices.iter().take(i).any(|other| other.snssai == slice.snssai) {
                return Err(format!("slice {} is listed twice", slice.snssai));
            }
            if slice.dnns.is_empty() {
                return Err(format!("slice {} has no DNN", slice.snssai));
            }
        }
        if self
            .msisdn
            .as_ref()
            .is_some_and(|n| !(5..=15).contains(&n.len()) || !n.bytes().all(|b| b.is_ascii_digit()))
        {
            return Err("MSISDN must have 5 to 15 digits".into());
        }
        Ok(())
    }
}

/// Credentials of the USIM (TS 29.505 `AuthenticationSubscription`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authentication {
    /// Long-term key.
    pub k: Key<16>,
    /// OPc or OP of Milenage.
    #[serde(flatten)]
    pub operator_code: OperatorCode,
    /// Authentication management field; bit 0 of the first octet (separation) must be set for 5G.
    #[serde(default = "default_amf")]
    pub amf: Key<2>,
    /// Last used sequence number, 48 bits.
    #[serde(default)]
    pub sqn: u64,
}

/// Milenage's operator variant: derived for this USIM, or the operator-wide secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperatorCode {
    /// OPc, derived from OP and K.
    Opc(Key<16>),
    /// OP, from which the UDM derives OPc.
    Op(Key<16>),
}

/// A slice the UE may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceSubscription {
    /// The slice.
    pub snssai: SNssai,
    /// Whether the slice is used when the UE asks for none.
    #[serde(default = "default_true")]
    pub default: bool,
    /// Data networks reachable in it, the default one first; never empty.
    #[serde(default = "default_dnns")]
    pub dnns: Vec<DnnSubscription>,
}

/// A data network the UE may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DnnSubscription {
    /// The data network.
    pub dnn: Dnn,
    /// Session types allowed, the default one first; never empty.
    #[serde(default = "default_session_types")]
    pub session_types: Vec<PduSessionType>,
    /// Session-AMBR.
    #[serde(default = "default_ambr")]
    pub ambr: Ambr,
    /// 5QI of the default QoS flow.
    #[serde(default = "default_5qi")]
    pub five_qi: FiveQi,
    /// ARP of the default QoS flow.
    #[serde(default = "default_arp")]
    pub arp: Arp,
    /// Address that the UE always gets, outside the dynamic part of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub static_ipv4: Option<std::net::Ipv4Addr>,
}

impl DnnSubscription {
    /// A data network with Godwit's defaults.
    pub fn new(dnn: Dnn) -> Self {
        Self {
            dnn,
            session_types: default_session_types(),
            ambr: default_ambr(),
            five_qi: default_5qi(),
            arp: default_arp(),
            static_ipv4: None,
        }
    }
}

fn default_ambr() -> Ambr {
    Ambr { uplink: BitRate::from_bps(1_000_000_000), downlink: BitRate::from_bps(1_000_000_000) }
}

fn default_slices() -> Vec<SliceSubscription> {
    vec![SliceSubscription { snssai: SNssai::from_octets(1, None), default: true, dnns: default_dnns() }]
}

fn default_dnns() -> Vec<DnnSubscription> {
    vec![DnnSubscription::new(Dnn::new("internet").expect("a constant, valid name"))]
}

fn default_session_types() -> Vec<PduSessionType> {
    vec![PduSessionType::Ipv4, PduSessionType::Ipv6, PduSessionType::Ipv4v6]
}

fn default_amf() -> Key<2> {
    Key::new([0x80, 0x00])
}

fn default_5qi() -> FiveQi {
    FiveQi(9)
}

fn default_arp() -> Arp {
    Arp { priority: 8, may_preempt: false, preemptable: false }
}

fn default_true() -> bool {
    true
}

#[cfg(test)]
pub(crate) fn example(imsi: u64) -> Subscriber {
    let supi = format!("{imsi:015}").parse().unwrap();
    let authentication = Authentication {
        k: "465B5CE8B199B49FAA5F0A2EE238A6BC".parse().unwrap(),
        operator_code: OperatorCode::Opc("E8ED289DEBA952E4283B54E88E6183CA".parse().unwrap()),
        amf: default_amf(),
        sqn: 0,
    };
    Subscriber::new(supi, authentication)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimal_document_gets_the_defaults_and_reads_back() {
        let text = r#"{"supi":"imsi-999700000000001","authentication":
            {"k":"465B5CE8B199B49FAA5F0A2EE238A6BC","opc":"E8ED289DEBA952E4283B54E88E6183CA"}}"#;
        let subscriber: Subscriber = serde_json::from_str(text).unwrap();
        assert_eq!(subscriber, example(999_700_000_000_001));
        assert_eq!(subscriber.validate(), Ok(()));
        let again = serde_json::to_string(&subscriber).unwrap();
        assert_eq!(serde_json::from_str::<Subscriber>(&again).unwrap(), subscriber);
    }

    #[test]
    fn what_the_types_cannot_rule_out_is_found() {
        let mut subscriber = example(1);
        subscriber.authentication.sqn = SQN_MAX + 1;
        assert!(subscriber.validate().unwrap_err().contains("48 bits"));
        let mut subscriber = example(1);
        subscriber.slices.push(subscriber.slices[0].clone());
        assert!(subscriber.validate().unwrap_err().contains("twice"));
        let mut subscriber = example(1);
        subscriber.slices[0].default = false;
        assert!(subscriber.validate().is_err());
    }

    #[test]
    fn no_key_shows_in_debug() {
        let shown = format!("{:?}", example(1)).to_uppercase();
        assert!(!shown.contains("465B5C") && !shown.contains("E8ED28"));
    }
}
