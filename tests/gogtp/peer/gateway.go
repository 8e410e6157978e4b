package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/wmnsk/go-gtp/gtpv2"
	"github.com/wmnsk/go-gtp/gtpv2/ie"
	"github.com/wmnsk/go-gtp/gtpv2/message"
)

// An S-GW and P-GW in one on S11, or a P-GW on S5/S8. A UE has one PDN connection, as go-gtp keeps one session for an IMSI.
type gateway struct {
	*node
	plane *plane
	pool  *pool
	apn   string

	mu   sync.Mutex
	ues  map[string]*ue
	next uint32 // charging identity
}

// What there is besides go-gtp's session. go-gtp's bearers and this are guarded by `mu`.
type ue struct {
	mu       sync.Mutex
	session  *gtpv2.Session
	own      uint32
	peer     uint32
	address  net.IP
	tunnels  map[uint8]*tunnel
	isPaged  bool
	isClosed bool
	// The gateway asks one thing after the other: go-gtp has one queue of answers for a session.
	asking sync.Mutex
}

func newGateway(
	out *output, face face, own *net.UDPAddr, plane *plane, pool *pool, apn string, counter uint8,
) *gateway {
	g := &gateway{
		node: newNode(out, face, own, counter), plane: plane, pool: pool, apn: apn, ues: map[string]*ue{},
	}
	// go-gtp would ignore requests with an unknown TEID; they are refused here.
	g.conn.DisableValidation()
	g.serve(message.MsgTypeCreateSessionRequest, g.create)
	g.serve(message.MsgTypeModifyBearerRequest, g.modify)
	g.serve(message.MsgTypeDeleteSessionRequest, g.delete)
	if !face.isS5() {
		g.serve(message.MsgTypeReleaseAccessBearersRequest, g.release)
	}
	g.conn.AddHandler(message.MsgTypeDownlinkDataNotificationFailureIndication, g.pagingFailed)
	g.expect(
		message.MsgTypeCreateBearerResponse, message.MsgTypeDeleteBearerResponse,
		message.MsgTypeDownlinkDataNotificationAcknowledge,
	)
	g.listen()
	return g
}

func (g *gateway) run(do command) map[string]any {
	switch do.Do {
	case "status":
		p := g.plane
		p.mu.RLock()
		defer p.mu.RUnlock()
		return map[string]any{
			"sessions": g.conn.SessionCount(), "tunnels": len(p.tunnels), "repeats": g.repeated(),
			"uplink": p.counts.uplink, "downlink": p.counts.downlink, "waited": p.counts.waited,
			"dropped": p.counts.dropped,
		}
	case "bearers":
		return g.bearers(do)
	case "create_bearer":
		return g.createBearer(do)
	case "delete_bearer":
		return g.deleteBearer(do)
	}
	return refusal(fmt.Errorf("unknown command %q", do.Do))
}

