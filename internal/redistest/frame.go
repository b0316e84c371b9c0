package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
)

// maxBulk is Redis' limit for a string.
const maxBulk = 512 << 20

var crlf = []byte("\r\n")

// readFrame appends one frame of RESP2 or RESP3 to raw, unchanged, with everything nested in it.
func readFrame(r *bufio.Reader, raw *bytes.Buffer) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	raw.Write(line)
	if len(line) < 3 || !bytes.HasSuffix(line, crlf) {
		return fmt.Errorf("redistest: not RESP: %q", line)
	}
	kind, rest := line[0], line[1:len(line)-2]
	switch kind {
	case '+', '-', ':', '_', ',', '#', '(': // complete in this line
		return nil
	}

	n, err := strconv.Atoi(string(rest))
	if err != nil || n < -1 || n > maxBulk {
		return fmt.Errorf("redistest: not RESP: %q", line)
	}
	switch kind {
	case '$', '!', '=': // a string; -1 is RESP2's null
		if n >= 0 {
			_, err = io.CopyN(raw, r, int64(n)+2)
		}
		return err
	case '*', '~', '>': // n frames; -1 is RESP2's null
	case '%': // n pairs
		n *= 2
	case '|': // n pairs, then the frame that they annotate
		n = 2*n + 1
	default:
		return fmt.Errorf("redistest: not RESP: %q", line)
	}
	for range n {
		if err := readFrame(r, raw); err != nil {
			return err
		}
	}
	return nil
}

// readRequest reads one command, and returns its bytes and its words.
func readRequest(r *bufio.Reader) (raw []byte, req [][]byte, err error) {
	var b bytes.Buffer
	if err := readFrame(r, &b); err != nil {
		return nil, nil, err
	}
	raw = b.Bytes()
	head, rest, _ := bytes.Cut(raw, crlf)
	for len(rest) > 0 {
		size, tail, _ := bytes.Cut(rest, crlf)
		n, err := strconv.Atoi(string(size[1:]))
		if err != nil || size[0] != '$' || n < 0 {
			return nil, nil, fmt.Errorf("redistest: not a request: %q", raw)
		}
		req = append(req, tail[:n:n])
		rest = tail[n+2:]
	}
	if head[0] != '*' || len(req) == 0 {
		return nil, nil, fmt.Errorf("redistest: not a request: %q", raw)
	}
	return raw, req, nil
}

// pubsubWord returns the first word of a Pub/Sub frame, such as "message" or "subscribe", and ""
// for any other frame.
func pubsubWord(frame []byte) string {
	if frame[0] != '>' && frame[0] != '*' {
		return ""
	}
	_, rest, _ := bytes.Cut(frame, crlf)
	if _, rest, _ = bytes.Cut(rest, crlf); len(rest) == 0 {
		return ""
	}
	first, _, _ := bytes.Cut(rest, crlf)
	switch word := string(first); word {
	case "message", "pmessage", "smessage",
		"subscribe", "psubscribe", "ssubscribe",
		"unsubscribe", "punsubscribe", "sunsubscribe":
		return word
	}
	return ""
}
