//! Switches, their ports and their connections: hello, features, configuration, packets to and from the controller, roles,
//! and which events a controller hears of.

use crate::action::Action;
use crate::codec::{Reader, Text, Wire, enumerated, flags, layout, pad, put_typed, set_length};
use crate::oxm::{MacAddr, Match};
use crate::{BufferId, Code, Duration, PortNo, TableId, VERSION};

/// OFPT_HELLO (§7.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The version in the header: the highest that the sender has.
    pub version: u8,
    /// Bits of the versions 0 to 31 that the sender has.
    pub bitmap: Option<u32>,
}

/// OFPHET_VERSIONBITMAP.
const VERSION_BITMAP: u16 = 1;

impl Hello {
    /// Ours: version 1.3 and nothing else.
    pub const OURS: Hello = Hello { version: VERSION, bitmap: Some(1 << VERSION) };

    /// Whether we have a version in common with the sender (§6.3.1); else a switch answers OFPHFC_INCOMPATIBLE.
    pub fn is_compatible(&self) -> bool {
        self.bitmap.map_or(self.version >= VERSION, |bitmap| bitmap & (1 << VERSION) != 0)
    }

    pub(crate) fn read(r: &mut Reader<'_>, version: u8) -> Result<Self, Code> {
        let mut bitmap = None;
        // Elements of versions to come are skipped.
        while !r.is_empty() {
            let before = r.len();
            let (kind, mut body) = r.typed(Code::OFPBRC_BAD_LEN)?;
            let length = before - r.len();
            if kind == VERSION_BITMAP && !body.is_empty() {
                bitmap = bitmap.or(Some(u32::read(&mut body)?));
            }
            // Some leave out the padding of the last one.
            r.skip((length.next_multiple_of(8) - length).min(r.len()))?;
        }
        Ok(Self { version, bitmap })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        if let Some(bitmap) = self.bitmap {
            put_typed(out, VERSION_BITMAP, |out| bitmap.write(out));
        }
    }
}

flags! {
    /// OFPC_* (§7.3.1).
    Capabilities(u32) {
        /// Statistics of flows.
        FLOW_STATS = 0x01;
        /// Statistics of tables.
        TABLE_STATS = 0x02;
        /// Statistics of ports.
        PORT_STATS = 0x04;
        /// Statistics of groups.
        GROUP_STATS = 0x08;
        /// Fragments are joined.
        IP_REASM = 0x20;
        /// Statistics of queues.
        QUEUE_STATS = 0x40;
        /// The switch blocks ports against loops.
        PORT_BLOCKED = 0x100;
    }
    /// OFPPC_* (§7.2.1).
    PortConfig(u32) {
        /// Switched off.
        PORT_DOWN = 0x01;
        /// What it receives is dropped.
        NO_RECV = 0x04;
        /// What is sent to it is dropped.
        NO_FWD = 0x20;
        /// It causes no packet-in.
        NO_PACKET_IN = 0x40;
    }
    /// OFPPS_* (§7.2.1).
    PortState(u32) {
        /// No link.
        LINK_DOWN = 1;
        /// Blocked against loops.
        BLOCKED = 2;
        /// Live for groups of type fast failover.
        LIVE = 4;
    }
    /// OFPTC_*: none in use (§7.3.3).
    TableConfig(u32) {}
}

enumerated! {
    /// What happens to IP fragments (§7.3.2).
    Fragments(u16) else OFPSCFC_BAD_FLAGS {
        /// They are like other packets.
        Normal = 0,
        /// They are dropped.
        Drop = 1,
        /// They are joined.
        Reassemble = 2,
    }
    /// Why a packet comes to the controller (§7.4.1).
    PacketInReason(u8) else OFPBRC_BAD_TYPE {
        /// A table-miss flow.
        NoMatch = 0,
        /// An output.
        Action = 1,
        /// No TTL was left.
        InvalidTtl = 2,
    }
    /// What has happened to a port (§7.4.3).
    PortReason(u8) else OFPBRC_BAD_TYPE {
        /// It is new.
        Add = 0,
        /// It is gone.
        Delete = 1,
        /// Its configuration or state is another.
        Modify = 2,
    }
    /// What a controller is for the switch (§6.3.6).
    Role(u32) else OFPRRFC_BAD_ROLE {
        /// As before: only asks.
        NoChange = 0,
        /// One of several.
        Equal = 1,
        /// The only one that may change anything.
        Master = 2,
        /// One that may only read.
        Slave = 3,
    }
}