// The bearers of a UE, by EBI, with the packets that went through them: imsi.
func (g *gateway) bearers(do command) map[string]any {
	u, err := g.known(do)
	if err != nil {
		return refusal(err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	g.plane.mu.RLock()
	defer g.plane.mu.RUnlock()
	bearers := map[string]any{}
	for ebi, t := range u.tunnels {
		bearers[fmt.Sprint(ebi)] = map[string]any{"uplink": t.uplink, "downlink": t.downlink}
	}
	return map[string]any{"bearers": bearers}
}

// Who a request is for; nil if its TEID is none of this peer's.
func (g *gateway) of(from net.Addr, m message.Message) *ue {
	session, err := g.conn.GetSessionByTEID(m.TEID(), from)
	if err != nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ues[session.IMSI]
}

func (g *gateway) create(from net.Addr, m message.Message) message.Message {
	request, ok := m.(*message.CreateSessionRequest)
	peer := (*end)(nil)
	if ok {
		peer = tunnelEnd(request.SenderFTEIDC, g.face.peerControl)
	}
	if peer == nil {
		return message.NewCreateSessionResponse(0, 0, causeOf(gtpv2.CauseMandatoryIEMissing))
	}
	refuse := func(cause uint8) message.Message {
		return message.NewCreateSessionResponse(peer.TEID, 0, causeOf(cause))
	}
	context := first(request.BearerContextsToBeCreated)
	if context == nil || request.IMSI == nil || request.APN == nil {
		return refuse(gtpv2.CauseConditionalIEMissing)
	}
	if m.TEID() != 0 {
		// A further PDN connection of a UE.
		return refuse(gtpv2.CauseServiceNotSupported)
	}
	session, err := g.conn.ParseCreateSession(
		from, request.IMSI, request.MSISDN, request.MEI, request.ServingNetwork, request.RATType, request.APN,
		request.SenderFTEIDC, context,
	)
	if err != nil {
		return refuse(gtpv2.CauseMandatoryIEIncorrect)
	}
	bearer := session.GetDefaultBearer()
	if apn, _, _ := strings.Cut(bearer.APN, ".mnc"); apn != g.apn {
		return refuse(gtpv2.CauseMissingOrUnknownAPN)
	}
	cause := gtpv2.CauseRequestAccepted
	if request.PDNType != nil {
		switch asked, _ := request.PDNType.PDNType(); asked {
		case gtpv2.PDNTypeIPv4:
		case gtpv2.PDNTypeIPv4v6:
			cause = gtpv2.CauseNewPDNTypeDueToNetworkPreference
		default:
			return refuse(gtpv2.CausePreferredPDNTypeNotSupported)
		}
	}
	if former := g.take(session.IMSI); former != nil {
		g.close(former)
	}
	address := g.pool.take()
	if address == nil {
		return refuse(gtpv2.CauseAllDynamicAddressesAreOccupied)
	}
	u := &ue{session: session, peer: peer.TEID, address: address, tunnels: map[uint8]*tunnel{}}
	user, err := g.open(u, bearer)
	if err != nil {
		g.pool.put(address)
		return refuse(gtpv2.CauseNoResourcesAvailable)
	}
	// It is registered at once: go-gtp cannot look for a TEID that is only reserved.
	own := g.conn.NewSenderFTEID(g.own.String(), "")
	u.own = own.MustTEID()
	g.conn.RegisterSession(u.own, session)
	session.AddTEID(g.face.user, user.TEID)
	_ = session.Activate()
	g.mu.Lock()
	g.ues[session.IMSI] = u
	g.next++
	charging := g.next
	g.mu.Unlock()
	created := []*ie.IE{ie.NewEPSBearerID(bearer.EBI), accepted(), ie.NewChargingID(charging)}
	elements := []*ie.IE{causeOf(cause)}
	if g.face.isS5() {
		// The S-GW names its end at once.
		if sgw := tunnelEnd(child(context, ie.FullyQualifiedTEID, g.face.inCreate), g.face.peerUser); sgw != nil {
			if err := g.plane.connect(u.tunnels[bearer.EBI], sgw); err != nil {
				g.close(g.take(session.IMSI))
				return refuse(gtpv2.CauseMandatoryIEIncorrect)
			}
		}
		elements = append(elements, own.WithInstance(1))
		created = append(created, user.ie(gtpv2.IFTypeS5S8PGWGTPU, 2))
	} else {
		elements = append(elements, own,
			ie.NewFullyQualifiedTEID(gtpv2.IFTypeS5S8PGWGTPC, u.own, g.own.String(), "").WithInstance(1))
		created = append(created, user.ie(gtpv2.IFTypeS1USGWGTPU, 0), user.ie(gtpv2.IFTypeS5S8PGWGTPU, 2))
	}
	elements = append(elements,
		ie.NewPDNAddressAllocation(address.String()),
		ie.NewAPNRestriction(gtpv2.APNRestrictionNoExistingContextsorRestriction),
		ie.NewBearerContext(created...),
		ie.NewRecovery(g.conn.RestartCounter),
	)
	return message.NewCreateSessionResponse(peer.TEID, 0, elements...)
}

// A tunnel for the default bearer.
func (g *gateway) open(u *ue, bearer *gtpv2.Bearer) (*end, error) {
	address, _ := netip.AddrFromSlice(u.address)
	ebi := bearer.EBI
	t, err := g.plane.add(g.face.user, address, 0, func() { g.page(u, ebi) })
	if err != nil {
		return nil, err
	}
	u.tunnels[ebi] = t
	bearer.SetIncomingTEID(t.own)
	bearer.SubscriberIP = u.address.String()
	return t.end(), nil
}

func (g *gateway) modify(from net.Addr, m message.Message) message.Message {
	u := g.of(from, m)
	request, ok := m.(*message.ModifyBearerRequest)
	if u == nil || !ok {
		return message.NewModifyBearerResponse(0, 0, causeOf(gtpv2.CauseContextNotFound))
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if peer := tunnelEnd(request.SenderFTEIDC, g.face.peerControl); peer != nil {
		u.peer = peer.TEID
		u.session.AddTEID(g.face.peerControl, peer.TEID)
	}
	elements := []*ie.IE{accepted()}
	for _, context := range request.BearerContextsToBeModified {
		ebi := ebiOf(child(context, ie.EPSBearerID, 0))
		cause := gtpv2.CauseRequestAccepted
		t := u.tunnels[ebi]
		peer := tunnelEnd(child(context, ie.FullyQualifiedTEID, g.face.inModify), g.face.peerUser)
		switch {
		case t == nil:
			cause = gtpv2.CauseContextNotFound
		case peer == nil && !g.face.isS5():
			cause = gtpv2.CauseConditionalIEMissing
		case peer != nil:
			if bearer, err := u.session.LookupBearerByEBI(ebi); err == nil {
				bearer.SetOutgoingTEID(peer.TEID)
			}
			if err := g.plane.connect(t, peer); err != nil {
				cause = gtpv2.CauseMandatoryIEIncorrect
			}
		}
		modified := []*ie.IE{ie.NewEPSBearerID(ebi), causeOf(cause)}
		if t != nil && !g.face.isS5() {
			modified = append(modified, t.end().ie(g.face.user, 0))
		}
		if cause != gtpv2.CauseRequestAccepted {
			elements[0] = causeOf(cause)
		}
		elements = append(elements, ie.NewBearerContext(modified...))
	}
	return message.NewModifyBearerResponse(u.peer, 0, elements...)
}

func (g *gateway) release(from net.Addr, m message.Message) message.Message {
	u := g.of(from, m)
	if u == nil {
		return message.NewReleaseAccessBearersResponse(0, 0, causeOf(gtpv2.CauseContextNotFound))
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range u.tunnels {
		if err := g.plane.release(t); err != nil {
			return message.NewReleaseAccessBearersResponse(u.peer, 0, causeOf(gtpv2.CauseSystemFailure))
		}
	}
	return message.NewReleaseAccessBearersResponse(u.peer, 0, accepted())
}

func (g *gateway) delete(from net.Addr, m message.Message) message.Message {
	u := g.of(from, m)
	if u == nil {
		return message.NewDeleteSessionResponse(0, 0, causeOf(gtpv2.CauseContextNotFound))
	}
	g.close(g.take(u.session.IMSI))
	return message.NewDeleteSessionResponse(u.peer, 0, accepted())
}

// Takes a UE out of the list; nil if it is in none.
func (g *gateway) take(imsi string) *ue {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := g.ues[imsi]
	delete(g.ues, imsi)
	return u
}

// Gives back all that a UE has. Nothing happens without one, and the second time.
func (g *gateway) close(u *ue) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.isClosed {
		return
	}
	u.isClosed = true
	for _, t := range u.tunnels {
		g.plane.remove(t)
	}
	_ = u.session.Deactivate()
	g.conn.RemoveSession(u.session)
	g.pool.put(u.address)
}

// A packet waits for the UE: it is paged, once until it comes.
func (g *gateway) page(u *ue, ebi uint8) {
	u.mu.Lock()
	if u.isPaged || u.isClosed || g.face.isS5() {
		u.mu.Unlock()
		return
	}
	u.isPaged = true
	u.mu.Unlock()
	answer, err := g.askUE(u, func(sequence uint32) message.Message {
		return message.NewDownlinkDataNotification(
			u.peer, sequence, ie.NewEPSBearerID(ebi), ie.NewAllocationRetensionPriority(0, 8, 0),
		)
	})
	cause := uint8(0)
	if acknowledged, ok := answer.(*message.DownlinkDataNotificationAcknowledge); ok {
		cause = causeIn(acknowledged.Cause)
	}
	g.out.tell(map[string]any{"event": "paged", "imsi": u.session.IMSI, "cause": cause})
	u.mu.Lock()
	u.isPaged = false
	t := u.tunnels[ebi]
	u.mu.Unlock()
	switch {
	case cause == gtpv2.CauseContextNotFound:
		g.close(g.take(u.session.IMSI))
	case (err != nil || cause != gtpv2.CauseRequestAccepted) && t != nil:
		// The next packet has the UE paged again.
		g.plane.forget(t)
	}
}

func (g *gateway) pagingFailed(_ *gtpv2.Conn, from net.Addr, m message.Message) error {
	if u := g.of(from, m); u != nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		for _, t := range u.tunnels {
			g.plane.forget(t)
		}
	}
	return nil
}

func (g *gateway) askUE(u *ue, make func(uint32) message.Message) (message.Message, error) {
	u.asking.Lock()
	defer u.asking.Unlock()
	return g.askFor(u.session, make)
}

func (g *gateway) known(do command) (*ue, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := g.ues[do.IMSI]
	if u == nil {
		return nil, fmt.Errorf("no UE %s", do.IMSI)
	}
	return u, nil
}

// Create Bearer: imsi, qci, and port, the remote UDP port of its packets.
func (g *gateway) createBearer(do command) map[string]any {
	u, err := g.known(do)
	if err != nil {
		return refusal(err)
	}
	linked := u.session.GetDefaultBearer().EBI
	address, _ := netip.AddrFromSlice(u.address)
	t, err := g.plane.add(g.face.user, address, do.Port, func() {})
	if err != nil {
		return refusal(err)
	}
	own := t.end()
	filter := ie.NewTFTPacketFilter(
		ie.TFTPFBidirectional, 1, 10,
		ie.NewTFTPFComponentProtocolIdentifierNextHeader(17), ie.NewTFTPFComponentSingleRemotePort(do.Port),
	)
	context := []*ie.IE{
		ie.NewEPSBearerID(0), ie.NewBearerTFTCreateNewTFT([]*ie.TFTPacketFilter{filter}, nil),
		ie.NewBearerQoS(1, 8, 0, do.QCI, 0, 0, 0, 0), ie.NewChargingID(1),
	}
	if !g.face.isS5() {
		context = append(context, own.ie(gtpv2.IFTypeS1USGWGTPU, 0))
	}
	context = append(context, own.ie(gtpv2.IFTypeS5S8PGWGTPU, 1))
	m, err := g.askUE(u, func(sequence uint32) message.Message {
		return message.NewCreateBearerRequest(
			u.peer, sequence, ie.NewEPSBearerID(linked), ie.NewBearerContext(context...),
		)
	})
	created, ok := m.(*message.CreateBearerResponse)
	if err != nil || !ok {
		g.plane.remove(t)
		return refusal(fmt.Errorf("no answer"))
	}
	result := map[string]any{"cause": causeIn(created.Cause), "own": own}
	answered := first(created.BearerContexts)
	ebi := ebiOf(child(answered, ie.EPSBearerID, 0))
	peer := tunnelEnd(child(answered, ie.FullyQualifiedTEID, g.face.inBearerCreated), g.face.peerUser)
	if causeIn(created.Cause) != gtpv2.CauseRequestAccepted || peer == nil {
		g.plane.remove(t)
		return result
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	bearer := gtpv2.NewBearer(ebi, g.apn, &gtpv2.QoSProfile{QCI: do.QCI})
	bearer.SetIncomingTEID(t.own)
	bearer.SetOutgoingTEID(peer.TEID)
	u.session.AddBearer(fmt.Sprint(ebi), bearer)
	u.tunnels[ebi] = t
	if err := g.plane.connect(t, peer); err != nil {
		return refusal(err)
	}
	result["ebi"], result["peer"] = ebi, peer
	return result
}

// Delete Bearer: imsi, ebi. With the default bearer all of the PDN connection goes.
func (g *gateway) deleteBearer(do command) map[string]any {
	u, err := g.known(do)
	if err != nil {
		return refusal(err)
	}
	linked := u.session.GetDefaultBearer().EBI
	m, err := g.askUE(u, func(sequence uint32) message.Message {
		if do.EBI == linked {
			return message.NewDeleteBearerRequest(u.peer, sequence, ie.NewEPSBearerID(linked))
		}
		return message.NewDeleteBearerRequest(u.peer, sequence, ie.NewEPSBearerID(do.EBI).WithInstance(1))
	})
	deleted, ok := m.(*message.DeleteBearerResponse)
	if err != nil || !ok {
		return refusal(fmt.Errorf("no answer"))
	}
	if do.EBI == linked {
		g.close(g.take(do.IMSI))
		return map[string]any{"cause": causeIn(deleted.Cause)}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if t := u.tunnels[do.EBI]; t != nil {
		g.plane.remove(t)
		delete(u.tunnels, do.EBI)
		u.session.RemoveBearerByEBI(do.EBI)
	}
	return map[string]any{"cause": causeIn(deleted.Cause)}
}
