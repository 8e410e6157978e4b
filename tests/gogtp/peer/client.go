package main

import (
	"fmt"
	"net"
	"sync"

	"github.com/wmnsk/go-gtp/gtpv2"
	"github.com/wmnsk/go-gtp/gtpv2/ie"
	"github.com/wmnsk/go-gtp/gtpv2/message"
)

// An MME on S11, or the control part of an S-GW on S5/S8: it asks a gateway for PDN connections, one for each UE.
type client struct {
	*node
	peer *net.UDPAddr
	// The P-GW that an MME names.
	pgw net.IP
	// Address of the own end of the user plane, of eNBs or of the S-GW.
	user net.IP

	mu sync.Mutex
	// What notifications are answered with, and what requests for bearers are.
	pageCause, bearerCause uint8
	// A UE does one thing after the other: go-gtp has one queue of answers for a session.
	busy map[string]*sync.Mutex
	// TEIDs of bearers that the gateway asks for.
	bearers uint32
}

func newClient(
	out *output, face face, own, user, peer *net.UDPAddr, pgw net.IP, counter uint8,
) *client {
	c := &client{
		node: newNode(out, face, own, counter), peer: peer, pgw: pgw, user: user.IP,
		busy:      map[string]*sync.Mutex{},
		pageCause: gtpv2.CauseRequestAccepted, bearerCause: gtpv2.CauseRequestAccepted,
	}
	c.expect(
		message.MsgTypeCreateSessionResponse, message.MsgTypeModifyBearerResponse,
		message.MsgTypeReleaseAccessBearersResponse, message.MsgTypeDeleteSessionResponse,
	)
	c.conn.AddHandler(message.MsgTypeEchoResponse, func(_ *gtpv2.Conn, from net.Addr, m message.Message) error {
		echo, ok := m.(*message.EchoResponse)
		if ok && echo.Recovery != nil {
			counter, _ := echo.Recovery.Recovery()
			out.tell(map[string]any{"event": "echo_response", "from": from.String(), "restart_counter": counter})
		}
		return nil
	})
	c.serve(message.MsgTypeDownlinkDataNotification, c.paged)
	c.serve(message.MsgTypeCreateBearerRequest, c.bearerAsked)
	c.serve(message.MsgTypeUpdateBearerRequest, c.bearerChanged)
	c.serve(message.MsgTypeDeleteBearerRequest, c.bearerDeleted)
	c.listen()
	return c
}

func (c *client) run(do command) map[string]any {
	c.mu.Lock()
	busy := c.busy[do.IMSI]
	if busy == nil {
		busy = &sync.Mutex{}
		c.busy[do.IMSI] = busy
	}
	c.mu.Unlock()
	busy.Lock()
	defer busy.Unlock()
	switch do.Do {
	case "create":
		return c.create(do)
	case "attach":
		created := c.create(do)
		if !isAccepted(created["cause"]) {
			return created
		}
		if modified := c.connect(do); !isAccepted(modified["cause"]) {
			return modified
		}
		return created
	case "connect":
		return c.connect(do)
	case "release":
		if c.face.isS5() {
			return refusal(fmt.Errorf("there is no Release Access Bearers on S5/S8"))
		}
		return c.release(do)
	case "detach":
		return c.detach(do)
	case "answer_pages":
		c.mu.Lock()
		c.pageCause = do.Cause
		c.mu.Unlock()
		return map[string]any{}
	case "answer_bearers":
		c.mu.Lock()
		c.bearerCause = do.Cause
		c.mu.Unlock()
		return map[string]any{}
	case "paging_failed":
		return c.pagingFailed(do)
	case "echo":
		if _, err := c.conn.EchoRequest(c.peer); err != nil {
			return refusal(err)
		}
		return map[string]any{}
	case "status":
		return map[string]any{"sessions": c.conn.SessionCount(), "repeats": c.repeated()}
	}
	return refusal(fmt.Errorf("unknown command %q", do.Do))
}

