"""An SMF, a gNB and a data network for one UPF, none of them ours: scapy builds and reads what is sent and received,
octet by octet, and pycrate reads all PFCP and GTP-U a second time.

Runs in a namespace with the interfaces n3 (10.200.0.2; the UPF is .1) and n6 (10.201.0.2; the UPF's machine is .1).
Arguments: the stories to run, each a function below.
"""

import select
import socket
import struct
import sys
import time

from pycrate_mobile.TS29244_PFCP import parse_PFCP
from pycrate_mobile.TS29281_GTPU import parse_GTPU
from scapy.all import IP, IPv6, UDP, Raw
from scapy.contrib.gtp import GTP_U_Header, GTPPDUSessionContainer
from scapy.contrib.pfcp import *

UPF, ME = "10.200.0.1", "10.200.0.2"
MACHINE, SERVER, SERVER6 = "10.201.0.1", "10.201.0.2", "fd00:201::2"
ACCEPTED = 1
SEID = 0x1122334455667788
QFI = 9
# The stamp is the same in all stories: the SMF does not restart between them.
STAMP = 3900000000
ETH_P_ALL = 3


def fail(text):
    print("independent:", text)
    sys.exit(1)


def same(received, expected, what):
    received, expected = bytes(received), bytes(expected)
    if received != expected:
        fail("%s:\n  received %s\n  expected %s" % (what, received.hex(), expected.hex()))


def read_twice(parse, data, what):
    message, error = parse(data)
    if error != 0 or message.to_bytes() != data:
        fail("pycrate does not read %s as we do (%s): %s" % (what, error, data.hex()))


def find_all(message, kind):
    """All IEs of a kind, at any depth."""
    found = []
    for ie in getattr(message, "IE_list", []):
        if isinstance(ie, kind):
            found.append(ie)
        found += find_all(ie, kind)
    return found


def find(message, kind):
    found = find_all(message, kind)
    return found[0] if found else None


def cause(message):
    ie = find(message, IE_Cause)
    return None if ie is None else ie.cause


class Smf:
    """PFCP, one question at a time; reports of the UPF are answered and kept."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((ME, 8805))
        self.socket.settimeout(10)
        self.sequence = 100
        self.reports = []
        self.seen = {}

    def read(self):
        data, _ = self.socket.recvfrom(65535)
        read_twice(parse_PFCP, data, "PFCP")
        message = PFCP(data)
        if Raw in message:
            fail("scapy does not understand all of %s" % data.hex())
        same(message, data, "scapy encodes %s differently" % message.summary())
        if message.message_type == 1:
            self.answer(message, PFCPHeartbeatResponse(IE_list=[IE_RecoveryTimeStamp(timestamp=STAMP)]), None)
            return None
        if message.message_type == 56:
            if message.seid != SEID:
                fail("a report for SEID %x" % message.seid)
            self.answer(message, PFCPSessionReportResponse(IE_list=[IE_Cause(cause=ACCEPTED)]), self.ours)
            # A repetition is the same report.
            if self.seen.get(message.seq) != data:
                self.seen[message.seq] = data
                self.reports.append(message[PFCPSessionReportRequest])
            return None
        return message

    def answer(self, request, body, seid):
        self.send(body, seid, request.seq)

    def send(self, body, seid, sequence):
        header = PFCP(version=1, S=0, seq=sequence) if seid is None else PFCP(version=1, S=1, seid=seid, seq=sequence)
        self.socket.sendto(bytes(header / body), (UPF, 8805))

    def ask(self, body, kind, seid=None, accepted=True):
        self.sequence += 1
        self.send(body, seid, self.sequence)
        while True:
            message = self.read()
            if message is None:
                continue
            if kind not in message or message.seq != self.sequence:
                fail("expected %s, got %s" % (kind.__name__, message.command()))
            if accepted and cause(message[kind]) != ACCEPTED:
                fail("refused: %s" % message.command())
            return message

    def wait_report(self, wanted, what):
        """The first report that `wanted` likes; others before it are kept."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for report in self.reports:
                if wanted(report):
                    self.reports.remove(report)
                    return report
            if select.select([self.socket], [], [], 0.1)[0]:
                self.read()
        fail("no report of %s; there are %s" % (what, [report.command() for report in self.reports]))

    def associate(self):
        node = IE_NodeId(id_type=0, ipv4=ME)
        stamp = IE_RecoveryTimeStamp(timestamp=STAMP)
        self.ask(PFCPAssociationSetupRequest(IE_list=[node, stamp]), PFCPAssociationSetupResponse)

    def establish(self, ies):
        node, seid = IE_NodeId(id_type=0, ipv4=ME), IE_FSEID(v4=1, seid=SEID, ipv4=ME)
        request = PFCPSessionEstablishmentRequest(IE_list=[node, seid] + ies)
        answer = self.ask(request, PFCPSessionEstablishmentResponse, seid=0)
        if answer.seid != SEID:
            fail("the response is for SEID %x" % answer.seid)
        self.ours = find(answer, IE_FSEID) or find(answer[PFCPSessionEstablishmentResponse], IE_FSEID)
        self.ours = self.ours.seid
        return answer[PFCPSessionEstablishmentResponse]

    def modify(self, ies, accepted=True):
        request = PFCPSessionModificationRequest(IE_list=ies)
        answer = self.ask(request, PFCPSessionModificationResponse, self.ours, accepted)
        return answer[PFCPSessionModificationResponse]

    def delete(self):
        answer = self.ask(PFCPSessionDeletionRequest(), PFCPSessionDeletionResponse, self.ours)
        return answer[PFCPSessionDeletionResponse]


