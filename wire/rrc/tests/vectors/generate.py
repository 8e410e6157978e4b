#!/usr/bin/env python3
"""NR RRC as pycrate has it from the ASN.1 of TS 38.331.

Without argument it writes vectors.tsv. The named values are those of tests/common/mod.rs, written here a second time by
hand, so that a member in the wrong place shows. The others are random combinations of members, from a fixed seed, and
messages with extensions and members that our codec skips or refuses.

With the argument `read` it reads lines `channel<tab>hex` from standard input, checks that pycrate decodes each one and
encodes it again to the same octets, and prints the value.

Needs pycrate, which scripts/setup.sh installs.
"""

import random
import sys

from pycrate_asn1dir.RRCNR import NR_RRC_Definitions as RRC

CHANNELS = {
    "UL-CCCH": RRC.UL_CCCH_Message, "DL-CCCH": RRC.DL_CCCH_Message, "UL-DCCH": RRC.UL_DCCH_Message,
    "DL-DCCH": RRC.DL_DCCH_Message, "PCCH": RRC.PCCH_Message, "BCCH-BCH": RRC.BCCH_BCH_Message,
    "BCCH-DL-SCH": RRC.BCCH_DL_SCH_Message, "CellGroupConfig": RRC.CellGroupConfig}


def encode(channel, value):
    kind = CHANNELS[channel]
    kind.set_val(value)
    return kind.to_uper()


def decode(channel, octets):
    kind = CHANNELS[channel]
    kind.from_uper(octets)
    return kind.get_val()


def c1(name, value):
    return {"message": ("c1", (name, value))}


def critical(name, ies, transaction=None):
    value = {"criticalExtensions": (name, ies)}
    if transaction is not None:
        value["rrc-TransactionIdentifier"] = transaction
    return c1(name, value)


# --- The values of tests/common/mod.rs --------------------------------------------------------------------
NAS = bytes.fromhex("7e0043")
MCC, MNC = [9, 9, 9], [7, 0]
PLMN, PLMN3 = {"mcc": MCC, "mnc": MNC}, {"mcc": [3, 1, 0], "mnc": [4, 1, 0]}
TMSI = (0x155 << 38 | 0x2A << 32 | 0xC0FFEE01, 48)
SLICES = [("sst", (1, 8)), ("sst-SD", (0x020000FF, 32))]

AM = ("am", {
    "ul-AM-RLC": {"sn-FieldLength": "size12", "t-PollRetransmit": "ms45", "pollPDU": "infinity",
                  "pollByte": "infinity", "maxRetxThreshold": "t8"},
    "dl-AM-RLC": {"sn-FieldLength": "size18", "t-Reassembly": "ms35", "t-StatusProhibit": "ms2400"}})
UM = ("um-Bi-Directional", {
    "ul-UM-RLC": {"sn-FieldLength": "size6"},
    "dl-UM-RLC": {"sn-FieldLength": "size12", "t-Reassembly": "ms200"}})
CELL_GROUP = {
    "cellGroupId": 0,
    "rlc-BearerToAddModList": [
        {"logicalChannelIdentity": 1, "servedRadioBearer": ("srb-Identity", 1), "rlc-Config": AM,
         "mac-LogicalChannelConfig": {"ul-SpecificParameters": {
             "priority": 1, "prioritisedBitRate": "infinity", "bucketSizeDuration": "ms1000",
             "logicalChannelGroup": 0, "schedulingRequestID": 7, "logicalChannelSR-Mask": False,
             "logicalChannelSR-DelayTimerApplied": True}}},
        {"logicalChannelIdentity": 32, "servedRadioBearer": ("drb-Identity", 29), "reestablishRLC": "true",
         "rlc-Config": UM}],
    "rlc-BearerToReleaseList": [4, 5]}
