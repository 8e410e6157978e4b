//! Usage reports, downlink data, error indications and path reports.
//!
//! A usage report has one table and three IE types, by the message that carries it (§7.5.5.2, §7.5.7.2, §7.5.8.3).

use crate::codec::{ShortBytes, grouped};
use crate::value::*;

grouped! {
    /// Usage report.
    UsageReport {
        /// Rule that reports.
        URR_ID => urr_id: one UrrId,
        /// Sequence number within the rule.
        UR_SEQN => sequence: one UrSeqn,
        /// Why.
        USAGE_REPORT_TRIGGER => trigger: one UsageReportTrigger,
        /// Start of the measurement.
        START_TIME => start_time: opt NtpSeconds,
        /// End of the measurement.
        END_TIME => end_time: opt NtpSeconds,
        /// Volume.
        VOLUME_MEASUREMENT => volume: opt VolumeMeasurement,
        /// Duration.
        DURATION_MEASUREMENT => duration: opt Seconds,
        /// Application that started or stopped.
        APPLICATION_DETECTION_INFORMATION => application: opt Box<ApplicationDetection>,
        /// UE address, when it identifies the traffic.
        UE_IP_ADDRESS => ue_ip_address: opt UeIpAddress,
        /// Network instance, with the address.
        NETWORK_INSTANCE => network_instance: opt ShortBytes,
        /// First packet.
        TIME_OF_FIRST_PACKET => first_packet: opt NtpSeconds,
        /// Last packet.
        TIME_OF_LAST_PACKET => last_packet: opt NtpSeconds,
        /// Before or after a monitoring time or a quality change.
        USAGE_INFORMATION => usage_information: opt UsageInformation,
        /// The query this answers.
        QUERY_URR_REFERENCE => query_reference: opt QueryUrrReference,
        /// When events happened.
        EVENT_TIME_STAMP => event_times: many NtpSeconds,
        /// Ethernet addresses seen behind the UE, and gone.
        ETHERNET_TRAFFIC_INFORMATION => ethernet_traffic: opt Box<EthernetTraffic>,
    }

    /// Application detection information (table 7.5.8.3-2).
    ApplicationDetection {
        /// Application.
        APPLICATION_ID => application_id: one ShortBytes,
        /// Instance, when its flows can be deduced.
        APPLICATION_INSTANCE_ID => instance_id: opt ShortBytes,
        /// Flow description with its direction in the first octet.
        FLOW_INFORMATION => flow_information: opt ShortBytes,
    }

    /// Ethernet traffic information (table 7.5.8.3-3).
    EthernetTraffic {
        /// Addresses that appeared, by VLAN.
        MAC_ADDRESSES_DETECTED => detected: many MacAddressList,
        /// Addresses that were silent for the inactivity timer.
        MAC_ADDRESSES_REMOVED => removed: many MacAddressList,
    }

    /// Load control information (table 7.5.3.3-1).
    LoadControl {
        /// Newer information has a higher number.
        SEQUENCE_NUMBER => sequence: one ControlSequence,
        /// Load.
        METRIC => metric: one Metric,
    }

    /// Overload control information (table 7.5.3.4-1).
    OverloadControl {
        /// Newer information has a higher number.
        SEQUENCE_NUMBER => sequence: one ControlSequence,
        /// Share of requests to spare.
        METRIC => reduction: one Metric,
        /// How long this holds.
        TIMER => validity: one CoarseTimer,
        /// Whether the information is about the node, not its address.
        OCI_FLAGS => flags: opt OciFlags,
    }

    /// Downlink data report (table 7.5.8.2-1): packets wait for a UE without user plane.
    DownlinkDataReport {
        /// PDRs the packets matched.
        PDR_ID => pdr_ids: many PdrId,
        /// Their paging policy and QoS flow.
        DOWNLINK_DATA_SERVICE_INFORMATION => service_information: many DownlinkDataServiceInformation,
    }

    /// Error indication report (table 7.5.8.4-1).
    ErrorIndicationReport {
        /// Endpoints the peer does not know.
        F_TEID => remote_f_teids: many FTeid,
    }

    /// GTP-U peers lost or found again (tables 7.4.5.1.2-1 and 7.4.5.1.3-1).
    UserPlanePathReport {
        /// The peers.
        REMOTE_GTPU_PEER => peers: many RemoteGtpuPeer,
    }
}