class Gnb:
    """GTP-U."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((ME, 2152))
        self.socket.settimeout(10)

    def send(self, teid, packet, qfi=QFI, sequence=None):
        container = GTPPDUSessionContainer(type=1, QFI=qfi)
        header = GTP_U_Header(teid=teid, gtp_type=255, E=1, next_ex=0x85)
        if sequence is not None:
            header.S, header.seq = 1, sequence
        self.socket.sendto(bytes(header / container / packet), (UPF, 2152))

    def receive(self, what):
        try:
            data, sender = self.socket.recvfrom(65535)
        except socket.timeout:
            fail("nothing on N3: %s" % what)
        if sender != (UPF, 2152):
            fail("from %s:%d" % sender)
        read_twice(parse_GTPU, data, "GTP-U")
        return data

    def expect(self, teid, packet, what):
        container = GTPPDUSessionContainer(type=0, QFI=QFI)
        expected = GTP_U_Header(teid=teid, gtp_type=255, E=1, next_ex=0x85) / container / packet
        same(self.receive(what), expected, what)

    def nothing(self, what, seconds=0.3):
        if select.select([self.socket], [], [], seconds)[0]:
            fail("%s: %s" % (what, self.socket.recv(65535).hex()))


class DataNetwork:
    """Raw packets on n6. The machine of the UPF is a router: it takes one off the TTL."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        self.socket.bind(("n6", ETH_P_ALL))
        # Somebody takes what is sent to the server; otherwise its kernel would answer with ICMP.
        self.sinks = []
        for family, address in ((socket.AF_INET, SERVER), (socket.AF_INET6, SERVER6)):
            sink = socket.socket(family, socket.SOCK_DGRAM)
            sink.bind((address, 5000))
            self.sinks.append(sink)
        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.mac = None
        for _ in range(100):
            probe.sendto(b"who are you", (MACHINE, 9))
            for line in open("/proc/net/arp"):
                fields = line.split()
                if fields[0] == MACHINE and fields[3] != "00:00:00:00:00:00":
                    self.mac = bytes.fromhex(fields[3].replace(":", ""))
            if self.mac:
                break
            time.sleep(0.05)
        else:
            fail("the machine does not answer ARP")

    def send(self, packet):
        kind = 0x0800 if IP in packet else 0x86DD
        self.socket.sendto(bytes(packet), ("n6", kind, 0, 0, self.mac))

    def receive(self, source, what, seconds=10):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not select.select([self.socket], [], [], 0.1)[0]:
                continue
            data, address = self.socket.recvfrom(65535)
            if address[2] == socket.PACKET_OUTGOING:
                continue
            version, at, family = (6, 8, socket.AF_INET6) if ":" in source else (4, 12, socket.AF_INET)
            wanted = socket.inet_pton(family, source)
            if data[0] >> 4 == version and data[at:at + len(wanted)] == wanted:
                return data
        return None if seconds < 1 else fail("nothing on N6: %s" % what)


def routed(packet):
    """The packet behind one router."""
    packet = packet.copy()
    if IP in packet:
        packet.ttl -= 1
        del packet.chksum
    else:
        packet.hlim -= 1
    return packet.__class__(bytes(packet))


def datagram(source, destination, payload, number=1):
    ip = IPv6(src=source, dst=destination) if ":" in source else IP(src=source, dst=destination, id=number)
    packet = ip / UDP(sport=4000, dport=5000) / Raw(payload)
    return packet.__class__(bytes(packet))


