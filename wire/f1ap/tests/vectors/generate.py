#!/usr/bin/env python3
"""Writes vectors.tsv: F1AP PDUs as pycrate encodes them from the ASN.1 of TS 38.473.

The values are those of tests/common/mod.rs, written here a second time by hand, so that a field mapped to the wrong
member shows. Needs pycrate (scripts/requirements.txt); run it when a vector is added.
"""

import os

from pycrate_asn1dir import F1AP

PLMN = bytes.fromhex("99f907")
CU, DU = 0xFFFE0007, 5
CGI = {"pLMN-Identity": PLMN, "nRCellIdentity": (0x123456789, 36)}
# The enhanced version has no type of its own; FiveGS-TAC has three octets too.
VERSION = {"latest-RRC-Version": (0, 3), "iE-Extensions": [
    {"id": 199, "criticality": "ignore", "extensionValue": (("F1AP-IEs", "FiveGS-TAC"), bytes([17, 4, 0]))}]}
V4, V6 = bytes([10, 1, 2, 3]), bytes.fromhex("fd000000000000000000000000000007")
DIAGNOSTICS = {
    "procedureCode": 5, "triggeringMessage": "successful-outcome", "procedureCriticality": "notify",
    "transactionID": 7, "iEsCriticalityDiagnostics": [
        {"iECriticality": "reject", "iE-ID": 64, "typeOfError": "missing"},
        {"iECriticality": "notify", "iE-ID": 700, "typeOfError": "not-understood"}]}
DIAG = (7, "ignore", ("CriticalityDiagnostics", DIAGNOSTICS))
TRANSACTION = (78, "reject", ("TransactionID", 7))
CU_ID = (40, "reject", ("GNB-CU-UE-F1AP-ID", CU))
DU_ID = (41, "reject", ("GNB-DU-UE-F1AP-ID", DU))
DU_ID_OPT = (41, "ignore", ("GNB-DU-UE-F1AP-ID", DU))
RATE = 2_500_000_000


def pdu(direction, code, criticality, name, *items):
    ies = [{"id": number, "criticality": c, "value": value} for number, c, value in items]
    return (direction, {"procedureCode": code, "criticality": criticality, "value": (name, {"protocolIEs": ies})})


def items(number, criticality, name, item_number, item_name, values):
    return (number, criticality, (name, [
        {"id": item_number, "criticality": criticality, "value": (item_name, value)} for value in values]))


def cause(group, value):
    return (0, "ignore", ("Cause", (group, value)))


def tunnel(kind, teid):
    octets = [V4, V6, V4 + V6][teid % 3]
    bits = (int.from_bytes(octets, "big"), len(octets) * 8)
    return {kind: ("gTPTunnel", {"transportLayerAddress": bits, "gTP-TEID": teid.to_bytes(4, "big")})}


def ul(*teids):
    return [tunnel("uLUPTNLInformation", teid) for teid in teids]


def dl(*teids):
    return [tunnel("dLUPTNLInformation", teid) for teid in teids]


def freq(arfcn, band, sul=None):
    value = {"nRARFCN": arfcn, "freqBandListNr": [
        {"freqBandIndicatorNr": band, "supportedSULBandList": [{"freqBandIndicatorNr": 80}] if sul else []}]}
    if sul:
        value["sul-Information"] = {"sUL-NRARFCN": sul, "sUL-transmission-Bandwidth": width("scs15", "nrb160")}
    return value


def width(scs, nrb):
    return {"nRSCS": scs, "nRNRB": nrb}


CELLS = [
    {"served-Cell-Information": {
        "nRCGI": CGI, "nRPCI": 1007, "fiveGS-TAC": bytes.fromhex("0a0b0c"),
        "servedPLMNs": [{"pLMN-Identity": PLMN, "iE-Extensions": [
            {"id": 131, "criticality": "ignore", "extensionValue": ("SliceSupportList", [
                {"sNSSAI": {"sST": b"\x01"}}, {"sNSSAI": {"sST": b"\x02", "sD": bytes.fromhex("0000ff")}}])}]}],
        "nR-Mode-Info": ("tDD", {"nRFreqInfo": freq(630000, 78, 350000),
                                 "transmission-Bandwidth": width("scs30", "nrb106")}),
        "measurementTimingConfiguration": b"mtc"},
     "gNB-DU-System-Information": {"mIB-message": b"mib", "sIB1-message": b"sib1" * 50}},
    {"served-Cell-Information": {
        "nRCGI": {"pLMN-Identity": PLMN, "nRCellIdentity": (0, 36)}, "nRPCI": 0,
        "configured-EPS-TAC": b"\x01\x02", "servedPLMNs": [{"pLMN-Identity": PLMN}],
        "nR-Mode-Info": ("fDD", {
            "uL-NRFreqInfo": freq(380000, 1), "dL-NRFreqInfo": freq(428000, 1),
            "uL-Transmission-Bandwidth": width("scs15", "nrb273"),
            "dL-Transmission-Bandwidth": width("scs480", "nrb33")}),
        "measurementTimingConfiguration": b""}}]

