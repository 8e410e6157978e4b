package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// workload is what the client does: workers that each call one after the other, over shared connections,
// and expect their own request's body back.
type workload struct {
	address                        string
	connections, workers, requests int
	// Bodies grow from the smallest to the largest and start over.
	smallest, largest int
	timeout           time.Duration
	firstID           uint32
	misdeed           string
}

// report is printed as JSON.
type report struct {
	Answered int `json:"answered"`
	// Wrong are answers with another body than the request's.
	Wrong int `json:"wrong"`
	// GivenUp are requests without an answer in time, Failed those that the connection failed.
	GivenUp   int     `json:"given_up"`
	Failed    int     `json:"failed"`
	Overtaken int     `json:"overtaken"`
	Late      int     `json:"late"`
	PerSecond float64 `json:"per_second"`
	MeanUs    float64 `json:"mean_us"`
	// Misdeed is what the server made of it: answered n, or closed.
	Misdeed string `json:"misdeed,omitempty"`
	// Reason is the first failure.
	Reason string `json:"reason,omitempty"`
}

func (w *workload) run(out io.Writer) error {
	if w.connections < 1 || w.smallest < 0 || w.largest < w.smallest || w.largest > maxBody {
		return fmt.Errorf("-connections is 1 or more, bodies have 0 to %d octets", maxBody)
	}
	var total report
	if w.workers > 0 && w.requests > 0 {
		if err := w.callAll(&total); err != nil {
			return err
		}
	}
	if w.misdeed != "" {
		outcome, err := misbehave(w.address, w.misdeed, w.timeout)
		if err != nil {
			return err
		}
		total.Misdeed = outcome
	}
	return json.NewEncoder(out).Encode(total)
}

func (w *workload) callAll(total *report) error {
	connections := make([]*clientConnection, w.connections)
	for i := range connections {
		var err error
		if connections[i], err = dial(w.address, w.firstID); err != nil {
			return err
		}
	}
	var lock sync.Mutex
	var busy time.Duration
	var workers sync.WaitGroup
	begin := time.Now()
	for n := 0; n < w.workers; n++ {
		workers.Add(1)
		go func(n int) {
			defer workers.Done()
			mine, spent := w.worker(n, connections[n%len(connections)])
			lock.Lock()
			defer lock.Unlock()
			total.Answered += mine.Answered
			total.Wrong += mine.Wrong
			total.GivenUp += mine.GivenUp
			total.Failed += mine.Failed
			if total.Reason == "" {
				total.Reason = mine.Reason
			}
			busy += spent
		}(n)
	}
	workers.Wait()
	total.PerSecond = float64(total.Answered) / time.Since(begin).Seconds()
	if total.Answered > 0 {
		total.MeanUs = busy.Seconds() * 1e6 / float64(total.Answered)
	}
	for _, connection := range connections {
		counts := connection.end()
		total.Overtaken += counts.overtaken
		total.Late += counts.late
	}
	return nil
}

// worker calls one after the other.
func (w *workload) worker(n int, connection *clientConnection) (mine report, spent time.Duration) {
	for i := 0; i < w.requests; i++ {
		body := w.body(n, i)
		begin := time.Now()
		answer, err := connection.call(body, w.timeout)
		switch {
		case errors.Is(err, errGivenUp):
			mine.GivenUp++
		case err != nil:
			mine.Failed++
			mine.Reason = err.Error()
			return mine, spent
		case !bytes.Equal(answer, body):
			mine.Wrong++
		default:
			mine.Answered++
			spent += time.Since(begin)
		}
	}
	return mine, spent
}

// body is different for each request as far as its length permits.
func (w *workload) body(worker, number int) []byte {
	all := worker*w.requests + number
	body := make([]byte, w.smallest+all%(w.largest-w.smallest+1))
	text := fmt.Sprintf("%d/%d ", worker, number)
	for i := 0; i < len(body); i += len(text) {
		copy(body[i:], text)
	}
	return body
}

// misbehave does something that a server must cope with, and says what became of it.
func misbehave(address, misdeed string, timeout time.Duration) (string, error) {
	stream, err := net.DialTimeout("tcp", address, timeout)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	stream.SetDeadline(time.Now().Add(timeout))
	var octets []byte
	for id := uint32(1); id <= 3; id++ {
		message, _ := frame(id, []byte("misdeed"))
		octets = append(octets, message...)
	}
	switch misdeed {
	case "half-close":
		// Nothing more will come; the answers are still waited for.
		if _, err := stream.Write(octets); err != nil {
			return "", err
		}
		stream.(*net.TCPConn).CloseWrite()
	case "duplicate":
		// All six in one write: the server sees the second of an ID before it can have answered the first,
		// if answers take it any time.
		if _, err := stream.Write(append(octets, octets...)); err != nil {
			return "", err
		}
	case "cut":
		if _, err := stream.Write(octets[:len(octets)-3]); err != nil {
			return "", err
		}
		stream.(*net.TCPConn).CloseWrite()
	default:
		return "", fmt.Errorf("-misdeed %q: half-close, duplicate or cut", misdeed)
	}
	answered := 0
	for {
		_, _, err := readFrame(stream)
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			return fmt.Sprintf("answered %d, open", answered), nil
		}
		if err != nil {
			return fmt.Sprintf("answered %d, closed", answered), nil
		}
		answered++
	}
}
