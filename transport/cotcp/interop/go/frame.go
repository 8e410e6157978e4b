package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Octets before the body: the ID (4) and the length of the body (2).
const headerLength = 6

// The largest body that the length can say.
const maxBody = 1<<16 - 1

var errTooLong = errors.New("a body has 65,535 octets at most")

// readFrame takes the next message off the stream. At a clean end of the stream the error is io.EOF;
// within a message it is io.ErrUnexpectedEOF, and the message is not delivered.
func readFrame(stream io.Reader) (id uint32, body []byte, err error) {
	var header [headerLength]byte
	if _, err = io.ReadFull(stream, header[:]); err != nil {
		return 0, nil, err
	}
	id = binary.BigEndian.Uint32(header[:4])
	body = make([]byte, binary.BigEndian.Uint16(header[4:]))
	if _, err = io.ReadFull(stream, body); err != nil {
		return 0, nil, fmt.Errorf("within message %#x: %w", id, io.ErrUnexpectedEOF)
	}
	return id, body, nil
}

// frame is the message as it stands in the stream.
func frame(id uint32, body []byte) ([]byte, error) {
	if len(body) > maxBody {
		return nil, errTooLong
	}
	octets := make([]byte, headerLength+len(body))
	binary.BigEndian.PutUint32(octets, id)
	binary.BigEndian.PutUint16(octets[4:], uint16(len(body)))
	copy(octets[headerLength:], body)
	return octets, nil
}
