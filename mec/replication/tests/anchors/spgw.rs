//! S-GW and P-GW in one (TS 29.274).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use gtpv2c::codec::Octets;
use gtpv2c::message::*;
use gtpv2c::value::*;
use gtpv2c::{
    BearerCreated, BearerInCreateRequest, BearerInCreateResponse, BearerModified, BearerToBeCreated,
    BearerToBeModified,
};
use replication::replicator::Protocol;

use super::{Model, STATION, next};

/// The MME's TEIDs: this one and the UE's number.
pub const MME_TEID: u32 = 0xa000_0000;
/// The default bearer, and the dedicated one.
const DEFAULT: Ebi = Ebi(5);
const DEDICATED: Ebi = Ebi(6);

/// A message as octets.
pub fn octets(message: impl Into<Message>, teid: u32, sequence: u32) -> Vec<u8> {
    let mut octets = Vec::new();
    message.into().encode(teid, sequence, &mut octets).unwrap();
    octets
}

fn accepted() -> Cause {
    CauseValue::ACCEPTED.into()
}

#[derive(Debug)]
struct Held {
    ue: u32,
    mme: u32,
    /// The TEID of the default bearer here, and the eNB's.
    uplink: u32,
    enb: Option<u32>,
    has_dedicated: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Spgw {
    own: Ipv4Addr,
    sessions: BTreeMap<u32, Held>,
    last: u32,
    recovery: u8,
    /// This user gets a dedicated bearer when it is active.
    pub creates_for: Option<u32>,
}

impl Spgw {
    pub fn teid_of(&self, ue: u32) -> Option<u32> {
        self.sessions.iter().find(|(_, held)| held.ue == ue).map(|(teid, _)| *teid)
    }

    fn create_bearer(&mut self, mme: u32, sequence: u32) -> Vec<u8> {
        let end = FTeid::new(InterfaceType::S1U_SGW, next(&mut self.last), self.own.into());
        let bearer = BearerInCreateRequest {
            tft: Octets(vec![0x21, 0x30, 0, 1, 0x30, 17]),
            s1u_sgw_f_teid: Some(end),
            ..Default::default()
        };
        let request =
            CreateBearerRequest { linked_ebi: DEFAULT, bearers: vec![bearer], ..Default::default() };
        octets(request, mme, sequence)
    }

    /// It creates a dedicated bearer: its request, and the MME's answer.
    pub fn dedicated(&mut self, ue: u32) -> (Vec<u8>, Vec<u8>) {
        let own = self.teid_of(ue).unwrap();
        let request = self.create_bearer(self.sessions[&own].mme, 900 + ue);
        let end = FTeid::new(InterfaceType::S1U_ENB, 0xd000 + ue, STATION.into());
        let bearer = BearerInCreateResponse {
            ebi: DEDICATED,
            cause: accepted(),
            s1u_enb_f_teid: Some(end),
            ..Default::default()
        };
        let answer = CreateBearerResponse { cause: accepted(), bearers: vec![bearer], ..Default::default() };
        let answer = octets(answer, own, 900 + ue);
        self.answer(&answer);
        (request, answer)
    }

    fn created(&mut self, request: &CreateSessionRequest, sequence: u32) -> Vec<u8> {
        let ue = request.imsi.unwrap().to_string()[5..].parse().unwrap();
        self.sessions.retain(|_, held| held.ue != ue);
        let (own, uplink) = (next(&mut self.last), next(&mut self.last));
        let mme = request.sender_f_teid.teid;
        self.sessions.insert(own, Held { ue, mme, uplink, enb: None, has_dedicated: false });
        let created = BearerCreated {
            ebi: DEFAULT,
            cause: accepted(),
            s1u_sgw_f_teid: Some(FTeid::new(InterfaceType::S1U_SGW, uplink, self.own.into())),
            ..Default::default()
        };
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, ue as u16, 0, 0, 0, 1);
        let ipv4 = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 45, 0, 0)) + ue);
        let answer = CreateSessionResponse {
            cause: accepted(),
            sender_f_teid: Some(FTeid::new(InterfaceType::S11_S4_SGW, own, self.own.into())),
            paa: Some(Paa::Ipv4v6(ipv4, Ipv6Prefix { address, length: 64 })),
            bearers_created: vec![created],
            ..Default::default()
        };
        octets(answer, mme, sequence)
    }

    /// A dedicated bearer follows, if the user is to have one.
    fn modified(&mut self, own: u32, request: &ModifyBearerRequest, sequence: u32) -> Vec<Vec<u8>> {
        let address = self.own;
        let Some(held) = self.sessions.get_mut(&own) else {
            let cause = CauseValue::CONTEXT_NOT_FOUND.into();
            return vec![octets(ModifyBearerResponse { cause, ..Default::default() }, 0, sequence)];
        };
        let mut bearers_modified = Vec::new();
        for bearer in &request.bearers_to_be_modified {
            held.enb = bearer.s1u_enb_f_teid.map(|end| end.teid);
            bearers_modified.push(BearerModified {
                ebi: bearer.ebi,
                cause: accepted(),
                s1u_sgw_f_teid: Some(FTeid::new(InterfaceType::S1U_SGW, held.uplink, address.into())),
                ..Default::default()
            });
        }
        let mme = held.mme;
        let creates = self.creates_for == Some(held.ue) && !held.has_dedicated;
        let answer = ModifyBearerResponse { cause: accepted(), bearers_modified, ..Default::default() };
        let mut said = vec![octets(answer, mme, sequence)];
        if creates {
            said.push(self.create_bearer(mme, 700));
        }
        said
    }
}

