//! Addresses behind the UE of an Ethernet session, and reports of them to the CP function (TS 29.244 §5.13.5).
//!
//! The packet path sends an event when the bridge has learnt an address. It is remembered here and reported as
//! detected with every URR that asks for addresses. It is reported as removed once it was silent for the URR's
//! inactivity timer; the bridge then forgets it too, so that it is new when it is heard again. At most as many
//! addresses are remembered as the bridge allows a session.

use pfcp::message::SessionReportRequest;
use pfcp::{EthernetTraffic, MacAddressList, ReportType, UsageReport, UsageReportTrigger, VlanTag};

use super::rules::urr::Now;
use super::session::{N4Session, Sessions};
use super::usage::Outgoing;
use crate::bridge::{Bounds, Mac};

/// Number of checks in an inactivity time; bounds how late a removal is noticed.
const CHECKS: u64 = 4;
/// The VLAN identifier in a tag.
const VLAN: u16 = 0x0FFF;

/// An address with the VLAN tags of its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub mac: Mac,
    /// Customer tag.
    pub c_tag: Option<u16>,
    /// Service tag.
    pub s_tag: Option<u16>,
}

impl Address {
    /// The VLAN in which the bridge has the address.
    fn vlan(&self) -> u16 {
        self.s_tag.or(self.c_tag).unwrap_or(0) & VLAN
    }

    fn list(&self) -> MacAddressList {
        let tag = |tag: u16| VlanTag { vid: Some(tag & VLAN), ..VlanTag::default() };
        MacAddressList { addresses: vec![self.mac], c_tag: self.c_tag.map(tag), s_tag: self.s_tag.map(tag) }
    }
}

/// The addresses of a session that have been reported to the CP function.
#[derive(Debug, Default)]
pub(super) struct Addresses(Vec<Address>);

impl N4Session {
    /// Milliseconds of silence after which an address is removed; `None` when no URR asks for addresses.
    fn address_timeout_ms(&self) -> Option<u64> {
        self.rules.urrs.values().filter_map(|urr| urr.address_timeout_ms()).min()
    }

    /// When to check for silent addresses next.
    pub(super) fn addresses_next_ms(&self, now: Now) -> Option<u64> {
        let known = self.addresses.as_ref().is_some_and(|addresses| !addresses.0.is_empty());
        let timeout = self.address_timeout_ms().filter(|_| known)?;
        Some(now.ms + (timeout / CHECKS).max(1000))
    }

    /// One report for every rule that asks for addresses.
    fn address_reports(&mut self, traffic: &EthernetTraffic, now: Now) -> Vec<UsageReport> {
        let mut reports = Vec::new();
        for (id, urr) in self.rules.urrs.iter_mut().filter(|(_, urr)| urr.reports_addresses()) {
            let reading = self.compiled.urr(id);
            urr.observe(reading, now);
            let mut made = urr.report(id, UsageReportTrigger::MACAR, reading, now, None);
            if let Some(last) = made.last_mut() {
                last.ethernet_traffic = Some(Box::new(traffic.clone()));
            }
            reports.extend(made);
        }
        reports
    }
}

impl Sessions {
    /// Handles the event that the bridge has learnt an address of a session.
    pub fn address(&mut self, seid: u64, address: Address, now: impl Into<Now>) -> Option<Outgoing> {
        let now = now.into();
        let session = self.sessions.get_mut(&seid)?;
        if !session.rules.urrs.values().any(|urr| urr.reports_addresses()) {
            return None;
        }
        let known = &mut session.addresses.get_or_insert_default().0;
        // The bridge forgets silent addresses by itself and may learn them again; the CP function knows these
        // already.
        if known.contains(&address) || known.len() >= usize::from(Bounds::default().per_session) {
            return None;
        }
        known.push(address);
        let traffic = EthernetTraffic { detected: vec![address.list()], ..EthernetTraffic::default() };
        let usage_reports = session.address_reports(&traffic, now);
        let request =
            SessionReportRequest { report_type: ReportType::USAR, usage_reports, ..Default::default() };
        self.schedule(seid, now);
        self.sessions.get(&seid).map(|session| session.outgoing(seid, request))
    }

    /// Reports of the removal of addresses that were silent for the inactivity timer.
    pub(super) fn addresses_gone(&mut self, seid: u64, now: Now) -> Vec<UsageReport> {
        let Some(session) = self.sessions.get_mut(&seid) else { return Vec::new() };
        let Some(timeout_ms) = session.address_timeout_ms() else { return Vec::new() };
        let (Some(addresses), Some((network, station))) = (&mut session.addresses, session.compiled.station)
        else {
            return Vec::new();
        };
        let Some(bridge) = session.compiled.tables.bridge(network.into()) else { return Vec::new() };
        let mut traffic = EthernetTraffic::default();
        let silent = |address: &Address| {
            let before_s = (now.ms.saturating_sub(timeout_ms) / 1000) as u32;
            now.ms >= timeout_ms && bridge.forget_if_silent(station, address.vlan(), address.mac, before_s)
        };
        addresses.0.retain(|address| {
            let gone = silent(address);
            if gone {
                traffic.removed.push(address.list());
            }
            !gone
        });
        match traffic.removed.is_empty() {
            true => Vec::new(),
            false => session.address_reports(&traffic, now),
        }
    }
}