func (c *client) userEnd(do command) *end {
	if do.Address == "" {
		do.Address = c.user.String()
	}
	return &end{TEID: do.TEID, Address: do.Address}
}

// Create Session: imsi, apn, ebi, pdn_type; of an S-GW also teid and address. The answer has the gateway's TEID, the UE's address,
// and the gateway's end of the default bearer.
func (c *client) create(do command) map[string]any {
	ebi, pdnType, apn := do.EBI, do.PDNType, do.APN
	if ebi == 0 {
		ebi = 5
	}
	if pdnType == 0 {
		pdnType = gtpv2.PDNTypeIPv4
	}
	if apn == "" {
		apn = "internet"
	}
	var address *ie.IE
	switch pdnType {
	case gtpv2.PDNTypeIPv4:
		address = ie.NewPDNAddressAllocation("0.0.0.0")
	case gtpv2.PDNTypeIPv6:
		address = ie.NewPDNAddressAllocationIPv6("::", 64)
	default:
		address = ie.NewPDNAddressAllocationDual("0.0.0.0", "::", 64)
	}
	bearer := []*ie.IE{ie.NewEPSBearerID(ebi), ie.NewBearerQoS(1, 8, 0, 9, 0, 0, 0, 0)}
	if c.face.isS5() {
		bearer = append(bearer, c.userEnd(do).ie(c.face.user, c.face.inCreate))
	}
	// The identity comes before the F-TEID: with that go-gtp registers the session.
	elements := []*ie.IE{
		ie.NewIMSI(do.IMSI),
		ie.NewUserLocationInformationStruct(
			nil, nil, nil, ie.NewTAI("999", "70", 1), ie.NewECGI("999", "70", 0x100), nil, nil, nil,
		),
		ie.NewServingNetwork("999", "70"),
		ie.NewRATType(gtpv2.RATTypeEUTRAN),
		ie.NewIndicationFromOctets(0x80, 0, 0),
		c.conn.NewSenderFTEID(c.own.String(), ""),
		ie.NewAccessPointName(apn),
		ie.NewSelectionMode(gtpv2.SelectionModeMSorNetworkProvidedAPNSubscribedVerified),
		ie.NewPDNType(pdnType),
		address,
		ie.NewAPNRestriction(gtpv2.APNRestrictionNoExistingContextsorRestriction),
		ie.NewAggregateMaximumBitRate(50_000, 100_000),
		ie.NewBearerContext(bearer...),
		ie.NewRecovery(c.conn.RestartCounter),
	}
	if !c.face.isS5() {
		elements = append(elements,
			ie.NewFullyQualifiedTEID(gtpv2.IFTypeS5S8PGWGTPC, 0, c.pgw.String(), "").WithInstance(1))
	}
	session, m, err := c.ask(c.peer,
		func() (*gtpv2.Session, uint32, error) { return c.conn.CreateSession(c.peer, elements...) },
		func(sequence uint32) message.Message {
			return message.NewCreateSessionRequest(0, sequence, elements...)
		},
	)
	if err != nil {
		if session != nil {
			c.conn.RemoveSession(session)
		}
		return refusal(err)
	}
	created, ok := m.(*message.CreateSessionResponse)
	if !ok {
		return refusal(fmt.Errorf("answered with %s", m.MessageTypeName()))
	}
	result := map[string]any{"cause": causeIn(created.Cause), "header_teid": created.TEID()}
	if !isAccepted(result["cause"]) {
		c.conn.RemoveSession(session)
		return result
	}
	sender := created.SenderFTEIDC
	if c.face.isS5() {
		sender = created.PGWS5S8FTEIDC
	}
	gateway := tunnelEnd(sender, c.face.peerControl)
	if gateway == nil {
		return refusal(fmt.Errorf("no F-TEID of the gateway"))
	}
	session.AddTEID(c.face.peerControl, gateway.TEID)
	result["gateway"] = gateway
	if created.PAA != nil {
		if paa, err := ie.ParsePDNAddressAllocationFields(created.PAA.Payload); err == nil {
			if paa.IPv4Address != nil {
				result["ipv4"] = paa.IPv4Address.String()
			}
			if paa.IPv6Address != nil {
				result["ipv6"] = paa.IPv6Address.String()
			}
		}
	}
	context := first(created.BearerContextsCreated)
	result["ebi"] = ebiOf(child(context, ie.EPSBearerID, 0))
	result["bearer_cause"] = causeIn(child(context, ie.Cause, 0))
	if user := tunnelEnd(child(context, ie.FullyQualifiedTEID, c.face.inCreated), c.face.peerUser); user != nil {
		bearer := session.GetDefaultBearer()
		bearer.SetOutgoingTEID(user.TEID)
		bearer.SetIncomingTEID(do.TEID)
		result["user"] = user
	}
	if err := session.Activate(); err != nil {
		return refusal(err)
	}
	return result
}