ARP = {"priorityLevel": 8, "pre-emptionCapability": "may-trigger-pre-emption",
       "pre-emptionVulnerability": "not-pre-emptable"}
QOS = {"qoS-Characteristics": ("non-Dynamic-5QI", {"fiveQI": 9, "qoSPriorityLevel": 90}),
       "nGRANallocationRetentionPriority": ARP}
GBR = {"qoS-Characteristics": ("dynamic-5QI", {
           "qoSPriorityLevel": 20, "packetDelayBudget": 100, "packetErrorRate": {"pER-Scalar": 1, "pER-Exponent": 6},
           "fiveQI": 3, "delayCritical": "non-delay-critical", "averagingWindow": 2000, "maxDataBurstVolume": 255}),
       "nGRANallocationRetentionPriority": ARP,
       "gBR-QoS-Flow-Information": {
           "maxFlowBitRateDownlink": RATE, "maxFlowBitRateUplink": 1, "guaranteedFlowBitRateDownlink": 0,
           "guaranteedFlowBitRateUplink": 4_000_000_000_000, "maxPacketLossRateDownlink": 1000,
           "maxPacketLossRateUplink": 0},
       "reflective-QoS-Attribute": "subject-to"}


def qos(*flows):
    return ("choice-extension", {"id": 164, "criticality": "ignore", "value": ("DRB-Information", {
        "dRB-QoS": flows[0][1], "sNSSAI": {"sST": b"\x02", "sD": bytes.fromhex("0000ff")},
        "notificationControl": "not-active",
        "flows-Mapped-To-DRB-List": [
            {"qoSFlowIdentifier": qfi, "qoSFlowLevelQoSParameters": value} for qfi, value in flows]})})


def sn(number, value):
    return {"id": number, "criticality": "ignore", "extensionValue": ("PDCPSNLength", value)}


DRBS = [
    {"dRBID": 1, "qoSInformation": qos((9, QOS)), "uLUPTNLInformation-ToBeSetup-List": ul(3),
     "rLCMode": "rlc-am", "iE-Extensions": [sn(161, "twelve-bits")]},
    {"dRBID": 32, "qoSInformation": qos((63, GBR), (0, QOS)), "uLUPTNLInformation-ToBeSetup-List": ul(0x80000001, 5),
     "rLCMode": "rlc-um-bidirectional", "uLConfiguration": {"uLUEConfiguration": "only"},
     "duplicationActivation": "inactive", "iE-Extensions": [sn(161, "eighteen-bits"), sn(192, "twelve-bits")]}]
SRBS = [{"sRBID": 1}, {"sRBID": 2, "duplicationIndication": "true"}]
CU_TO_DU = {"cG-ConfigInfo": b"info", "uE-CapabilityRAT-ContainerList": b"caps", "measConfig": b"meas",
            "iE-Extensions": [
                {"id": 119, "criticality": "ignore", "extensionValue": ("HandoverPreparationInformation", b"ho")},
                {"id": 173, "criticality": "ignore", "extensionValue": ("CellGroupConfig", b"cell")}]}
DU_TO_CU = {"cellGroupConfig": b"group", "measGapConfig": b"gap", "requestedP-MaxFR1": b"p"}
SETUP = [{"dRBID": 1, "lCID": 4, "dLUPTNLInformation-ToBeSetup-List": dl(6)},
         {"dRBID": 32, "dLUPTNLInformation-ToBeSetup-List": dl(7, 8)}]
DRB_FAILED = [{"dRBID": 7, "cause": ("radioNetwork", "multiple-drb-id-instances")}, {"dRBID": 8}]
SRB_FAILED = [{"sRBID": 3, "cause": ("transport", "transport-resource-unavailable")}]
UES = [{"gNB-CU-UE-F1AP-ID": CU, "gNB-DU-UE-F1AP-ID": DU}, {"gNB-DU-UE-F1AP-ID": 65536}, {"gNB-CU-UE-F1AP-ID": 0}]
CONTAINER = (50, "reject", ("RRCContainer", b"rrc"))
CONTAINER_OPT = (50, "ignore", ("RRCContainer", b"rrc"))
INITIATING, SUCCESSFUL, UNSUCCESSFUL = "initiatingMessage", "successfulOutcome", "unsuccessfulOutcome"

