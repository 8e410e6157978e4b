//! The CU's association with its AMF: kept up, and the messages on it that are about no UE.

use std::sync::Arc;
use std::time::Duration;

use f1ap::ie::{PagingCell, PagingDrx, PagingIdentity, UeIdentityIndexValue};
use net::sctp::SctpConfig;
use ngap::Pdu;

use crate::counters;
use crate::shared::Shared;
use crate::ue::N2_SEND_LIMIT;

/// Time between attempts to connect: from the first to the longest, doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// How long the association may take to end when the CU stops.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Connects to the AMF, again and again, until the CU stops. A connection that is lost ends the connections of all UEs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut wait = FIRST_WAIT;
    loop {
        tokio::select! {
            connected = n2::Gnb::connect(gnb_config(&shared)) => match connected {
                Ok(gnb) => {
                    wait = FIRST_WAIT;
                    tracing::info!(amf = gnb.amf_name(), address = %gnb.amf(), "N2 set up");
                    shared.amf.send_replace(Some(gnb.clone()));
                    serve(&shared, &gnb).await;
                    shared.amf.send_replace(None);
                    if *shared.stopping.borrow() {
                        // An AMF that does not read would never let it end.
                        let _ = net::time::timeout(STOP_LIMIT, gnb.shutdown()).await;
                        return;
                    }
                    tracing::warn!("N2 lost");
                }
                Err(error) => {
                    counters::N2_FAILURES.inc();
                    tracing::warn!(%error, retry_s = wait.as_secs_f32(), "no N2");
                }
            },
            () = shared.stopped() => return,
        }
        tokio::select! {
            () = net::time::sleep(wait) => wait = (wait * 2).min(LONGEST_WAIT),
            () = shared.stopped() => return,
        }
    }
}

fn gnb_config(shared: &Shared) -> n2::GnbConfig {
    let config = &shared.config;
    let (address, amf) = config
        .n2
        .as_ref()
        .map_or_else(|| ([127, 0, 0, 1].into(), Vec::new()), |n2| (n2.address, n2.amf.clone()));
    n2::GnbConfig {
        id: config.gnb_id,
        name: Some(config.name()),
        plmn: config.plmn,
        tac: config.tac,
        slices: config.slices.clone(),
        amf,
        n2: address,
        sctp: SctpConfig { mode: config.sctp, ..Default::default() },
    }
}

/// Handles messages about no UE until the association ends or the CU stops and its UEs have ended.
async fn serve(shared: &Shared, gnb: &n2::Gnb) {
    let interface = gnb.interface();
    loop {
        tokio::select! {
            message = interface.next() => match message {
                Some(Pdu::Paging(paging)) => page(shared, &paging),
                // Executed by `n2` already: the tasks of these UEs have lost their connection.
                Some(Pdu::NgReset(_) | Pdu::NgResetAcknowledge(_)) => {}
                Some(Pdu::ErrorIndication(indication)) => {
                    let cause = indication.cause.map_or_else(|| "none".to_owned(), |cause| cause.to_string());
                    counters::N2_REJECTED.inc(&format!("error_indication:{cause}"));
                }
                Some(other) => {
                    counters::N2_REJECTED.inc("unknown_ue");
                    // It fails only when the association has ended, and then `next` says so, or with an AMF that does not read.
                    let _ = net::time::timeout(N2_SEND_LIMIT, gnb.report_unknown_ue(&other)).await;
                }
                None => return,
            },
            () = gnb.closed() => return,
            () = async {
                shared.stopped().await;
                while shared.ue_count() > 0 {
                    net::time::sleep(Duration::from_millis(20)).await;
                }
            } => return,
        }
    }
}

/// Paging (TS 38.413 §8.5, TS 38.473 §8.7): in the cells of the tracking areas that the AMF names. A DU that does not read misses pages,
/// instead of keeping other DUs from theirs.
fn page(shared: &Shared, paging: &ngap::Paging) {
    let mut asked = false;
    for du in shared.dus.all() {
        let cells = du.cells.iter().filter(|cell| paging.tais.contains(&cell.tai));
        let cells: Vec<PagingCell> = cells.map(|cell| PagingCell { nr_cgi: cell.nr_cgi }).collect();
        if cells.is_empty() {
            continue;
        }
        let message = f1ap::message::Paging {
            // 5G-S-TMSI modulo 1024 (TS 38.304 §7.1).
            ue_identity_index: UeIdentityIndexValue((paging.s_tmsi.tmsi().0 % 1024) as u16),
            paging_identity: PagingIdentity::CnUe(paging.s_tmsi),
            paging_drx: paging.paging_drx.map(drx),
            cells,
        };
        asked |= du.try_send(&message.into());
    }
    counters::PAGES.inc(if asked { "sent" } else { "no_cell" });
}

/// The UE's cycle as F1AP writes it.
fn drx(cycle: ngap::PagingDrx) -> PagingDrx {
    match cycle {
        ngap::PagingDrx::V32 => PagingDrx::V32,
        ngap::PagingDrx::V64 => PagingDrx::V64,
        ngap::PagingDrx::V128 => PagingDrx::V128,
        ngap::PagingDrx::V256 => PagingDrx::V256,
    }
}
