package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// started runs a server until the test ends and returns its address.
func started(t *testing.T, how behaviour) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go serve(listener, how)
	return listener.Addr().String()
}

func plain() behaviour {
	return behaviour{hold: 1, limit: 1000, unknown: "echo", size: -1}
}

func called(t *testing.T, arguments ...string) report {
	var out bytes.Buffer
	if err := command("call", arguments, &out); err != nil {
		t.Fatal(err)
	}
	var result report
	if err := json.Unmarshal(out.Bytes(), &result); err != nil {
		t.Fatal(err)
	}
	return result
}

func TestTheFrameOfThePaper(t *testing.T) {
	octets, err := frame(0x01020304, []byte("abc"))
	if err != nil || !bytes.Equal(octets, []byte("\x01\x02\x03\x04\x00\x03abc")) {
		t.Fatalf("%x %v", octets, err)
	}
	id, body, err := readFrame(bytes.NewReader(octets))
	if id != 0x01020304 || string(body) != "abc" || err != nil {
		t.Fatalf("%#x %q %v", id, body, err)
	}
	if _, err := frame(1, make([]byte, maxBody)); err != nil {
		t.Fatal(err)
	}
	if _, err := frame(1, make([]byte, maxBody+1)); err == nil {
		t.Fatal("a body that the length cannot say")
	}
	if _, _, err := readFrame(bytes.NewReader(nil)); err != io.EOF {
		t.Fatalf("%v", err)
	}
	for cut := 1; cut < len(octets); cut++ {
		if _, _, err := readFrame(bytes.NewReader(octets[:cut])); err == nil || err == io.EOF {
			t.Fatalf("cut after %d: %v", cut, err)
		}
	}
}

func TestAnswersOvertakeAndReachTheirRequests(t *testing.T) {
	how := plain()
	how.jitter = 5 * time.Millisecond
	address := started(t, how)
	// IDs run over the largest number.
	result := called(t, "-connect", address, "-connections", "3", "-workers", "60", "-requests", "20",
		"-smallest", "0", "-largest", "65535", "-first-id", "4294967000")
	if result.Answered != 1200 || result.Wrong+result.Failed+result.GivenUp != 0 || result.Overtaken == 0 {
		t.Fatalf("%+v", result)
	}
}

func TestLastFirst(t *testing.T) {
	how := plain()
	how.hold = 10
	result := called(t, "-connect", started(t, how), "-workers", "10", "-requests", "5")
	if result.Answered != 50 || result.Overtaken != 45 {
		t.Fatalf("%+v", result)
	}
}

func TestLateAnswersAreIgnored(t *testing.T) {
	how := plain()
	how.delay = 100 * time.Millisecond
	result := called(t, "-connect", started(t, how), "-workers", "2", "-requests", "3", "-timeout", "60ms")
	if result.Answered != 0 || result.GivenUp != 6 || result.Late == 0 {
		t.Fatalf("%+v", result)
	}
}

func TestWhatIsUnknownAndWhatIsNotAllowed(t *testing.T) {
	for unknown, want := range map[string]string{"echo": "\x00?", "error": unknownRequest, "silent": "", "close": ""} {
		how := plain()
		how.unknown = unknown
		connection, err := dial(started(t, how), 0xFFFFFFFF)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := connection.call([]byte("\x00?"), 200*time.Millisecond)
		if string(answer) != want || (err == nil) != (want != "") {
			t.Fatalf("%s: %q %v", unknown, answer, err)
		}
		if unknown == "close" && !strings.Contains(err.Error(), "closed") {
			t.Fatalf("%v", err)
		}
		connection.end()
	}
	how := plain()
	how.delay = 50 * time.Millisecond
	address := started(t, how)
	for misdeed, want := range map[string]string{
		"half-close": "answered 3, closed", "duplicate": "answered 0, closed", "cut": "answered 0, closed",
	} {
		if result := called(t, "-connect", address, "-workers", "0", "-misdeed", misdeed); result.Misdeed != want {
			t.Fatalf("%s: %s", misdeed, result.Misdeed)
		}
	}
}
