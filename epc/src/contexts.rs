//! Contexts of UEs outside this gateway: what other gateways need to serve a UE as this one does, with the same tunnels and addresses.
//!
//! - [`save`] writes a UE's context to a database before a procedure answers, and [`fetch`] takes a UE from there whose TEID this gateway
//!   does not know. So gateways with one database can stand in for one another (`contexts` in the configuration).
//! - [`transfer`] sends contexts to another gateway by TCP (`transfer`).
//!
//! The gateway that takes a UE sets up its PDN connections on its own UPF, which must have the address of the first one for eNBs to reach
//! it. UEs with dedicated bearers, and those whose S-GW and P-GW are apart, are not kept and not sent: they are counted.
//! `form.rs` has the octets of a context.

mod form;
pub(crate) mod transfer;

use std::sync::Arc;

use net::time;
use store::records::{Change, Records};
use telemetry::counters::Counter;

use crate::context::{Gateway, Paging, Pdn, Ue, UeState};
use crate::procedure::{delete_session, restoration};

static SAVED: Counter = Counter::new("epc_context_saved");
static NOT_SAVED: Counter = Counter::new("epc_context_not_saved");
static NOT_KEPT: Counter = Counter::new("epc_context_not_kept");
static ADOPTED: Counter = Counter::new("epc_context_adopted");
static NOT_ADOPTED: Counter = Counter::new("epc_context_not_adopted");

/// Where contexts are in the database, by TEID on S11.
const SPACE: &str = "epc";

/// Why a UE's context cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdoptError {
    #[error("the context cannot be read")]
    Malformed,
    #[error("the UE, or one of its numbers, is known here")]
    Known,
    #[error("no access point name {0}, or not with this address")]
    Network(types::Dnn),
    #[error("not on the UPF: {0}")]
    Upf(#[from] n4::N4Error),
}

/// Opens the database of the configuration.
pub(crate) async fn open(url: Option<&str>) -> Result<Option<Records>, store::StoreError> {
    match url {
        Some(url) => Records::open(url).await.map(Some),
        None => Ok(None),
    }
}

/// Writes the context of the UE with this TEID as it is now, or removes it if the UE has left. Without a database nothing happens.
pub(crate) async fn save(gateway: &Gateway, teid: u32) {
    if let Some(records) = gateway.contexts.as_ref().filter(|_| teid != 0) {
        // Boxed, so that tasks of gateways without a database are small.
        Box::pin(write(gateway, records, teid)).await;
    }
}

async fn write(gateway: &Gateway, records: &Records, teid: u32) {
    let ue = gateway.ues.by_teid(teid);
    // Held until the database has it, so that contexts of a UE are written in the order of its procedures.
    let state = match &ue {
        Some(ue) => Some((ue, ue.state.lock().await)),
        None => None,
    };
    let octets = state.as_ref().and_then(|(ue, state)| octets(ue, state));
    let key = teid.into();
    let change = octets.map_or(Change::Remove { key }, |octets| Change::Put { key, octets });
    match records.write(SPACE, vec![change]).await {
        Ok(()) => SAVED.inc(),
        Err(error) => {
            NOT_SAVED.inc();
            tracing::warn!(%error, "the context of a UE is not in the database");
        }
    }
}

/// The octets of a UE's context, unless it is of a kind that is not kept.
fn octets(ue: &Ue, state: &UeState) -> Option<Vec<u8>> {
    let octets = form::encode(ue, state);
    if octets.is_none() && !state.gone {
        NOT_KEPT.inc();
    }
    octets
}

/// Takes the UE with this TEID from the database, if there is one, and if this gateway does not know the TEID.
pub(crate) async fn fetch(gateway: &Arc<Gateway>, teid: u32) {
    let Some(records) = gateway.contexts.as_ref().filter(|_| teid != 0) else { return };
    if gateway.ues.by_teid(teid).is_none() && gateway.ues.by_number(teid).is_none() {
        Box::pin(read(gateway, records, teid)).await;
    }
}

async fn read(gateway: &Arc<Gateway>, records: &Records, teid: u32) {
    match records.get(SPACE, teid.into()).await {
        Ok(None) => {}
        Ok(Some(octets)) => match adopt(gateway, &octets).await {
            // Two messages came at once.
            Ok(()) | Err(AdoptError::Known) => {}
            Err(error) => tracing::warn!(%error, "the context of a UE cannot be used"),
        },
        Err(error) => tracing::warn!(%error, "the database of contexts"),
    }
}

/// Serves a UE from now on as another gateway has served it. Messages about it wait until its PDN connections are on the UPF.
async fn adopt(gateway: &Arc<Gateway>, octets: &[u8]) -> Result<(), AdoptError> {
    let adopted = try_adopt(gateway, octets).await;
    let counter = if adopted.is_ok() { &ADOPTED } else { &NOT_ADOPTED };
    counter.inc();
    adopted
}

async fn try_adopt(gateway: &Arc<Gateway>, octets: &[u8]) -> Result<(), AdoptError> {
    let upf = gateway.n4.select_upf()?;
    let (imsi, teid, mme, pdns) = form::decode(octets, upf).ok_or(AdoptError::Malformed)?;
    let state = UeState { mme, pdns: Vec::new(), paging: Paging::No, paging_count: 0, gone: false };
    let ue = Arc::new(Ue { imsi, teid, state: state.into() });
    let mut state = ue.state.lock().await;
    let numbers: Vec<u64> = pdns.iter().map(|pdn| pdn.number).collect();
    if !gateway.ues.adopt(&ue, &numbers, gateway.config.limits.sessions) {
        return Err(AdoptError::Known);
    }
    let mut left = pdns.into_iter();
    let mut result = Ok(());
    while let (Ok(()), Some(pdn)) = (&result, left.next()) {
        result = add(gateway, &mut state, pdn).await;
    }
    if let Err(error) = result {
        left.for_each(|pdn| gateway.ues.remove_pdn(pdn.number));
        for pdn in std::mem::take(&mut state.pdns) {
            delete_session::end_here(gateway, pdn).await;
        }
        delete_session::forget_if_empty(gateway, &ue, &mut state);
        return Err(error);
    }
    if let Some(mme) = mme {
        gateway.gtpc.watch(mme.source);
    }
    Ok(())
}

/// Takes the addresses of a PDN connection, and sets it up on the UPF.
async fn add(gateway: &Gateway, state: &mut UeState, mut pdn: Pdn) -> Result<(), AdoptError> {
    let now = time::now().into_std();
    let (v4, v6) = (pdn.pdn_type.has_ipv4(), pdn.pdn_type.has_ipv6());
    let network = gateway.networks.get(&pdn.apn);
    let taken = network.and_then(|network| network.pool().allocate(now, v4, v6, pdn.addresses).ok());
    if taken.is_none() {
        gateway.ues.remove_pdn(pdn.number);
        return Err(AdoptError::Network(pdn.apn));
    }
    let set_up = restoration::set_up_again(gateway, &mut pdn).await;
    state.add(pdn);
    Ok(set_up?)
}
