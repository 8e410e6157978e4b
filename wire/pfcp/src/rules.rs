//! PDR, FAR, QER, URR, BAR and traffic endpoints: the tables of TS 29.244 §7.5.2 to §7.5.4.

use crate::codec::{ShortBytes, grouped};
use crate::value::*;

grouped! {
    /// Packet detection information (table 7.5.2.2-2).
    Pdi {
        /// Where the packet comes from.
        SOURCE_INTERFACE => source_interface: one SourceInterface,
        /// Local F-TEID the packet arrives on.
        F_TEID => f_teid: opt FTeid,
        /// Network instance.
        NETWORK_INSTANCE => network_instance: opt ShortBytes,
        /// UE address.
        UE_IP_ADDRESS => ue_ip_address: opt UeIpAddress,
        /// Traffic endpoint that stands for the F-TEID, network instance and UE address.
        TRAFFIC_ENDPOINT_ID => traffic_endpoint_id: opt TrafficEndpointId,
        /// SDF filters; any of them matches.
        SDF_FILTER => sdf_filters: many SdfFilter,
        /// Application to detect.
        APPLICATION_ID => application_id: opt ShortBytes,
        /// The session is an Ethernet one.
        ETHERNET_PDU_SESSION_INFORMATION => ethernet_pdu_session: opt EthernetPduSessionInformation,
        /// Ethernet filters; any of them matches.
        ETHERNET_PACKET_FILTER => ethernet_filters: many EthernetPacketFilter,
        /// QoS flows; any of them matches.
        QFI => qfis: many Qfi,
        /// Routes behind the UE, IPv4.
        FRAMED_ROUTE => framed_routes: many ShortBytes,
        /// Routing protocol for them.
        FRAMED_ROUTING => framed_routing: opt FramedRouting,
        /// Routes behind the UE, IPv6.
        FRAMED_IPV6_ROUTE => framed_ipv6_routes: many ShortBytes,
        /// Kind of source interface (N3, N9 …), TS 29.244 table 8.2.118-1.
        INTERFACE_TYPE_3GPP => source_interface_type: opt InterfaceType,
    }

    /// Ethernet packet filter (table 7.5.2.2-3).
    EthernetPacketFilter {
        /// Identifier of a bidirectional filter.
        ETHERNET_FILTER_ID => filter_id: opt EthernetFilterId,
        /// Whether the filter is bidirectional.
        ETHERNET_FILTER_PROPERTIES => properties: opt EthernetFilterProperties,
        /// MAC addresses; any of them matches.
        MAC_ADDRESS => mac_addresses: many MacAddresses,
        /// EtherType.
        ETHERTYPE => ethertype: opt Ethertype,
        /// Customer VLAN tag.
        C_TAG => c_tag: opt VlanTag,
        /// Service VLAN tag.
        S_TAG => s_tag: opt VlanTag,
        /// SDF filters for IP over Ethernet.
        SDF_FILTER => sdf_filters: many SdfFilter,
    }

    /// Create PDR (table 7.5.2.2-1).
    CreatePdr {
        /// Rule identifier.
        PDR_ID => pdr_id: one PdrId,
        /// Precedence among the session's PDRs.
        PRECEDENCE => precedence: one Precedence,
        /// What to match.
        PDI => pdi: one Pdi,
        /// Outer header to take off.
        OUTER_HEADER_REMOVAL => outer_header_removal: opt OuterHeaderRemoval,
        /// FAR to apply.
        FAR_ID => far_id: opt FarId,
        /// MAR to apply instead: the session has several accesses (ATSSS).
        MAR_ID => mar_id: opt MarId,
        /// URRs that count the packet.
        URR_ID => urr_ids: many UrrId,
        /// QERs that police the packet.
        QER_ID => qer_ids: many QerId,
        /// Predefined rules to activate.
        ACTIVATE_PREDEFINED_RULES => activate_predefined_rules: many ShortBytes,
        /// Not before.
        ACTIVATION_TIME => activation_time: opt NtpSeconds,
        /// Not after.
        DEACTIVATION_TIME => deactivation_time: opt NtpSeconds,
    }

    /// Update PDR (table 7.5.4.2-1). A list that is there replaces the old list.
    UpdatePdr {
        /// Rule to change.
        PDR_ID => pdr_id: one PdrId,
        /// New outer header removal.
        OUTER_HEADER_REMOVAL => outer_header_removal: opt OuterHeaderRemoval,
        /// New precedence.
        PRECEDENCE => precedence: opt Precedence,
        /// New PDI.
        PDI => pdi: opt Pdi,
        /// New FAR.
        FAR_ID => far_id: opt FarId,
        /// New list of URRs.
        URR_ID => urr_ids: many UrrId,
        /// New list of QERs.
        QER_ID => qer_ids: many QerId,
        /// Predefined rules to activate.
        ACTIVATE_PREDEFINED_RULES => activate_predefined_rules: many ShortBytes,
        /// Predefined rules to deactivate.
        DEACTIVATE_PREDEFINED_RULES => deactivate_predefined_rules: many ShortBytes,
        /// Not before.
        ACTIVATION_TIME => activation_time: opt NtpSeconds,
        /// Not after.
        DEACTIVATION_TIME => deactivation_time: opt NtpSeconds,
    }

    /// Remove PDR (table 7.5.4.6-1).
    RemovePdr {
        /// Rule to remove.
        PDR_ID => pdr_id: one PdrId,
    }

    /// Created PDR (table 7.5.3.2-1): what the UP function chose.
    CreatedPdr {
        /// Rule that was created.
        PDR_ID => pdr_id: one PdrId,
        /// F-TEID that was allocated.
        F_TEID => f_teid: opt FTeid,
        /// UE address that was allocated.
        UE_IP_ADDRESS => ue_ip_address: opt UeIpAddress,
    }

    /// Create FAR (table 7.5.2.3-1).
    CreateFar {
        /// Rule identifier.
        FAR_ID => far_id: one FarId,
        /// What to do.
        APPLY_ACTION => apply_action: one ApplyAction,
        /// How to forward; there when FORW is set.
        FORWARDING_PARAMETERS => forwarding_parameters: opt Box<ForwardingParameters>,
        /// Where to send copies; there when DUPL is set.
        DUPLICATING_PARAMETERS => duplicating_parameters: many DuplicatingParameters,
        /// BAR for buffering.
        BAR_ID => bar_id: opt BarId,
    }

    /// Forwarding parameters (table 7.5.2.3-2).
    ForwardingParameters {
        /// Where the packet goes.
        DESTINATION_INTERFACE => destination_interface: one DestinationInterface,
        /// Network instance.
        NETWORK_INSTANCE => network_instance: opt ShortBytes,
        /// Redirection of uplink traffic.
        REDIRECT_INFORMATION => redirect_information: opt RedirectInformation,
        /// Outer header to put on.
        OUTER_HEADER_CREATION => outer_header_creation: opt OuterHeaderCreation,
        /// Marking of the outer header.
        TRANSPORT_LEVEL_MARKING => transport_level_marking: opt TransportLevelMarking,
        /// Forwarding policy.
        FORWARDING_POLICY => forwarding_policy: opt ForwardingPolicy,
        /// Header enrichment.
        HEADER_ENRICHMENT => header_enrichment: opt HeaderEnrichment,
        /// Traffic endpoint the traffic is linked with.
        TRAFFIC_ENDPOINT_ID => linked_traffic_endpoint_id: opt TrafficEndpointId,
        /// ARP or neighbour solicitation proxying.
        PROXYING => proxying: opt Proxying,
        /// Kind of destination interface.
        INTERFACE_TYPE_3GPP => destination_interface_type: opt InterfaceType,
    }

    /// Duplicating parameters (table 7.5.2.3-3).
    DuplicatingParameters {
        /// Where the copy goes.
        DESTINATION_INTERFACE => destination_interface: one DestinationInterface,
        /// Outer header to put on.
        OUTER_HEADER_CREATION => outer_header_creation: opt OuterHeaderCreation,
        /// Marking of the outer header.
        TRANSPORT_LEVEL_MARKING => transport_level_marking: opt TransportLevelMarking,
        /// Forwarding policy.
        FORWARDING_POLICY => forwarding_policy: opt ForwardingPolicy,
    }

    /// Update FAR (table 7.5.4.3-1).
    UpdateFar {
        /// Rule to change.
        FAR_ID => far_id: one FarId,
        /// New action.
        APPLY_ACTION => apply_action: opt ApplyAction,
        /// Changed forwarding parameters.
        UPDATE_FORWARDING_PARAMETERS => update_forwarding_parameters: opt Box<UpdateForwardingParameters>,
        /// Changed duplicating parameters.
        UPDATE_DUPLICATING_PARAMETERS => update_duplicating_parameters: many UpdateDuplicatingParameters,
        /// New BAR.
        BAR_ID => bar_id: opt BarId,
    }

    /// Update forwarding parameters (table 7.5.4.3-2).
    UpdateForwardingParameters {
        /// New destination.
        DESTINATION_INTERFACE => destination_interface: opt DestinationInterface,
        /// New network instance.
        NETWORK_INSTANCE => network_instance: opt ShortBytes,
        /// New redirection.
        REDIRECT_INFORMATION => redirect_information: opt RedirectInformation,
        /// New outer header.
        OUTER_HEADER_CREATION => outer_header_creation: opt OuterHeaderCreation,
        /// New marking.
        TRANSPORT_LEVEL_MARKING => transport_level_marking: opt TransportLevelMarking,
        /// New forwarding policy.
        FORWARDING_POLICY => forwarding_policy: opt ForwardingPolicy,
        /// New header enrichment.
        HEADER_ENRICHMENT => header_enrichment: opt HeaderEnrichment,
        /// SNDEM: send an End Marker on the old tunnel before the new one is used.
        PFCPSMREQ_FLAGS => sm_req_flags: opt SmReqFlags,
        /// New linked traffic endpoint.
        TRAFFIC_ENDPOINT_ID => linked_traffic_endpoint_id: opt TrafficEndpointId,
        /// New kind of destination interface.
        INTERFACE_TYPE_3GPP => destination_interface_type: opt InterfaceType,
    }

    /// Update duplicating parameters (table 7.5.4.3-3).
    UpdateDuplicatingParameters {
        /// New destination.
        DESTINATION_INTERFACE => destination_interface: opt DestinationInterface,
        /// New outer header.
        OUTER_HEADER_CREATION => outer_header_creation: opt OuterHeaderCreation,
        /// New marking.
        TRANSPORT_LEVEL_MARKING => transport_level_marking: opt TransportLevelMarking,
        /// New forwarding policy.
        FORWARDING_POLICY => forwarding_policy: opt ForwardingPolicy,
    }

    /// Remove FAR (table 7.5.4.7-1).
    RemoveFar {
        /// Rule to remove.
        FAR_ID => far_id: one FarId,
    }

    /// Create QER (table 7.5.2.5-1).
    CreateQer {
        /// Rule identifier.
        QER_ID => qer_id: one QerId,
        /// Correlates the QERs of several sessions of one UE and APN.
        QER_CORRELATION_ID => correlation_id: opt QerCorrelationId,
        /// Gates.
        GATE_STATUS => gate_status: one GateStatus,
        /// Maximum bit rates.
        MBR => mbr: opt BitRates,
        /// Guaranteed bit rates.
        GBR => gbr: opt BitRates,
        /// Marking for the service class indicator.
        DL_FLOW_LEVEL_MARKING => dl_flow_level_marking: opt DlFlowLevelMarking,
        /// QoS flow identifier to insert.
        QFI => qfi: opt Qfi,
        /// Reflective QoS.
        RQI => rqi: opt Rqi,
        /// Paging policy indicator, 3 bits.
        PAGING_POLICY_INDICATOR => paging_policy_indicator: opt PagingPolicyIndicator,
        /// Window over which rates are averaged.
        AVERAGING_WINDOW => averaging_window: opt Milliseconds,
    }

    /// Update QER (table 7.5.4.5-1).
    UpdateQer {
        /// Rule to change.
        QER_ID => qer_id: one QerId,
        /// New correlation.
        QER_CORRELATION_ID => correlation_id: opt QerCorrelationId,
        /// New gates.
        GATE_STATUS => gate_status: opt GateStatus,
        /// New maximum bit rates.
        MBR => mbr: opt BitRates,
        /// New guaranteed bit rates.
        GBR => gbr: opt BitRates,
        /// New marking.
        DL_FLOW_LEVEL_MARKING => dl_flow_level_marking: opt DlFlowLevelMarking,
        /// New QoS flow identifier.
        QFI => qfi: opt Qfi,
        /// New reflective QoS indication.
        RQI => rqi: opt Rqi,
        /// New paging policy indicator.
        PAGING_POLICY_INDICATOR => paging_policy_indicator: opt PagingPolicyIndicator,
        /// New averaging window.
        AVERAGING_WINDOW => averaging_window: opt Milliseconds,
    }

    /// Remove QER (table 7.5.4.9-1).
    RemoveQer {
        /// Rule to remove.
        QER_ID => qer_id: one QerId,
    }

    /// Create URR (table 7.5.2.4-1).
    CreateUrr {
        /// Rule identifier.
        URR_ID => urr_id: one UrrId,
        /// What to measure.
        MEASUREMENT_METHOD => measurement_method: one MeasurementMethod,
        /// When to report.
        REPORTING_TRIGGERS => reporting_triggers: one ReportingTriggers,
        /// Period of reports.
        MEASUREMENT_PERIOD => measurement_period: opt Seconds,
        /// Volume after which to report.
        VOLUME_THRESHOLD => volume_threshold: opt Volume,
        /// Volume after which to stop forwarding.
        VOLUME_QUOTA => volume_quota: opt Volume,
        /// Time after which to report.
        TIME_THRESHOLD => time_threshold: opt Seconds,
        /// Time after which to stop forwarding.
        TIME_QUOTA => time_quota: opt Seconds,
        /// Events after which to report.
        EVENT_THRESHOLD => event_threshold: opt Events,
        /// Events after which to stop forwarding.
        EVENT_QUOTA => event_quota: opt Events,
        /// Idle time after which to report and hold the quota.
        QUOTA_HOLDING_TIME => quota_holding_time: opt Seconds,
        /// Dropped downlink traffic after which to report.
        DROPPED_DL_TRAFFIC_THRESHOLD => dropped_dl_traffic_threshold: opt DroppedDlTrafficThreshold,
        /// Validity of the quota.
        QUOTA_VALIDITY_TIME => quota_validity_time: opt Seconds,
        /// When the subsequent thresholds take over.
        MONITORING_TIME => monitoring_time: opt NtpSeconds,
        /// Volume threshold from then on.
        SUBSEQUENT_VOLUME_THRESHOLD => subsequent_volume_threshold: opt Volume,
        /// Time threshold from then on.
        SUBSEQUENT_TIME_THRESHOLD => subsequent_time_threshold: opt Seconds,
        /// Volume quota from then on.
        SUBSEQUENT_VOLUME_QUOTA => subsequent_volume_quota: opt Volume,
        /// Time quota from then on.
        SUBSEQUENT_TIME_QUOTA => subsequent_time_quota: opt Seconds,
        /// Idle time after which time is not measured.
        INACTIVITY_DETECTION_TIME => inactivity_detection_time: opt Seconds,
        /// URRs that report together with this one.
        LINKED_URR_ID => linked_urr_ids: many UrrId,
        /// How to measure.
        MEASUREMENT_INFORMATION => measurement_information: opt MeasurementInformation,
        /// FAR to apply once the quota is exhausted.
        FAR_ID => quota_far_id: opt FarId,
        /// Idle time after which an Ethernet address is forgotten.
        ETHERNET_INACTIVITY_TIMER => ethernet_inactivity_timer: opt Seconds,
        /// Number of periodic reports.
        NUMBER_OF_REPORTS => number_of_reports: opt ReportCount,
        /// Events after which to report, from the monitoring time on.
        SUBSEQUENT_EVENT_THRESHOLD => subsequent_event_threshold: opt Events,
        /// Events after which to stop forwarding, from the monitoring time on.
        SUBSEQUENT_EVENT_QUOTA => subsequent_event_quota: opt Events,
        /// Further monitoring times with the thresholds and quotas from then on.
        ADDITIONAL_MONITORING_TIME => additional_monitoring_times: many AdditionalMonitoringTime,
    }

    /// Update URR (table 7.5.4.4-1).
    UpdateUrr {
        /// Rule to change.
        URR_ID => urr_id: one UrrId,
        /// New measurement method.
        MEASUREMENT_METHOD => measurement_method: opt MeasurementMethod,
        /// New triggers.
        REPORTING_TRIGGERS => reporting_triggers: opt ReportingTriggers,
        /// New period.
        MEASUREMENT_PERIOD => measurement_period: opt Seconds,
        /// New volume threshold.
        VOLUME_THRESHOLD => volume_threshold: opt Volume,
        /// New volume quota.
        VOLUME_QUOTA => volume_quota: opt Volume,
        /// New time threshold.
        TIME_THRESHOLD => time_threshold: opt Seconds,
        /// New time quota.
        TIME_QUOTA => time_quota: opt Seconds,
        /// New event threshold.
        EVENT_THRESHOLD => event_threshold: opt Events,
        /// New event quota.
        EVENT_QUOTA => event_quota: opt Events,
        /// New quota holding time.
        QUOTA_HOLDING_TIME => quota_holding_time: opt Seconds,
        /// New dropped traffic threshold.
        DROPPED_DL_TRAFFIC_THRESHOLD => dropped_dl_traffic_threshold: opt DroppedDlTrafficThreshold,
        /// New validity of the quota.
        QUOTA_VALIDITY_TIME => quota_validity_time: opt Seconds,
        /// New monitoring time.
        MONITORING_TIME => monitoring_time: opt NtpSeconds,
        /// New subsequent volume threshold.
        SUBSEQUENT_VOLUME_THRESHOLD => subsequent_volume_threshold: opt Volume,
        /// New subsequent time threshold.
        SUBSEQUENT_TIME_THRESHOLD => subsequent_time_threshold: opt Seconds,
        /// New subsequent volume quota.
        SUBSEQUENT_VOLUME_QUOTA => subsequent_volume_quota: opt Volume,
        /// New subsequent time quota.
        SUBSEQUENT_TIME_QUOTA => subsequent_time_quota: opt Seconds,
        /// New inactivity detection time.
        INACTIVITY_DETECTION_TIME => inactivity_detection_time: opt Seconds,
        /// New list of linked URRs.
        LINKED_URR_ID => linked_urr_ids: many UrrId,
        /// New measurement information.
        MEASUREMENT_INFORMATION => measurement_information: opt MeasurementInformation,
        /// New FAR for an exhausted quota.
        FAR_ID => quota_far_id: opt FarId,
        /// New Ethernet inactivity timer.
        ETHERNET_INACTIVITY_TIMER => ethernet_inactivity_timer: opt Seconds,
        /// New number of periodic reports.
        NUMBER_OF_REPORTS => number_of_reports: opt ReportCount,
        /// New subsequent number of events to report after.
        SUBSEQUENT_EVENT_THRESHOLD => subsequent_event_threshold: opt Events,
        /// New subsequent number of events to stop forwarding after.
        SUBSEQUENT_EVENT_QUOTA => subsequent_event_quota: opt Events,
        /// New further monitoring times.
        ADDITIONAL_MONITORING_TIME => additional_monitoring_times: many AdditionalMonitoringTime,
    }

    /// Remove URR (table 7.5.4.8-1).
    RemoveUrr {
        /// Rule to remove.
        URR_ID => urr_id: one UrrId,
    }

    /// Additional monitoring time (table 7.5.2.4-3).
    AdditionalMonitoringTime {
        /// When these take over.
        MONITORING_TIME => monitoring_time: one NtpSeconds,
        /// Volume threshold from then on.
        SUBSEQUENT_VOLUME_THRESHOLD => volume_threshold: opt Volume,
        /// Time threshold from then on.
        SUBSEQUENT_TIME_THRESHOLD => time_threshold: opt Seconds,
        /// Volume quota from then on.
        SUBSEQUENT_VOLUME_QUOTA => volume_quota: opt Volume,
        /// Time quota from then on.
        SUBSEQUENT_TIME_QUOTA => time_quota: opt Seconds,
        /// Event threshold from then on.
        SUBSEQUENT_EVENT_THRESHOLD => event_threshold: opt Events,
        /// Event quota from then on.
        SUBSEQUENT_EVENT_QUOTA => event_quota: opt Events,
    }

    /// Query URR (table 7.5.4.10-1).
    QueryUrr {
        /// Rule to report on.
        URR_ID => urr_id: one UrrId,
    }

    /// Create BAR (table 7.5.2.6-1).
    CreateBar {
        /// Rule identifier.
        BAR_ID => bar_id: one BarId,
        /// Delay before a downlink data notification.
        DOWNLINK_DATA_NOTIFICATION_DELAY => notification_delay: opt NotificationDelay,
        /// Packets to buffer.
        SUGGESTED_BUFFERING_PACKETS_COUNT => suggested_packets: opt PacketCount,
    }

    /// Update BAR in a session modification (table 7.5.4.11-1).
    UpdateBar {
        /// Rule to change.
        BAR_ID => bar_id: one BarId,
        /// New notification delay.
        DOWNLINK_DATA_NOTIFICATION_DELAY => notification_delay: opt NotificationDelay,
        /// New number of packets to buffer.
        SUGGESTED_BUFFERING_PACKETS_COUNT => suggested_packets: opt PacketCount,
    }

    /// Update BAR in a session report response (table 7.5.9.2-1).
    UpdateBarInReportResponse {
        /// Rule to change.
        BAR_ID => bar_id: one BarId,
        /// New notification delay.
        DOWNLINK_DATA_NOTIFICATION_DELAY => notification_delay: opt NotificationDelay,
        /// How long to buffer.
        DL_BUFFERING_DURATION => buffering_duration: opt CoarseTimer,
        /// How many packets to buffer.
        DL_BUFFERING_SUGGESTED_PACKET_COUNT => suggested_packet_count: opt SuggestedPacketCount,
        /// New number of packets to buffer.
        SUGGESTED_BUFFERING_PACKETS_COUNT => suggested_packets: opt PacketCount,
    }

    /// Remove BAR (table 7.5.4.12-1).
    RemoveBar {
        /// Rule to remove.
        BAR_ID => bar_id: one BarId,
    }

    /// Create traffic endpoint (table 7.5.2.7-1).
    CreateTrafficEndpoint {
        /// Identifier.
        TRAFFIC_ENDPOINT_ID => id: one TrafficEndpointId,
        /// Local F-TEID.
        F_TEID => f_teid: opt FTeid,
        /// Network instance.
        NETWORK_INSTANCE => network_instance: opt ShortBytes,
        /// UE address.
        UE_IP_ADDRESS => ue_ip_address: opt UeIpAddress,
        /// QoS flows.
        QFI => qfis: many Qfi,
    }

    /// Created traffic endpoint (table 7.5.3.5-1).
    CreatedTrafficEndpoint {
        /// Identifier.
        TRAFFIC_ENDPOINT_ID => id: one TrafficEndpointId,
        /// F-TEID that was allocated.
        F_TEID => f_teid: opt FTeid,
        /// UE address that was allocated.
        UE_IP_ADDRESS => ue_ip_address: opt UeIpAddress,
    }

    /// Update traffic endpoint (table 7.5.4.13-1).
    UpdateTrafficEndpoint {
        /// Identifier.
        TRAFFIC_ENDPOINT_ID => id: one TrafficEndpointId,
        /// New local F-TEID.
        F_TEID => f_teid: opt FTeid,
        /// New network instance.
        NETWORK_INSTANCE => network_instance: opt ShortBytes,
        /// New UE address.
        UE_IP_ADDRESS => ue_ip_address: opt UeIpAddress,
        /// New QoS flows.
        QFI => qfis: many Qfi,
    }

    /// Remove traffic endpoint (table 7.5.4.14-1).
    RemoveTrafficEndpoint {
        /// Identifier.
        TRAFFIC_ENDPOINT_ID => id: one TrafficEndpointId,
    }
}
