"""os-ken for the test: a line of JSON in, a line of JSON out, until there are no more.

    {"read": HEX}               what os-ken reads, as os-ken's own JSON: {"OFPFlowMod": {...}}, or null: no parser
    {"write": JSON, "xid": N}   the octets that os-ken writes for its JSON
    {"own": N}                  messages that os-ken's classes make here: name, octets, its JSON

Octets of messages and of their data are in hex.
"""

import binascii
import json
import logging
import sys

from os_ken.lib import type_desc
from os_ken.ofproto import nx_actions  # noqa: F401 (adds Open vSwitch's actions to the parser)
from os_ken.ofproto import ofproto_parser, ofproto_protocol, oxm_fields
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as p

# Open vSwitch's fields for GTP-U, and OpenFlow 1.5's packet type: os-ken 4.2 does not have them.
ofp.oxm_types += [
    oxm_fields.NiciraExperimenter("tun_gtpu_flags", 15, type_desc.Int1),
    oxm_fields.NiciraExperimenter("tun_gtpu_msgtype", 16, type_desc.Int1),
    oxm_fields.OpenFlowBasic("packet_type", 44, type_desc.Int4),
]
oxm_fields.generate(ofp.__name__)

datapath = ofproto_protocol.ProtocolDesc(version=ofp.OFP_VERSION)
# Messages of controllers have no parser in os-ken; it logs each.
logging.disable(logging.CRITICAL)


def octets(message, xid):
    message.set_xid(xid)
    message.serialize()
    return bytes(message.buf).hex()


def as_json(message):
    return message.to_jsondict(binascii.hexlify)


def read(data):
    message = ofproto_parser.msg(datapath, *ofproto_parser.header(data), data)
    return message and as_json(message)


def built(value):
    """An object of os-ken from its JSON."""
    [(name, fields)] = value.items()
    fields = dict(fields)
    if name == "ONFBundleAddMsg":
        return p.ONFBundleAddMsg(datapath, fields["bundle_id"], fields["flags"], built(fields["message"]), [])
    if name == "ONFBundleCtrlMsg":
        return p.ONFBundleCtrlMsg(datapath, fields["bundle_id"], fields["type"], fields["flags"], [])
    if name == "OFPErrorMsg":
        fields["type_"] = fields.pop("type")
        fields["data"] = bytes.fromhex(fields["data"])
        return p.OFPErrorMsg(datapath, **fields)
    # Of octets it thinks that they are in base 64.
    if isinstance(fields.get("data"), str):
        data = bytes.fromhex(fields["data"])
        message = ofproto_parser.ofp_msg_from_jsondict(datapath, {name: dict(fields, data="")})
        message.data = data
        return message
    return ofproto_parser.ofp_msg_from_jsondict(datapath, value)


