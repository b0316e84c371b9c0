package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
)

// Written is a client connection that passes each command to See before its last byte is written.
type Written struct {
	net.Conn
	See func(req [][]byte)

	rest []byte // of an incomplete command
}

// Write passes the commands that end in b to See, and writes b.
func (w *Written) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		raw, req, err := readRequest(bufio.NewReader(bytes.NewReader(w.rest)))
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return w.Conn.Write(b)
		case err != nil:
			return 0, err
		}
		w.See(req)
		w.rest = w.rest[len(raw):]
	}
}
