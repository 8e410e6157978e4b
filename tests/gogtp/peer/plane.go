package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/wmnsk/go-gtp/gtpv1"
	"github.com/wmnsk/go-gtp/gtpv1/message"
	"golang.org/x/sys/unix"
)

// Packets that wait for an idle UE.
const maxWaiting = 64

// The user plane: go-gtp's GTP-U connection on one side, a TUN device on the other. Without a device it gives TEIDs only, and with a UPF
// it leaves all to that.
type plane struct {
	upf     *upf
	address *net.UDPAddr
	conn    *gtpv1.UPlaneConn
	device  *os.File

	mu sync.RWMutex
	// By own TEID, those of default bearers by the UE's address, those of dedicated ones by their packets.
	tunnels map[uint32]*tunnel
	ues     map[netip.Addr]*tunnel
	flows   map[flow]*tunnel
	counts  struct{ uplink, downlink, waited, dropped uint64 }
}

// The packets of a dedicated bearer: to a UE, from a remote UDP port.
type flow struct {
	ue   netip.Addr
	port uint16
}

// A bearer. The fields are guarded by the plane.
type tunnel struct {
	own uint32
	ue  netip.Addr
	// The remote UDP port of a dedicated bearer's packets; 0 of a default bearer.
	port uint16
	// Packets that went through.
	uplink, downlink uint64
	// The peer's end; without an address packets wait.
	peer    uint32
	address *net.UDPAddr
	waiting [][]byte
	// Called with the first packet that waits.
	wake func()

	// On a UPF: own SEID and the UPF's.
	seid, session uint64
	ownAddress    net.IP
}

// The own end, for the peer.
func (t *tunnel) end() *end { return &end{TEID: t.own, Address: t.ownAddress.String()} }

func newPlane(address *net.UDPAddr, name, pool string, mtu int) (*plane, error) {
	p := &plane{
		address: address, conn: gtpv1.NewUPlaneConn(address),
		tunnels: map[uint32]*tunnel{}, ues: map[netip.Addr]*tunnel{}, flows: map[flow]*tunnel{},
	}
	if name == "" {
		return p, nil
	}
	if err := p.open(name, pool, mtu); err != nil {
		return nil, fmt.Errorf("TUN device %s: %w", name, err)
	}
	p.conn.AddHandler(message.MsgTypeTPDU, p.uplink)
	go func() { check(p.conn.ListenAndServe(context.Background())) }()
	go p.downlink()
	return p, nil
}

// Makes the device, with a route to all UEs.
func (p *plane) open(name, pool string, mtu int) error {
	descriptor, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(descriptor, unix.TUNSETIFF, request); err != nil {
		return err
	}
	p.device = os.NewFile(uintptr(descriptor), name)
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(link, mtu); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	_, network, err := net.ParseCIDR(pool)
	if err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: network}); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