// A session of this UE, the TEID for its gateway, and the identity of its default bearer.
func (c *client) sessionOf(do command) (*gtpv2.Session, uint32, uint8, error) {
	session, err := c.conn.GetSessionByIMSI(do.IMSI)
	if err != nil {
		return nil, 0, 0, err
	}
	gateway, err := session.GetTEID(c.face.peerControl)
	if do.HeaderTEID != nil {
		gateway, err = *do.HeaderTEID, nil
	}
	return session, gateway, session.GetDefaultBearer().EBI, err
}

// Modify Bearer: imsi, teid, address of the eNB or the S-GW; ebi of a bearer other than the default one.
func (c *client) connect(do command) map[string]any {
	session, gateway, ebi, err := c.sessionOf(do)
	if err != nil {
		return refusal(err)
	}
	if do.EBI != 0 {
		ebi = do.EBI
	}
	user := c.userEnd(do)
	elements := []*ie.IE{ie.NewBearerContext(ie.NewEPSBearerID(ebi), user.ie(c.face.user, c.face.inModify))}
	_, m, err := c.ask(c.peer,
		func() (*gtpv2.Session, uint32, error) {
			sequence, err := c.conn.ModifyBearer(gateway, session, elements...)
			return session, sequence, err
		},
		func(sequence uint32) message.Message {
			return message.NewModifyBearerRequest(gateway, sequence, elements...)
		},
	)
	if err != nil {
		return refusal(err)
	}
	modified, ok := m.(*message.ModifyBearerResponse)
	if !ok {
		return refusal(fmt.Errorf("answered with %s", m.MessageTypeName()))
	}
	context := first(modified.BearerContextsModified)
	return map[string]any{
		"cause": causeIn(modified.Cause), "header_teid": modified.TEID(),
		"ebi": ebiOf(child(context, ie.EPSBearerID, 0)), "bearer_cause": causeIn(child(context, ie.Cause, 0)),
	}
}

// Release Access Bearers: imsi.
func (c *client) release(do command) map[string]any {
	session, gateway, _, err := c.sessionOf(do)
	if err != nil {
		return refusal(err)
	}
	m, err := c.askFor(session, func(sequence uint32) message.Message {
		return message.NewReleaseAccessBearersRequest(gateway, sequence)
	})
	if err != nil {
		return refusal(err)
	}
	released, ok := m.(*message.ReleaseAccessBearersResponse)
	if !ok {
		return refusal(fmt.Errorf("answered with %s", m.MessageTypeName()))
	}
	return map[string]any{"cause": causeIn(released.Cause), "header_teid": released.TEID()}
}

