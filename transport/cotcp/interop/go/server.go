package main

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"sync"
	"time"
)

// behaviour is what a test asks of the server.
type behaviour struct {
	// delay passes before each answer; jitter adds up to as much again, so that answers overtake.
	delay, jitter time.Duration
	// hold collects so many requests of a connection and answers them last first. 1: answer at once.
	// What is held when the client ends its sending direction is answered then.
	hold int
	// unknown says what becomes of a request that the application does not know: one whose body begins
	// with a zero octet. echo, error (an answer that says so), silent (no answer), close.
	unknown string
	// limit bounds the requests of a connection that are worked on at once; beyond it nothing is read.
	limit int
	// size of each answer; negative: the request's body comes back.
	size int
}

// What the application says to a request it does not know, if it says anything.
const unknownRequest = "error: unknown request"

// serve accepts connections until the listener is closed.
func serve(listener net.Listener, how behaviour) error {
	for {
		stream, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			connection := &serverConnection{
				stream: stream,
				how:    how,
				open:   make(map[uint32]bool),
				slots:  make(chan struct{}, how.limit),
			}
			if err := connection.loop(); err != nil {
				log.Printf("%v: %v", stream.RemoteAddr(), err)
			}
			stream.Close()
		}()
	}
}

type serverConnection struct {
	stream net.Conn
	how    behaviour
	// slots has an element for each request that is worked on.
	slots chan struct{}
	work  sync.WaitGroup
	held  []request
	// lock guards what follows, and keeps the messages whole in the stream.
	lock sync.Mutex
	// open are the IDs that are not answered yet.
	open map[uint32]bool
}

type request struct {
	id   uint32
	body []byte
}

// loop is the event loop of the paper's figure 6: split the stream, handle each message concurrently.
func (c *serverConnection) loop() error {
	input := bufio.NewReader(c.stream)
	for {
		id, body, err := readFrame(input)
		if err == io.EOF {
			// The client may have ended its direction only, and still wait for answers.
			c.release()
			c.work.Wait()
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.begin(id); err != nil {
			return err
		}
		if len(body) > 0 && body[0] == 0 && c.how.unknown == "close" {
			return fmt.Errorf("request %#x is unknown", id)
		}
		c.held = append(c.held, request{id, body})
		if len(c.held) >= c.how.hold {
			c.release()
		}
	}
}

// begin notes that a request is worked on, and waits while too many are.
func (c *serverConnection) begin(id uint32) error {
	c.lock.Lock()
	twice := c.open[id]
	c.open[id] = true
	c.lock.Unlock()
	if twice {
		return fmt.Errorf("request %#x came twice before its answer", id)
	}
	c.slots <- struct{}{}
	return nil
}

// release hands what is held to the application: in goroutines of their own, or in order, the last first.
func (c *serverConnection) release() {
	held := c.held
	c.held = nil
	if c.how.hold == 1 {
		for _, r := range held {
			c.work.Add(1)
			go c.handle(r)
		}
		return
	}
	for i := len(held) - 1; i >= 0; i-- {
		c.work.Add(1)
		c.handle(held[i])
	}
}

// handle answers one request.
func (c *serverConnection) handle(r request) {
	defer c.work.Done()
	pause := c.how.delay
	if c.how.jitter > 0 {
		pause += time.Duration(rand.Int63n(int64(c.how.jitter)))
	}
	if pause > 0 {
		time.Sleep(pause)
	}
	answer := r.body
	unknown := len(r.body) > 0 && r.body[0] == 0
	switch {
	case unknown && c.how.unknown == "silent":
		<-c.slots
		return
	case unknown && c.how.unknown == "error":
		answer = []byte(unknownRequest)
	case c.how.size >= 0:
		answer = make([]byte, c.how.size)
		copy(answer, r.body)
	}
	octets, err := frame(r.id, answer)
	if err != nil {
		log.Printf("request %#x: %v", r.id, err)
		return
	}
	c.lock.Lock()
	delete(c.open, r.id)
	// A failure shows in the loop, too, which then ends the connection.
	_, err = c.stream.Write(octets)
	c.lock.Unlock()
	if err != nil {
		c.stream.Close()
	}
	<-c.slots
}
