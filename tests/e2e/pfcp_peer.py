"""An independent CP function for the UPF at 127.0.0.7: scapy encodes what it sends and decodes what comes back."""

import socket
import sys

from scapy.contrib.pfcp import *

UPF = ("127.0.0.7", 8805)
ME = "127.0.0.99"
ACCEPTED = 1

sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind((ME, 8805))
sock.settimeout(5)
sequence = 100


def fail(text):
    print("pfcp_peer:", text)
    sys.exit(1)


def find(message, kind):
    """The first IE of a kind, at any depth."""
    for ie in getattr(message, "IE_list", []):
        if isinstance(ie, kind):
            return ie
        inner = find(ie, kind)
        if inner is not None:
            return inner
    return None


def cause(message):
    ie = find(message, IE_Cause)
    return None if ie is None else ie.fields[IE_Cause.fields_desc[-1].name]


def receive(kind):
    while True:
        data, _ = sock.recvfrom(65535)
        answer = PFCP(data)
        if answer.message_type == 1:  # The UPF's heartbeat to a peer it knows.
            response = PFCPHeartbeatResponse(IE_list=[IE_RecoveryTimeStamp(timestamp=3900000000)])
            sock.sendto(bytes(PFCP(version=1, S=0, seq=answer.seq) / response), UPF)
            continue
        if kind not in answer:
            fail("expected %s, got %s" % (kind.__name__, answer.command()))
        if bytes(answer) != data:
            fail("scapy encodes %s differently: %s, received %s" % (kind.__name__, bytes(answer).hex(), data.hex()))
        return answer


def exchange(message, kind, seid=None):
    global sequence
    sequence += 1
    header = PFCP(version=1, S=0, seq=sequence) if seid is None else PFCP(version=1, S=1, seid=seid, seq=sequence)
    sock.sendto(bytes(header / message), UPF)
    answer = receive(kind)
    if answer.seq != sequence:
        fail("answer to another request")
    return answer


def rule(number, source, far, extra):
    pdi = IE_PDI(IE_list=[IE_SourceInterface(interface=source)] + extra)
    ies = [IE_PDR_Id(id=number), IE_Precedence(precedence=255), pdi, IE_FAR_Id(id=far)]
    return ies


node = IE_NodeId(id_type=0, ipv4=ME)
stamp = IE_RecoveryTimeStamp(timestamp=3900000000)

answer = exchange(PFCPHeartbeatRequest(IE_list=[stamp]), PFCPHeartbeatResponse)
if find(answer[PFCPHeartbeatResponse], IE_RecoveryTimeStamp) is None:
    fail("heartbeat without recovery time stamp")

answer = exchange(PFCPAssociationSetupRequest(IE_list=[node, stamp]), PFCPAssociationSetupResponse)
if cause(answer[PFCPAssociationSetupResponse]) != ACCEPTED:
    fail("association refused: %r" % answer.command())

network = IE_NetworkInstance(instance="internet")
forward = [IE_DestinationInterface(interface=1), network]


def establish(ue):
    uplink = rule(1, 0, 1, [IE_FTEID(CH=1, V4=1), network])
    uplink.insert(3, IE_OuterHeaderRemoval(header=0))
    downlink = rule(2, 1, 2, [network, IE_UE_IP_Address(V4=1, SD=1, ipv4=ue)])
    return PFCPSessionEstablishmentRequest(IE_list=[
        node,
        IE_FSEID(v4=1, seid=0x1122334455667788, ipv4=ME),
        IE_CreatePDR(IE_list=uplink),
        IE_CreatePDR(IE_list=downlink),
        IE_CreateFAR(IE_list=[IE_FAR_Id(id=1), IE_ApplyAction(FORW=1), IE_ForwardingParameters(IE_list=forward)]),
        IE_CreateFAR(IE_list=[IE_FAR_Id(id=2), IE_ApplyAction(DROP=1)]),
    ])


answer = exchange(establish("10.45.200.200"), PFCPSessionEstablishmentResponse, seid=0)
body = answer[PFCPSessionEstablishmentResponse]
if cause(body) != ACCEPTED:
    fail("session refused: %s" % answer.command())
if answer.seid != 0x1122334455667788:
    fail("the response is not for our SEID: %x" % answer.seid)
ours = find(body, IE_FSEID)
chosen = find(body, IE_FTEID)
if ours is None or chosen is None or chosen.TEID == 0:
    fail("no F-SEID or no chosen F-TEID: %s" % answer.command())

creation = IE_OuterHeaderCreation(GTPUUDPIPV4=1, TEID=0x77, ipv4="10.200.0.2")
update = IE_UpdateForwardingParameters(IE_list=[IE_DestinationInterface(interface=0), creation])
change = IE_UpdateFAR(IE_list=[IE_FAR_Id(id=2), IE_ApplyAction(FORW=1), update])
answer = exchange(PFCPSessionModificationRequest(IE_list=[change]), PFCPSessionModificationResponse, seid=ours.seid)
if cause(answer[PFCPSessionModificationResponse]) != ACCEPTED:
    fail("modification refused: %s" % answer.command())

# A rule with an unknown FAR, an unknown session: refused with a cause.
orphan = IE_CreatePDR(IE_list=rule(9, 1, 99, [network]))
answer = exchange(PFCPSessionModificationRequest(IE_list=[orphan]), PFCPSessionModificationResponse, seid=ours.seid)
if cause(answer[PFCPSessionModificationResponse]) in (None, ACCEPTED):
    fail("a PDR without FAR was accepted: %s" % answer.command())
answer = exchange(PFCPSessionDeletionRequest(), PFCPSessionDeletionResponse, seid=0xdeadbeef)
if cause(answer[PFCPSessionDeletionResponse]) != 65:  # Session context not found.
    fail("deletion of an unknown session: %s" % answer.command())

# A mandatory IE is missing: the answer has its number.
missing = PFCPSessionEstablishmentRequest(IE_list=[node])
answer = exchange(missing, PFCPSessionEstablishmentResponse, seid=0)
if cause(answer[PFCPSessionEstablishmentResponse]) != 66:  # Mandatory IE missing.
    fail("establishment without F-SEID: %s" % answer.command())

# Truncated at every octet, and every octet changed: whatever is answered must decode, and the UPF must live. The
# address is one that no single bit turns into that of our session, which would rightly be replaced.
sequence += 1
good = bytes(PFCP(version=1, S=1, seid=0, seq=sequence) / establish("10.45.100.37"))
sock.settimeout(0.2)
for end in range(len(good)):
    sock.sendto(good[:end], UPF)
for at in range(len(good)):
    sock.sendto(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1:], UPF)
try:
    while True:
        PFCP(sock.recvfrom(65535)[0])
except socket.timeout:
    pass
sock.settimeout(5)

sequence += 1000
answer = exchange(PFCPSessionDeletionRequest(), PFCPSessionDeletionResponse, seid=ours.seid)
if cause(answer[PFCPSessionDeletionResponse]) != ACCEPTED:
    fail("deletion refused: %s" % answer.command())
print("pfcp_peer: ok")
