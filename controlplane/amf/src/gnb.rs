//! One gNB association: sending messages of UEs through it, and finding the UE of each of its logical
//! connections.
//!
//! - [`Gnb`]: one per SCTP association, shared by the association's task (`n2.rs`) and the UEs connected through it.
//!   It lives until the association has ended and the last UE has dropped it.
//! - [`N2Link`]: one per UE-associated logical NG-connection, owned by the UE's task. Dropping it frees
//!   the identities. It reports when the connection is lost (association lost, NG Reset).
//!
//! Invariant: an AMF UE NGAP ID is in the table of exactly one gNB, so a gNB can reach only its own
//! UEs. A message with any other identity is answered with an Error Indication.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use net::sctp;
use net::time::{Duration, Instant};
use ngap::{AmfUeNgapId, GlobalRanNodeId, PagingDrx, RanUeNgapId, SupportedTa};
use tokio::sync::watch;
use types::Tai;

use crate::context::UeHandle;

/// Why a logical connection ended without action of the UE's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkDown {
    /// The association was lost, or another association of the same gNB replaced it.
    AssociationLost,
    /// The gNB reset the interface or this connection.
    Reset,
    /// The gNB uses the RAN UE NGAP ID for another UE.
    Replaced,
}

/// Why an association's task ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Another association has this gNB's identity now.
    Replaced,
    /// The AMF stops.
    Stopping,
    /// NG Setup did not succeed in time.
    NoNgSetup,
    /// The association is closed, for this reason.
    Closed(String),
}

/// Messages for one UE use one stream, which keeps their order. Stream 0 is for messages about no UE
/// (TS 38.412 §7).
const COMMON_STREAM: u16 = 0;

/// The gNB's data from NG Setup Request.
#[derive(Clone, Debug)]
pub(crate) struct GnbInfo {
    pub id: GlobalRanNodeId,
    pub name: Option<String>,
    pub tas: Vec<SupportedTa>,
    pub drx: PagingDrx,
}

/// One association.
#[derive(Debug)]
pub(crate) struct Gnb {
    /// Number of the association since the AMF started.
    pub key: u64,
    pub peer: SocketAddr,
    sender: sctp::Sender,
    streams: u16,
    info: Mutex<Option<GnbInfo>>,
    /// When the association ends unless NG Setup has succeeded.
    setup_by: Mutex<Instant>,
    links: Mutex<Links>,
    /// Set when the association's task has to end.
    end: watch::Sender<Option<End>>,
    pub received: AtomicU64,
    pub sent: AtomicU64,
}

#[derive(Debug, Default)]
struct Links {
    by_amf: HashMap<AmfUeNgapId, Entry>,
    by_ran: HashMap<RanUeNgapId, AmfUeNgapId>,
}

#[derive(Debug)]
struct Entry {
    ran: RanUeNgapId,
    /// The task of the UE; none while the first message waits.
    ue: Option<Arc<UeHandle>>,
    down: watch::Sender<Option<LinkDown>>,
    /// The NAS PDU that opened the connection, kept until its procedure has ended: duplicates of it are
    /// dropped.
    initial: Bytes,
    fresh: Arc<AtomicBool>,
}

/// The UE that a UE-associated message belongs to.
#[derive(Debug)]
pub(crate) enum Owner {
    /// This UE.
    Ue(Arc<UeHandle>),
    /// The AMF UE NGAP ID does not belong to this association.
    UnknownLocal,
    /// The AMF UE NGAP ID belongs to this association, but with another RAN UE NGAP ID.
    InconsistentRemote,
}