impl Model for Spgw {
    const PROTOCOL: Protocol = Protocol::S11;
    const PORT: u16 = 2123;

    fn new(own: Ipv4Addr, secret: u32) -> Spgw {
        Spgw { own, sessions: BTreeMap::new(), last: secret, recovery: 1, creates_for: None }
    }

    fn own(&self) -> Ipv4Addr {
        self.own
    }

    fn answer(&mut self, request: &[u8]) -> Vec<Vec<u8>> {
        let (header, message) = Message::decode(request).unwrap();
        let (own, sequence) = (header.teid.unwrap_or(0), header.sequence);
        let mme = self.sessions.get(&own).map_or(0, |held| held.mme);
        let cause = if mme == 0 { CauseValue::CONTEXT_NOT_FOUND.into() } else { accepted() };
        let answer = match message {
            Message::EchoRequest(_) => {
                let recovery = Recovery(self.recovery);
                octets(EchoResponse { recovery, ..Default::default() }, 0, sequence)
            }
            Message::CreateSessionRequest(request) => self.created(&request, sequence),
            Message::ModifyBearerRequest(request) => return self.modified(own, &request, sequence),
            Message::ReleaseAccessBearersRequest(_) => {
                if let Some(held) = self.sessions.get_mut(&own) {
                    held.enb = None;
                }
                octets(ReleaseAccessBearersResponse { cause, ..Default::default() }, mme, sequence)
            }
            Message::DeleteSessionRequest(_) => {
                self.sessions.remove(&own);
                octets(DeleteSessionResponse { cause, ..Default::default() }, mme, sequence)
            }
            Message::CreateBearerResponse(answer) => {
                assert!(answer.cause.is_accepted());
                self.sessions.get_mut(&own).unwrap().has_dedicated = true;
                return Vec::new();
            }
            Message::EchoResponse(_) | Message::DownlinkDataNotificationAcknowledge(_) => return Vec::new(),
            other => panic!("{other:?}"),
        };
        vec![answer]
    }

    fn restart(&mut self) {
        self.sessions.clear();
        self.recovery += 1;
    }

    fn users(&self) -> BTreeMap<u32, Option<u32>> {
        self.sessions.values().map(|held| (held.ue, held.enb)).collect()
    }

    fn number(request: &mut [u8], sequence: u32) {
        request[8..11].copy_from_slice(&sequence.to_be_bytes()[1..]);
    }

    fn attach(control: Ipv4Addr, ue: u32) -> Vec<u8> {
        let request = CreateSessionRequest {
            imsi: Some(format!("99970{ue:010}").parse().unwrap()),
            serving_network: Some("99970".parse().unwrap()),
            rat_type: RatType::EUTRAN,
            sender_f_teid: FTeid::new(InterfaceType::S11_MME, MME_TEID + ue, control.into()),
            apn: "internet".into(),
            pdn_type: Some(PdnType::Ipv4v6),
            paa: Some(Paa::Ipv4v6(
                Ipv4Addr::UNSPECIFIED,
                Ipv6Prefix { address: Ipv6Addr::UNSPECIFIED, length: 0 },
            )),
            bearers_to_be_created: vec![BearerToBeCreated { ebi: DEFAULT, ..Default::default() }],
            ..Default::default()
        };
        octets(request, 0, 0)
    }

    fn given(answer: &[u8]) -> u64 {
        let Message::CreateSessionResponse(answer) = Message::decode(answer).unwrap().1 else { panic!() };
        answer.sender_f_teid.unwrap().teid.into()
    }

    fn activate(to: u64, station: u32) -> Vec<u8> {
        let enb = FTeid::new(InterfaceType::S1U_ENB, station, STATION.into());
        let bearer = BearerToBeModified { ebi: DEFAULT, s1u_enb_f_teid: Some(enb), ..Default::default() };
        let request = ModifyBearerRequest { bearers_to_be_modified: vec![bearer], ..Default::default() };
        octets(request, to as u32, 0)
    }

    fn idle(to: u64) -> Vec<u8> {
        octets(ReleaseAccessBearersRequest::default(), to as u32, 0)
    }

    fn detach(to: u64) -> Vec<u8> {
        let request = DeleteSessionRequest { linked_ebi: Some(DEFAULT), ..Default::default() };
        octets(request, to as u32, 0)
    }

    fn name(_: Ipv4Addr, ue: u32) -> String {
        format!("imsi-99970{ue:010}")
    }
}