// A new tunnel, whose packets wait until the peer's end is known. A dedicated bearer is for the UE's UDP packets from `port`, which
// is 0 for a default bearer; until it is connected they go through the default one. Uplink packets pass in any tunnel.
func (p *plane) add(interfaceType uint8, ue netip.Addr, port uint16, wake func()) (*tunnel, error) {
	var t *tunnel
	if p.upf != nil {
		if port != 0 {
			return nil, fmt.Errorf("no dedicated bearers on a UPF")
		}
		var err error
		if t, err = p.upf.establish(ue, wake); err != nil {
			return nil, err
		}
	} else {
		teid := p.conn.NewFTEID(interfaceType, p.address.IP.String(), "").MustTEID()
		t = &tunnel{own: teid, ownAddress: p.address.IP, ue: ue, port: port, wake: wake}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tunnels[t.own] = t
	if port == 0 {
		p.ues[ue] = t
	} else {
		p.flows[flow{ue, port}] = t
	}
	return t, nil
}

func (p *plane) remove(t *tunnel) {
	p.mu.Lock()
	delete(p.tunnels, t.own)
	if p.ues[t.ue] == t {
		delete(p.ues, t.ue)
	}
	if p.flows[flow{t.ue, t.port}] == t {
		delete(p.flows, flow{t.ue, t.port})
	}
	p.mu.Unlock()
	if p.upf != nil {
		p.upf.delete(t)
		return
	}
	// Frees the TEID.
	_ = p.conn.CloseRelay(t.own)
}

// Packets go to the peer's end from now on, those that waited first.
func (p *plane) connect(t *tunnel, peer *end) error {
	ip := net.ParseIP(peer.Address)
	if ip == nil {
		return fmt.Errorf("%q is no address", peer.Address)
	}
	if p.upf != nil {
		hasMoved := t.address != nil && (t.peer != peer.TEID || !t.address.IP.Equal(ip))
		if err := p.upf.modify(t, peer, hasMoved); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.device != nil && t.address != nil && (t.peer != peer.TEID || !t.address.IP.Equal(ip)) {
		// The former eNB's packets end here (TS 23.401 §5.5.1.1.2).
		marker := message.NewEndMarker()
		marker.SetTEID(t.peer)
		if octets, err := marker.Marshal(); err == nil {
			_, _ = p.conn.WriteTo(octets, t.address)
		}
	}
	t.peer, t.address = peer.TEID, &net.UDPAddr{IP: ip, Port: 2152}
	for _, packet := range t.waiting {
		_, _ = p.conn.WriteToGTP(t.peer, packet, t.address)
	}
	t.waiting = nil
	return nil
}

func (p *plane) release(t *tunnel) error {
	if p.upf != nil {
		if err := p.upf.modify(t, nil, false); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.address = nil
	return nil
}

// Drops what waits: nobody can be paged.
func (p *plane) forget(t *tunnel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.waiting = nil
}

func (p *plane) uplink(_ gtpv1.Conn, from net.Addr, m message.Message) error {
	pdu, ok := m.(*message.TPDU)
	if !ok {
		return gtpv1.ErrUnexpectedType
	}
	p.mu.RLock()
	t := p.tunnels[pdu.TEID()]
	p.mu.RUnlock()
	if t == nil {
		return p.conn.ErrorIndication(from, pdu)
	}
	p.mu.Lock()
	p.counts.uplink++
	t.uplink++
	p.mu.Unlock()
	_, err := p.device.Write(pdu.Payload)
	return err
}

func (p *plane) downlink() {
	buffer := make([]byte, 65536)
	for {
		length, err := p.device.Read(buffer)
		check(err)
		// The destination of an IPv4 packet.
		if length < 20 || buffer[0]>>4 != 4 {
			continue
		}
		p.deliver(netip.AddrFrom4([4]byte(buffer[16:20])), buffer[:length])
	}
}

func (p *plane) deliver(ue netip.Addr, packet []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.ues[ue]
	if dedicated := p.flows[flow{ue, udpSource(packet)}]; dedicated != nil && dedicated.address != nil {
		t = dedicated
	}
	switch {
	case t == nil:
		p.counts.dropped++
	case t.address != nil:
		p.counts.downlink++
		t.downlink++
		_, _ = p.conn.WriteToGTP(t.peer, packet, t.address)
	case len(t.waiting) < maxWaiting:
		p.counts.waited++
		t.waiting = append(t.waiting, append([]byte(nil), packet...))
		if len(t.waiting) == 1 {
			go t.wake()
		}
	default:
		p.counts.dropped++
	}
}

// The source port of an IPv4 packet with UDP; 0 of others.
func udpSource(packet []byte) uint16 {
	header := int(packet[0]&0x0f) * 4
	if packet[9] != unix.IPPROTO_UDP || len(packet) < header+8 {
		return 0
	}
	return binary.BigEndian.Uint16(packet[header:])
}