// Delete Session: imsi.
func (c *client) detach(do command) map[string]any {
	session, gateway, ebi, err := c.sessionOf(do)
	if err != nil {
		return refusal(err)
	}
	elements := []*ie.IE{ie.NewEPSBearerID(ebi)}
	if !c.face.isS5() {
		// The flag OI: the S-GW is to have the P-GW end it as well (TS 29.274 §7.2.9.1).
		elements = append(elements, ie.NewIndicationFromOctets(0x08, 0, 0))
	}
	_, m, err := c.ask(c.peer,
		func() (*gtpv2.Session, uint32, error) {
			sequence, err := c.conn.DeleteSession(gateway, session, elements...)
			return session, sequence, err
		},
		func(sequence uint32) message.Message {
			return message.NewDeleteSessionRequest(gateway, sequence, elements...)
		},
	)
	if err != nil {
		return refusal(err)
	}
	deleted, ok := m.(*message.DeleteSessionResponse)
	if !ok {
		return refusal(fmt.Errorf("answered with %s", m.MessageTypeName()))
	}
	if do.HeaderTEID == nil {
		_ = session.Deactivate()
		c.conn.RemoveSession(session)
	}
	return map[string]any{"cause": causeIn(deleted.Cause), "header_teid": deleted.TEID()}
}

// The UE does not answer its page: imsi, cause.
func (c *client) pagingFailed(do command) map[string]any {
	session, gateway, _, err := c.sessionOf(do)
	if err != nil {
		return refusal(err)
	}
	failed := message.NewDownlinkDataNotificationFailureIndication(gateway, 0, causeOf(do.Cause))
	if _, err := c.conn.SendMessageTo(failed, session.PeerAddr()); err != nil {
		return refusal(err)
	}
	return map[string]any{}
}

// go-gtp has checked that the TEID is one of the peer's sessions, so there is one.
func (c *client) asker(from net.Addr, m message.Message) (imsi string, gateway uint32) {
	session, err := c.conn.GetSessionByTEID(m.TEID(), from)
	if err != nil {
		return "", 0
	}
	gateway, _ = session.GetTEID(c.face.peerControl)
	return session.IMSI, gateway
}

func (c *client) paged(from net.Addr, m message.Message) message.Message {
	imsi, gateway := c.asker(from, m)
	c.mu.Lock()
	cause := c.pageCause
	c.mu.Unlock()
	if imsi == "" {
		cause = gtpv2.CauseContextNotFound
	}
	event := map[string]any{"event": "downlink_data_notification", "imsi": imsi, "header_teid": m.TEID()}
	if notification, ok := m.(*message.DownlinkDataNotification); ok {
		event["ebi"] = ebiOf(notification.EPSBearerID)
	}
	c.out.tell(event)
	return message.NewDownlinkDataNotificationAcknowledge(gateway, 0, causeOf(cause))
}

// Every bearer gets the next identity after the default one's, and a TEID of its own at this end.
func (c *client) bearerAsked(from net.Addr, m message.Message) message.Message {
	imsi, gateway := c.asker(from, m)
	request, ok := m.(*message.CreateBearerRequest)
	session, err := c.conn.GetSessionByIMSI(imsi)
	if !ok || err != nil {
		return message.NewCreateBearerResponse(gateway, 0, causeOf(gtpv2.CauseContextNotFound))
	}
	c.mu.Lock()
	cause := c.bearerCause
	c.mu.Unlock()
	elements, told := []*ie.IE{causeOf(cause)}, []any{}
	for _, context := range request.BearerContexts {
		user := tunnelEnd(child(context, ie.FullyQualifiedTEID, c.face.inCreateBearer), c.face.peerUser)
		if c.face == s11 {
			user = tunnelEnd(child(context, ie.FullyQualifiedTEID, 0), c.face.peerUser)
		}
		if cause != gtpv2.CauseRequestAccepted || user == nil {
			continue
		}
		c.mu.Lock()
		c.bearers++
		own := &end{TEID: 0x0b00_0000 + c.bearers, Address: c.user.String()}
		c.mu.Unlock()
		ebi := session.GetDefaultBearer().EBI + 1
		for ; ; ebi++ {
			if _, err := session.LookupBearerByEBI(ebi); err != nil {
				break
			}
		}
		bearer := gtpv2.NewBearer(ebi, session.GetDefaultBearer().APN, &gtpv2.QoSProfile{})
		bearer.SetIncomingTEID(own.TEID)
		bearer.SetOutgoingTEID(user.TEID)
		session.AddBearer(fmt.Sprint(ebi), bearer)
		elements = append(elements, ie.NewBearerContext(
			ie.NewEPSBearerID(ebi), accepted(), own.ie(c.face.user, c.face.inBearerCreated),
			user.ie(c.face.peerUser, c.face.inBearerCreatedPeer),
		))
		told = append(told, map[string]any{"ebi": ebi, "own": own, "user": user, "qci": qciOf(child(context, ie.BearerQoS, 0)),
			"has_tft": child(context, ie.BearerTFT, 0) != nil})
	}
	c.out.tell(map[string]any{
		"event": "create_bearer", "imsi": imsi, "linked_ebi": ebiOf(request.LinkedEBI), "bearers": told,
	})
	return message.NewCreateBearerResponse(gateway, 0, elements...)
}