SRB1 = {"srb-ToAddModList": [{"srb-Identity": 1}]}
DRB_CONFIG = {
    "srb-ToAddModList": [
        {"srb-Identity": 1, "reestablishPDCP": "true", "pdcp-Config": {"t-Reordering": "ms3000"}},
        {"srb-Identity": 2, "discardOnPDCP": "true"}],
    "drb-ToAddModList": [
        {"cnAssociation": ("sdap-Config", {
            "pdu-Session": 1, "sdap-HeaderDL": "present", "sdap-HeaderUL": "absent", "defaultDRB": True,
            "mappedQoS-FlowsToAdd": [1, 63], "mappedQoS-FlowsToRelease": [9]}),
         "drb-Identity": 1, "recoverPDCP": "true",
         "pdcp-Config": {
             "drb": {"discardTimer": "infinity", "pdcp-SN-SizeUL": "len18bits", "pdcp-SN-SizeDL": "len12bits",
                     "headerCompression": ("notUsed", 0), "integrityProtection": "enabled",
                     "statusReportRequired": "true", "outOfOrderDelivery": "true"},
             "t-Reordering": "ms0", "cipheringDisabled": "true"}},
        {"drb-Identity": 32, "reestablishPDCP": "true", "pdcp-Config": {
            "drb": {"discardTimer": "ms10", "headerCompression": ("notUsed", 0)}, "t-Reordering": "ms220"}}],
    "drb-ToReleaseList": [2, 31],
    "securityConfig": {
        "securityAlgorithmConfig": {"cipheringAlgorithm": "nea2", "integrityProtAlgorithm": "nia2"},
        "keyToUse": "secondary"}}