def pdi(source, ies):
    return IE_PDI(IE_list=[IE_SourceInterface(interface=source)] + ies)


def rules(ue, ue6=None, gnb_teid=0x77, urrs=(), qers=(1,), down=None, up_pdi=(), down_pdi=()):
    """An ordinary session: one PDR up, one down, a QER that marks the flow."""
    network = IE_NetworkInstance(instance="internet")
    refer = [IE_URR_Id(id=urr) for urr in urrs] + [IE_QER_Id(id=qer) for qer in qers]

    def address(direction):
        if ue6 is None:
            return IE_UE_IP_Address(V4=1, SD=direction, ipv4=ue)
        return IE_UE_IP_Address(V4=1, V6=1, SD=direction, ipv4=ue, ipv6=ue6)

    uplink = IE_CreatePDR(IE_list=[
        IE_PDR_Id(id=1), IE_Precedence(precedence=255),
        pdi(0, [IE_FTEID(CH=1, V4=1), network, address(0)] + list(up_pdi)),
        IE_OuterHeaderRemoval(header=0), IE_FAR_Id(id=1)] + refer)
    downlink = IE_CreatePDR(IE_list=[
        IE_PDR_Id(id=2), IE_Precedence(precedence=255),
        pdi(1, [network, address(1)] + list(down_pdi)), IE_FAR_Id(id=2)] + refer)
    creation = IE_OuterHeaderCreation(GTPUUDPIPV4=1, TEID=gnb_teid, ipv4=ME)
    out = [IE_DestinationInterface(interface=1), network]
    back = [IE_DestinationInterface(interface=0), creation]
    down = down or IE_ApplyAction(FORW=1)
    return [
        uplink, downlink,
        IE_CreateFAR(IE_list=[IE_FAR_Id(id=1), IE_ApplyAction(FORW=1), IE_ForwardingParameters(IE_list=out)]),
        IE_CreateFAR(IE_list=[IE_FAR_Id(id=2), down, IE_ForwardingParameters(IE_list=back)]),
        IE_CreateQER(IE_list=[IE_QER_Id(id=1), IE_GateStatus(ul=0, dl=0), IE_QFI(QFI=QFI)]),
    ]


def volume(report):
    measured = find(report, IE_VolumeMeasurement)
    if measured is None:
        fail("no volume: %s" % report.command())
    return measured.uplink, measured.downlink


def forwarding(smf, gnb, dn):
    """Establish, forward both families both ways, switch the path, refuse what is wrong, delete."""
    body = smf.establish(rules("10.45.1.1", "fd00:45:0:1::"))
    teid = find(body, IE_FTEID).TEID
    for ue, server in (("10.45.1.1", SERVER), ("fd00:45:0:1::99", SERVER6)):
        for size in (0, 1, 18, 100, 1000, 1300):
            up = datagram(ue, server, b"u" * size, 1000 + size)
            gnb.send(teid, up)
            same(dn.receive(ue, "uplink"), routed(up), "uplink of %d octets" % size)
            # With a sequence number the header is as long, and the number is nobody's business.
            gnb.send(teid, up, sequence=7)
            same(dn.receive(ue, "uplink"), routed(up), "uplink with sequence number")
            down = datagram(server, ue, b"d" * size, 2000 + size)
            dn.send(down)
            gnb.expect(0x77, routed(down), "downlink of %d octets" % size)

    # A source that is another's, and a tunnel that is nobody's.
    gnb.send(teid, datagram("10.45.1.2", SERVER, b"spoofed"))
    gnb.send(0x7ffffff0, datagram("10.45.1.1", SERVER, b"lost"))
    indication = gnb.receive("an error indication")
    if indication[1] != 26 or bytes.fromhex("107ffffff0") not in indication or socket.inet_aton(UPF) not in indication:
        fail("no error indication: %s" % indication.hex())
    if dn.receive("10.45.1.2", "", 0.3) is not None:
        fail("a spoofed packet arrived")

    # The path is switched: the old tunnel's end is marked, and everything else takes the new one.
    creation = IE_OuterHeaderCreation(GTPUUDPIPV4=1, TEID=0x88, ipv4=ME)
    flags = IE_PFCPSMReqFlags(SNDEM=1)
    update = IE_UpdateForwardingParameters(IE_list=[IE_DestinationInterface(interface=0), creation, flags])
    smf.modify([IE_UpdateFAR(IE_list=[IE_FAR_Id(id=2), update])])
    marker = gnb.receive("an end marker")
    if marker[1] != 254 or marker[4:8] != b"\0\0\0\x77":
        fail("no end marker on the old tunnel: %s" % marker.hex())
    down = datagram(SERVER, "10.45.1.1", b"on the new path", 3)
    dn.send(down)
    gnb.expect(0x88, routed(down), "on the new path")

    # What is wrong is refused as a whole: the good half of the request has no effect.
    elsewhere = IE_OuterHeaderCreation(GTPUUDPIPV4=1, TEID=0x99, ipv4=ME)
    good = IE_UpdateFAR(IE_list=[IE_FAR_Id(id=2), IE_UpdateForwardingParameters(
        IE_list=[IE_DestinationInterface(interface=0), elsewhere])])
    orphan = IE_CreatePDR(IE_list=[IE_PDR_Id(id=9), IE_Precedence(precedence=1),
                                   pdi(1, [IE_UE_IP_Address(V4=1, SD=1, ipv4="10.45.1.1")]), IE_FAR_Id(id=99)])
    if cause(smf.modify([good, orphan], accepted=False)) in (None, ACCEPTED):
        fail("a PDR without FAR was accepted")
    dn.send(down)
    gnb.expect(0x88, routed(down), "after a refused modification")

    smf.delete()
    gnb.send(teid, datagram("10.45.1.1", SERVER, b"late"))
    if gnb.receive("an error indication")[1] != 26:
        fail("no error indication for a deleted session")
    dn.send(down)
    gnb.nothing("a deleted session forwards")