func (c *client) bearerChanged(from net.Addr, m message.Message) message.Message {
	imsi, gateway := c.asker(from, m)
	request, ok := m.(*message.UpdateBearerRequest)
	if !ok || imsi == "" {
		return message.NewUpdateBearerResponse(gateway, 0, causeOf(gtpv2.CauseContextNotFound))
	}
	elements, told := []*ie.IE{accepted()}, []uint8{}
	for _, context := range request.BearerContexts {
		ebi := ebiOf(child(context, ie.EPSBearerID, 0))
		told = append(told, ebi)
		elements = append(elements, ie.NewBearerContext(ie.NewEPSBearerID(ebi), accepted()))
	}
	// As numbers, not as the text of octets.
	c.out.tell(map[string]any{"event": "update_bearer", "imsi": imsi, "ebis": numbers(told)})
	return message.NewUpdateBearerResponse(gateway, 0, elements...)
}

func (c *client) bearerDeleted(from net.Addr, m message.Message) message.Message {
	imsi, gateway := c.asker(from, m)
	request, ok := m.(*message.DeleteBearerRequest)
	session, err := c.conn.GetSessionByIMSI(imsi)
	if !ok || err != nil {
		return message.NewDeleteBearerResponse(gateway, 0, causeOf(gtpv2.CauseContextNotFound))
	}
	elements, told := []*ie.IE{accepted()}, []uint8{}
	if request.LinkedEBI != nil {
		elements = append(elements, ie.NewEPSBearerID(ebiOf(request.LinkedEBI)))
		c.conn.RemoveSession(session)
	}
	for _, i := range request.EBIs {
		ebi := ebiOf(i)
		told = append(told, ebi)
		session.RemoveBearerByEBI(ebi)
		elements = append(elements, ie.NewBearerContext(ie.NewEPSBearerID(ebi), accepted()))
	}
	c.out.tell(map[string]any{
		"event": "delete_bearer", "imsi": imsi, "linked_ebi": ebiOf(request.LinkedEBI), "ebis": numbers(told),
	})
	return message.NewDeleteBearerResponse(gateway, 0, elements...)
}

// Whether an answer has a cause that accepts the request, wholly or in part.
func isAccepted(cause any) bool {
	value, ok := cause.(uint8)
	return ok && value >= gtpv2.CauseRequestAccepted && value < gtpv2.CauseContextNotFound
}

// As JSON a list of octets would be text.
func numbers(octets []uint8) []int {
	list := []int{}
	for _, octet := range octets {
		list = append(list, int(octet))
	}
	return list
}

func qciOf(i *ie.IE) uint8 {
	if i == nil {
		return 0
	}
	qci, _ := i.QCILabel()
	return qci
}
