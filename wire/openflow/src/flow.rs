//! Flows and groups: what controllers install, and what switches report about it.

use crate::action::{Action, Instructions};
use crate::codec::{Reader, Wire, enumerated, flags, layout, numbers};
use crate::oxm::Match;
use crate::{BufferId, Code, Duration, GroupId, PortNo, TableId};

enumerated! {
    /// What to do with flows (§7.3.4.1). Strict: with the same match and priority.
    FlowModCommand(u8) else OFPFMFC_BAD_COMMAND {
        /// Install one.
        Add = 0,
        /// Change the instructions of all that the match includes.
        Modify = 1,
        /// Change the instructions of one.
        ModifyStrict = 2,
        /// Remove all that the match includes.
        Delete = 3,
        /// Remove one.
        DeleteStrict = 4,
    }
    /// Why a flow is gone (§7.4.2).
    FlowRemovedReason(u8) else OFPBRC_BAD_TYPE {
        /// No packet within `idle_timeout_s`.
        IdleTimeout = 0,
        /// `hard_timeout_s` is over.
        HardTimeout = 1,
        /// A flow-mod removed it.
        Delete = 2,
        /// Its group was removed.
        GroupDelete = 3,
    }
    /// What to do with a group (§7.3.4.2).
    GroupModCommand(u16) else OFPGMFC_BAD_COMMAND {
        /// Create it.
        Add = 0,
        /// Change it.
        Modify = 1,
        /// Remove it, and flows that use it.
        Delete = 2,
    }
    /// Which buckets of a group are executed (§5.6.1).
    GroupType(u8) else OFPGMFC_BAD_TYPE {
        /// All.
        All = 0,
        /// One, chosen by the switch.
        Select = 1,
        /// The only one.
        Indirect = 2,
        /// The first that is live.
        FastFailover = 3,
    }
}

flags! {
    /// OFPFF_* (§7.3.4.1).
    FlowModFlags(u16) else OFPFMFC_BAD_FLAGS {
        /// Send flow-removed when it is gone.
        SEND_FLOW_REM = 0x01;
        /// Refuse to add a flow that overlaps one of the same priority.
        CHECK_OVERLAP = 0x02;
        /// Begin to count anew.
        RESET_COUNTS = 0x04;
        /// Packets need not be counted.
        NO_PKT_COUNTS = 0x08;
        /// Octets need not be counted.
        NO_BYT_COUNTS = 0x10;
    }
}

numbers! {
    /// How much of a group's traffic a bucket gets; only in groups of type select.
    Weight(u16) {}
}

layout! {
    /// OFPT_FLOW_MOD (§7.3.4.1).
    FlowMod {
        /// The controller's mark of the flow.
        cookie: u64;
        /// Bits of `cookie` that a flow must have to be modified or deleted; 0: any. Without meaning for add.
        cookie_mask: u64;
        /// The table; with delete also [`TableId::ALL`].
        table_id: TableId;
        /// What to do.
        command: FlowModCommand;
        /// Seconds without packets until it is removed; 0: never.
        idle_timeout_s: u16;
        /// Seconds until it is removed; 0: never.
        hard_timeout_s: u16;
        /// Higher ones are matched first.
        priority: u16;
        /// A packet that the switch keeps, which takes the flow, too.
        buffer_id: BufferId;
        /// Delete only flows with an output to this port; [`PortNo::ANY`]: all.
        out_port: PortNo;
        /// Delete only flows with this group; [`GroupId::ANY`]: all.
        out_group: GroupId;
        /// Flags.
        flags: FlowModFlags, pad 2;
        /// Which packets.
        matching: Match;
        /// What is done with them.
        instructions: Instructions;
    }

    /// OFPT_FLOW_REMOVED (§7.4.2).
    FlowRemoved {
        /// The flow's cookie.
        cookie: u64;
        /// Its priority.
        priority: u16;
        /// Why it is gone.
        reason: FlowRemovedReason;
        /// Its table.
        table_id: TableId;
        /// How long it lived.
        duration: Duration;
        /// As installed.
        idle_timeout_s: u16;
        /// As installed.
        hard_timeout_s: u16;
        /// Packets that took it.
        packet_count: u64;
        /// Octets that took it.
        byte_count: u64;
        /// Its match.
        matching: Match;
    }

    /// Which flows statistics are asked of: OFPMP_FLOW and OFPMP_AGGREGATE (§7.3.5.2).
    FlowStatsRequest {
        /// The table, or [`TableId::ALL`].
        table_id: TableId, pad 3;
        /// Only flows with an output to this port; [`PortNo::ANY`]: all.
        out_port: PortNo;
        /// Only flows with this group; [`GroupId::ANY`]: all.
        out_group: GroupId, pad 4;
        /// Only flows with this cookie.
        cookie: u64;
        /// Bits of the cookie that count.
        cookie_mask: u64;
        /// Only flows that this match includes.
        matching: Match;
    }

    /// A flow and its counters (§7.3.5.2).
    FlowStats [sized] {
        /// Its table.
        table_id: TableId, pad 1;
        /// How long it has lived.
        duration: Duration;
        /// Its priority.
        priority: u16;
        /// As installed.
        idle_timeout_s: u16;
        /// As installed.
        hard_timeout_s: u16;
        /// As installed.
        flags: FlowModFlags, pad 4;
        /// As installed.
        cookie: u64;
        /// Packets that took it.
        packet_count: u64;
        /// Octets that took it.
        byte_count: u64;
        /// Its match.
        matching: Match;
        /// Its instructions.
        instructions: Instructions;
    }

    /// Sums over flows (§7.3.5.3).
    AggregateStats {
        /// Packets.
        packet_count: u64;
        /// Octets.
        byte_count: u64;
        /// Flows.
        flow_count: u32, pad 4;
    }

    /// OFPT_GROUP_MOD (§7.3.4.2).
    GroupMod {
        /// What to do.
        command: GroupModCommand;
        /// The group's type.
        group_type: GroupType, pad 1;
        /// The group; with delete also [`GroupId::ALL`].
        group_id: GroupId;
        /// Its buckets.
        buckets: Vec<Bucket>;
    }

    /// Actions of a group (§7.3.4.2).
    Bucket [sized] {
        /// Its share, in a group of type select.
        weight: Weight;
        /// The port on whose state it depends whether the bucket is live, in a group of type fast failover.
        watch_port: PortNo;
        /// The group on which it depends.
        watch_group: GroupId, pad 4;
        /// What is done with a packet.
        actions: Vec<Action>;
    }

    /// A group's counters (§7.3.5.9).
    GroupStats [sized pad 2] {
        /// The group.
        group_id: GroupId;
        /// Flows and groups that refer to it.
        ref_count: u32, pad 4;
        /// Packets.
        packet_count: u64;
        /// Octets.
        byte_count: u64;
        /// How long it has existed.
        duration: Duration;
        /// Of each bucket.
        buckets: Vec<BucketCounter>;
    }

    /// A bucket's counters.
    BucketCounter {
        /// Packets.
        packet_count: u64;
        /// Octets.
        byte_count: u64;
    }

    /// A group (§7.3.5.10).
    GroupDesc [sized] {
        /// Its type.
        group_type: GroupType, pad 1;
        /// Its number.
        group_id: GroupId;
        /// Its buckets.
        buckets: Vec<Bucket>;
    }

    /// What groups a switch has (§7.3.5.11). Lists are in the order of [`GroupType`].
    GroupFeatures {
        /// Bits of the types.
        types: u32;
        /// OFPGFC_*.
        capabilities: GroupCapabilities;
        /// Most groups of each type.
        max_groups: [u32; 4];
        /// Bits of the actions of each type.
        actions: [u32; 4];
    }
}