CELL_GROUP_OCTETS = encode("CellGroupConfig", CELL_GROUP)
NAMED = [
    ("UL-CCCH", "rrcSetupRequest random", c1("rrcSetupRequest", {"rrcSetupRequest": {
        "ue-Identity": ("randomValue", (0x123456789A, 39)), "establishmentCause": "mo-Signalling", "spare": (0, 1)}})),
    ("UL-CCCH", "rrcSetupRequest s-tmsi", c1("rrcSetupRequest", {"rrcSetupRequest": {
        "ue-Identity": ("ng-5G-S-TMSI-Part1", (TMSI[0] & 0x7FFFFFFFFF, 39)), "establishmentCause": "spare1",
        "spare": (0, 1)}})),
    ("UL-CCCH", "rrcReestablishmentRequest", c1("rrcReestablishmentRequest", {"rrcReestablishmentRequest": {
        "ue-Identity": {"c-RNTI": 0x4601, "physCellId": 1007, "shortMAC-I": (0xBEEF, 16)},
        "reestablishmentCause": "otherFailure", "spare": (0, 1)}})),
    ("DL-CCCH", "rrcReject", critical("rrcReject", {"waitTime": 16})),
    ("DL-CCCH", "rrcReject bare", critical("rrcReject", {})),
    ("DL-CCCH", "rrcSetup", critical(
        "rrcSetup", {"radioBearerConfig": SRB1, "masterCellGroup": CELL_GROUP_OCTETS}, 3)),
    ("UL-DCCH", "rrcSetupComplete", critical("rrcSetupComplete", {
        "selectedPLMN-Identity": 12,
        "registeredAMF": {"plmn-Identity": PLMN3, "amf-Identifier": (0x02556A, 24)}, "guami-Type": "mapped",
        "s-NSSAI-List": SLICES, "dedicatedNAS-Message": NAS,
        "ng-5G-S-TMSI-Value": ("ng-5G-S-TMSI-Part2", (TMSI[0] >> 39, 9))}, 3)),
    ("UL-DCCH", "rrcSetupComplete bare", critical("rrcSetupComplete", {
        "selectedPLMN-Identity": 1, "dedicatedNAS-Message": NAS}, 0)),
    ("UL-DCCH", "rrcSetupComplete s-tmsi", critical("rrcSetupComplete", {
        "selectedPLMN-Identity": 1, "registeredAMF": {"amf-Identifier": (0x02556A, 24)},
        "dedicatedNAS-Message": bytes(200), "ng-5G-S-TMSI-Value": ("ng-5G-S-TMSI", TMSI)}, 1)),
    ("UL-DCCH", "securityModeComplete", critical("securityModeComplete", {}, 1)),
    ("UL-DCCH", "securityModeFailure", critical("securityModeFailure", {}, 2)),
    ("UL-DCCH", "rrcReconfigurationComplete", critical("rrcReconfigurationComplete", {}, 3)),
    ("UL-DCCH", "ulInformationTransfer", critical("ulInformationTransfer", {"dedicatedNAS-Message": NAS})),
    ("UL-DCCH", "ulInformationTransfer long", critical(
        "ulInformationTransfer", {"dedicatedNAS-Message": b"\x5a" * 16_385})),
    ("DL-DCCH", "securityModeCommand", critical("securityModeCommand", {"securityConfigSMC": {
        "securityAlgorithmConfig": {"cipheringAlgorithm": "nea2", "integrityProtAlgorithm": "nia2"}}}, 1)),
    ("DL-DCCH", "dlInformationTransfer", critical("dlInformationTransfer", {"dedicatedNAS-Message": NAS}, 2)),
    ("DL-DCCH", "rrcReconfiguration", critical("rrcReconfiguration", {
        "radioBearerConfig": DRB_CONFIG, "secondaryCellGroup": CELL_GROUP_OCTETS,
        "nonCriticalExtension": {
            "masterCellGroup": CELL_GROUP_OCTETS, "fullConfig": "true",
            "dedicatedNAS-MessageList": [NAS, bytes.fromhex("7e0055")]}}, 3)),
    ("DL-DCCH", "rrcReconfiguration bare", critical("rrcReconfiguration", {}, 0)),
    ("DL-DCCH", "rrcRelease", critical("rrcRelease", {
        "deprioritisationReq": {"deprioritisationType": "nr", "deprioritisationTimer": "min30"},
        "nonCriticalExtension": {"waitTime": 7}}, 3)),
    ("DL-DCCH", "rrcRelease bare", critical("rrcRelease", {}, 0)),
    ("PCCH", "paging", c1("paging", {"pagingRecordList": [
        {"ue-Identity": ("ng-5G-S-TMSI", TMSI)}, {"ue-Identity": ("fullI-RNTI", (0xFEDCBA9876, 40)),
                                                  "accessType": "non3GPP"}]})),
    ("BCCH-BCH", "mib", {"message": ("mib", {
        "systemFrameNumber": (0x2A, 6), "subCarrierSpacingCommon": "scs30or120", "ssb-SubcarrierOffset": 5,
        "dmrs-TypeA-Position": "pos3", "pdcch-ConfigSIB1": {"controlResourceSetZero": 0xC, "searchSpaceZero": 3},
        "cellBarred": "notBarred", "intraFreqReselection": "allowed", "spare": (0, 1)})}),
    ("BCCH-DL-SCH", "sib1", c1("systemInformationBlockType1", {
        "cellSelectionInfo": {"q-RxLevMin": -62, "q-RxLevMinOffset": 8, "q-RxLevMinSUL": -22, "q-QualMin": -43,
                              "q-QualMinOffset": 1},
        "cellAccessRelatedInfo": {"plmn-IdentityInfoList": [
            {"plmn-IdentityList": [PLMN, PLMN3], "trackingAreaCode": (0x0A0B0C, 24), "ranac": 200,
             "cellIdentity": (0x123456789, 36), "cellReservedForOperatorUse": "notReserved"}]}})),
    ("CellGroupConfig", "cellGroupConfig", CELL_GROUP)]

# --- Random combinations ----------------------------------------------------------------------------------
dice = random.Random(38331)


def some(**members):
    """A SEQUENCE: `must_x` is there always, `x` or `x__flag` sometimes."""
    value = {}
    for name, make in members.items():
        must = name.startswith("must_")
        name = name.removeprefix("must_").replace("_", "-")
        if must or dice.random() < 0.5:
            value[name] = make()
    return value