/// The host by which associations and their UEs share limits (`limits.gnbs_per_address`, [`crate::admission`]): an IPv4
/// address, or an IPv6 /64, of which one host may use every address.
pub(crate) fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Gnb {
    pub fn new(key: u64, association: &sctp::Association, setup_by: Instant) -> Gnb {
        Gnb {
            key,
            peer: association.peer(),
            sender: association.sender(),
            streams: association.outgoing_streams(),
            info: Mutex::default(),
            setup_by: Mutex::new(setup_by),
            links: Mutex::default(),
            end: watch::Sender::new(None),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Data from NG Setup; `None` before it.
    pub fn info(&self) -> Option<GnbInfo> {
        self.info.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_info(&self, info: Option<GnbInfo>) {
        *self.info.lock().unwrap_or_else(PoisonError::into_inner) = info;
    }

    /// Makes the association's task end. The first reason counts.
    pub fn end(&self, why: End) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(why);
            first
        });
    }

    /// Completes when the association's task has to end.
    pub async fn ended(&self) -> End {
        let mut end = self.end.subscribe();
        let why = end.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        why.unwrap_or(End::Stopping)
    }

    /// Whether another association has the gNB's identity. This one serves no UE any more, but counts for the limits
    /// of associations until its task has ended.
    pub fn is_replaced(&self) -> bool {
        *self.end.borrow() == Some(End::Replaced)
    }

    /// When NG Setup must have succeeded.
    pub fn setup_by(&self) -> Instant {
        *self.setup_by.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_setup_by(&self, at: Instant) {
        *self.setup_by.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// Whether the gNB's end of the association answers an SCTP heartbeat.
    pub async fn is_alive(&self, limit: Duration) -> bool {
        self.sender.heartbeat(limit).await
    }

    /// Whether the gNB serves this tracking area.
    pub fn serves(&self, tai: Tai) -> bool {
        let info = self.info.lock().unwrap_or_else(PoisonError::into_inner);
        info.as_ref().is_some_and(|info| {
            info.tas
                .iter()
                .any(|ta| ta.tac == tai.tac && ta.broadcast_plmns.iter().any(|p| p.plmn == tai.plmn))
        })
    }

    /// The gNB's host ([`host`]).
    pub fn host(&self) -> IpAddr {
        host(self.peer.ip())
    }

    /// Name for logs and listings: the gNB's name, else its identity, else its address.
    pub fn label(&self) -> String {
        match self.info() {
            Some(GnbInfo { name: Some(name), .. }) => name,
            Some(info) => info.id.to_string(),
            None => self.peer.to_string(),
        }
    }

    /// Sends a message about no UE.
    pub async fn send_common(&self, pdu: Bytes) -> Result<(), sctp::SendError> {
        self.send(COMMON_STREAM, pdu).await
    }

    /// Sends without waiting: answers to a gNB's faulty messages must not delay its task.
    pub fn try_send_common(&self, pdu: Bytes) -> Result<(), sctp::SendError> {
        let message = sctp::Message { stream: COMMON_STREAM, ppid: sctp::PPID_NGAP, payload: pdu };
        self.sender.try_send(message)?;
        self.sent.fetch_add(1, Relaxed);
        Ok(())
    }

    async fn send(&self, stream: u16, pdu: Bytes) -> Result<(), sctp::SendError> {
        self.sender.send(sctp::Message { stream, ppid: sctp::PPID_NGAP, payload: pdu }).await?;
        self.sent.fetch_add(1, Relaxed);
        Ok(())
    }

    /// The stream for a UE's messages: any but the common one, if the association has more than one.
    fn stream_of(&self, id: AmfUeNgapId) -> u16 {
        match self.streams {
            0 | 1 => COMMON_STREAM,
            n => 1 + (id.0 % u64::from(n - 1)) as u16,
        }
    }

    /// Opens a logical connection for a UE, whose task is `ue` if it has one. A connection with the same
    /// RAN UE NGAP ID ends, because the gNB no longer has it.
    pub fn bind(
        self: &Arc<Gnb>,
        amf_id: AmfUeNgapId,
        ran_id: RanUeNgapId,
        ue: Option<Arc<UeHandle>>,
        initial: Bytes,
    ) -> N2Link {
        let (down, watch) = watch::channel(None);
        let fresh = Arc::new(AtomicBool::new(true));
        let mut links = self.links();
        if let Some(old) = links.by_ran.insert(ran_id, amf_id)
            && let Some(old) = links.by_amf.remove(&old)
        {
            old.down.send_replace(Some(LinkDown::Replaced));
        }
        let entry = Entry { ran: ran_id, ue, down, initial, fresh: fresh.clone() };
        links.by_amf.insert(amf_id, entry);
        drop(links);
        N2Link { gnb: self.clone(), amf_id, ran_id, down: watch, fresh }
    }

    /// Whether this Initial UE Message is a duplicate of one whose procedure is still running.
    pub fn is_duplicate(&self, ran_id: RanUeNgapId, nas: &Bytes) -> bool {
        let links = self.links();
        let entry = links.by_ran.get(&ran_id).and_then(|amf_id| links.by_amf.get(amf_id));
        entry.is_some_and(|entry| entry.fresh.load(Relaxed) && entry.initial == *nas)
    }

    /// Moves a connection to a UE task, if it had none or the first one turned out not to be the UE's.
    pub fn rebind(&self, amf_id: AmfUeNgapId, ue: Arc<UeHandle>) {
        if let Some(entry) = self.links().by_amf.get_mut(&amf_id) {
            entry.ue = Some(ue);
        }
    }

    /// Frees the RAN UE NGAP ID of a connection that the gNB has released: the gNB may use it for
    /// another UE before the UE's task knows of the release.
    pub fn released(&self, amf_id: AmfUeNgapId) {
        let mut links = self.links();
        let ran = links.by_amf.get(&amf_id).map(|entry| entry.ran);
        if let Some(ran) = ran
            && links.by_ran.get(&ran) == Some(&amf_id)
        {
            links.by_ran.remove(&ran);
        }
    }

    /// The UE to which a message with these identities belongs.
    pub fn owner(&self, amf_id: AmfUeNgapId, ran_id: RanUeNgapId) -> Owner {
        match self.links().by_amf.get(&amf_id) {
            None => Owner::UnknownLocal,
            Some(entry) if entry.ran != ran_id => Owner::InconsistentRemote,
            Some(Entry { ue: Some(ue), .. }) => Owner::Ue(ue.clone()),
            // The gNB does not know this identity yet.
            Some(_) => Owner::UnknownLocal,
        }
    }

    /// Ends every connection: NG Reset of the whole interface, or loss of the association.
    pub fn lose_all(&self, why: LinkDown) -> usize {
        let mut links = self.links();
        links.by_ran.clear();
        let count = links.by_amf.len();
        for (_, entry) in links.by_amf.drain() {
            entry.down.send_replace(Some(why));
        }
        count
    }

    /// Ends one connection, given by either identity: partial NG Reset.
    pub fn lose(&self, amf_id: Option<AmfUeNgapId>, ran_id: Option<RanUeNgapId>) -> bool {
        let mut links = self.links();
        let id = amf_id.or_else(|| ran_id.and_then(|ran_id| links.by_ran.get(&ran_id).copied()));
        let Some((id, entry)) = id.and_then(|id| Some((id, links.by_amf.remove(&id)?))) else { return false };
        if links.by_ran.get(&entry.ran) == Some(&id) {
            links.by_ran.remove(&entry.ran);
        }
        entry.down.send_replace(Some(LinkDown::Reset));
        true
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.links().by_amf.len()
    }

    fn unbind(&self, amf_id: AmfUeNgapId) {
        let mut links = self.links();
        if let Some(entry) = links.by_amf.remove(&amf_id)
            && links.by_ran.get(&entry.ran) == Some(&amf_id)
        {
            links.by_ran.remove(&entry.ran);
        }
    }
}

/// A UE's logical NG-connection. Owned by the UE's task.
#[derive(Debug)]
pub(crate) struct N2Link {
    pub gnb: Arc<Gnb>,
    pub amf_id: AmfUeNgapId,
    pub ran_id: RanUeNgapId,
    down: watch::Receiver<Option<LinkDown>>,
    fresh: Arc<AtomicBool>,
}

impl N2Link {
    /// Completes when the connection is lost. Cancel-safe.
    pub async fn down(&mut self) -> LinkDown {
        match self.down.wait_for(Option::is_some).await {
            Ok(why) => why.unwrap_or(LinkDown::AssociationLost),
            Err(_) => LinkDown::AssociationLost,
        }
    }

    /// Whether the connection is lost.
    pub fn is_down(&self) -> bool {
        self.down.borrow().is_some()
    }

    /// The procedure that opened the connection has ended: the same NAS PDU is no longer taken for a
    /// duplicate.
    pub fn settled(&self) {
        self.fresh.store(false, Relaxed);
    }

    /// Sends a message of this UE. Waits while the gNB is slow, and returns when the connection is
    /// lost.
    pub async fn send(&mut self, pdu: Bytes) -> Result<(), LinkDown> {
        if self.is_down() {
            return Err(self.down().await);
        }
        let gnb = self.gnb.clone();
        let stream = gnb.stream_of(self.amf_id);
        tokio::select! {
            biased;
            sent = gnb.send(stream, pdu) => sent.map_err(|_| LinkDown::AssociationLost),
            why = self.down() => Err(why),
        }
    }
}

impl Drop for N2Link {
    fn drop(&mut self) {
        self.gnb.unbind(self.amf_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_of_a_64_is_one_host() {
        let host_of = |address: &str| host(address.parse().unwrap());
        assert_eq!(host_of("2001:db8:1:2::1"), host_of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(host_of("2001:db8:1:2::1"), host_of("2001:db8:1:3::1"));
        assert_eq!(host_of("::ffff:192.0.2.1"), host_of("192.0.2.1"));
        assert_ne!(host_of("192.0.2.2"), host_of("192.0.2.1"));
    }
}
