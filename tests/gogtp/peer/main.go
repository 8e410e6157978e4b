// Independent neighbours of the gateway of 4G, made of go-gtp.
//
//	mme:  an MME on S11
//	sgw:  the control part of an S-GW, on S5/S8 to a P-GW
//	spgw: S-GW and P-GW in one: S11, S1-U, and packets of UEs through a TUN device
//	pgw:  a P-GW: S5/S8; with -tun also its user plane
//
// With -upf a gateway has another process as its user plane, by PFCP with the messages of go-pfcp.
//
// Each takes commands and tells events as JSON objects, one a line (lines.go). It ends with its standard input.
//
// Read first: node.go, what all have of GTPv2-C; then client.go (mme, sgw) or gateway.go (spgw, pgw).
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"github.com/wmnsk/go-gtp/gtpv1"
	"github.com/wmnsk/go-gtp/gtpv2"
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("which of mme, sgw, spgw, pgw?"))
	}
	// What the library logs are errors of single messages.
	if os.Getenv("GOGTP_LOG") == "" {
		gtpv1.SetLogger(log.New(io.Discard, "", 0))
		gtpv2.SetLogger(log.New(io.Discard, "", 0))
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	gtpc := flags.String("gtpc", "127.0.0.1:2123", "own address of GTPv2-C")
	gtpu := flags.String("gtpu", "127.0.0.1:2152", "own address of GTP-U")
	peer := flags.String("peer", "", "GTPv2-C address of the gateway; of mme and sgw")
	pgw := flags.String("pgw", "", "IP address of the P-GW that an mme names; without it -peer is both gateways")
	counter := flags.Uint("restart-counter", 1, "own restart counter")
	apn := flags.String("apn", "internet", "the APN; of gateways")
	pool := flags.String("pool", "10.45.0.0/16", "addresses of UEs; of gateways")
	tun := flags.String("tun", "", "name of a TUN device to make; of gateways. Without it there is no user plane")
	pfcp := flags.String("pfcp", "127.0.0.6:8805", "own address of PFCP; with -upf")
	upfAddress := flags.String("upf", "", "PFCP address of a UPF, which then is the user plane; of gateways")
	mtu := flags.Int("mtu", 1400, "MTU of the TUN device")
	_ = flags.Parse(os.Args[2:])

	control, err := net.ResolveUDPAddr("udp", *gtpc)
	check(err)
	user, err := net.ResolveUDPAddr("udp", *gtpu)
	check(err)
	out := newOutput()
	var role interface{ run(command) map[string]any }
	switch os.Args[1] {
	case "mme", "sgw":
		to, err := net.ResolveUDPAddr("udp", *peer)
		check(err)
		far := to.IP
		if *pgw != "" {
			if far = net.ParseIP(*pgw); far == nil {
				fail(fmt.Errorf("-pgw: %q is no address", *pgw))
			}
		}
		role = newClient(out, faces[os.Args[1]], control, user, to, far, uint8(*counter))
	case "spgw", "pgw":
		addresses, err := newPool(*pool)
		check(err)
		plane, err := newPlane(user, *tun, *pool, *mtu)
		check(err)
		if *upfAddress != "" {
			own, err := net.ResolveUDPAddr("udp", *pfcp)
			check(err)
			to, err := net.ResolveUDPAddr("udp", *upfAddress)
			check(err)
			plane.upf, err = newUPF(own, to, *apn)
			check(err)
		}
		role = newGateway(out, faces[os.Args[1]], control, plane, addresses, *apn, uint8(*counter))
	default:
		fail(fmt.Errorf("%s is none of mme, sgw, spgw, pgw", os.Args[1]))
	}
	out.tell(map[string]any{"event": "ready"})
	serveLines(os.Stdin, out, role.run)
}

func check(err error) {
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
