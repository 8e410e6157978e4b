#!/usr/bin/env python3
"""Writes vectors.tsv: NGAP PDUs and transfers as pycrate encodes them from the ASN.1 of TS 38.413.

The values are those of tests/common/mod.rs, written here a second time by hand, so that a field mapped
to the wrong member shows. Needs pycrate (pip install pycrate); run it when a vector is added.
"""

from pycrate_asn1dir import NGAP

PLMN = bytes.fromhex("99f907")
AMF_ID, RAN_ID = 0x123456789A, 0xFFFE0007
TAI = {"pLMNIdentity": PLMN, "tAC": bytes.fromhex("0a0b0c")}
S1, S2 = {"sST": b"\x01"}, {"sST": b"\x02", "sD": bytes.fromhex("0000ff")}
SLICES = [{"s-NSSAI": S1}, {"s-NSSAI": S2}]
GUAMI = {"pLMNIdentity": PLMN, "aMFRegionID": (2, 8), "aMFSetID": (513, 10), "aMFPointer": (42, 6)}
TMSI = {"aMFSetID": (513, 10), "aMFPointer": (42, 6), "fiveG-TMSI": bytes.fromhex("c0ffee01")}
LOCATION = ("userLocationInformationNR", {
    "nR-CGI": {"pLMNIdentity": PLMN, "nRCellIdentity": (0x123456789, 36)},
    "tAI": TAI, "timeStamp": bytes.fromhex("deadbeef")})
DIAGNOSTICS = {
    "procedureCode": 15, "triggeringMessage": "successful-outcome", "procedureCriticality": "notify",
    "iEsCriticalityDiagnostics": [
        {"iECriticality": "reject", "iE-ID": 38, "typeOfError": "missing"},
        {"iECriticality": "reject", "iE-ID": 38, "typeOfError": "not-understood"}]}
GBPS, GBPS25 = 1_000_000_000, 2_500_000_000
V4, V6 = bytes([10, 1, 2, 3]), bytes.fromhex("fd000000000000000000000000000007")


def tunnel(teid):
    octets = [V4, V6, V4 + V6][teid % 3]
    bits = (int.from_bytes(octets, "big"), len(octets) * 8)
    return ("gTPTunnel", {"transportLayerAddress": bits, "gTP-TEID": teid.to_bytes(4, "big")})


def ies(*items):
    return {"protocolIEs": [
        {"id": number, "criticality": criticality, "value": value} for number, criticality, value in items]}


def pdu(direction, code, criticality, name, *items):
    return (direction, {"procedureCode": code, "criticality": criticality, "value": (name, ies(*items))})


SETUP_REQUEST = ies(
    (130, "reject", ("PDUSessionAggregateMaximumBitRate", {
        "pDUSessionAggregateMaximumBitRateDL": GBPS25, "pDUSessionAggregateMaximumBitRateUL": GBPS})),
    (139, "reject", ("UPTransportLayerInformation", tunnel(0x80000003))),
    (127, "reject", ("DataForwardingNotPossible", "data-forwarding-not-possible")),
    (134, "reject", ("PDUSessionType", "ipv4v6")),
    (138, "reject", ("SecurityIndication", {
        "integrityProtectionIndication": "not-needed", "confidentialityProtectionIndication": "preferred",
        "maximumIntegrityProtectedDataRate-UL": "maximum-UE-rate"})),
    (129, "reject", ("NetworkInstance", 7)),
    (136, "reject", ("QosFlowSetupRequestList", [
        {"qosFlowIdentifier": 1, "qosFlowLevelQosParameters": {
            "qosCharacteristics": ("nonDynamic5QI", {"fiveQI": 9}),
            "allocationAndRetentionPriority": {
                "priorityLevelARP": 8, "pre-emptionCapability": "may-trigger-pre-emption",
                "pre-emptionVulnerability": "not-pre-emptable"}}},
        {"qosFlowIdentifier": 63, "qosFlowLevelQosParameters": {
            "qosCharacteristics": ("dynamic5QI", {
                "priorityLevelQos": 20, "packetDelayBudget": 100,
                "packetErrorRate": {"pERScalar": 1, "pERExponent": 6}, "fiveQI": 3}),
            "allocationAndRetentionPriority": {
                "priorityLevelARP": 1, "pre-emptionCapability": "shall-not-trigger-pre-emption",
                "pre-emptionVulnerability": "pre-emptable"},
            "gBR-QosInformation": {
                "maximumFlowBitRateDL": GBPS25, "maximumFlowBitRateUL": GBPS,
                "guaranteedFlowBitRateDL": GBPS25, "guaranteedFlowBitRateUL": GBPS,
                "notificationControl": "notification-requested"},
            "reflectiveQosAttribute": "subject-to"}}])))
