// Command cotcpv1 is a client and a server of CoTCP version 1: test material.
//
// It is written from the paper alone, in the paper's language and way (one event loop for each connection, a
// goroutine for each request, a hash table of channels), so that it shares no misunderstanding with the
// implementation it is tested against. It knows nothing of version 2.
//
//	cotcpv1 serve -listen 127.0.0.1:0 -jitter 5ms      prints "listening on 127.0.0.1:<port>"
//	cotcpv1 call -connect 127.0.0.1:7000 -workers 50   prints what happened as JSON
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"runtime"
	"time"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: cotcpv1 serve|call [options]; -help after the command lists them")
	}
	if err := command(os.Args[1], os.Args[2:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func command(name string, arguments []string, out io.Writer) error {
	switch name {
	case "serve":
		return runServer(arguments, out)
	case "call":
		return runCalls(arguments, out)
	}
	return fmt.Errorf("no command %q: serve or call", name)
}

func runServer(arguments []string, out io.Writer) error {
	how := behaviour{}
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:0", "address to listen on; port 0: any")
	cpus := flags.Int("cpus", 0, "processors to use; 0: all")
	flags.DurationVar(&how.delay, "delay", 0, "before each answer")
	flags.DurationVar(&how.jitter, "jitter", 0, "additional random delay, so that answers overtake each other")
	flags.IntVar(&how.hold, "hold", 1, "collect so many requests, then answer them last first")
	flags.StringVar(&how.unknown, "unknown", "echo", "a request that begins with a zero octet: echo, error, silent, close")
	flags.IntVar(&how.limit, "limit", 10000, "requests of a connection worked on at once")
	flags.IntVar(&how.size, "size", -1, "octets of each answer; negative: the request comes back")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	switch how.unknown {
	case "echo", "error", "silent", "close":
	default:
		return fmt.Errorf("-unknown %q: echo, error, silent or close", how.unknown)
	}
	if how.hold < 1 || how.limit < how.hold || how.size > maxBody {
		return fmt.Errorf("-hold is 1 or more, -limit at least as much, -size at most %d", maxBody)
	}
	if *cpus > 0 {
		runtime.GOMAXPROCS(*cpus)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	// Whoever started this reads the port from the line.
	fmt.Fprintf(out, "listening on %s\n", listener.Addr())
	return serve(listener, how)
}

func runCalls(arguments []string, out io.Writer) error {
	work := workload{}
	flags := flag.NewFlagSet("call", flag.ContinueOnError)
	cpus := flags.Int("cpus", 0, "processors to use; 0: all")
	first := flags.Uint("first-id", 0, "ID of each connection's first request")
	flags.StringVar(&work.address, "connect", "", "address of the server")
	flags.IntVar(&work.connections, "connections", 1, "connections to open")
	flags.IntVar(&work.workers, "workers", 1, "requests in flight, over all connections")
	flags.IntVar(&work.requests, "requests", 1, "requests of each worker")
	flags.IntVar(&work.smallest, "smallest", 10, "octets of the smallest body")
	flags.IntVar(&work.largest, "largest", 10, "octets of the largest body")
	flags.DurationVar(&work.timeout, "timeout", 10*time.Second, "after which a request is given up")
	flags.StringVar(&work.misdeed, "misdeed", "", "after the requests, on a connection of its own: half-close, "+
		"duplicate (an ID twice), cut (within a message)")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *cpus > 0 {
		runtime.GOMAXPROCS(*cpus)
	}
	work.firstID = uint32(*first)
	return work.run(out)
}