def buffering(smf, gnb, dn):
    """Idle: packets wait, and all come in order on the tunnel that is set then, before newer ones."""
    hold(smf, gnb, dn, "10.45.2.1", False)


def notification(smf, gnb, dn):
    """The same, and the SMF is told once, of the first packet (TS 29.244 §5.2.3)."""
    hold(smf, gnb, dn, "10.45.2.2", True)


def hold(smf, gnb, dn, ue, told):
    teid = find(smf.establish(rules(ue, down=IE_ApplyAction(BUFF=1, NOCP=int(told)))), IE_FTEID).TEID
    packets = [datagram(SERVER, ue, b"waits %d" % n, 10 + n) for n in range(20)]
    for packet in packets:
        dn.send(packet)
    if told:
        report = smf.wait_report(lambda report: find(report, IE_DownlinkDataReport), "downlink data")
        if not find(report, IE_ReportType).DLDR or find(report, IE_PDR_Id).id != 2:
            fail("not of PDR 2: %s" % report.command())
    gnb.nothing("sent while buffering")
    creation = IE_OuterHeaderCreation(GTPUUDPIPV4=1, TEID=0x66, ipv4=ME)
    update = IE_UpdateForwardingParameters(IE_list=[IE_DestinationInterface(interface=0), creation])
    smf.modify([IE_UpdateFAR(IE_list=[IE_FAR_Id(id=2), IE_ApplyAction(FORW=1), update])])
    newer = datagram(SERVER, ue, b"newer", 99)
    dn.send(newer)
    for n, packet in enumerate(packets + [newer]):
        gnb.expect(0x66, routed(packet), "buffered packet %d" % n)
    gnb.nothing("more than was buffered")
    if any(find(report, IE_DownlinkDataReport) for report in smf.reports):
        fail("told twice")
    # What is dropped on demand does not come back.
    smf.modify([IE_UpdateFAR(IE_list=[IE_FAR_Id(id=2), IE_ApplyAction(BUFF=1)])])
    dn.send(packets[0])
    gnb.nothing("sent while buffering")
    smf.modify([IE_PFCPSMReqFlags(DROBU=1), IE_UpdateFAR(IE_list=[IE_FAR_Id(id=2), IE_ApplyAction(FORW=1)])])
    dn.send(newer)
    gnb.expect(0x66, routed(newer), "after dropping what was buffered")
    gnb.send(teid, datagram(ue, SERVER, b"up"))
    dn.receive(ue, "uplink")
    smf.delete()


class Counted:
    """Passes packets both ways and counts their octets as the interfaces do."""

    def __init__(self, gnb, dn, ue, teid):
        self.gnb, self.dn, self.ue, self.teid = gnb, dn, ue, teid
        self.up, self.down = 0, 0

    def pass_both(self, size):
        up = datagram(self.ue, SERVER, b"u" * size, size + 1)
        self.gnb.send(self.teid, up)
        self.up += len(self.dn.receive(self.ue, "uplink"))
        down = datagram(SERVER, self.ue, b"d" * size, size + 1)
        self.dn.send(down)
        self.gnb.expect(0x77, routed(down), "downlink")
        self.down += len(bytes(down))

    def check(self, report, what):
        """The report says what was counted since the last one."""
        if volume(report) != (self.up, self.down):
            fail("%s: reported %s, counted %d and %d" % (what, volume(report), self.up, self.down))
        self.up, self.down = 0, 0


