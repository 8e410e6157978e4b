"""A controller of os-ken's, with its application interface, for one switch: it installs the paper's Table I, asks what the switch
has, sends what must be refused, and tells the test in lines of JSON.

    controller.py PORT

Tells: {"is": "features" | "flows" | "error" | "packet" | "removed" | …, …}. Asked on its standard input, a word a line:
flows, wrong, bundle, out. It ends with its input.
"""

import json
import os
import sys
import threading

from os_ken import cfg
from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, HANDSHAKE_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.lib import type_desc
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as p
from os_ken.ofproto import oxm_fields

# Open vSwitch's fields for GTP-U, and OpenFlow 1.5's packet type: os-ken 4.2 does not have them.
if not hasattr(ofp, "OXM_OF_PACKET_TYPE"):
    ofp.oxm_types += [
        oxm_fields.NiciraExperimenter("tun_gtpu_flags", 15, type_desc.Int1),
        oxm_fields.NiciraExperimenter("tun_gtpu_msgtype", 16, type_desc.Int1),
        oxm_fields.OpenFlowBasic("packet_type", 44, type_desc.Int4),
    ]
    oxm_fields.generate(ofp.__name__)

ENB, GW1, GW2 = "10.0.0.1", "10.0.0.11", "10.0.0.12"
MACS = {1: "02:00:00:00:00:01", 2: "02:00:00:00:00:0b", 3: "02:00:00:00:00:0c"}
GTP, LOCAL = 100, ofp.OFPP_LOCAL
OUTER = {"eth_type": 0x0800, "ip_proto": 17, "udp_dst": 2152}


def tell(kind, **what):
    print(json.dumps({"is": kind, **what}), flush=True)


def apply(*actions):
    return p.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, list(actions))


def table_one(datapath):
    """Table I for one diverted user, whose TEID at the first anchor is 7."""

    def flow(table, priority, instructions, cookie=0x0200, **match):
        return p.OFPFlowMod(
            datapath,
            table_id=table,
            priority=priority,
            cookie=cookie,
            match=p.OFPMatch(**match),
            instructions=list(instructions),
            out_port=ofp.OFPP_ANY,
            out_group=ofp.OFPG_ANY,
            flags=ofp.OFPFF_SEND_FLOW_REM,
        )

    goto, output = p.OFPInstructionGotoTable, p.OFPActionOutput
    yield flow(0, 300, [goto(1)], in_port=GTP)
    to_gw2 = apply(p.OFPActionSetField(eth_dst=MACS[3]))
    yield flow(0, 260, [to_gw2, goto(2)], in_port=LOCAL, ipv4_dst=GW2, **OUTER)
    yield flow(0, 250, [goto(2)], in_port=LOCAL)
    yield flow(0, 200, [apply(output(LOCAL))], ipv4_src=ENB, ipv4_dst=GW1, **OUTER)
    yield flow(0, 0, [goto(2)])
    divert = apply(p.OFPActionSetField(tun_ipv4_dst=GW2), output(ofp.OFPP_IN_PORT))
    yield flow(1, 100, [divert], tun_ipv4_dst=GW1, tunnel_id=7)
    yield flow(1, 0, [apply(output(ofp.OFPP_IN_PORT))])
    for port, mac in MACS.items():
        yield flow(2, 100, [apply(output(port))], cookie=0x0100, eth_dst=mac)
    yield flow(2, 0, [apply(output(ofp.OFPP_CONTROLLER, ofp.OFPCML_NO_BUFFER))], cookie=0x0100)


