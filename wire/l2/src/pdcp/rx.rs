//! The receiving entity (TS 38.323 §5.2.2).
//!
//! ```text
//!  given up or delivered │ held: received, waiting for RX_DELIV   │ never received
//!                        RX_DELIV                   RX_REORD?     RX_NEXT
//! ```
//! - RX_DELIV: COUNT of the first SDU that was not delivered and is still waited for.
//! - RX_NEXT: COUNT of the SDU expected next, one more than the highest received.
//! - RX_REORD: one more than the COUNT whose arrival started t-Reordering.
//!
//! The standard's order is kept: decipher, verify, then look for duplicates, then keep. So a PDU without the right MAC-I
//! changes no state.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::{Config, ControlType, DATA, MAX_SDU, Security, StatusReport};
use crate::security::MAC_LEN;

/// What an [`Rx`] needs to know in addition to [`Config`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxConfig {
    /// t-Reordering; `None` waits for ever (TS 38.331 gives 0 to 3,000 ms or infinity).
    pub t_reordering: Option<Duration>,
    /// outOfOrderDelivery: SDUs are delivered as they come, only duplicates are dropped.
    pub out_of_order_delivery: bool,
    /// Most SDUs held for reordering.
    pub max_held: usize,
    /// Most octets held for reordering.
    pub max_held_octets: usize,
}

impl Default for RxConfig {
    /// 100 ms, in order, 4,096 SDUs and 4 MiB.
    fn default() -> Self {
        Self {
            t_reordering: Some(Duration::from_millis(100)),
            out_of_order_delivery: false,
            max_held: 4096,
            max_held_octets: 4 << 20,
        }
    }
}

/// What became of a PDU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The SDU (with its SDAP header) is at `sdu` in the slice, to be delivered now. The caller then calls
    /// [`Rx::release`] for what it let through.
    Deliver {
        /// Its place in the slice.
        sdu: Range<usize>,
        /// Its COUNT.
        count: u32,
    },
    /// The SDU was copied: it waits for one before it. Time may be due earlier than before: see [`Rx::next_expiry`].
    Held,
    /// A control PDU, unchanged in the slice. [`StatusReport::parse`] reads a status report.
    Control(ControlType),
    /// Dropped, and counted.
    Discarded(Discard),
}

/// Why a PDU was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Discard {
    /// Shorter than its headers and MAC-I, longer than PDCP's largest SDU, or a status report cut short.
    Malformed,
    /// The MAC-I is not that of the PDU.
    IntegrityFailure,
    /// An SDU with this COUNT is held already.
    Duplicate,
    /// The SDU of this COUNT was delivered or given up, or no COUNT of 32 bits has this sequence number near the window.
    Stale,
    /// No room to hold it.
    NoRoom,
}

/// Counts since the entity was made.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RxCounters {
    /// SDUs delivered at once.
    pub delivered: u64,
    /// SDUs that were held first.
    pub held: u64,
    /// SDUs delivered after they were held.
    pub released: u64,
    /// COUNTs given up when t-Reordering expired.
    pub lost: u64,
    /// Control PDUs.
    pub control: u64,
    /// [`Discard::Malformed`].
    pub malformed: u64,
    /// [`Discard::IntegrityFailure`].
    pub integrity_failures: u64,
    /// [`Discard::Duplicate`].
    pub duplicates: u64,
    /// [`Discard::Stale`].
    pub stale: u64,
    /// [`Discard::NoRoom`].
    pub no_room: u64,
}

/// Opens the PDUs of a bearer and delivers its SDUs in the order of COUNT, each once.
#[derive(Debug)]
pub struct Rx {
    config: Config,
    security: Security,
    out_of_order_delivery: bool,
    t_reordering_ns: Option<u64>,
    max_held: usize,
    max_held_octets: usize,
    // COUNTs have 32 bits. The variables have more, since each may be one above the last COUNT.
    pub(super) rx_deliv: u64,
    pub(super) rx_next: u64,
    /// RX_REORD and the time of expiry, while t-Reordering runs.
    pub(super) reordering: Option<(u64, u64)>,
    /// SDUs that wait for RX_DELIV, and behind RX_DELIV those to release. With delivery out of order: without octets, to
    /// know duplicates.
    held: BTreeMap<u64, Box<[u8]>>,
    held_octets: usize,
    counters: RxCounters,
}

impl Rx {
    /// An entity that expects COUNT 0 first.
    pub fn new(config: Config, security: Security, rx: RxConfig) -> Self {
        Self::starting_at(config, security, rx, 0)
    }

