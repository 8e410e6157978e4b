//! A CU's control plane between an AMF and a DU that send anything, over SCTP on loopback.
//!
//! An input is a program of steps: kind (1), length (1), octets. After it the CU must still answer its DU, and have forgotten all UEs
//! that the DU has reset, or be about to.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use cu::{Config, Cu, N2};
use f1ap::cause::{Cause, RadioNetwork};
use f1ap::ie::*;
use f1ap::message::*;
use net::sctp::{Association, Event, Listener, Message, SctpConfig, SctpMode};
use net::time::timeout;
use tokio::runtime::Runtime;
use types::{AmfId, Guami, Ncgi, NrCellId, Plmn, Tac};

/// How long the CU may take for an answer, on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(20);
const GNB: u64 = 7;
/// Steps of an input at most.
const MOST_STEPS: usize = 24;

struct World {
    runtime: Runtime,
    cu: Cu,
    amf: Association,
    du: Association,
    /// The listener's socket is the association's.
    _listener: Listener,
    transaction: u8,
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([127, 23, (std::process::id() % 250) as u8 + 1, last])
}

fn sctp() -> SctpConfig {
    SctpConfig { mode: SctpMode::Udp { port: 9899 }, ..SctpConfig::default() }
}

fn plmn() -> Plmn {
    Plmn::new("999", "70").expect("a PLMN")
}

fn cell() -> Ncgi {
    Ncgi { plmn: plmn(), nr_cell_id: NrCellId::new(GNB << 12 | 1).expect("36 bits") }
}

impl World {
    fn start() -> World {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (cu, amf, du, listener) = runtime.block_on(async {
            let amf = SocketAddr::new(address(1), ngap::PORT);
            let mut listener = Listener::bind(amf, sctp()).await.expect("an AMF's address");
            let link = |last| {
                let link = serde_json::json!({"gtpu": format!("{}:2152", address(last))});
                serde_json::from_value(link).expect("a link")
            };
            let mut config = Config::new(vec![link(3)], Some(link(4)));
            config.gnb_id = GNB as u32;
            config.f1c = Some(SocketAddr::new(address(5), f1ap::PORT));
            config.n2 = Some(N2 { address: address(2), amf: vec![amf] });
            config.sctp = SctpMode::Udp { port: 9899 };
            config.max_ues = 64;
            let cu = Cu::start(&config, None).await.expect("a CU");
            let association = listener.accept().await.expect("the CU's association");
            let guami = Guami { plmn: plmn(), amf_id: AmfId::new(2, 1, 0).expect("an AMF") };
            let slices = config.slices.clone();
            let response = ngap::Pdu::from(ngap::NgSetupResponse {
                amf_name: "fuzz".into(),
                served_guamis: vec![guami.into()],
                relative_amf_capacity: 1,
                plmn_support: vec![ngap::PlmnSlices { plmn: plmn(), slices }],
                criticality_diagnostics: None,
            });
            send(&association, ngap::PPID, response.encode().expect("a response").to_vec()).await;
            let du = connect(&cu).await;
            (cu, association, du, listener)
        });
        World { runtime, cu, amf, du, _listener: listener, transaction: 0 }
    }
}

async fn send(association: &Association, ppid: u32, payload: Vec<u8>) {
    if !payload.is_empty() {
        association
            .send(Message { stream: 0, ppid, payload: payload.into() })
            .await
            .expect("an open association");
    }
}

/// A DU with one cell.
async fn connect(cu: &Cu) -> Association {
    let du = Association::connect(SocketAddr::new(address(6), 0), cu.f1c(), sctp()).await.expect("F1-C");
    let freq = NrFreqInfo {
        arfcn: NrArfcn(650_000),
        sul: None,
        bands: vec![FreqBandNrItem { band: FreqBandIndicatorNr(78), supported_sul_bands: Vec::new() }],
    };
    let bandwidth = TransmissionBandwidth { scs: NrScs::Scs30, nrb: NrNrb(273) };
    let request = F1SetupRequest {
        transaction_id: TransactionId(0),
        gnb_du_id: GnbDuId(1),
        gnb_du_name: None,
        served_cells: vec![ServedCell {
            information: ServedCellInformation {
                nr_cgi: cell(),
                nr_pci: NrPci(1),
                tac: Some(Tac::new(1).expect("24 bits")),
                configured_eps_tac: None,
                served_plmns: vec![ServedPlmn { plmn: plmn(), slices: None }],
                nr_mode: NrModeInfo::Tdd(TddInfo { freq, bandwidth }),
                measurement_timing_configuration: vec![0],
            },
            system_information: None,
        }],
        rrc_version: RrcVersion { latest: RrcVersionBits(0), latest_enhanced: None },
    };
    send(&du, f1ap::PPID, f1ap::Pdu::from(request).encode().expect("a request")).await;
    du
}