def own():
    """Messages as an application of os-ken makes them, in the order of fields and with the defaults that it has."""
    tunnel = p.OFPMatch(in_port=1, tunnel_id=7, tun_ipv4_dst="10.0.0.1", tun_gtpu_flags=0x34, tun_gtpu_msgtype=255)
    user = p.OFPMatch(packet_type=0x1_0800, ipv4_src=("10.45.0.0", "255.255.0.0"), ip_proto=6, tcp_dst=443)
    outer = p.OFPMatch(eth_type=0x0800, ipv4_src="10.1.0.1", ipv4_dst="10.0.0.1", ip_proto=17, udp_dst=2152)
    ipv6 = p.OFPMatch(eth_type=0x86DD, ipv6_dst=("2001:db8::", "ffff:ffff::"), ip_proto=58, icmpv6_type=135)
    vlan = p.OFPMatch(vlan_vid=(0x1000, 0x1000), eth_type=0x0806, arp_op=1, arp_tpa="10.0.0.9")
    steer = [
        p.OFPActionSetField(tun_ipv4_dst="10.0.0.2"),
        p.OFPActionSetField(tunnel_id=8),
        p.OFPActionOutput(ofp.OFPP_IN_PORT, 0),
    ]
    tag = [p.OFPActionPushVlan(), p.OFPActionSetField(vlan_vid=0x1005), p.OFPActionGroup(1), p.OFPActionPopVlan()]

    def flow(match=None, actions=(), instructions=(), **more):
        if actions:
            instructions = [p.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, list(actions))]
        more = {"out_port": ofp.OFPP_ANY, "out_group": ofp.OFPG_ANY, **more}
        return p.OFPFlowMod(datapath, match=match, instructions=list(instructions), **more)

    def group(kind, *buckets):
        return p.OFPGroupMod(datapath, ofp.OFPGC_ADD, kind, 1, list(buckets))

    for match in (tunnel, user, outer, ipv6, vlan):
        yield "flow", flow(match, steer, cookie=0xD1, table_id=1, priority=100)
    yield "flow with tags", flow(outer, tag)
    yield "flow that goes on", flow(
        outer,
        instructions=[
            p.OFPInstructionGotoTable(1),
            p.OFPInstructionWriteMetadata(3, 7),
            p.OFPInstructionActions(ofp.OFPIT_WRITE_ACTIONS, [p.OFPActionDecNwTtl()]),
        ],
        idle_timeout=5,
        hard_timeout=9,
        flags=ofp.OFPFF_SEND_FLOW_REM | ofp.OFPFF_CHECK_OVERLAP,
    )
    yield "flow without match", flow(actions=[p.OFPActionOutput(ofp.OFPP_CONTROLLER)], priority=0)
    yield "flow that is deleted", flow(command=ofp.OFPFC_DELETE, table_id=ofp.OFPTT_ALL, cookie=1, cookie_mask=1)
    output = [p.OFPActionOutput(2)]
    yield "group", group(ofp.OFPGT_INDIRECT, p.OFPBucket(0, ofp.OFPP_ANY, ofp.OFPG_ANY, steer))
    buckets = [p.OFPBucket(watch_port=port, actions=output, weight=0, watch_group=ofp.OFPG_ANY) for port in (1, 2)]
    yield "group of two", group(ofp.OFPGT_FF, *buckets)
    yield "flow to a queue", flow(outer, [p.OFPActionSetQueue(1), *output])
    yield "packet-out", p.OFPPacketOut(datapath, ofp.OFP_NO_BUFFER, ofp.OFPP_CONTROLLER, output, bytes(range(60)))
    for kind in ("Hello", "FeaturesRequest", "GetConfigRequest", "BarrierRequest", "GetAsyncRequest"):
        yield kind, getattr(p, "OFP" + kind)(datapath)
    yield "echo", p.OFPEchoRequest(datapath, b"ping")
    yield "answer to an echo", p.OFPEchoReply(datapath, b"ping")
    yield "error", p.OFPErrorMsg(datapath, ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_OVERLAP, b"data")
    yield "configuration", p.OFPSetConfig(datapath, ofp.OFPC_FRAG_NORMAL, 128)
    yield "role", p.OFPRoleRequest(datapath, ofp.OFPCR_ROLE_MASTER, 3)
    yield "events", p.OFPSetAsync(datapath, [7, 0], [7, 7], [15, 0])
    every = (ofp.OFPTT_ALL, ofp.OFPP_ANY, ofp.OFPG_ANY, 0, 0)
    yield "flows", p.OFPFlowStatsRequest(datapath, 0, *every, tunnel)
    yield "sum over flows", p.OFPAggregateStatsRequest(datapath, 0, *every, ipv6)
    for kind in ("Desc", "Table", "GroupDesc", "GroupFeatures", "PortDesc"):
        yield kind, getattr(p, "OFP%sStatsRequest" % kind)(datapath, 0)
    yield "ports", p.OFPPortStatsRequest(datapath, 0, ofp.OFPP_ANY)
    yield "groups", p.OFPGroupStatsRequest(datapath, 0, ofp.OFPG_ALL)
    # Fields of experimenters it reads here, but cannot write.
    fields = [p.OFPOxmId("tunnel_id", True), p.OFPOxmId("tun_ipv4_dst"), p.OFPOxmId("eth_type")]
    instructions = [p.OFPInstructionId(1), p.OFPInstructionId(4)]
    properties = [
        p.OFPTableFeaturePropInstructions(ofp.OFPTFPT_INSTRUCTIONS, instruction_ids=instructions),
        p.OFPTableFeaturePropNextTables(ofp.OFPTFPT_NEXT_TABLES_MISS, table_ids=[1, 2]),
        p.OFPTableFeaturePropActions(ofp.OFPTFPT_APPLY_ACTIONS, action_ids=[p.OFPActionId(0), p.OFPActionId(25)]),
        p.OFPTableFeaturePropOxm(ofp.OFPTFPT_MATCH, oxm_ids=fields),
    ]
    table = p.OFPTableFeaturesStats(
        table_id=1, name=b"users", metadata_match=1, metadata_write=3, config=0, max_entries=5, properties=properties
    )
    yield "table features", p.OFPTableFeaturesStatsRequest(datapath, ofp.OFPMPF_REQ_MORE, [table])
    yield "bundle", p.ONFBundleCtrlMsg(datapath, 5, ofp.ONF_BCT_OPEN_REQUEST, ofp.ONF_BF_ATOMIC, [])
    yield "bundle of a flow", p.ONFBundleAddMsg(datapath, 5, ofp.ONF_BF_ATOMIC, flow(tunnel, steer), [])
    yield "bundle of a group", p.ONFBundleAddMsg(datapath, 5, 3, group(ofp.OFPGT_ALL), [])

    # What is refused; the name is that of the error.
    yield "OFPBRC_BAD_TYPE", p.OFPMeterMod(datapath, 0, 1, 1, [p.OFPMeterBandDrop(10, 10)])
    yield "OFPBRC_BAD_TYPE", p.OFPPortMod(datapath, 1, "02:00:00:00:00:01", 0, 0x7F, 0)
    yield "OFPBRC_BAD_TYPE", p.OFPTableMod(datapath, 1, 3)
    yield "OFPBRC_BAD_TYPE", p.OFPQueueGetConfigRequest(datapath, 1)
    yield "OFPBRC_BAD_MULTIPART", p.OFPMeterStatsRequest(datapath, 0, 1)
    yield "OFPBRC_BAD_MULTIPART", p.OFPQueueStatsRequest(datapath, 0, ofp.OFPP_ANY, 1)
    yield "OFPBRC_BAD_EXPERIMENTER", p.OFPExperimenter(datapath, 0x2320, 1, b"1234")
    yield "OFPBRC_BAD_EXP_TYPE", p.OFPExperimenter(datapath, 0x4F4E4600, 1, b"1234")
    yield "OFPBMC_BAD_FIELD", flow(p.OFPMatch(eth_type=0x0800, ip_proto=132, sctp_dst=1), output)
    yield "OFPBMC_BAD_FIELD", flow(p.OFPMatch(reg0=1), output)
    yield "OFPBMC_BAD_PREREQ", flow(p.OFPMatch(tcp_dst=443), output)
    yield "OFPBMC_BAD_PREREQ", flow(p.OFPMatch(eth_type=0x86DD, ipv4_dst="10.0.0.1"), output)
    yield "OFPBAC_BAD_TYPE", flow(outer, [p.OFPActionSetMplsTtl(1)])
    yield "OFPBAC_BAD_TYPE", flow(outer, [p.OFPActionCopyTtlOut()])
    yield "OFPBAC_BAD_EXPERIMENTER", flow(outer, [p.NXActionResubmitTable(in_port=1, table_id=1)])
    yield "OFPBAC_BAD_OUT_PORT", flow(outer, [p.OFPActionOutput(0)])
    yield "OFPBIC_UNSUP_INST", flow(outer, instructions=[p.OFPInstructionMeter(1)])
    yield "OFPBFC_MSG_UNSUP", p.ONFBundleAddMsg(datapath, 5, 0, p.OFPBarrierRequest(datapath), [])


def own_lines(xid):
    for name, message in own():
        yield {"name": name, "octets": octets(message, xid), "json": as_json(message)}


def answers(question):
    if "read" in question:
        yield read(bytes.fromhex(question["read"]))
    elif "write" in question:
        yield octets(built(question["write"]), question["xid"])
    else:
        yield from own_lines(question["own"])


for line in sys.stdin:
    for answer in answers(json.loads(line)):
        json.dump(answer, sys.stdout, default=lambda data: bytes(data).hex())
        sys.stdout.write("\n")
