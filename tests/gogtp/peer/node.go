package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/wmnsk/go-gtp/gtpv2"
	"github.com/wmnsk/go-gtp/gtpv2/ie"
	"github.com/wmnsk/go-gtp/gtpv2/message"
)

// T3-RESPONSE, and N3-REQUESTS with the first one.
const (
	t3    = time.Second
	tries = 4
)

// What differs between the reference points.
type face struct {
	// Interface types of F-TEIDs: own and the peer's of the control plane, own and the peer's of the user plane.
	control, peerControl, user, peerUser uint8
	// Instances of F-TEIDs in bearer contexts (TS 29.274 tables 7.2.1-2, 7.2.2-2, 7.2.3-2, 7.2.4-2, 7.2.7-2): the client's
	// own in a Create Session Request and a Modify Bearer Request, the gateway's in a Create Session Response and a Create
	// Bearer Request, both in a Create Bearer Response.
	inCreate, inModify, inCreated, inCreateBearer, inBearerCreated, inBearerCreatedPeer uint8
}

var (
	s11 = face{
		control: gtpv2.IFTypeS11MMEGTPC, peerControl: gtpv2.IFTypeS11S4SGWGTPC,
		user: gtpv2.IFTypeS1UeNodeBGTPU, peerUser: gtpv2.IFTypeS1USGWGTPU,
		inBearerCreatedPeer: 1,
	}
	s5 = face{
		control: gtpv2.IFTypeS5S8SGWGTPC, peerControl: gtpv2.IFTypeS5S8PGWGTPC,
		user: gtpv2.IFTypeS5S8SGWGTPU, peerUser: gtpv2.IFTypeS5S8PGWGTPU,
		inCreate: 2, inModify: 1, inCreated: 2, inCreateBearer: 1, inBearerCreated: 2, inBearerCreatedPeer: 3,
	}
	faces = map[string]face{"mme": s11, "sgw": s5, "spgw": s11.turned(), "pgw": s5.turned()}
)

// The same reference point seen from the gateway.
func (f face) turned() face {
	f.control, f.peerControl = f.peerControl, f.control
	f.user, f.peerUser = f.peerUser, f.user
	return f
}

func (f face) isS5() bool {
	return f.control == gtpv2.IFTypeS5S8PGWGTPC || f.control == gtpv2.IFTypeS5S8SGWGTPC
}

// An end of GTPv2-C: go-gtp's connection and sessions, and what go-gtp leaves to its user: repeating requests, and answering repeated
// ones (TS 29.274 §7.6).
type node struct {
	conn *gtpv2.Conn
	own  net.IP
	face face
	out  *output

	mu sync.Mutex
	// Whose request has this sequence number.
	asked    map[uint32]*gtpv2.Session
	repeats  uint64
	answered answers
}

func newNode(out *output, face face, own *net.UDPAddr, counter uint8) *node {
	n := &node{
		conn: gtpv2.NewConn(own, face.control, counter), own: own.IP, face: face, out: out,
		asked: map[uint32]*gtpv2.Session{}, answered: newAnswers(),
	}
	return n
}

// To be called when the handlers are there.
func (n *node) listen() {
	check(n.conn.Listen(context.Background()))
	go func() { check(n.conn.Serve(context.Background())) }()
}

// Answers of a peer go to the session that asked.
func (n *node) expect(kinds ...uint8) {
	for _, kind := range kinds {
		n.conn.AddHandler(kind, func(_ *gtpv2.Conn, _ net.Addr, m message.Message) error {
			n.mu.Lock()
			session := n.asked[m.Sequence()]
			n.mu.Unlock()
			if session == nil {
				return nil
			}
			return gtpv2.PassMessageTo(session, m, t3)
		})
	}
}

// Sends a request and waits for its answer. `send` gives it a sequence number, `again` makes it once more.
func (n *node) ask(
	to net.Addr, send func() (*gtpv2.Session, uint32, error), again func(uint32) message.Message,
) (*gtpv2.Session, message.Message, error) {
	n.mu.Lock()
	session, sequence, err := send()
	if err != nil {
		n.mu.Unlock()
		return nil, nil, err
	}
	n.asked[sequence] = session
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		delete(n.asked, sequence)
		n.mu.Unlock()
	}()
	for try := 0; try < tries; {
		answer, err := session.WaitMessage(sequence, t3)
		var late *gtpv2.InvalidSequenceError
		switch {
		case err == nil:
			return session, answer, nil
		case errors.As(err, &late):
			// An answer to a request that is given up.
		case errors.Is(err, gtpv2.ErrTimeout):
			if try++; try == tries {
				break
			}
			octets, err := message.Marshal(again(sequence))
			if err != nil {
				return session, nil, err
			}
			n.mu.Lock()
			n.repeats++
			n.mu.Unlock()
			if _, err := n.conn.WriteTo(octets, to); err != nil {
				return session, nil, err
			}
		default:
			return session, nil, err
		}
	}
	return session, nil, fmt.Errorf("no answer")
}