def one(*values):
    return lambda: dice.choice(values)


def number(low, high):
    return lambda: dice.randint(low, high)


def bits(count):
    return lambda: (dice.getrandbits(count), count)


def octets():
    return dice.randbytes(dice.choice([0, 1, 7, 127, 128, 300]))


def many(low, high, make):
    return lambda: [make() for _ in range(dice.choice([low, low + 1, dice.randint(low, high), high]))]


def names(kind):
    """The values of an ENUMERATED that are not spare."""
    return one(*[name for name in kind._root if not name.startswith("spare")])


TRUE = one("true")
PDCP = RRC.PDCP_Config._cont
DRB = PDCP["drb"]._cont
RLC = RRC.RLC_BearerConfig._cont["rlc-Config"]._cont
UL_AM, DL_AM = (RLC["am"]._cont[name]._cont for name in ("ul-AM-RLC", "dl-AM-RLC"))
DL_UM = RLC["um-Bi-Directional"]._cont["dl-UM-RLC"]._cont
CHANNEL = RRC.RLC_BearerConfig._cont["mac-LogicalChannelConfig"]._cont["ul-SpecificParameters"]._cont


def pdcp():
    return some(
        drb=lambda: some(
            discardTimer=names(DRB["discardTimer"]), pdcp_SN_SizeUL=names(DRB["pdcp-SN-SizeUL"]),
            pdcp_SN_SizeDL=names(DRB["pdcp-SN-SizeDL"]), must_headerCompression=one(("notUsed", 0)),
            integrityProtection=one("enabled"), statusReportRequired=TRUE, outOfOrderDelivery=TRUE),
        t_Reordering=names(PDCP["t-Reordering"]), cipheringDisabled=TRUE)


def sdap():
    return "sdap-Config", some(
        must_pdu_Session=number(0, 255), must_sdap_HeaderDL=one("present", "absent"),
        must_sdap_HeaderUL=one("present", "absent"), must_defaultDRB=one(True, False),
        mappedQoS_FlowsToAdd=many(1, 64, number(0, 63)), mappedQoS_FlowsToRelease=many(1, 64, number(0, 63)))


def algorithms():
    return some(must_cipheringAlgorithm=one("nea0", "nea1", "nea2", "nea3"),
                integrityProtAlgorithm=one("nia0", "nia1", "nia2", "nia3"))


def bearers():
    return some(
        srb_ToAddModList=many(1, 2, lambda: some(
            must_srb_Identity=number(1, 3), reestablishPDCP=TRUE, discardOnPDCP=TRUE, pdcp_Config=pdcp)),
        drb_ToAddModList=many(1, 29, lambda: some(
            cnAssociation=sdap, must_drb_Identity=number(1, 32), reestablishPDCP=TRUE, recoverPDCP=TRUE,
            pdcp_Config=pdcp)),
        drb_ToReleaseList=many(1, 29, number(1, 32)),
        securityConfig=lambda: some(securityAlgorithmConfig=algorithms, keyToUse=one("master", "secondary")))


def rlc():
    ul_um = lambda: some(sn_FieldLength=one("size6", "size12"))
    dl_um = lambda: some(sn_FieldLength=one("size6", "size12"), must_t_Reassembly=names(DL_UM["t-Reassembly"]))
    return dice.choice([
        lambda: ("am", {
            "ul-AM-RLC": some(
                sn_FieldLength=one("size12", "size18"), must_t_PollRetransmit=names(UL_AM["t-PollRetransmit"]),
                must_pollPDU=names(UL_AM["pollPDU"]), must_pollByte=names(UL_AM["pollByte"]),
                must_maxRetxThreshold=names(UL_AM["maxRetxThreshold"])),
            "dl-AM-RLC": some(
                sn_FieldLength=one("size12", "size18"), must_t_Reassembly=names(DL_AM["t-Reassembly"]),
                must_t_StatusProhibit=names(DL_AM["t-StatusProhibit"]))}),
        lambda: ("um-Bi-Directional", {"ul-UM-RLC": ul_um(), "dl-UM-RLC": dl_um()}),
        lambda: ("um-Uni-Directional-UL", {"ul-UM-RLC": ul_um()}),
        lambda: ("um-Uni-Directional-DL", {"dl-UM-RLC": dl_um()})])()


