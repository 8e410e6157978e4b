"""Reads a capture of N4 with scapy: each message must decode whole and encode to the octets it came from."""

import sys

from scapy.all import Raw, UDP, rdpcap
from scapy.contrib.pfcp import PFCP

seen = {}
for packet in rdpcap(sys.argv[1]):
    if UDP not in packet or 8805 not in (packet[UDP].sport, packet[UDP].dport):
        continue
    data = bytes(packet[UDP].payload)
    message = PFCP(data)
    if Raw in message:
        sys.exit("scapy does not understand all of %s: %s" % (message.summary(), data.hex()))
    # Rebuilt from the decoded fields, not from the cached octets.
    if bytes(PFCP(data).copy()) != data:
        sys.exit("scapy encodes %s differently: %s" % (message.summary(), data.hex()))
    seen[message.message_type] = seen.get(message.message_type, 0) + 1
for kind in (5, 6, 50, 51, 52, 53, 54, 55):
    if kind not in seen:
        sys.exit("no PFCP message of type %d in the capture: %s" % (kind, seen))
print(seen)
