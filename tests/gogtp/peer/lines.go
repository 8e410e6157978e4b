package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"sync"
)

// A command: what to do, and the values that it needs. Which command needs which is beside its function.
type command struct {
	// Comes back as "answer".
	ID   int    `json:"id"`
	Do   string `json:"do"`
	IMSI string `json:"imsi"`
	APN  string `json:"apn"`
	EBI  uint8  `json:"ebi"`
	// As in the IE: 1 IPv4, 2 IPv6, 3 both.
	PDNType uint8 `json:"pdn_type"`
	Cause   uint8 `json:"cause"`
	QCI     uint8 `json:"qci"`
	// Downlink and uplink filter of a dedicated bearer: a remote UDP port.
	Port uint16 `json:"port"`
	// Own end of the user plane, eNB or S-GW; without an address that of -gtpu.
	TEID    uint32 `json:"teid"`
	Address string `json:"address"`
	// Sends the request with this TEID in its header instead of the peer's.
	HeaderTEID *uint32 `json:"header_teid"`
}

type output struct {
	mu     sync.Mutex
	writer *bufio.Writer
}

func newOutput() *output { return &output{writer: bufio.NewWriter(os.Stdout)} }

func (o *output) tell(line map[string]any) {
	octets, err := json.Marshal(line)
	check(err)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writer.Write(append(octets, '\n'))
	// Nobody reads any more: the end.
	check(o.writer.Flush())
}

// Every command is answered with a line; they run at the same time.
func serveLines(from io.Reader, out *output, run func(command) map[string]any) {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			out.tell(map[string]any{"error": err.Error()})
			continue
		}
		go func() {
			answer := run(c)
			answer["answer"] = c.ID
			out.tell(answer)
		}()
	}
}

func refusal(err error) map[string]any { return map[string]any{"error": err.Error()} }
