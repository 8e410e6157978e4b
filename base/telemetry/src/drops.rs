//! The drop reasons: every packet that is not forwarded counts under exactly one of them.
//!
//! The numbers are an interface: they index counter arrays here, in eBPF maps and in stored results.
//! A reason is therefore never renumbered or reused; a new one takes the next free number. The names
//! are the labels of metrics, of `godwit upf stats` and of the demo's summary.

/// Declares the enum, `ALL`, `name` and `description` from one table, so that they cannot disagree.
macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $variant:ident = $value:literal, $name:literal, $text:literal;)*) => {
        /// Why a packet was not forwarded.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $text] $variant = $value,)*
        }

        impl DropReason {
            /// All reasons in the order of their numbers.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)*];

            /// Label in metrics and listings: lower case, underscores.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }

            /// One sentence for a person.
            pub const fn description(self) -> &'static str {
                match self { $(DropReason::$variant => $text,)* }
            }
        }
    };
}

drop_reasons! {
    GtpuMalformed = 0, "gtpu_malformed", "GTP-U header truncated, wrong version or inconsistent length.";
    GtpuExtension = 1, "gtpu_extension", "GTP-U extension header chain malformed or too long.";
    GtpuUnknownExtension = 2, "gtpu_unknown_extension", "GTP-U extension header whose comprehension is required is not known.";
    GtpuUnknownMessage = 3, "gtpu_unknown_message", "GTP-U message type that this endpoint does not handle.";
    UnknownTeid = 4, "unknown_teid", "No session owns the TEID of the G-PDU.";
    UnknownUe = 5, "unknown_ue", "No session owns the destination address of the downlink packet.";
    IpMalformed = 6, "ip_malformed", "User packet is not valid IPv4 or IPv6.";
    SourceAddress = 7, "source_address", "Uplink source address is not the UE's.";
    NoPdr = 8, "no_pdr", "No packet detection rule of the session matches.";
    FarDrop = 9, "far_drop", "The forwarding action rule says drop, or has no destination.";
    GateClosed = 10, "gate_closed", "The QoS enforcement rule's gate is closed in this direction.";
    RateLimit = 11, "rate_limit", "The maximum bit rate of a QoS enforcement rule is exceeded.";
    BufferUnavailable = 12, "buffer_unavailable", "The rule says buffer, and there is no buffer.";
    BufferOverflow = 13, "buffer_overflow", "The session's downlink buffer is full.";
    TooBig = 14, "too_big", "Packet larger than the buffer or the outgoing MTU.";
    TxQueueFull = 15, "tx_queue_full", "The outgoing device or socket did not take the packet.";
    TxError = 16, "tx_error", "The kernel refused the packet on the outgoing device or socket.";
    N3NotServed = 17, "n3_not_served", "Outer header of a type that this interface does not serve.";
    DirectionMismatch = 18, "direction_mismatch", "The packet arrived on an interface that the matching rule does not name.";
    ControlOverflow = 19, "control_overflow", "A packet for the control plane exceeded its rate.";
    NotIp = 20, "not_ip", "Frame on N6 that carries neither IPv4 nor IPv6.";
    NeighbourUnresolved = 21, "neighbour_unresolved", "The next hop's link-layer address is not known yet.";
    TtlExpired = 22, "ttl_expired", "Time to live or hop limit reached zero.";
    MeterRed = 23, "meter_red", "A fast-path meter marked the packet red.";
    FastPathMiss = 24, "fast_path_miss", "The fast path has no entry and no host path takes over.";
    QuotaExhausted = 25, "quota_exhausted", "The usage quota of a usage reporting rule is used up.";
    LinkLocal = 26, "link_local", "Multicast or link-local packet, which belongs to its link and is never forwarded.";
    CoreInterface = 27, "core_interface", "Uplink packet to this machine or the core's networks, which UEs must not reach unless the configuration opens a service.";
    Redirected = 28, "redirected", "Answered with a redirection, as the forwarding action rule says, instead of being forwarded.";
    EthernetSource = 29, "ethernet_source", "Ethernet frame whose source is a group address or belongs to somebody else.";
    EthernetMalformed = 30, "ethernet_malformed", "Ethernet frame that ends before its header does.";
    NoTranslation = 31, "no_translation", "Later fragment of a flow that is redirected to an address, which names no flow to translate.";
    EthernetFiltered = 32, "ethernet_filtered", "Ethernet frame whose destination is where it came from.";
    EthernetFlood = 33, "ethernet_flood", "Ethernet frame for all sessions of a data network beyond the rate of such frames.";
    WorkerFailed = 34, "worker_failed", "In a batch at which the packet path failed, a defect: some of it may have been sent.";
    RxQueueFull = 35, "rx_queue_full", "Received faster than a worker took: the receive queue was full.";
    RxNoBuffer = 36, "rx_no_buffer", "Received while no memory was free for another packet.";
    TunnelLoop = 37, "tunnel_loop", "The tunnel leads back to this machine: the packet would come again and again.";
    FragmentOverlap = 38, "fragment_overlap", "Fragment of octets that have come already, or that contradicts other fragments.";
    FragmentOverflow = 39, "fragment_overflow", "Later fragment whose first one has not come in time, or beyond the room for fragments.";
    RxError = 40, "rx_error", "Damaged when it was received, as the device counts.";
    PeerGone = 41, "peer_gone", "Sent into memory shared with a peer that ended before it took the packet.";
    WorkerQueueFull = 42, "worker_queue_full", "Of a session of another worker, which takes packets slower than they come.";
    UnknownVlan = 43, "unknown_vlan", "Frame of a VLAN that no interface of the device has, or whose interface is away.";
    NoBearer = 44, "no_bearer", "No radio bearer carries the packet's QoS flow.";
    PdcpMalformed = 45, "pdcp_malformed", "PDCP or SDAP PDU that is malformed, or of a kind that is not used.";
    PdcpStale = 46, "pdcp_stale", "PDCP PDU that has come before, or is older than the receiving window.";
    PdcpIntegrity = 47, "pdcp_integrity", "PDCP PDU whose integrity check failed.";
    PdcpExhausted = 48, "pdcp_exhausted", "All PDCP COUNT values of the bearer's key are used up.";
    PdcpOverflow = 49, "pdcp_overflow", "PDCP PDU out of order beyond the room for such PDUs.";
    DiscardTimer = 50, "discard_timer", "Waited for the radio link longer than the bearer allows.";
    UnknownBearer = 51, "unknown_bearer", "Of a UE or radio bearer that this node does not have.";
    UuMalformed = 52, "uu_malformed", "Datagram between UE and DU that is malformed, of another cell, or not from where its UE is.";
    RlcDiscarded = 53, "rlc_discarded", "RLC PDU that is malformed, a duplicate or outside its window, or segments whose SDU stayed incomplete.";
    RadioQueueFull = 54, "radio_queue_full", "The radio link took less than came, and the queue in front of it was full.";
    RadioLoss = 55, "radio_loss", "Lost on the simulated radio link, after the last retransmission.";
    BearerReleased = 56, "bearer_released", "Waited for the radio link when its bearer was released.";
    NoFlowEntry = 57, "no_flow_entry", "No entry of the switch's flow tables matches the packet.";
    FlowEntryDrop = 58, "flow_entry_drop", "The switch's flow entries send the packet nowhere.";
    FlowEntryUnusable = 59, "flow_entry_unusable", "The switch's flow entries send the packet round in circles, or into a tunnel that it did not come by.";
}

