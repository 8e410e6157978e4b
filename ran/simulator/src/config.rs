//! What to simulate: gNBs, UEs, and what the UEs do.
//!
//! The defaults are the default subscriber and network of `godwit demo`; the command line overrides
//! every value. Nothing here is specific to one core.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use nas::{CipheringAlgorithm, IntegrityAlgorithm, ProtectionScheme};
use net::sctp::SctpMode;
use types::{Dnn, Imsi, Key, PduSessionType, Plmn, SNssai, Tac};

/// What one run of the simulator does.
#[derive(Debug, Clone)]
pub struct Config {
    /// The cells of gNBs in parts, and the link to them. The UEs use these, in turn, and no gNB runs in this process: what is
    /// said below about gNBs, their interfaces and `inactivity` does not count.
    pub split: Option<ue::Config>,
    /// Where the AMF listens for NGAP.
    pub amf: SocketAddr,
    /// How SCTP is carried: by the kernel, on raw IP or in UDP.
    pub sctp: SctpMode,
    /// Number of gNBs; UEs are spread over them in turn.
    pub gnbs: u16,
    /// Identity (24 bits) of the first gNB; the others count up.
    pub first_gnb_id: u32,
    /// Local address of N2.
    pub n2: IpAddr,
    /// Local address of N3 (GTP-U); `None`: the same as N2.
    pub n3: Option<IpAddr>,
    /// Serving network.
    pub plmn: Plmn,
    /// Tracking area of every cell.
    pub tac: Tac,
    /// Slices the gNBs support.
    pub slices: Vec<SNssai>,
    /// The UEs.
    pub ue: UeConfig,
    /// Number of UEs.
    pub count: u32,
    /// New registrations per second at most; `None`: as fast as `concurrency` allows.
    pub rate: Option<f64>,
    /// UEs in their initial procedures at once.
    pub concurrency: usize,
    /// Give each session a TUN device in a namespace of its UE.
    pub tun: bool,
    /// How often each UE registers. It deregisters between two registrations.
    pub cycles: u32,
    /// How long a UE must have been silent before its gNB asks the AMF to release its connection. An
    /// idle UE comes back when it is paged, when its programs send, or to update its registration.
    /// `None`: UEs stay connected.
    pub inactivity: Option<Duration>,
    /// How long the UEs stay registered after everything is set up.
    pub hold: Hold,
    /// Deregister at the end; otherwise the UEs end without a message to the network.
    pub deregister: bool,
    /// Release each session before deregistering.
    pub release_sessions: bool,
}

/// How long UEs stay once everything is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Until the simulation is told to end.
    UntilShutdown,
    /// For this long.
    For(Duration),
}

/// The configuration that all UEs share. The n-th UE has the n-th IMSI.
#[derive(Debug, Clone)]
pub struct UeConfig {
    /// Identity of the first UE.
    pub first_imsi: Imsi,
    /// Digits of the MNC within the IMSI: those of the home network.
    pub home_plmn: Plmn,
    /// Long-term key.
    pub k: Key<16>,
    /// Operator key, already combined with K.
    pub opc: Key<16>,
    /// Highest sequence number the USIMs have seen.
    pub sqn: u64,
    /// How SUCIs are concealed.
    pub suci: SuciScheme,
    /// Routing indicator of the SUCI, 1 to 4 digits.
    pub routing_indicator: String,
    /// Integrity algorithms supported.
    pub integrity: Vec<IntegrityAlgorithm>,
    /// Ciphering algorithms supported.
    pub ciphering: Vec<CipheringAlgorithm>,
    /// Slice to ask for; `None`: the network chooses.
    pub slice: Option<SNssai>,
    /// Data network to ask for; `None`: the default one.
    pub dnn: Option<Dnn>,
    /// Session to set up after registration; `None`: registration only.
    pub session: Option<PduSessionType>,
    /// MTU of a TUN device when the network names none.
    pub mtu: u16,
    /// UEs answer when they are paged; otherwise an idle UE behaves as if out of coverage.
    pub answers_paging: bool,
    /// How long a UE waits for each answer (T3510, T3580, T3521 are 15 s, 16 s, 15 s by default).
    pub answer_timeout: Duration,
}

/// SUCI concealment (TS 33.501 annex C.3).
#[derive(Debug, Clone)]
pub enum SuciScheme {
    /// Digits in clear.
    Null,
    /// ECIES profile A or B, to the home network's public key.
    Ecies {
        /// [`ProtectionScheme::ProfileA`] or [`ProtectionScheme::ProfileB`].
        scheme: ProtectionScheme,
        /// Home network public key identifier.
        key_id: u8,
        /// The public key's octets: 32 for A, 33 or 65 for B.
        public_key: Vec<u8>,
    },
}

impl Default for Config {
    fn default() -> Self {
        Self {
            split: None,
            amf: SocketAddr::from((Ipv4Addr::new(127, 0, 0, 5), ngap::PORT)),
            sctp: SctpMode::Auto,
            gnbs: 1,
            first_gnb_id: 1,
            n2: IpAddr::V4(Ipv4Addr::LOCALHOST),
            n3: None,
            plmn: default_plmn(),
            tac: Tac::from_octets([0, 0, 1]),
            slices: vec![SNssai::from_octets(1, None)],
            ue: UeConfig::default(),
            count: 1,
            rate: None,
            concurrency: 64,
            tun: false,
            cycles: 1,
            inactivity: None,
            hold: Hold::UntilShutdown,
            deregister: true,
            release_sessions: false,
        }
    }
}

impl Default for UeConfig {
    fn default() -> Self {
        use CipheringAlgorithm::{Nea0, Nea1, Nea2};
        use IntegrityAlgorithm::{Nia1, Nia2};
        Self {
            first_imsi: "999700000000001".parse().expect("fifteen digits are an IMSI"),
            home_plmn: default_plmn(),
            k: "465B5CE8B199B49FAA5F0A2EE238A6BC".parse().expect("32 hexadecimal digits are a key"),
            opc: "E8ED289DEBA952E4283B54E88E6183CA".parse().expect("32 hexadecimal digits are a key"),
            sqn: 0,
            suci: SuciScheme::Null,
            routing_indicator: "0".into(),
            integrity: vec![Nia1, Nia2],
            ciphering: vec![Nea0, Nea1, Nea2],
            slice: None,
            dnn: Some(Dnn::new("internet").expect("one label is a DNN")),
            session: Some(PduSessionType::Ipv4),
            mtu: 1400,
            answers_paging: true,
            answer_timeout: Duration::from_secs(15),
        }
    }
}

/// The test network 999-70.
fn default_plmn() -> Plmn {
    Plmn::new("999", "70").expect("three and two digits are a PLMN")
}