def triggered(report, name, what):
    trigger = find(report, IE_UsageReportTrigger) if report is not None else None
    if trigger is None or not getattr(trigger, name):
        fail("%s: no report of trigger %s: %s" % (what, name, report and report.command()))
    return find(report, IE_UR_SEQN).number


def usage(smf, gnb, dn):
    """Volume on request and at deletion is what the interfaces counted."""
    ue = "10.45.3.1"
    urr = IE_CreateURR(IE_list=[IE_URR_Id(id=1), IE_MeasurementMethod(VOLUM=1), IE_ReportingTriggers(volume_threshold=1),
                                IE_VolumeThreshold(TOVOL=1, total=1 << 40)])
    counted = Counted(gnb, dn, ue, find(smf.establish(rules(ue, urrs=[1]) + [urr]), IE_FTEID).TEID)
    for size in (0, 10, 200, 1200):
        counted.pass_both(size)
    # A packet that is not forwarded is not used.
    gnb.send(counted.teid, datagram("10.45.3.2", SERVER, b"spoofed"))
    for number in range(2):
        report = find(smf.modify([IE_QueryURR(IE_list=[IE_URR_Id(id=1)])]), IE_UsageReport_SMR)
        if triggered(report, "IMMER", "on request") != number:
            fail("reports are not numbered one by one")
        counted.check(report, "on request")
        counted.pass_both(77)
    report = find(smf.delete(), IE_UsageReport_SDR)
    if triggered(report, "TERMR", "at deletion") != 2:
        fail("reports are not numbered one by one")
    counted.check(report, "at deletion")


def threshold(smf, gnb, dn):
    """Each time that a threshold is reached since the last report there is one, of what passed (TS 29.244 §5.2.2.2)."""
    ue = "10.45.7.1"
    urr = IE_CreateURR(IE_list=[IE_URR_Id(id=1), IE_MeasurementMethod(VOLUM=1), IE_ReportingTriggers(volume_threshold=1),
                                IE_VolumeThreshold(TOVOL=1, total=10_000)])
    counted = Counted(gnb, dn, ue, find(smf.establish(rules(ue, urrs=[1]) + [urr]), IE_FTEID).TEID)
    for number in range(2):
        while counted.up + counted.down < 10_000:
            counted.pass_both(900)
        report = smf.wait_report(lambda report: find(report, IE_UsageReport_SRR), "a volume threshold")
        if not find(report, IE_ReportType).USAR or triggered(report, "VOLTH", "threshold") != number:
            fail("another report: %s" % report.command())
        up, down = volume(report)
        # The packet back may have passed before or after the report was made.
        if up + down < 10_000 or (up, down) > (counted.up, counted.down):
            fail("reported %d and %d, counted %d and %d" % (up, down, counted.up, counted.down))
        counted.up, counted.down = counted.up - up, counted.down - down
    counted.pass_both(50)
    report = find(smf.delete(), IE_UsageReport_SDR)
    triggered(report, "TERMR", "at deletion")
    counted.check(report, "at deletion")


def quota(smf, gnb, dn):
    """Behind an exhausted quota nothing passes; a new one lets packets pass again."""
    ue = "10.45.4.1"
    triggers = IE_ReportingTriggers(volume_quota=1)
    urr = IE_CreateURR(IE_list=[IE_URR_Id(id=1), IE_MeasurementMethod(VOLUM=1), triggers,
                                IE_VolumeQuota(TOVOL=1, total=5_000)])
    teid = find(smf.establish(rules(ue, urrs=[1]) + [urr]), IE_FTEID).TEID
    up = datagram(ue, SERVER, b"u" * 972, 1)
    passed = 0
    for _ in range(20):
        gnb.send(teid, up)
        if dn.receive(ue, "", 0.3) is None:
            break
        passed += 1
    if passed not in (5, 6):
        fail("%d packets of 1000 octets passed a quota of 5000" % passed)
    report = smf.wait_report(lambda report: find(report, IE_UsageReport_SRR), "an exhausted quota")
    if not find(report, IE_UsageReportTrigger).VOLQU or volume(report)[0] != passed * 1000:
        fail("not of the quota: %s" % report.command())
    more = IE_UpdateURR(IE_list=[IE_URR_Id(id=1), IE_VolumeQuota(TOVOL=1, total=5_000)])
    smf.modify([more])
    gnb.send(teid, up)
    same(dn.receive(ue, "uplink"), routed(up), "with a new quota")
    smf.delete()