def cell_group():
    channel = lambda: some(
        must_priority=number(1, 16), must_prioritisedBitRate=names(CHANNEL["prioritisedBitRate"]),
        must_bucketSizeDuration=names(CHANNEL["bucketSizeDuration"]), logicalChannelGroup=number(0, 7),
        schedulingRequestID=number(0, 7), must_logicalChannelSR_Mask=one(True, False),
        must_logicalChannelSR_DelayTimerApplied=one(True, False))
    return some(
        must_cellGroupId=number(0, 3),
        rlc_BearerToAddModList=many(1, 32, lambda: some(
            must_logicalChannelIdentity=number(1, 32),
            servedRadioBearer=one(("srb-Identity", dice.randint(1, 3)), ("drb-Identity", dice.randint(1, 32))),
            reestablishRLC=TRUE, rlc_Config=rlc,
            mac_LogicalChannelConfig=lambda: some(ul_SpecificParameters=channel))),
        rlc_BearerToReleaseList=many(1, 32, number(1, 32)))


def cell_group_octets():
    return encode("CellGroupConfig", cell_group())


def plmn():
    digit = number(0, 9)
    return {"mcc": [digit() for _ in range(3)], "mnc": [digit() for _ in range(dice.choice([2, 3]))]}


def transaction():
    return dice.randint(0, 3)


