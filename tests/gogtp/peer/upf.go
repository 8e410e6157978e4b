package main

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/wmnsk/go-gtp/gtpv2"
	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
)

// Rules of a PDN connection; ours has the same ones (epc/src/rules.rs), so that a comparison compares like with like.
const (
	uplinkPDR, downlinkPDR = 16, 17
	uplinkFAR, downlinkFAR = 1, 16
	ambrQER                = 1
	// Bits of Apply Action, F-TEID and UE IP Address (TS 29.244 §8.2.26, §8.2.3, §8.2.62).
	forward, bufferAndNotify = 0x02, 0x0c
	chooseIPv4               = 0x05
	sourceIPv4, destination  = 0x02, 0x06
	sendEndMarker            = 0x02
	gtpuIPv4                 = 0x0100
)

// A user plane in another process, driven by PFCP with the messages of go-pfcp, which has no connections: sequence numbers and
// repeating are here.
type upf struct {
	socket *net.UDPConn
	own    net.IP
	peer   *net.UDPAddr
	apn    string

	mu       sync.Mutex
	sequence uint32
	seid     uint64
	asked    map[uint32]chan message.Message
	// Tunnels by own SEID.
	tunnels map[uint64]*tunnel
}

// Sets up the association.
func newUPF(own, peer *net.UDPAddr, apn string) (*upf, error) {
	socket, err := net.ListenUDP("udp", own)
	if err != nil {
		return nil, err
	}
	u := &upf{
		socket: socket, own: own.IP, peer: peer, apn: apn,
		asked: map[uint32]chan message.Message{}, tunnels: map[uint64]*tunnel{},
	}
	go u.receive()
	stamp := time.Now()
	answer, err := u.ask(func(sequence uint32) message.Message {
		return message.NewAssociationSetupRequest(
			sequence, ie.NewNodeIDHeuristic(own.IP.String()), ie.NewRecoveryTimeStamp(stamp),
		)
	})
	if err != nil {
		return nil, err
	}
	if setup, ok := answer.(*message.AssociationSetupResponse); !ok || !isDone(setup.Cause) {
		return nil, fmt.Errorf("the UPF refuses the association")
	}
	return u, nil
}

func isDone(cause *ie.IE) bool {
	if cause == nil {
		return false
	}
	value, err := cause.Cause()
	return err == nil && value == ie.CauseRequestAccepted
}

func (u *upf) receive() {
	buffer := make([]byte, 65536)
	started := ie.NewRecoveryTimeStamp(time.Now())
	for {
		length, from, err := u.socket.ReadFromUDP(buffer)
		check(err)
		m, err := message.Parse(append([]byte(nil), buffer[:length]...))
		if err != nil {
			continue
		}
		switch m := m.(type) {
		case *message.HeartbeatRequest:
			u.send(message.NewHeartbeatResponse(m.Sequence(), started), from)
		case *message.SessionReportRequest:
			u.mu.Lock()
			t := u.tunnels[m.SEID()]
			u.mu.Unlock()
			cause, peer := ie.CauseRequestAccepted, uint64(0)
			if t == nil {
				cause = ie.CauseSessionContextNotFound
			} else {
				peer = t.session
				// The only report that is asked for: a packet waits.
				go t.wake()
			}
			u.send(message.NewSessionReportResponse(0, 0, peer, m.Sequence(), 0, ie.NewCause(cause)), from)
		default:
			u.mu.Lock()
			waiting := u.asked[m.Sequence()]
			delete(u.asked, m.Sequence())
			u.mu.Unlock()
			if waiting != nil {
				waiting <- m
			}
		}
	}
}

func (u *upf) send(m message.Message, to *net.UDPAddr) {
	octets := make([]byte, m.MarshalLen())
	if m.MarshalTo(octets) == nil {
		_, _ = u.socket.WriteToUDP(octets, to)
	}
}

// Sends a request until it is answered.
func (u *upf) ask(request func(sequence uint32) message.Message) (message.Message, error) {
	answer := make(chan message.Message, 1)
	u.mu.Lock()
	u.sequence = (u.sequence + 1) & 0xff_ffff
	sequence := u.sequence
	u.asked[sequence] = answer
	u.mu.Unlock()
	m := request(sequence)
	for try := 0; try < tries; try++ {
		u.send(m, u.peer)
		timer := time.NewTimer(t3)
		select {
		case m := <-answer:
			timer.Stop()
			return m, nil
		case <-timer.C:
		}
	}
	u.mu.Lock()
	delete(u.asked, sequence)
	u.mu.Unlock()
	return nil, fmt.Errorf("the UPF does not answer")
}