impl DropReason {
    /// How many reasons there are; the length of counter arrays.
    pub const COUNT: usize = DropReason::ALL.len();

    /// The reason with this number, if there is one.
    pub fn from_number(number: u8) -> Option<DropReason> {
        DropReason::ALL.get(usize::from(number)).copied()
    }

    /// Index into a counter array.
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_and_names_unique() {
        let mut names = std::collections::BTreeSet::new();
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
            assert_eq!(DropReason::from_number(index as u8), Some(*reason));
            assert!(names.insert(reason.name()), "{} twice", reason.name());
            assert!(reason.name().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
            assert!(reason.description().ends_with('.'));
        }
        assert_eq!(DropReason::from_number(DropReason::COUNT as u8), None);
    }

    /// The published part of the list: a change here breaks stored results and the eBPF maps.
    #[test]
    fn published_numbers_never_change() {
        for (number, name) in [
            (0, "gtpu_malformed"),
            (4, "unknown_teid"),
            (5, "unknown_ue"),
            (7, "source_address"),
            (11, "rate_limit"),
            (15, "tx_queue_full"),
            (20, "not_ip"),
            (25, "quota_exhausted"),
            (34, "worker_failed"),
            (35, "rx_queue_full"),
            (36, "rx_no_buffer"),
        ] {
            assert_eq!(DropReason::from_number(number).unwrap().name(), name);
        }
    }
}