def framed(smf, gnb, dn):
    """A network behind the UE: its packets pass both ways, its neighbours' do not."""
    ue, behind = "10.45.5.1", "10.46.77.9"
    route = IE_FramedRoute(framed_route="10.46.77.0/28 0.0.0.0 1")
    teid = find(smf.establish(rules(ue, up_pdi=[route], down_pdi=[route])), IE_FTEID).TEID
    for source in (ue, behind):
        up = datagram(source, SERVER, b"from behind", 5)
        gnb.send(teid, up)
        same(dn.receive(source, "uplink"), routed(up), "uplink from %s" % source)
        down = datagram(SERVER, source, b"to behind", 6)
        dn.send(down)
        gnb.expect(0x77, routed(down), "downlink to %s" % source)
    gnb.send(teid, datagram("10.46.77.17", SERVER, b"outside"))
    if dn.receive("10.46.77.17", "", 0.3) is not None:
        fail("a source outside the framed route passed")
    smf.delete()


def redirect(smf, gnb, dn):
    """A UE without credit asks for a page and is sent to another one."""
    from scapy.all import TCP
    ue, site = "10.45.6.1", "192.0.2.80"
    session = rules(ue)
    target = IE_RedirectInformation(type=2, address="http://portal.example/pay")
    out = [IE_DestinationInterface(interface=1), IE_NetworkInstance(instance="internet"), target]
    session[2] = IE_CreateFAR(IE_list=[IE_FAR_Id(id=1), IE_ApplyAction(FORW=1), IE_ForwardingParameters(IE_list=out)])
    teid = find(smf.establish(session), IE_FTEID).TEID

    def talk(sequence, acknowledged, flags, payload=b""):
        tcp = TCP(sport=40000, dport=80, seq=sequence, ack=acknowledged, flags=flags)
        gnb.send(teid, IP(src=ue, dst=site) / tcp / Raw(payload))
        data = gnb.receive("an answer to %s" % flags)
        answer = GTP_U_Header(data)[IP]
        again = IP(bytes(answer))
        del again.chksum, again[TCP].chksum
        same(IP(bytes(again)), answer, "checksums of the answer to %s" % flags)
        if (answer.src, answer.dst, answer[TCP].sport, answer[TCP].dport) != (site, ue, 80, 40000):
            fail("an answer from elsewhere: %s" % answer.summary())
        return answer[TCP]

    syn = talk(1000, 0, "S")
    if syn.flags != "SA" or syn.ack != 1001:
        fail("no SYN ACK: %s" % syn.summary())
    request = b"GET / HTTP/1.1\r\nHost: site.example\r\n\r\n"
    page = talk(1001, syn.seq + 1, "PA", request)
    text = bytes(page.payload)
    if not text.startswith(b"HTTP/1.1 302") or b"Location: http://portal.example/pay\r\n" not in text:
        fail("no redirection: %r" % text)
    end = talk(1001 + len(request), page.seq + len(text) + 1, "FA")
    if end.flags != "A" or end.ack != 1002 + len(request):
        fail("the end is not acknowledged: %s" % end.summary())
    if dn.receive(ue, "", 0.3) is not None:
        fail("redirected traffic reached the data network")
    smf.delete()