RANDOM = {
    "UL-CCCH": [
        lambda: c1("rrcSetupRequest", {"rrcSetupRequest": {
            "ue-Identity": (dice.choice(["randomValue", "ng-5G-S-TMSI-Part1"]), bits(39)()), "spare": (0, 1),
            "establishmentCause": dice.choice(list(RRC.EstablishmentCause._root))}}),
        lambda: c1("rrcReestablishmentRequest", {"rrcReestablishmentRequest": {
            "ue-Identity": {"c-RNTI": dice.randint(0, 65535), "physCellId": dice.randint(0, 1007),
                            "shortMAC-I": bits(16)()},
            "reestablishmentCause": dice.choice(list(RRC.ReestablishmentCause._root)), "spare": (0, 1)}})],
    "DL-CCCH": [
        lambda: critical("rrcReject", some(waitTime=number(1, 16))),
        lambda: critical("rrcSetup", {"radioBearerConfig": bearers(), "masterCellGroup": cell_group_octets()},
                         transaction())],
    "UL-DCCH": [
        lambda: critical("rrcSetupComplete", some(
            must_selectedPLMN_Identity=number(1, 12),
            registeredAMF=lambda: some(plmn_Identity=plmn, must_amf_Identifier=bits(24)),
            guami_Type=one("native", "mapped"),
            # SD 0xffffff means none.
            s_NSSAI_List=many(1, 8, one(("sst", bits(8)()), ("sst-SD", (dice.getrandbits(32) & 0xFFFFFFFE, 32)))),
            must_dedicatedNAS_Message=octets,
            ng_5G_S_TMSI_Value=one(("ng-5G-S-TMSI", bits(48)()), ("ng-5G-S-TMSI-Part2", bits(9)()))), transaction()),
        lambda: critical(dice.choice(["securityModeComplete", "securityModeFailure", "rrcReconfigurationComplete"]),
                         {}, transaction()),
        lambda: critical("ulInformationTransfer", some(dedicatedNAS_Message=octets))],
    "DL-DCCH": [
        lambda: critical("securityModeCommand", {"securityConfigSMC": {"securityAlgorithmConfig": algorithms()}},
                         transaction()),
        lambda: critical("dlInformationTransfer", some(dedicatedNAS_Message=octets), transaction()),
        lambda: critical("rrcReconfiguration", some(
            radioBearerConfig=bearers, secondaryCellGroup=cell_group_octets,
            nonCriticalExtension=lambda: some(
                masterCellGroup=cell_group_octets, fullConfig=TRUE,
                dedicatedNAS_MessageList=many(1, 29, octets))), transaction()),
        lambda: critical("rrcRelease", some(
            deprioritisationReq=lambda: {
                "deprioritisationType": dice.choice(["frequency", "nr"]),
                "deprioritisationTimer": dice.choice(["min5", "min10", "min15", "min30"])},
            nonCriticalExtension=lambda: some(waitTime=number(1, 16))), transaction())],
    "PCCH": [
        lambda: c1("paging", some(pagingRecordList=many(1, 32, lambda: some(
            must_ue_Identity=one(("ng-5G-S-TMSI", bits(48)()), ("fullI-RNTI", bits(40)())),
            accessType=one("non3GPP")))))],
    "BCCH-BCH": [
        lambda: {"message": ("mib", {
            "systemFrameNumber": bits(6)(), "subCarrierSpacingCommon": dice.choice(["scs15or60", "scs30or120"]),
            "ssb-SubcarrierOffset": dice.randint(0, 15), "dmrs-TypeA-Position": dice.choice(["pos2", "pos3"]),
            "pdcch-ConfigSIB1": {"controlResourceSetZero": dice.randint(0, 15),
                                 "searchSpaceZero": dice.randint(0, 15)},
            "cellBarred": dice.choice(["barred", "notBarred"]),
            "intraFreqReselection": dice.choice(["allowed", "notAllowed"]), "spare": (0, 1)})}],
    "BCCH-DL-SCH": [
        lambda: c1("systemInformationBlockType1", some(
            cellSelectionInfo=lambda: some(
                must_q_RxLevMin=number(-70, -22), q_RxLevMinOffset=number(1, 8), q_RxLevMinSUL=number(-70, -22),
                q_QualMin=number(-43, -12), q_QualMinOffset=number(1, 8)),
            must_cellAccessRelatedInfo=lambda: some(
                must_plmn_IdentityInfoList=many(1, 12, lambda: some(
                    must_plmn_IdentityList=many(1, 12, plmn), trackingAreaCode=bits(24), ranac=number(0, 255),
                    must_cellIdentity=bits(36), must_cellReservedForOperatorUse=one("reserved", "notReserved"))),
                cellReservedForOtherUse=TRUE)))],
    "CellGroupConfig": [cell_group]}

# --- What is skipped or refused ---------------------------------------------------------------------------
DRB1 = {"drb-Identity": 1, "pdcp-Config": {"drb": {"headerCompression": ("notUsed", 0)}}}


def reconfiguration(**ies):
    return critical("rrcReconfiguration", {name.replace("_", "-"): value for name, value in ies.items()}, 1)


def extended(member, **more):
    """An RRCReconfiguration with one DRB whose PDCP-Config has `more`, or that has the member itself."""
    drb = {**DRB1, **(member or {})}
    drb["pdcp-Config"] = {**drb["pdcp-Config"], **{name.replace("_", "-"): value for name, value in more.items()}}
    return reconfiguration(radioBearerConfig={"drb-ToAddModList": [drb]})