FLOW_CAUSE = {"qosFlowIdentifier": 63, "cause": ("radioNetwork", "not-supported-5QI-value")}
SETUP_RESPONSE = {
    "dLQosFlowPerTNLInformation": {
        "uPTransportLayerInformation": tunnel(1),
        "associatedQosFlowList": [{"qosFlowIdentifier": 1}, {"qosFlowIdentifier": 9}]},
    "securityResult": {
        "integrityProtectionResult": "not-performed", "confidentialityProtectionResult": "performed"},
    "qosFlowFailedToSetupList": [FLOW_CAUSE]}


def transfer(name, value):
    kind = getattr(NGAP.NGAP_IEs, name)
    kind.set_val(value)
    return kind.to_aper()


def setup_item(session, nas):
    item = {"pDUSessionID": session, "s-NSSAI": S2,
            "pDUSessionResourceSetupRequestTransfer": transfer(
                "PDUSessionResourceSetupRequestTransfer", SETUP_REQUEST)}
    if nas:
        item["pDUSessionNAS-PDU"] = bytes.fromhex("2e0101c2")
    return item


IDS = lambda criticality: [(10, criticality, ("AMF-UE-NGAP-ID", AMF_ID)),
                           (85, criticality, ("RAN-UE-NGAP-ID", RAN_ID))]
AMBR = ("UEAggregateMaximumBitRate", {
    "uEAggregateMaximumBitRateDL": GBPS25, "uEAggregateMaximumBitRateUL": GBPS})
NAS = bytes.fromhex("7e004179000d0199f907")