def lengths(smf, gnb, dn):
    """A link of 1500 octets: what does not fit into a tunnel is fragmented, or its sender learns what does."""
    from scapy.all import ICMP, TCP, ICMPv6PacketTooBig
    ue, ue6 = "10.45.8.1", "fd00:45:0:8::1"
    smf.establish(rules(ue, "fd00:45:0:8::"))
    fits = datagram(SERVER, ue, b"f" * (1456 - 28), 1)
    dn.send(fits)
    gnb.expect(0x77, routed(fits), "what just fits")

    long = datagram(SERVER, ue, b"l" * (1457 - 28), 2)
    long.flags = "DF"
    del long.chksum
    long = IP(bytes(long))
    dn.send(long)
    answer = IP(dn.receive("10.45.0.1", "fragmentation needed"))
    expected = IP(src="10.45.0.1", dst=SERVER, id=answer.id, flags=answer.flags, ttl=answer.ttl)
    expected /= ICMP(type=3, code=4, nexthopmtu=1456) / Raw(bytes(routed(long))[:576 - 28])
    same(answer, expected, "fragmentation needed")

    long = datagram(SERVER6, ue6, b"l" * (1457 - 48))
    dn.send(long)
    answer = IPv6(dn.receive("fd00:45::1", "packet too big"))
    expected = IPv6(src="fd00:45::1", dst=SERVER6, hlim=answer.hlim)
    expected /= ICMPv6PacketTooBig(mtu=1456) / Raw(bytes(routed(long))[:1280 - 48])
    same(answer, expected, "packet too big")

    long = routed(datagram(SERVER, ue, bytes(n % 256 for n in range(1500 - 28)), 3))
    dn.send(datagram(SERVER, ue, bytes(n % 256 for n in range(1500 - 28)), 3))
    payload = b""
    for n in range(2):
        fragment = GTP_U_Header(gnb.receive("fragment %d" % n))[IP]
        if fragment.frag * 8 != len(payload) or bool(fragment.flags.MF) != (n == 0) or len(bytes(fragment)) > 1456:
            fail("another fragment: %s" % fragment.summary())
        payload += bytes(fragment.payload)
    same(payload, bytes(long.payload), "fragments")

    def syn(segment):
        return IP(bytes(IP(src=SERVER, dst=ue) / TCP(sport=80, dport=4000, flags="S", options=[("MSS", segment)])))

    dn.send(syn(1460))
    gnb.expect(0x77, routed(syn(1416)), "a SYN")
    smf.delete()