flags! {
    /// OFPGFC_* (§7.3.5.11).
    GroupCapabilities(u32) {
        /// Buckets have weights.
        SELECT_WEIGHT = 1;
        /// Groups of type select look at whether a bucket is live.
        SELECT_LIVENESS = 2;
        /// Groups may refer to groups.
        CHAINING = 4;
        /// Loops of groups are found.
        CHAINING_CHECKS = 8;
    }
}

impl FlowMod {
    /// Installs a flow that stays until it is deleted.
    pub fn add(table_id: TableId, priority: u16, matching: Match, instructions: Instructions) -> Self {
        Self {
            cookie: 0,
            cookie_mask: 0,
            table_id,
            command: FlowModCommand::Add,
            idle_timeout_s: 0,
            hard_timeout_s: 0,
            priority,
            buffer_id: BufferId::NO_BUFFER,
            out_port: PortNo::ANY,
            out_group: GroupId::ANY,
            flags: FlowModFlags::default(),
            matching,
            instructions,
        }
    }

    /// Deletes the flows that the match includes.
    pub fn delete(table_id: TableId, matching: Match) -> Self {
        let command = FlowModCommand::Delete;
        Self { command, ..Self::add(table_id, 0, matching, Instructions::default()) }
    }
}

impl FlowStatsRequest {
    /// All flows of a table, or of all tables.
    pub fn all(table_id: TableId) -> Self {
        Self {
            table_id,
            out_port: PortNo::ANY,
            out_group: GroupId::ANY,
            cookie: 0,
            cookie_mask: 0,
            matching: Match::default(),
        }
    }
}

impl Bucket {
    /// A bucket that is always live.
    pub fn new(actions: impl Into<Vec<Action>>) -> Self {
        let (watch_port, watch_group) = (PortNo::ANY, GroupId::ANY);
        Self { weight: Weight(0), watch_port, watch_group, actions: actions.into() }
    }
}

impl GroupMod {
    /// Whether number and buckets are such as the type wants them (§5.6.1, §6.5); else the error of the standard.
    pub fn check(&self) -> Result<(), Code> {
        if self.command == GroupModCommand::Delete {
            return if self.buckets.is_empty() { Ok(()) } else { Err(Code::OFPGMFC_BAD_BUCKET) };
        }
        let weighted = self.buckets.iter().any(|bucket| bucket.weight.0 != 0);
        let unwatched =
            |bucket: &Bucket| bucket.watch_port == PortNo::ANY && bucket.watch_group == GroupId::ANY;
        match self.group_type {
            _ if self.group_id > GroupId::MAX => Err(Code::OFPGMFC_INVALID_GROUP),
            GroupType::Indirect if self.buckets.len() != 1 => Err(Code::OFPGMFC_INVALID_GROUP),
            GroupType::FastFailover if self.buckets.iter().any(unwatched) => Err(Code::OFPGMFC_BAD_WATCH),
            GroupType::Select => Ok(()),
            _ if weighted => Err(Code::OFPGMFC_INVALID_GROUP),
            _ => Ok(()),
        }
    }
}

impl Wire for Duration {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        Ok(Self { seconds: u32::read(r)?, nanoseconds: u32::read(r)? })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.seconds.write(out);
        self.nanoseconds.write(out);
    }
}