// Establishes a session for a default bearer; the UPF chooses its end of the tunnel.
func (u *upf) establish(ue netip.Addr, wake func()) (*tunnel, error) {
	t := &tunnel{ue: ue, wake: wake}
	u.mu.Lock()
	u.seid++
	t.seid = u.seid
	u.tunnels[t.seid] = t
	u.mu.Unlock()
	instance := func() *ie.IE { return ie.NewNetworkInstance(u.apn) }
	address := ue.String()
	answer, err := u.ask(func(sequence uint32) message.Message {
		return message.NewSessionEstablishmentRequest(
			0, 0, 0, sequence, 0,
			ie.NewNodeIDHeuristic(u.own.String()),
			ie.NewFSEID(t.seid, u.own, nil),
			ie.NewCreatePDR(
				ie.NewPDRID(uplinkPDR), ie.NewPrecedence(65535),
				ie.NewPDI(
					ie.NewSourceInterface(ie.SrcInterfaceAccess), ie.NewFTEID(chooseIPv4, 0, nil, nil, 0), instance(),
					ie.NewUEIPAddress(sourceIPv4, address, "", 0, 0),
				),
				ie.NewOuterHeaderRemoval(0, 0), ie.NewFARID(uplinkFAR), ie.NewQERID(ambrQER),
			),
			ie.NewCreatePDR(
				ie.NewPDRID(downlinkPDR), ie.NewPrecedence(65535),
				ie.NewPDI(
					ie.NewSourceInterface(ie.SrcInterfaceCore), instance(),
					ie.NewUEIPAddress(destination, address, "", 0, 0),
				),
				ie.NewFARID(downlinkFAR), ie.NewQERID(ambrQER),
			),
			ie.NewCreateFAR(
				ie.NewFARID(uplinkFAR), ie.NewApplyAction(forward),
				ie.NewForwardingParameters(ie.NewDestinationInterface(ie.DstInterfaceCore), instance()),
			),
			ie.NewCreateFAR(ie.NewFARID(downlinkFAR), ie.NewApplyAction(bufferAndNotify)),
			ie.NewCreateQER(
				ie.NewQERID(ambrQER), ie.NewGateStatus(ie.GateStatusOpen, ie.GateStatusOpen), ie.NewMBR(50_000, 100_000),
			),
			ie.NewPDNType(gtpv2.PDNTypeIPv4), ie.NewAPNDNN(u.apn),
		)
	})
	if err == nil {
		err = t.established(answer)
	}
	if err != nil {
		u.forget(t)
		return nil, err
	}
	return t, nil
}

// What the UPF has chosen.
func (t *tunnel) established(m message.Message) error {
	answer, ok := m.(*message.SessionEstablishmentResponse)
	if !ok || !isDone(answer.Cause) || answer.UPFSEID == nil {
		return fmt.Errorf("the UPF refuses the session")
	}
	seid, err := answer.UPFSEID.FSEID()
	if err != nil {
		return err
	}
	t.session = seid.SEID
	for _, created := range answer.CreatedPDR {
		for _, i := range created.ChildIEs {
			if i.Type != ie.FTEID {
				continue
			}
			f, err := i.FTEID()
			if err != nil {
				return err
			}
			t.own, t.ownAddress = f.TEID, f.IPv4Address
			return nil
		}
	}
	return fmt.Errorf("the UPF gives no F-TEID")
}

// Where downlink packets go: to a peer, or nowhere yet.
func (u *upf) modify(t *tunnel, peer *end, hasMoved bool) error {
	update := []*ie.IE{ie.NewFARID(downlinkFAR), ie.NewApplyAction(bufferAndNotify)}
	if peer != nil {
		parameters := []*ie.IE{
			ie.NewDestinationInterface(ie.DstInterfaceAccess),
			ie.NewOuterHeaderCreation(gtpuIPv4, peer.TEID, peer.Address, "", 0, 0, 0),
		}
		if hasMoved {
			parameters = append(parameters, ie.NewPFCPSMReqFlags(sendEndMarker))
		}
		update[1] = ie.NewApplyAction(forward)
		update = append(update, ie.NewUpdateForwardingParameters(parameters...))
	}
	answer, err := u.ask(func(sequence uint32) message.Message {
		return message.NewSessionModificationRequest(0, 0, t.session, sequence, 0, ie.NewUpdateFAR(update...))
	})
	if err != nil {
		return err
	}
	if modified, ok := answer.(*message.SessionModificationResponse); !ok || !isDone(modified.Cause) {
		return fmt.Errorf("the UPF refuses a change")
	}
	return nil
}

func (u *upf) delete(t *tunnel) {
	// A UPF that does not know the session has nothing to delete.
	_, _ = u.ask(func(sequence uint32) message.Message {
		return message.NewSessionDeletionRequest(0, 0, t.session, sequence, 0)
	})
	u.forget(t)
}

func (u *upf) forget(t *tunnel) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.tunnels, t.seid)
}
