// Independent peer of the tests of gtpv2c: go-gtp's messages.
//
//	make: writes messages, one a line as hexadecimal octets; tests/suite/go_gtp.rs says what they mean
//	read: reads such lines, and writes each message as go-gtp writes it after it has read it; "error: ..." if it cannot
package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/wmnsk/go-gtp/gtpv2"
	"github.com/wmnsk/go-gtp/gtpv2/ie"
	"github.com/wmnsk/go-gtp/gtpv2/message"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "make" {
		for _, m := range messages() {
			octets, err := message.Marshal(m)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			fmt.Println(hex.EncodeToString(octets))
		}
		return
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(again(lines.Text()))
	}
}

func again(line string) string {
	octets, err := hex.DecodeString(line)
	if err != nil {
		return "error: " + err.Error()
	}
	m, err := message.Parse(octets)
	if err != nil {
		return "error: " + err.Error()
	}
	octets, err = message.Marshal(m)
	if err != nil {
		return "error: " + err.Error()
	}
	return hex.EncodeToString(octets)
}

func messages() []message.Message {
	return []message.Message{
		message.NewEchoRequest(7, ie.NewRecovery(42)),
		createSessionRequest(),
		createSessionResponse(),
		message.NewModifyBearerRequest(
			11, 8,
			ie.NewBearerContext(
				ie.NewEPSBearerID(5),
				ie.NewFullyQualifiedTEID(gtpv2.IFTypeS1UeNodeBGTPU, 0x0a0b0c0d, "10.0.0.3", ""),
			),
			ie.NewDelayValue(100*time.Millisecond),
		),
		createBearerRequest(),
		message.NewDeleteSessionResponse(
			12, 9,
			ie.NewCause(gtpv2.CauseMandatoryIEMissing, 1, 0, 1, ie.NewEPSBearerID(5)),
			ie.NewRecovery(1),
		),
		message.NewDownlinkDataNotification(
			13, 10,
			ie.NewEPSBearerID(6),
			ie.NewAllocationRetensionPriority(0, 3, 1),
		),
		message.NewDownlinkDataNotificationAcknowledge(
			14, 11,
			ie.NewCause(gtpv2.CauseRequestAccepted, 0, 0, 0, nil),
			ie.NewThrottling(180*time.Second, 40),
		),
	}
}

func createSessionRequest() message.Message {
	return message.NewCreateSessionRequest(
		0, 1,
		ie.NewIMSI("999700000000001"),
		ie.NewMSISDN("491701234567"),
		ie.NewMobileEquipmentIdentity("3534900698733190"),
		ie.NewUserLocationInformationStruct(
			ie.NewCGI("999", "70", 1, 2), nil, nil,
			ie.NewTAI("999", "70", 0x1234), ie.NewECGI("999", "70", 0x1234567), nil, nil, nil,
		),
		ie.NewServingNetwork("001", "001"),
		ie.NewRATType(gtpv2.RATTypeEUTRAN),
		ie.NewIndicationFromOctets(0x80, 0x08),
		ie.NewFullyQualifiedTEID(gtpv2.IFTypeS11MMEGTPC, 0xffffffff, "10.0.0.1", "2001:db8::1"),
		ie.NewFullyQualifiedTEID(gtpv2.IFTypeS5S8PGWGTPC, 0, "10.0.0.2", "").WithInstance(1),
		ie.NewAccessPointName("internet.example"),
		ie.NewSelectionMode(gtpv2.SelectionModeMSorNetworkProvidedAPNSubscribedVerified),
		ie.NewPDNType(gtpv2.PDNTypeIPv4v6),
		ie.NewPDNAddressAllocationDual("10.45.0.2", "2001:db8:1::1", 64),
		ie.NewAPNRestriction(gtpv2.APNRestrictionNoExistingContextsorRestriction),
		ie.NewAggregateMaximumBitRate(50000, 100000),
		ie.NewBearerContext(ie.NewEPSBearerID(5), ie.NewBearerQoS(1, 9, 0, 9, 0, 0, 0, 0)),
		ie.NewRecovery(3),
		ie.NewFullyQualifiedCSID("10.0.0.1", 1, 2),
		ie.NewChargingCharacteristics(0x0800),
		ie.NewUETimeZone(time.Hour, 1),
	)
}

func createSessionResponse() message.Message {
	return message.NewCreateSessionResponse(
		10, 1,
		ie.NewCause(gtpv2.CauseRequestAcceptedPartially, 0, 0, 0, nil),
		ie.NewFullyQualifiedTEID(gtpv2.IFTypeS11S4SGWGTPC, 1, "10.0.0.2", ""),
		ie.NewFullyQualifiedTEID(gtpv2.IFTypeS5S8PGWGTPC, 2, "10.0.0.3", "").WithInstance(1),
		ie.NewPDNAddressAllocation("10.45.0.2"),
		ie.NewBearerContext(
			ie.NewEPSBearerID(5),
			ie.NewCause(gtpv2.CauseRequestAccepted, 0, 0, 0, nil),
			ie.NewFullyQualifiedTEID(gtpv2.IFTypeS1USGWGTPU, 3, "10.0.0.2", ""),
			ie.NewFullyQualifiedTEID(gtpv2.IFTypeS5S8PGWGTPU, 4, "", "2001:db8::3").WithInstance(2),
			ie.NewChargingID(7),
		),
	)
}

func createBearerRequest() message.Message {
	return message.NewCreateBearerRequest(
		11, 2,
		ie.NewProcedureTransactionID(77),
		ie.NewEPSBearerID(5),
		ie.NewBearerContext(
			ie.NewEPSBearerID(0),
			ie.NewBearerTFTCreateNewTFT([]*ie.TFTPacketFilter{
				ie.NewTFTPacketFilter(
					ie.TFTPFBidirectional, 1, 10,
					ie.NewTFTPFComponentIPv4RemoteAddress(net.IPv4(192, 0, 2, 1), net.CIDRMask(32, 32)),
					ie.NewTFTPFComponentProtocolIdentifierNextHeader(17),
					ie.NewTFTPFComponentRemotePortRange(5000, 5010),
				),
				ie.NewTFTPacketFilter(
					ie.TFTPFDownlinkOnly, 2, 11,
					ie.NewTFTPFComponentIPv6LocalAddressPrefixLength(net.ParseIP("2001:db8:1::"), 64),
					ie.NewTFTPFComponentSingleLocalPort(4000),
					ie.NewTFTPFComponentTypeOfServiceTrafficClass(0xb8, 0xfc),
					ie.NewTFTPFComponentFlowLabel(0xabcde),
					ie.NewTFTPFComponentSecurityParameterIndex(9),
				),
			}, nil),
			ie.NewFullyQualifiedTEID(gtpv2.IFTypeS5S8PGWGTPU, 5, "10.0.0.3", "").WithInstance(1),
			ie.NewBearerQoS(0, 2, 1, 1, 128, 129, 1<<39, 131),
		),
	)
}