// As `ask`, for a session that is there.
func (n *node) askFor(
	session *gtpv2.Session, make func(sequence uint32) message.Message,
) (message.Message, error) {
	send := func() (*gtpv2.Session, uint32, error) {
		sequence, err := n.conn.SendMessageTo(make(0), session.PeerAddr())
		return session, sequence, err
	}
	_, answer, err := n.ask(session.PeerAddr(), send, make)
	return answer, err
}

// Requests of a peer are answered with what `answer` makes of them, repeated ones with the same once more.
func (n *node) serve(kind uint8, answer func(net.Addr, message.Message) message.Message) {
	n.conn.AddHandler(kind, func(c *gtpv2.Conn, from net.Addr, m message.Message) error {
		key := answerKey{kind: kind, sequence: m.Sequence()}
		if udp, ok := from.(*net.UDPAddr); ok {
			key.peer = udp.AddrPort()
		}
		isNew, octets := n.answered.begin(key)
		if isNew {
			response := answer(from, m)
			response.SetSequenceNumber(m.Sequence())
			var err error
			if octets, err = message.Marshal(response); err != nil {
				return err
			}
			n.answered.put(key, octets)
		}
		if octets == nil {
			// It is being worked on.
			return nil
		}
		_, err := c.WriteTo(octets, from)
		return err
	})
}

type answerKey struct {
	peer     netip.AddrPort
	kind     uint8
	sequence uint32
}

// Answers of the last seconds. There are two maps in turn, so that old ones need not be searched for.
type answers struct {
	mu         sync.Mutex
	fresh, old map[answerKey][]byte
	turned     time.Time
}

func newAnswers() answers {
	return answers{fresh: map[answerKey][]byte{}, old: map[answerKey][]byte{}, turned: time.Now()}
}

// Whether the request is new; otherwise its answer, if there is one yet.
func (a *answers) begin(key answerKey) (bool, []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.turned) > tries*t3 {
		a.old, a.fresh, a.turned = a.fresh, map[answerKey][]byte{}, time.Now()
	}
	for _, answers := range []map[answerKey][]byte{a.fresh, a.old} {
		if octets, ok := answers[key]; ok {
			return false, octets
		}
	}
	a.fresh[key] = nil
	return true, nil
}

func (a *answers) put(key answerKey, octets []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fresh[key] = octets
}

func accepted() *ie.IE { return causeOf(gtpv2.CauseRequestAccepted) }

func causeOf(value uint8) *ie.IE { return ie.NewCause(value, 0, 0, 0, nil) }

func causeIn(i *ie.IE) uint8 {
	if i == nil {
		return 0
	}
	value, _ := i.Cause()
	return value
}

// The IE of a bearer context with this type and instance.
func child(context *ie.IE, kind, instance uint8) *ie.IE {
	if context == nil {
		return nil
	}
	for _, i := range context.ChildIEs {
		if i.Type == kind && i.Instance() == instance {
			return i
		}
	}
	return nil
}

func ebiOf(i *ie.IE) uint8 {
	if i == nil {
		return 0
	}
	ebi, _ := i.EPSBearerID()
	return ebi
}

// TEID and IPv4 address of an F-TEID; nil if it is missing or of another interface.
func tunnelEnd(i *ie.IE, interfaceType uint8) *end {
	if i == nil {
		return nil
	}
	fields, err := i.FullyQualifiedTEID()
	if err != nil || fields.IPv4Address == nil {
		return nil
	}
	if found, err := i.InterfaceType(); err != nil || found != interfaceType {
		return nil
	}
	return &end{TEID: fields.TEIDGREKey, Address: fields.IPv4Address.String()}
}

type end struct {
	TEID    uint32 `json:"teid"`
	Address string `json:"address"`
}

func (e *end) ie(interfaceType, instance uint8) *ie.IE {
	return ie.NewFullyQualifiedTEID(interfaceType, e.TEID, e.Address, "").WithInstance(instance)
}

func first(contexts []*ie.IE) *ie.IE {
	if len(contexts) == 0 {
		return nil
	}
	return contexts[0]
}

func (n *node) repeated() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.repeats
}