/// Runs a program.
pub fn run(data: &[u8]) {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    let world = WORLD.get_or_init(|| Mutex::new(World::start()));
    let world = &mut *world.lock().unwrap_or_else(PoisonError::into_inner);
    let World { runtime, cu, amf, du, transaction, .. } = world;
    runtime.block_on(async {
        let mut rest = data;
        for _ in 0..MOST_STEPS {
            let [kind, length, tail @ ..] = rest else { break };
            let (octets, next) = tail.split_at(tail.len().min(usize::from(*length)));
            rest = next;
            match kind % 4 {
                0 => send(du, f1ap::PPID, octets.to_vec()).await,
                1 => send(amf, ngap::PPID, octets.to_vec()).await,
                2 => send(du, f1ap::PPID, initial(octets)).await,
                _ => send(du, f1ap::PPID, uplink(octets)).await,
            }
        }
        *transaction = transaction.wrapping_add(1);
        let reset = Reset {
            transaction_id: TransactionId(*transaction),
            cause: Cause::RadioNetwork(RadioNetwork::Unspecified),
            reset_type: ResetType::F1Interface,
        };
        let reset = f1ap::Pdu::from(reset).encode().expect("a reset");
        send(du, f1ap::PPID, reset.clone()).await;
        loop {
            // What the CU sends to the AMF is read, so that its window stays open.
            let event = tokio::select! {
                event = timeout(LIMIT, du.recv()) => event.expect("the CU answers its DU"),
                _ = amf.recv() => continue,
            };
            match event {
                Some(Event::Message(message)) => {
                    let read = f1ap::Pdu::decode(&message.payload);
                    match read.expect("the CU sends what decodes").pdu {
                        f1ap::Pdu::ResetAcknowledge(acknowledge)
                            if acknowledge.transaction_id.0 == *transaction =>
                        {
                            break;
                        }
                        // The program has set the interface up in another way.
                        f1ap::Pdu::ErrorIndication(_) | f1ap::Pdu::F1SetupFailure(_)
                            if cu.status().dus.is_empty() =>
                        {
                            *du = connect(cu).await;
                            send(du, f1ap::PPID, reset.clone()).await;
                        }
                        _ => {}
                    }
                }
                // A program may have made the CU replace the association.
                Some(Event::Closed { .. }) | None => {
                    *du = connect(cu).await;
                    send(du, f1ap::PPID, reset.clone()).await;
                }
                Some(Event::Restarted) => {}
            }
        }
        assert!(cu.status().ues <= 64 + 256 + MOST_STEPS, "UEs are bounded");
    });
}

/// A UE's first message with these octets of RRC.
fn initial(octets: &[u8]) -> Vec<u8> {
    let [du_ue, container @ ..] = octets else { return Vec::new() };
    let message = InitialUlRrcMessageTransfer {
        gnb_du_ue_f1ap_id: GnbDuUeF1apId((*du_ue).into()),
        nr_cgi: cell(),
        c_rnti: CRnti(1),
        rrc_container: container.to_vec(),
        du_to_cu_rrc_container: Some(vec![0; 4]),
        transaction_id: TransactionId(0),
        rrc_setup_complete: None,
    };
    f1ap::Pdu::from(message).encode().unwrap_or_default()
}

/// A message on a signalling bearer.
fn uplink(octets: &[u8]) -> Vec<u8> {
    let [cu_ue, du_ue, srb, container @ ..] = octets else { return Vec::new() };
    let message = UlRrcMessageTransfer {
        gnb_cu_ue_f1ap_id: GnbCuUeF1apId((*cu_ue).into()),
        gnb_du_ue_f1ap_id: GnbDuUeF1apId((*du_ue).into()),
        srb_id: SrbId(srb % 4),
        rrc_container: container.to_vec(),
    };
    f1ap::Pdu::from(message).encode().unwrap_or_default()
}

/// The messages of other targets as steps, and UEs that begin.
pub fn seeds(f1ap: Vec<Vec<u8>>, ngap: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let step = |kind: u8, octets: &[u8]| {
        let length = u8::try_from(octets.len()).ok()?;
        Some([&[kind, length], octets].concat())
    };
    let mut seeds: Vec<Vec<u8>> = f1ap.iter().filter_map(|octets| step(0, octets)).collect();
    seeds.extend(ngap.iter().filter_map(|octets| step(1, octets)));
    // RRCSetupRequest.
    let request = [1, 0x10, 0, 0, 0, 0, 0x66];
    seeds.extend(step(2, &request));
    seeds.extend(step(2, &request).map(|first| [&first[..], &[3, 6, 0, 1, 1, 0, 0, 0]].concat()));
    seeds
}