class Lan:
    """Frames on lan, which a bridge joins with the UPF's TAP device."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.bind(("lan", ETH_P_ALL))
        # The kernel takes the outermost tag off frames that it receives, and says so beside the frame (PACKET_AUXDATA).
        self.socket.setsockopt(263, 8, 1)

    def send(self, frame):
        self.socket.send(bytes(frame))

    def expect(self, frame, what, seconds=10):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not select.select([self.socket], [], [], 0.1)[0]:
                continue
            data, auxiliary, _, address = self.socket.recvmsg(65535, 256)
            if address[2] == socket.PACKET_OUTGOING:
                continue
            for _, _, value in auxiliary:
                status, _, _, _, _, tag, kind = struct.unpack("=IIIHHHH", value[:20])
                if status & 0x10:
                    data = data[:12] + struct.pack("!HH", kind if status & 0x40 else 0x8100, tag) + data[12:]
            return same(data, frame, what)
        fail("nothing on the LAN: %s" % what)

    def nothing(self, what, seconds=0.3):
        while select.select([self.socket], [], [], seconds)[0]:
            data, address = self.socket.recvfrom(65535)
            if address[2] != socket.PACKET_OUTGOING:
                fail("%s: %s" % (what, data.hex()))


def frame_rules(gnb_teid, urrs=()):
    """An Ethernet session: one PDR up, one down."""
    network, kind = IE_NetworkInstance(instance="factory"), IE_EthernetPDUSessionInformation(ETHI=1)
    refer = [IE_URR_Id(id=urr) for urr in urrs] + [IE_QER_Id(id=1)]
    creation = IE_OuterHeaderCreation(GTPUUDPIPV4=1, TEID=gnb_teid, ipv4=ME)
    return [
        IE_PDNType(pdn_type=5),
        IE_CreatePDR(IE_list=[
            IE_PDR_Id(id=1), IE_Precedence(precedence=255), pdi(0, [IE_FTEID(CH=1, V4=1), network, kind]),
            IE_OuterHeaderRemoval(header=0), IE_FAR_Id(id=1)] + refer),
        IE_CreatePDR(IE_list=[
            IE_PDR_Id(id=2), IE_Precedence(precedence=255), pdi(1, [network, kind]), IE_FAR_Id(id=2)] + refer),
        IE_CreateFAR(IE_list=[IE_FAR_Id(id=1), IE_ApplyAction(FORW=1), IE_ForwardingParameters(
            IE_list=[IE_DestinationInterface(interface=1), network])]),
        IE_CreateFAR(IE_list=[IE_FAR_Id(id=2), IE_ApplyAction(FORW=1), IE_ForwardingParameters(
            IE_list=[IE_DestinationInterface(interface=0), creation])]),
        IE_CreateQER(IE_list=[IE_QER_Id(id=1), IE_GateStatus(ul=0, dl=0), IE_QFI(QFI=QFI)]),
    ]


def ethernet(smf, gnb, dn):
    """Two UEs on a LAN: frames find their way by learnt addresses, with their tags, and the SMF hears of addresses."""
    from scapy.all import ARP, Dot1Q, Ether
    lan = Lan()
    ue, other, machine, everyone = "02:00:00:00:00:0a", "02:00:00:00:00:0b", "02:00:00:00:00:4d", "ff:ff:ff:ff:ff:ff"
    urr = IE_CreateURR(IE_list=[IE_URR_Id(id=1), IE_MeasurementMethod(VOLUM=1),
                                IE_ReportingTriggers(mac_addresses_reporting=1)])
    up = find(smf.establish(frame_rules(0x77, [1]) + [urr]), IE_FTEID).TEID
    first = smf.ours
    other_up = find(smf.establish(frame_rules(0x78)), IE_FTEID).TEID

    def expect(teid, frame, what):
        gnb.expect(teid, frame, what)

    question = Ether(src=ue, dst=everyone) / ARP(op=1, hwsrc=ue, psrc="192.0.2.1", pdst="192.0.2.9") / Raw(bytes(18))
    gnb.send(up, question)
    lan.expect(question, "a broadcast on the LAN")
    expect(0x78, question, "a broadcast at the other UE")
    report = smf.wait_report(lambda report: find(report, IE_MACAddressesDetected), "an address")
    if find(report, IE_MACAddressesDetected).macs != [ue] or not find(report, IE_UsageReportTrigger).MACAR:
        fail("another address: %s" % report.command())
    counted, first_report = [len(question), 0], report

    answer = Ether(src=machine, dst=ue) / ARP(op=2, hwsrc=machine, psrc="192.0.2.9", pdst="192.0.2.1") / Raw(bytes(18))
    lan.send(answer)
    expect(0x77, answer, "an answer")
    counted[1] += len(answer)
    gnb.nothing("the other UE gets it too")

    # IP inside, of all sizes, and with tags. VLANs are LANs of their own: there nobody has spoken yet.
    for size in (0, 1, 100, 1300):
        frame = Ether(src=ue, dst=machine) / datagram("192.0.2.1", "192.0.2.9", b"u" * size)
        gnb.send(up, frame)
        lan.expect(frame, "%d octets up" % size)
        counted[0] += len(bytes(frame))
        frame = Ether(src=machine, dst=ue) / datagram("192.0.2.9", "192.0.2.1", b"d" * size)
        lan.send(frame)
        expect(0x77, frame, "%d octets down" % size)
        counted[1] += len(bytes(frame))
    tagged = Ether(src=ue, dst=machine) / Dot1Q(vlan=7, prio=3) / ARP() / Raw(bytes(18))
    gnb.send(up, tagged)
    lan.expect(tagged, "a tagged frame up")
    expect(0x78, tagged, "to all of its VLAN")
    counted[0] += len(bytes(tagged))
    back = Ether(src=machine, dst=ue) / Dot1Q(vlan=7, prio=3) / ARP() / Raw(bytes(18))
    lan.send(back)
    expect(0x77, back, "a tagged frame down")
    counted[1] += len(bytes(back))

    # From UE to UE the LAN hears nothing, and nobody speaks in another's name.
    hello = Ether(src=other, dst=ue) / ARP(op=1, hwsrc=other, psrc="192.0.2.2", pdst="192.0.2.1") / Raw(bytes(18))
    gnb.send(other_up, hello)
    expect(0x77, hello, "from UE to UE")
    counted[1] += len(hello)
    gnb.send(other_up, Ether(src=ue, dst=machine) / ARP() / Raw(bytes(18)))
    gnb.send(other_up, Ether(src=machine, dst=ue) / ARP() / Raw(bytes(18)))
    gnb.nothing("a forged frame arrived")
    lan.nothing("frames that are none of the LAN's business")

    # The address was new in the VLAN as well. Each report began a new count.
    report = smf.wait_report(lambda report: find(report, IE_MACAddressesDetected), "an address in a VLAN")
    smf.ours = first
    reports = [first_report, report, find(smf.delete(), IE_UsageReport_SDR)]
    reported = [sum(volume(report)[way] for report in reports) for way in (0, 1)]
    if reported != counted:
        fail("reported %s, counted %s" % (reported, counted))


def main():
    smf, gnb, dn = Smf(), Gnb(), DataNetwork()
    smf.associate()
    for name in sys.argv[1:]:
        smf.reports.clear()
        globals()[name](smf, gnb, dn)
        gnb.nothing("%s left something" % name, 0.05)
        print("independent: %s: ok" % name, flush=True)


main()