    /// An entity that expects COUNT `rx_deliv` first, such as that of a bearer that moved here.
    pub fn starting_at(config: Config, security: Security, rx: RxConfig, rx_deliv: u32) -> Self {
        Self {
            config,
            security,
            out_of_order_delivery: rx.out_of_order_delivery,
            t_reordering_ns: rx.t_reordering.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            max_held: rx.max_held,
            max_held_octets: rx.max_held_octets,
            rx_deliv: rx_deliv.into(),
            rx_next: rx_deliv.into(),
            reordering: None,
            held: BTreeMap::new(),
            held_octets: 0,
            counters: RxCounters::default(),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes algorithms and keys from the next PDU on (§5.8, §5.9). COUNT continues.
    pub fn set_security(&mut self, security: Security) {
        self.security = security;
    }

    /// Counts since the start.
    pub fn counters(&self) -> &RxCounters {
        &self.counters
    }

    /// RX_DELIV; `None` when every COUNT was delivered or given up.
    pub fn rx_deliv(&self) -> Option<u32> {
        u32::try_from(self.rx_deliv).ok()
    }

    /// RX_NEXT; `None` when the last COUNT was received.
    pub fn rx_next(&self) -> Option<u32> {
        u32::try_from(self.rx_next).ok()
    }

    /// SDUs and octets held.
    pub fn held(&self) -> (usize, usize) {
        (self.held.len(), self.held_octets)
    }

    /// Opens a PDU in place (§5.2.2.1). `now_ns` is of the caller's monotonic clock; it only sets the timer.
    #[inline]
    pub fn open(&mut self, pdu: &mut [u8], now_ns: u64) -> Verdict {
        if !self.config.is_srb() && pdu.first().is_some_and(|first| first & DATA == 0) {
            return self.control(pdu);
        }
        let header_len = self.config.header_len();
        let clear_len = header_len + self.config.sdap_len();
        let trailer_len = self.security.trailer_len(&self.config);
        let sdu_end = pdu.len().saturating_sub(trailer_len);
        let sn = match self.config.read_sn(pdu) {
            Some(sn) if sdu_end >= clear_len && sdu_end - header_len <= MAX_SDU => sn,
            _ => return self.discard(Discard::Malformed),
        };
        let Some(count) = self.infer(sn) else { return self.discard(Discard::Stale) };
        let input = self.config.input(count);
        self.security.cipher.apply(input, &mut pdu[clear_len..]);
        if let Some(integrity) = &self.security.integrity {
            let (message, mac) = pdu.split_at(sdu_end);
            if mac.first_chunk::<MAC_LEN>() != Some(&integrity.mac(input, message)) {
                return self.discard(Discard::IntegrityFailure);
            }
        }
        if u64::from(count) == self.rx_deliv && self.held.is_empty() {
            // The straight way: nothing waits, so RX_DELIV and RX_NEXT are equal, or a gap begins behind this SDU.
            self.rx_deliv += 1;
            self.rx_next = self.rx_next.max(self.rx_deliv);
            self.counters.delivered += 1;
            if self.reordering.is_some() || self.rx_deliv < self.rx_next {
                self.time_reordering(now_ns);
            }
            return Verdict::Deliver { sdu: header_len..sdu_end, count };
        }
        self.order(&pdu[header_len..sdu_end], header_len, count, now_ns)
    }

    /// COUNT of a sequence number: the one nearest to RX_DELIV (§5.2.2.1). `None` when it is below 0 or has more than 32 bits.
    #[inline]
    pub(super) fn infer(&self, sn: u32) -> Option<u32> {
        let (bits, window) = (self.config.sn.bits(), i64::from(self.config.sn.window()));
        let deliv_sn = (self.rx_deliv & u64::from(self.config.sn.mask())) as i64;
        let deliv_hfn = (self.rx_deliv >> bits) as i64;
        let sn = i64::from(sn);
        let hfn = if sn < deliv_sn - window {
            deliv_hfn + 1
        } else if sn >= deliv_sn + window {
            deliv_hfn - 1
        } else {
            deliv_hfn
        };
        u32::try_from(hfn << bits | sn).ok()
    }

    /// Duplicates, reordering and delivery of an SDU that does not go the straight way.
    fn order(&mut self, sdu: &[u8], header_len: usize, count: u32, now_ns: u64) -> Verdict {
        let key = u64::from(count);
        if key < self.rx_deliv {
            return self.discard(Discard::Stale);
        }
        if self.held.contains_key(&key) {
            return self.discard(Discard::Duplicate);
        }
        // Something to release is older than this SDU, which then waits for the same call.
        let at_once = key == self.rx_deliv && self.first_held().is_none_or(|first| first > key);
        if !at_once && !self.hold(key, sdu) {
            return self.discard(Discard::NoRoom);
        }
        self.rx_next = self.rx_next.max(key + 1);
        if key == self.rx_deliv {
            self.rx_deliv = self.first_missing_from(key + 1);
            if self.out_of_order_delivery {
                self.forget_delivered();
            }
        }
        self.time_reordering(now_ns);
        if at_once || self.out_of_order_delivery {
            self.counters.delivered += 1;
            Verdict::Deliver { sdu: header_len..header_len + sdu.len(), count }
        } else {
            self.counters.held += 1;
            Verdict::Held
        }
    }

    /// Keeps an SDU; says whether there was room. The first one always has, else no gap would start t-Reordering and
    /// nothing would pass a gap.
    fn hold(&mut self, key: u64, sdu: &[u8]) -> bool {
        let octets: &[u8] = if self.out_of_order_delivery { &[] } else { sdu };
        let full = self.held.len() >= self.max_held || self.held_octets + octets.len() > self.max_held_octets;
        if full && !self.held.is_empty() {
            return false;
        }
        self.held_octets += octets.len();
        self.held.insert(key, octets.into());
        true
    }

    fn first_held(&self) -> Option<u64> {
        self.held.first_key_value().map(|(key, _)| *key)
    }

    /// The first COUNT at or above `key` whose SDU is not held.
    fn first_missing_from(&self, mut key: u64) -> u64 {
        for held in self.held.range(key..).map(|(held, _)| *held) {
            if held != key {
                break;
            }
            key += 1;
        }
        key
    }

    /// With delivery out of order: what is below RX_DELIV was delivered, and needs no memory.
    fn forget_delivered(&mut self) {
        while self.first_held().is_some_and(|first| first < self.rx_deliv) {
            self.held.pop_first();
        }
    }

    /// Stops t-Reordering when what it waited for has come, and starts it when there is a gap (end of §5.2.2.1).
    fn time_reordering(&mut self, now_ns: u64) {
        if self.reordering.is_some_and(|(rx_reord, _)| self.rx_deliv >= rx_reord) {
            self.reordering = None;
        }
        if self.reordering.is_none() && self.rx_deliv < self.rx_next {
            let expiry = self.t_reordering_ns.map_or(u64::MAX, |time| now_ns.saturating_add(time));
            self.reordering = Some((self.rx_next, expiry));
        }
    }

    /// Gives `deliver` the SDUs (with their SDAP headers) that are now in order, with their COUNTs. Called after
    /// [`Verdict::Deliver`] and after [`Rx::expire`]; until then later SDUs are held behind them.
    #[inline]
    pub fn release(&mut self, mut deliver: impl FnMut(&mut [u8], u32)) {
        while let Some(first) = self.held.first_entry().filter(|first| *first.key() < self.rx_deliv) {
            let (key, mut sdu) = first.remove_entry();
            self.held_octets -= sdu.len();
            self.counters.released += 1;
            deliver(&mut sdu, key as u32);
        }
    }

    /// When to call [`Rx::expire`]; `None` while t-Reordering does not run or is infinite. It may change with every call.
    #[inline]
    pub fn next_expiry(&self) -> Option<u64> {
        self.reordering.map(|(_, expiry)| expiry).filter(|expiry| *expiry != u64::MAX)
    }

    /// Expiry of t-Reordering, if it is due (§5.2.2.2): what is missing below RX_REORD is given up. The caller then calls
    /// [`Rx::release`]. Returns whether it was due.
    pub fn expire(&mut self, now_ns: u64) -> bool {
        let Some((rx_reord, _)) =
            self.reordering.filter(|(_, expiry)| *expiry <= now_ns && *expiry != u64::MAX)
        else {
            return false;
        };
        self.reordering = None;
        let received = self.held.range(self.rx_deliv..rx_reord).count() as u64;
        self.counters.lost += rx_reord - self.rx_deliv - received;
        self.rx_deliv = self.first_missing_from(rx_reord);
        if self.out_of_order_delivery {
            self.forget_delivered();
        }
        self.time_reordering(now_ns);
        true
    }

    fn control(&mut self, pdu: &[u8]) -> Verdict {
        let kind = ControlType::of(pdu[0]);
        if kind == ControlType::StatusReport && StatusReport::parse(pdu).is_none() {
            return self.discard(Discard::Malformed);
        }
        self.counters.control += 1;
        Verdict::Control(kind)
    }

    #[cold]
    fn discard(&mut self, why: Discard) -> Verdict {
        let counters = &mut self.counters;
        *match why {
            Discard::Malformed => &mut counters.malformed,
            Discard::IntegrityFailure => &mut counters.integrity_failures,
            Discard::Duplicate => &mut counters.duplicates,
            Discard::Stale => &mut counters.stale,
            Discard::NoRoom => &mut counters.no_room,
        } += 1;
        Verdict::Discarded(why)
    }
}