class Controller(app_manager.OSKenApp):
    OFP_VERSIONS = [ofp.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.datapath = None
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in sys.stdin:
            getattr(self, line.strip())()
        os._exit(0)

    # What the test asks for.

    def flows(self):
        every = (ofp.OFPTT_ALL, ofp.OFPP_ANY, ofp.OFPG_ANY, 0, 0)
        self.datapath.send_msg(p.OFPFlowStatsRequest(self.datapath, 0, *every, p.OFPMatch()))

    def wrong(self):
        meter = p.OFPFlowMod(self.datapath, table_id=1, instructions=[p.OFPInstructionMeter(1)])
        no_table = p.OFPFlowMod(self.datapath, table_id=200, instructions=[])
        sctp = p.OFPMatch(eth_type=0x0800, ip_proto=132, sctp_dst=1)
        unknown_field = p.OFPFlowMod(self.datapath, table_id=1, match=sctp, instructions=[])
        for message in (meter, no_table, unknown_field, p.OFPMeterMod(self.datapath, 0, 1, 1, [])):
            self.datapath.send_msg(message)

    def bundle(self):
        """Takes the user back, in a bundle."""
        datapath, flags = self.datapath, ofp.ONF_BF_ATOMIC | ofp.ONF_BF_ORDERED
        delete = p.OFPFlowMod(
            datapath,
            command=ofp.OFPFC_DELETE_STRICT,
            table_id=1,
            priority=100,
            match=p.OFPMatch(tun_ipv4_dst=GW1, tunnel_id=7),
            out_port=ofp.OFPP_ANY,
            out_group=ofp.OFPG_ANY,
            instructions=[],
        )
        datapath.send_msg(p.ONFBundleCtrlMsg(datapath, 5, ofp.ONF_BCT_OPEN_REQUEST, flags, []))
        datapath.send_msg(p.ONFBundleAddMsg(datapath, 5, flags, delete, []))
        datapath.send_msg(p.ONFBundleCtrlMsg(datapath, 5, ofp.ONF_BCT_COMMIT_REQUEST, flags, []))

    def out(self):
        actions = [p.OFPActionOutput(ofp.OFPP_TABLE)]
        data = bytes.fromhex("02000000000e02000000000d0800") + bytes(46)
        self.datapath.send_msg(p.OFPPacketOut(self.datapath, ofp.OFP_NO_BUFFER, 1, actions, data))

    # What the switch says.

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def features(self, event):
        message = event.msg
        self.datapath = message.datapath
        tell("features", datapath_id=message.datapath_id, tables=message.n_tables)
        for flow in table_one(self.datapath):
            self.datapath.send_msg(flow)
        self.datapath.send_msg(p.OFPDescStatsRequest(self.datapath, 0))
        self.datapath.send_msg(p.OFPPortDescStatsRequest(self.datapath, 0))
        self.datapath.send_msg(p.OFPTableFeaturesStatsRequest(self.datapath, 0, []))
        self.datapath.send_msg(p.OFPBarrierRequest(self.datapath))

    @set_ev_cls(ofp_event.EventOFPBarrierReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def barrier(self, _):
        tell("barrier")

    @set_ev_cls(ofp_event.EventOFPDescStatsReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def description(self, event):
        tell("description", hardware=event.msg.body.hw_desc.decode())

    @set_ev_cls(ofp_event.EventOFPPortDescStatsReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def ports(self, event):
        tell("ports", ports=sorted([port.port_no, port.name.decode()] for port in event.msg.body))

    @set_ev_cls(ofp_event.EventOFPTableFeaturesStatsReply, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def table_features(self, event):
        tell("tables", tables=[table.table_id for table in event.msg.body], more=event.msg.flags)

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def flow_stats(self, event):
        flows = [
            {
                "table": flow.table_id,
                "priority": flow.priority,
                "cookie": flow.cookie,
                "packets": flow.packet_count,
                "match": dict(flow.match.items()),
            }
            for flow in event.msg.body
        ]
        tell("flows", flows=flows)

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [HANDSHAKE_DISPATCHER, CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def error(self, event):
        tell("error", type=event.msg.type, code=getattr(event.msg, "code", None))

    @set_ev_cls(ofp_event.EventONFBundleCtrlMsg, MAIN_DISPATCHER)
    def bundle_reply(self, event):
        tell("bundle", type=event.msg.type)

    @set_ev_cls(ofp_event.EventOFPFlowRemoved, MAIN_DISPATCHER)
    def removed(self, event):
        message = event.msg
        tell("removed", table=message.table_id, reason=message.reason, packets=message.packet_count)

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in(self, event):
        message = event.msg
        tell("packet", table=message.table_id, in_port=message.match["in_port"], data=bytes(message.data).hex())


# It is read twice: as program, and as the module with the application.
if __name__ == "__main__":
    arguments = ["--ofp-listen-host", "127.0.0.1", "--ofp-tcp-listen-port", sys.argv[1]]
    cfg.CONF(args=arguments, project="controller")
    app_manager.AppManager.run_apps(["controller", "os_ken.controller.ofp_handler"])
