package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

var (
	errGivenUp = errors.New("no answer in time")
	errNoID    = errors.New("all IDs are in use")
)

// Counts of what happened on a connection, beside the answers themselves.
type counts struct {
	// overtaken are answers that came before the answer to an earlier request.
	overtaken int
	// late are responses to no outstanding request; the request was given up before.
	late int
}

// clientConnection sends requests without waiting for answers, as in the paper's figure 5.
type clientConnection struct {
	stream net.Conn
	// lock guards what follows, and keeps the messages whole in the stream.
	lock sync.Mutex
	next uint32
	// waiting has a channel for each request that has no answer: the paper's hash table.
	waiting map[uint32]*waiter
	sent    uint64
	failure error
	counts  counts
	// last is the largest number of a request that was answered.
	last uint64
}

type waiter struct {
	answer chan []byte
	// number in the order of sending.
	number uint64
}

// dial opens a connection; its IDs count from first and wrap.
func dial(address string, first uint32) (*clientConnection, error) {
	stream, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return nil, err
	}
	c := &clientConnection{stream: stream, next: first, waiting: make(map[uint32]*waiter)}
	go c.loop()
	return c, nil
}

// loop splits the stream and hands each response to the request that waits for it.
func (c *clientConnection) loop() {
	input := bufio.NewReader(c.stream)
	for {
		id, body, err := readFrame(input)
		c.lock.Lock()
		if err != nil {
			c.fail(err)
			c.lock.Unlock()
			return
		}
		if waiter, found := c.waiting[id]; found {
			delete(c.waiting, id)
			if waiter.number < c.last {
				c.counts.overtaken++
			} else {
				c.last = waiter.number
			}
			waiter.answer <- body
		} else {
			c.counts.late++
		}
		c.lock.Unlock()
	}
}

// fail ends the connection: every request that waits has failed. The lock is held.
func (c *clientConnection) fail(err error) {
	if c.failure == nil {
		if err == io.EOF {
			err = errors.New("the server closed the connection")
		}
		c.failure = err
	}
	c.stream.Close()
	for id, waiter := range c.waiting {
		delete(c.waiting, id)
		close(waiter.answer)
	}
}

// call sends a request and waits for its answer.
func (c *clientConnection) call(body []byte, timeout time.Duration) ([]byte, error) {
	id, waiter, err := c.send(body)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case answer, answered := <-waiter.answer:
		if !answered {
			c.lock.Lock()
			defer c.lock.Unlock()
			return nil, fmt.Errorf("request %#x: %w", id, c.failure)
		}
		return answer, nil
	case <-timer.C:
		// The ID is not used again soon: IDs count up.
		c.lock.Lock()
		delete(c.waiting, id)
		c.lock.Unlock()
		return nil, errGivenUp
	}
}

func (c *clientConnection) send(body []byte) (uint32, *waiter, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.failure != nil {
		return 0, nil, c.failure
	}
	id := c.next
	for c.waiting[id] != nil {
		if id++; id == c.next {
			return 0, nil, errNoID
		}
	}
	octets, err := frame(id, body)
	if err != nil {
		return 0, nil, err
	}
	// One place, so that the loop never waits for a caller that gave up.
	waiter := &waiter{answer: make(chan []byte, 1), number: c.sent}
	c.next = id + 1
	c.sent++
	c.waiting[id] = waiter
	if _, err := c.stream.Write(octets); err != nil {
		c.fail(err)
		return 0, nil, err
	}
	return id, waiter, nil
}

// end closes the connection and tells what happened on it.
func (c *clientConnection) end() counts {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.stream.Close()
	return c.counts
}