# Channel, value, and the value without what is skipped, or the text of the error.
SKIPPED = [
    ("DL-DCCH", extended(None, discardTimerExt_r16=("setup", "ms4"), survivalTimeStateSupport_r17="true"),
     extended(None)),
    ("DL-DCCH", extended({"daps-Config-r16": "true"}), extended(None)),
    ("DL-DCCH", reconfiguration(radioBearerConfig={"srb3-ToRelease": "true", "drb-ToReleaseList": [3]}),
     reconfiguration(radioBearerConfig={"drb-ToReleaseList": [3]})),
    ("DL-DCCH", reconfiguration(radioBearerConfig={**SRB1, "srb4-ToRelease-r17": "true"}),
     reconfiguration(radioBearerConfig=SRB1)),
    ("DL-DCCH", reconfiguration(
        lateNonCriticalExtension=b"late", nonCriticalExtension={
            "dedicatedNAS-MessageList": [NAS], "dedicatedSIB1-Delivery": b"opaque",
            "otherConfig": {}, "nonCriticalExtension": {"nonCriticalExtension": {"sk-Counter": 5}}}),
     reconfiguration(nonCriticalExtension={"dedicatedNAS-MessageList": [NAS]})),
    ("DL-DCCH", reconfiguration(measConfig={"measIdToRemoveList": [1]}), "not supported: measConfig"),
    ("DL-DCCH", reconfiguration(nonCriticalExtension={"masterKeyUpdate": {
        "keySetChangeIndicator": True, "nextHopChainingCount": 3}}), "not supported: masterKeyUpdate"),
    ("DL-DCCH", extended({"cnAssociation": ("eps-BearerIdentity", 5)}), "not supported: eps-BearerIdentity"),
    ("DL-DCCH", extended(None, drb={"headerCompression": ("rohc", {
        "profiles": {name: False for name in
                     DRB["headerCompression"]._cont["rohc"]._cont["profiles"]._cont}})}),
     "not supported: headerCompression"),
    ("DL-DCCH", extended(None, moreThanOneRLC={"primaryPath": {}}), "not supported: moreThanOneRLC"),
    ("DL-DCCH", extended(None, t_Reordering="spare01"), "not supported: spare value of TReordering"),
    ("DL-DCCH", critical("rrcRelease", {"redirectedCarrierInfo": ("eutra", {"eutraFrequency": 1})}, 0),
     "not supported: redirectedCarrierInfo"),
    ("DL-DCCH", critical("rrcRelease", {"suspendConfig": {
        "fullI-RNTI": (1, 40), "shortI-RNTI": (1, 24), "ran-PagingCycle": "rf32", "nextHopChainingCount": 1}}, 0),
     "not supported: suspendConfig"),
    ("DL-DCCH", critical("rrcRelease", {"nonCriticalExtension": {
        "waitTime": 2, "nonCriticalExtension": {"voiceFallbackIndication-r16": "true"}}}, 0),
     critical("rrcRelease", {"nonCriticalExtension": {"waitTime": 2}}, 0)),
    ("DL-DCCH", c1("rrcRelease", {"rrc-TransactionIdentifier": 0,
                                  "criticalExtensions": ("criticalExtensionsFuture", {})}),
     "not supported: criticalExtensions"),
    ("DL-DCCH", critical("securityModeCommand", {"securityConfigSMC": {"securityAlgorithmConfig": {
        "cipheringAlgorithm": "spare1"}}}, 0), "not supported: spare value of CipheringAlgorithm"),
    ("DL-DCCH", critical("ueCapabilityEnquiry", {"ue-CapabilityRAT-RequestList": [{"rat-Type": "nr"}]}, 0),
     "not supported: ueCapabilityEnquiry"),
    ("DL-DCCH", {"message": ("messageClassExtension", {})}, "not supported: messageClassExtension"),
    ("UL-CCCH", c1("rrcSystemInfoRequest", {"criticalExtensions": ("rrcSystemInfoRequest", {
        "requested-SI-List": (1, 32), "spare": (0, 12)})}), "not supported: rrcSystemInfoRequest"),
    ("UL-DCCH", critical("rrcSetupComplete", {
        "selectedPLMN-Identity": 1, "dedicatedNAS-Message": NAS, "lateNonCriticalExtension": bytes(3),
        "nonCriticalExtension": {"iab-NodeIndication-r16": "true", "mobilityState-r16": "high"}}, 0),
     critical("rrcSetupComplete", {"selectedPLMN-Identity": 1, "dedicatedNAS-Message": NAS}, 0)),
    ("UL-DCCH", critical("ulInformationTransfer", {
        "dedicatedNAS-Message": NAS, "nonCriticalExtension": {"dedicatedInfoF1c-r17": b"f1"}}),
     critical("ulInformationTransfer", {"dedicatedNAS-Message": NAS})),
    ("UL-DCCH", critical("rrcReconfigurationComplete", {"nonCriticalExtension": {"nonCriticalExtension": {
        "scg-Response": ("eutra-SCG-Response", b"x")}}}, 1), critical("rrcReconfigurationComplete", {}, 1)),
    ("PCCH", c1("paging", {"pagingRecordList": [{"ue-Identity": ("ng-5G-S-TMSI", TMSI)}], "nonCriticalExtension": {
        "pagingRecordList-v1700": [{"pagingCause-r17": "voice"}]}}),
     c1("paging", {"pagingRecordList": [{"ue-Identity": ("ng-5G-S-TMSI", TMSI)}]})),
    ("BCCH-DL-SCH", c1("systemInformationBlockType1", {
        "cellAccessRelatedInfo": {
            "plmn-IdentityInfoList": [{
                "plmn-IdentityList": [PLMN, {"mnc": [0, 1]}], "cellIdentity": (7, 36),
                "cellReservedForOperatorUse": "notReserved", "iab-Support-r16": "true"}],
            "cellReservedForFutureUse-r16": "true"},
        "connEstFailureControl": {"connEstFailCount": "n1", "connEstFailOffsetValidity": "s30"},
        "ims-EmergencySupport": "true"}),
     c1("systemInformationBlockType1", {"cellAccessRelatedInfo": {"plmn-IdentityInfoList": [{
         "plmn-IdentityList": [PLMN, {"mcc": MCC, "mnc": [0, 1]}], "cellIdentity": (7, 36),
         "cellReservedForOperatorUse": "notReserved"}]}})),
    ("BCCH-DL-SCH", c1("systemInformationBlockType1", {"cellAccessRelatedInfo": {"plmn-IdentityInfoList": [{
        "plmn-IdentityList": [{"mnc": [0, 1]}], "cellIdentity": (7, 36),
        "cellReservedForOperatorUse": "notReserved"}]}}), "invalid PLMN-Identity without MCC"),
    ("CellGroupConfig", {
        "cellGroupId": 0, "rlc-BearerToAddModList": [{
            "logicalChannelIdentity": 3, "rlc-Config-v1610": {"dl-AM-RLC-v1610": {"t-StatusProhibit-v1610": "ms1"}}}],
        "mac-CellGroupConfig": {"skipUplinkTxDynamic": False}, "spCellConfig": {"servCellIndex": 0},
        "reportUplinkTxDirectCurrent": "true"},
     {"cellGroupId": 0, "rlc-BearerToAddModList": [{"logicalChannelIdentity": 3}]})]


def write(out):
    out.write("# Written by generate.py with pycrate; do not edit. Channel, kind, octets, and what they are or become:\n")
    out.write("# a value of tests/common/mod.rs, the same octets, the octets without what is skipped, an error.\n")
    for channel, name, value in NAMED:
        out.write(f"{channel}\tnamed\t{encode(channel, value).hex()}\t{name}\n")
    for channel, makers in RANDOM.items():
        for make in makers:
            seen = {encode(channel, make()).hex() for _ in range(12)}
            out.writelines(f"{channel}\trandom\t{octets}\tsame\n" for octets in sorted(seen))
    for channel, value, becomes in SKIPPED:
        kind = "refused" if isinstance(becomes, str) else "skipped"
        becomes = becomes if kind == "refused" else encode(channel, becomes).hex()
        out.write(f"{channel}\t{kind}\t{encode(channel, value).hex()}\t{becomes}\n")


def read(lines):
    for line in lines:
        channel, octets = line.rstrip("\n").split("\t")
        value = decode(channel, bytes.fromhex(octets))
        assert encode(channel, value).hex() == octets, f"{line}: {value}"
        print(value)


if sys.argv[1:] == ["read"]:
    read(sys.stdin)
else:
    write(sys.stdout)