PDUS = [
    pdu(INITIATING, 1, "reject", "F1SetupRequest", TRANSACTION, (42, "reject", ("GNB-DU-ID", 0x987654321)),
        (45, "ignore", ("GNB-DU-Name", "godwit du-1")),
        items(44, "reject", "GNB-DU-Served-Cells-List", 43, "GNB-DU-Served-Cells-Item", CELLS),
        (171, "reject", ("RRC-Version", VERSION))),
    pdu(SUCCESSFUL, 1, "reject", "F1SetupResponse", TRANSACTION, (82, "ignore", ("GNB-CU-Name", "cu")),
        items(3, "reject", "Cells-to-be-Activated-List", 4, "Cells-to-be-Activated-List-Item",
              [{"nRCGI": CGI, "nRPCI": 500}, {"nRCGI": CGI}]),
        (170, "reject", ("RRC-Version", VERSION))),
    pdu(UNSUCCESSFUL, 1, "reject", "F1SetupFailure", TRANSACTION, cause("misc", "control-processing-overload"),
        (77, "ignore", ("TimeToWait", "v60s")), DIAG),
    pdu(INITIATING, 0, "reject", "Reset", TRANSACTION, cause("misc", "om-intervention"),
        (48, "reject", ("ResetType", ("f1-Interface", "reset-all")))),
    pdu(INITIATING, 0, "reject", "Reset", TRANSACTION, cause("radioNetwork", "tat-sdt-expiry"),
        (48, "reject", ("ResetType", ("partOfF1-Interface", [
            {"id": 80, "criticality": "reject", "value": ("UE-associatedLogicalF1-ConnectionItem", ue)}
            for ue in UES])))),
    pdu(SUCCESSFUL, 0, "reject", "ResetAcknowledge", TRANSACTION,
        items(81, "ignore", "UE-associatedLogicalF1-ConnectionListResAck", 80,
              "UE-associatedLogicalF1-ConnectionItem", UES), DIAG),
    pdu(INITIATING, 2, "ignore", "ErrorIndication", TRANSACTION,
        (40, "ignore", ("GNB-CU-UE-F1AP-ID", CU)), DU_ID_OPT, cause("protocol", "semantic-error"), DIAG),
    pdu(INITIATING, 11, "ignore", "InitialULRRCMessageTransfer", DU_ID, (111, "reject", ("NRCGI", CGI)),
        (95, "reject", ("C-RNTI", 17921)), CONTAINER, (128, "reject", ("DUtoCURRCContainer", b"group")),
        (78, "ignore", ("TransactionID", 7)), (241, "ignore", ("RRCContainer-RRCSetupComplete", b"done"))),
    pdu(INITIATING, 12, "ignore", "DLRRCMessageTransfer", CU_ID, DU_ID,
        (47, "reject", ("GNB-DU-UE-F1AP-ID", 4)), (64, "reject", ("SRBID", 1)), CONTAINER,
        (184, "ignore", ("RRCDeliveryStatusRequest", "true"))),
    pdu(INITIATING, 13, "ignore", "ULRRCMessageTransfer", CU_ID, DU_ID, (64, "reject", ("SRBID", 2)), CONTAINER),
    pdu(INITIATING, 5, "reject", "UEContextSetupRequest", CU_ID, DU_ID_OPT, (63, "reject", ("NRCGI", CGI)),
        (107, "reject", ("ServCellIndex", 0)), (96, "ignore", ("CellULConfigured", "ul")),
        (9, "reject", ("CUtoDURRCInformation", CU_TO_DU)),
        items(74, "reject", "SRBs-ToBeSetup-List", 73, "SRBs-ToBeSetup-Item", SRBS),
        items(35, "reject", "DRBs-ToBeSetup-List", 34, "DRBs-ToBeSetup-Item", DRBS),
        CONTAINER_OPT, (158, "ignore", ("BitRate", RATE)), (184, "ignore", ("RRCDeliveryStatusRequest", "true"))),
    pdu(SUCCESSFUL, 5, "reject", "UEContextSetupResponse", CU_ID, DU_ID,
        (39, "reject", ("DUtoCURRCInformation", DU_TO_CU)), (95, "ignore", ("C-RNTI", 17921)),
        (94, "reject", ("FullConfiguration", "full")),
        items(27, "ignore", "DRBs-Setup-List", 26, "DRBs-Setup-Item", SETUP),
        items(66, "ignore", "SRBs-FailedToBeSetup-List", 65, "SRBs-FailedToBeSetup-Item", SRB_FAILED),
        items(15, "ignore", "DRBs-FailedToBeSetup-List", 14, "DRBs-FailedToBeSetup-Item", DRB_FAILED), DIAG),
    pdu(UNSUCCESSFUL, 5, "reject", "UEContextSetupFailure", CU_ID, DU_ID_OPT,
        cause("radioNetwork", "no-radio-resources-available"), DIAG),
    pdu(INITIATING, 10, "ignore", "UEContextReleaseRequest", CU_ID, DU_ID, cause("radioNetwork", "rl-failure-rlc")),
    pdu(INITIATING, 6, "reject", "UEContextReleaseCommand", CU_ID, DU_ID, cause("radioNetwork", "normal-release"),
        CONTAINER_OPT, (64, "ignore", ("SRBID", 1))),
    pdu(SUCCESSFUL, 6, "reject", "UEContextReleaseComplete", CU_ID, DU_ID, DIAG),
    pdu(INITIATING, 7, "reject", "UEContextModificationRequest", CU_ID, DU_ID,
        (9, "reject", ("CUtoDURRCInformation", {})),
        (87, "ignore", ("RRCReconfigurationCompleteIndicator", "failure")), CONTAINER,
        items(76, "reject", "SRBs-ToBeSetupMod-List", 75, "SRBs-ToBeSetupMod-Item", SRBS),
        items(37, "reject", "DRBs-ToBeSetupMod-List", 36, "DRBs-ToBeSetupMod-Item", DRBS),
        items(31, "reject", "DRBs-ToBeModified-List", 30, "DRBs-ToBeModified-Item", [
            {"dRBID": 3, "qoSInformation": qos((1, QOS)), "uLUPTNLInformation-ToBeSetup-List": ul(9),
             "iE-Extensions": [sn(161, "eighteen-bits"), sn(192, "eighteen-bits"), {
                 "id": 187, "criticality": "ignore", "extensionValue": ("RLCMode", "rlc-um-unidirectional-dl")}]},
            {"dRBID": 4, "uLUPTNLInformation-ToBeSetup-List": ul(10)}]),
        items(33, "reject", "DRBs-ToBeReleased-List", 32, "DRBs-ToBeReleased-Item", [{"dRBID": 5}, {"dRBID": 6}]),
        (158, "ignore", ("BitRate", RATE))),
    pdu(SUCCESSFUL, 7, "reject", "UEContextModificationResponse", CU_ID, DU_ID,
        (39, "reject", ("DUtoCURRCInformation", {"cellGroupConfig": b"group"})),
        items(29, "ignore", "DRBs-SetupMod-List", 28, "DRBs-SetupMod-Item", SETUP),
        items(21, "ignore", "DRBs-Modified-List", 20, "DRBs-Modified-Item", SETUP[:1]),
        items(68, "ignore", "SRBs-FailedToBeSetupMod-List", 67, "SRBs-FailedToBeSetupMod-Item", SRB_FAILED),
        items(17, "ignore", "DRBs-FailedToBeSetupMod-List", 16, "DRBs-FailedToBeSetupMod-Item", DRB_FAILED),
        items(13, "ignore", "DRBs-FailedToBeModified-List", 12, "DRBs-FailedToBeModified-Item", DRB_FAILED), DIAG),
    pdu(UNSUCCESSFUL, 7, "reject", "UEContextModificationFailure", CU_ID, DU_ID,
        cause("radioNetwork", "unknown-drb-id"), DIAG),
    pdu(INITIATING, 18, "ignore", "Paging", (117, "reject", ("UEIdentityIndexValue", ("indexLength10", (0x2A5, 10)))),
        (127, "reject", ("PagingIdentity", ("cNUEPagingIdentity", ("fiveG-S-TMSI", (0x806AC0FFEE01, 48))))),
        (114, "ignore", ("PagingDRX", "v128")),
        items(113, "ignore", "PagingCell-list", 112, "PagingCell-Item", [{"nRCGI": CGI}])),
    pdu(INITIATING, 18, "ignore", "Paging", (117, "reject", ("UEIdentityIndexValue", ("indexLength10", (1, 10)))),
        (127, "reject", ("PagingIdentity", ("rANUEPagingIdentity", {"iRNTI": (0x123456789A, 40)}))),
        items(113, "ignore", "PagingCell-list", 112, "PagingCell-Item", [{"nRCGI": CGI}] * 2)),
]

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors.tsv"), "w") as out:
    out.write("# Written by generate.py with pycrate; do not edit.\n")
    for value in PDUS:
        F1AP.F1AP_PDU_Descriptions.F1AP_PDU.set_val(value)
        octets = F1AP.F1AP_PDU_Descriptions.F1AP_PDU.to_aper()
        out.write(f"{value[1]['value'][0]}\t{octets.hex()}\n")