PDUS = [
    pdu("initiatingMessage", 21, "reject", "NGSetupRequest",
        (27, "reject", ("GlobalRANNodeID", ("globalGNB-ID", {
            "pLMNIdentity": PLMN, "gNB-ID": ("gNB-ID", (0x2A, 24))}))),
        (82, "ignore", ("RANNodeName", "gnb-1")),
        (102, "reject", ("SupportedTAList", [{"tAC": TAI["tAC"], "broadcastPLMNList": [
            {"pLMNIdentity": PLMN, "tAISliceSupportList": SLICES}]}])),
        (21, "ignore", ("PagingDRX", "v256"))),
    pdu("successfulOutcome", 21, "reject", "NGSetupResponse",
        (1, "reject", ("AMFName", "amf-1")),
        (96, "reject", ("ServedGUAMIList", [{"gUAMI": GUAMI, "backupAMFName": "amf-2"}])),
        (86, "ignore", ("RelativeAMFCapacity", 255)),
        (80, "reject", ("PLMNSupportList", [{"pLMNIdentity": PLMN, "sliceSupportList": SLICES}])),
        (19, "ignore", ("CriticalityDiagnostics", DIAGNOSTICS))),
    pdu("unsuccessfulOutcome", 21, "reject", "NGSetupFailure",
        (15, "ignore", ("Cause", ("misc", "unknown-PLMN-or-SNPN"))),
        (107, "ignore", ("TimeToWait", "v20s")),
        (19, "ignore", ("CriticalityDiagnostics", DIAGNOSTICS))),
    pdu("initiatingMessage", 20, "reject", "NGReset",
        (15, "ignore", ("Cause", ("misc", "unknown-PLMN-or-SNPN"))),
        (88, "reject", ("ResetType", ("partOfNG-Interface", [
            {"aMF-UE-NGAP-ID": AMF_ID}, {"rAN-UE-NGAP-ID": RAN_ID}])))),
    pdu("initiatingMessage", 9, "ignore", "ErrorIndication",
        *IDS("ignore"),
        (15, "ignore", ("Cause", ("protocol", "semantic-error"))),
        (19, "ignore", ("CriticalityDiagnostics", DIAGNOSTICS)),
        (26, "ignore", ("FiveG-S-TMSI", TMSI))),
    pdu("initiatingMessage", 15, "ignore", "InitialUEMessage",
        (85, "reject", ("RAN-UE-NGAP-ID", RAN_ID)),
        (38, "reject", ("NAS-PDU", NAS)),
        (121, "reject", ("UserLocationInformation", LOCATION)),
        (90, "ignore", ("RRCEstablishmentCause", "mo-Data")),
        (26, "reject", ("FiveG-S-TMSI", TMSI)),
        (3, "ignore", ("AMFSetID", (1023, 10))),
        (112, "ignore", ("UEContextRequest", "requested")),
        (0, "reject", ("AllowedNSSAI", SLICES))),
    pdu("initiatingMessage", 46, "ignore", "UplinkNASTransport",
        *IDS("reject"), (38, "reject", ("NAS-PDU", NAS)),
        (121, "ignore", ("UserLocationInformation", LOCATION))),
    pdu("initiatingMessage", 4, "ignore", "DownlinkNASTransport",
        *IDS("reject"), (48, "reject", ("AMFName", "old")), (38, "reject", ("NAS-PDU", NAS)),
        (110, "ignore", AMBR), (0, "reject", ("AllowedNSSAI", SLICES))),
    pdu("initiatingMessage", 14, "reject", "InitialContextSetupRequest",
        *IDS("reject"), (110, "reject", AMBR), (28, "reject", ("GUAMI", GUAMI)),
        (71, "reject", ("PDUSessionResourceSetupListCxtReq", [
            {"nAS-PDU" if key == "pDUSessionNAS-PDU" else key: value for key, value in item.items()}
            for item in (setup_item(1, True), setup_item(15, False))])),
        (0, "reject", ("AllowedNSSAI", SLICES)),
        (119, "reject", ("UESecurityCapabilities", {
            "nRencryptionAlgorithms": (0xC000, 16), "nRintegrityProtectionAlgorithms": (0xC000, 16),
            "eUTRAencryptionAlgorithms": (0xE000, 16), "eUTRAintegrityProtectionAlgorithms": (0xE000, 16)})),
        (94, "reject", ("SecurityKey", (int.from_bytes(b"\x5a" * 32, "big"), 256))),
        (117, "ignore", ("UERadioCapability", b"radio")),
        (38, "ignore", ("NAS-PDU", b"nas"))),
    pdu("initiatingMessage", 41, "reject", "UEContextReleaseCommand",
        (114, "reject", ("UE-NGAP-IDs", ("uE-NGAP-ID-pair", {
            "aMF-UE-NGAP-ID": AMF_ID, "rAN-UE-NGAP-ID": RAN_ID}))),
        (15, "ignore", ("Cause", ("nas", "deregister")))),
    pdu("initiatingMessage", 29, "reject", "PDUSessionResourceSetupRequest",
        *IDS("reject"), (38, "reject", ("NAS-PDU", bytes.fromhex("7e0068"))),
        (74, "reject", ("PDUSessionResourceSetupListSUReq", [setup_item(1, True), setup_item(15, False)])),
        (110, "ignore", AMBR)),
    pdu("initiatingMessage", 24, "ignore", "Paging",
        (115, "ignore", ("UEPagingIdentity", ("fiveG-S-TMSI", TMSI))),
        (50, "ignore", ("PagingDRX", "v64")),
        (103, "ignore", ("TAIListForPaging", [{"tAI": TAI}, {"tAI": TAI}]))),
]

with open("vectors.tsv", "w") as out:
    out.write("# Written by generate.py with pycrate; do not edit.\n")
    for value in PDUS:
        NGAP.NGAP_PDU_Descriptions.NGAP_PDU.set_val(value)
        octets = NGAP.NGAP_PDU_Descriptions.NGAP_PDU.to_aper()
        out.write(f"{value[1]['value'][0]}\t{octets.hex()}\n")
    for name, value in [("PDUSessionResourceSetupRequestTransfer", SETUP_REQUEST),
                        ("PDUSessionResourceSetupResponseTransfer", SETUP_RESPONSE)]:
        out.write(f"{name}\t{transfer(name, value).hex()}\n")