layout! {
    /// OFPT_FEATURES_REPLY (§7.3.1).
    Features {
        /// The switch: 16 bits of its choice, and a link-layer address.
        datapath_id: u64;
        /// Packets that it can keep.
        n_buffers: u32;
        /// Its tables.
        n_tables: u8;
        /// Which of its connections this is; 0: the main one.
        auxiliary_id: u8, pad 2;
        /// What it can do.
        capabilities: Capabilities, pad 4;
    }

    /// OFPT_GET_CONFIG_REPLY and OFPT_SET_CONFIG (§7.3.2).
    Config {
        /// What happens to IP fragments.
        fragments: Fragments;
        /// How many octets of a packet the controller gets that is not there by an output.
        miss_send_len: u16;
    }

    /// OFPT_PACKET_IN (§7.4.1).
    PacketIn {
        /// Where the switch keeps the packet.
        buffer_id: BufferId;
        /// Its whole length.
        total_len: u16;
        /// Why it comes.
        reason: PacketInReason;
        /// The table of the flow that sent it.
        table_id: TableId;
        /// The cookie of that flow.
        cookie: u64;
        /// Port, metadata, tunnel and other fields that are not in the packet.
        matching: Match, pad 2;
        /// The packet, or its beginning.
        data: Vec<u8>;
    }

    /// OFPT_PORT_STATUS (§7.4.3).
    PortStatus {
        /// What has happened.
        reason: PortReason, pad 7;
        /// The port as it is now.
        port: Port;
    }

    /// A port (§7.2.1). Bits of features are OFPPF_*, speeds are in kb/s.
    Port {
        /// Its number.
        port_no: PortNo, pad 4;
        /// Its link-layer address.
        hw_addr: MacAddr, pad 2;
        /// Its name.
        name: Text<16>;
        /// What an administrator wants of it.
        config: PortConfig;
        /// How it is.
        state: PortState;
        /// Features in use.
        current: u32;
        /// Features that it offers to its peer.
        advertised: u32;
        /// Features that it has.
        supported: u32;
        /// Features that its peer offers.
        peer: u32;
        /// Its speed.
        current_speed_kbps: u32;
        /// The highest.
        max_speed_kbps: u32;
    }

    /// A port's counters (§7.3.5.6). All ones: not counted.
    PortStats {
        /// The port.
        port_no: PortNo, pad 4;
        /// Packets received.
        rx_packets: u64;
        /// Packets sent.
        tx_packets: u64;
        /// Octets received.
        rx_bytes: u64;
        /// Octets sent.
        tx_bytes: u64;
        /// Packets dropped on receipt.
        rx_dropped: u64;
        /// Packets dropped before they were sent.
        tx_dropped: u64;
        /// All errors on receipt.
        rx_errors: u64;
        /// All errors on sending.
        tx_errors: u64;
        /// Frames with alignment errors.
        rx_frame_err: u64;
        /// Overruns.
        rx_over_err: u64;
        /// Checksum errors.
        rx_crc_err: u64;
        /// Collisions.
        collisions: u64;
        /// How long it has existed.
        duration: Duration;
    }

    /// A table's counters (§7.3.5.4).
    TableStats {
        /// The table.
        table_id: TableId, pad 3;
        /// Flows in it.
        active_count: u32;
        /// Packets that came to it.
        lookup_count: u64;
        /// Packets that matched a flow.
        matched_count: u64;
    }

    /// What a switch is (§7.3.5.1).
    Desc {
        /// Who made it.
        manufacturer: Text<256>;
        /// Of which kind.
        hardware: Text<256>;
        /// Its software.
        software: Text<256>;
        /// Its serial number.
        serial_number: Text<32>;
        /// For people.
        datapath: Text<256>;
    }

    /// OFPT_ROLE_REQUEST and OFPT_ROLE_REPLY (§7.3.9).
    RoleRequest {
        /// The role.
        role: Role, pad 4;
        /// Counts elections of a master.
        generation_id: u64;
    }

    /// OFPT_GET_ASYNC_REPLY and OFPT_SET_ASYNC (§7.3.10): which events a controller hears of, by bits of their reasons; first
    /// as master or equal, then as slave.
    AsyncConfig {
        /// Bits of [`PacketInReason`].
        packet_in: [u32; 2];
        /// Bits of [`PortReason`].
        port_status: [u32; 2];
        /// Bits of [`crate::FlowRemovedReason`].
        flow_removed: [u32; 2];
    }
}

impl AsyncConfig {
    /// What holds until a controller says otherwise (§6.3.6): a slave hears of ports only.
    pub const INITIAL: AsyncConfig =
        AsyncConfig { packet_in: [7, 0], port_status: [7, 7], flow_removed: [15, 0] };
}

/// OFPT_PACKET_OUT (§7.3.7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketOut {
    /// A packet that the switch keeps, instead of `data`.
    pub buffer_id: BufferId,
    /// The port that it is treated as received by; [`PortNo::CONTROLLER`] if there is none.
    pub in_port: PortNo,
    /// What is done with it.
    pub actions: Vec<Action>,
    /// The packet.
    pub data: Vec<u8>,
}

impl Wire for PacketOut {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        let (buffer_id, in_port) = (BufferId::read(r)?, PortNo::read(r)?);
        let actions_len = usize::from(u16::read(r)?);
        r.skip(6)?;
        let actions = Vec::read(&mut r.part(actions_len, Code::OFPBAC_BAD_LEN)?)?;
        Ok(Self { buffer_id, in_port, actions, data: Vec::read(r)? })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.buffer_id.write(out);
        self.in_port.write(out);
        let length_at = out.len();
        pad(out, 8);
        self.actions.write(out);
        set_length(out, length_at, length_at + 8);
        self.data.write(out);
    }
}
