package main

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
)

// IPv4 addresses of UEs. An address that is given back is taken again after all others.
type pool struct {
	mu         sync.Mutex
	next, last uint32
	free       []uint32
}

func newPool(prefix string) (*pool, error) {
	parsed, err := netip.ParsePrefix(prefix)
	if err != nil {
		return nil, err
	}
	octets := parsed.Masked().Addr().As4()
	network := binary.BigEndian.Uint32(octets[:])
	// Neither the network's address, nor the first one, nor the broadcast address.
	return &pool{next: network + 2, last: network + 1<<(32-parsed.Bits()) - 2}, nil
}

// An address; nil if all are taken.
func (p *pool) take() net.IP {
	p.mu.Lock()
	defer p.mu.Unlock()
	var value uint32
	switch {
	case p.next <= p.last:
		value = p.next
		p.next++
	case len(p.free) > 0:
		value, p.free = p.free[0], p.free[1:]
	default:
		return nil
	}
	return binary.BigEndian.AppendUint32(nil, value)
}

func (p *pool) put(address net.IP) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, binary.BigEndian.Uint32(address.To4()))
}
