package registry

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// A force-unlock notifies the client of the holder. The channel has the name of the client's entry. The message is
// "taken <number> <operator>", with the number of the owner string. The client then verifies the loss with Redis.

// Taken returns the channel and the message for a force-unlock of a lock of owner by the operator by.
func Taken(owner, by string) (channel, message string) {
	_, number, _ := strings.Cut(owner, ":")
	return keys.Client(lock.ClientID(owner)), "taken " + number + " " + bounded(by)
}

// ParseTaken parses a message of Taken. For any other message ok is false.
func ParseTaken(message string) (number, by string, ok bool) {
	rest, ok := strings.CutPrefix(message, "taken ")
	if !ok {
		return "", "", false
	}
	number, by, _ = strings.Cut(rest, " ")
	by = bounded(strings.Map(printable, by))
	if by == "" {
		by = "an operator"
	}
	return number, by, number != ""
}

// printable replaces control characters by spaces, so that c cannot forge log lines.
func printable(c rune) rune {
	if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 { // mutant: border 1: a space becomes a space
		return ' '
	}
	return c
}

// NoteKept is the expiry of the audit record of a force-unlock. MostNoted is the maximum number of holders in it.
const (
	NoteKept  = 7 * 24 * time.Hour
	MostNoted = 16
)

// Note is the audit record of a force-unlock, stored at keys.Forced. Package admin writes the same format.
type Note struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	From   []string  `json:"from"` // the holders, as formatted by lock.Client

	Age time.Duration `json:"-"` // by the server's clock
}

// SetNote returns the command that stores an audit record at key: by force-unlocked a lock of these owners.
func SetNote(rdb rueidis.Client, key, by string, owners []string) rueidis.Completed {
	n := Note{At: time.Now().UTC().Truncate(time.Millisecond), By: by}
	for _, owner := range owners[:min(len(owners), MostNoted)] {
		n.From = append(n.From, lock.ClientID(owner))
	}
	text, _ := json.Marshal(n) // never fails for strings and a time
	return rdb.B().Set().Key(key).Value(string(text)).Px(NoteKept).Build()
}

// ReadNote returns the audit record at key. It returns an error if there is none.
func ReadNote(ctx context.Context, rdb rueidis.Client, key string) (n Note, err error) {
	replies := rdb.DoMulti(ctx, retry.Once(rdb, "GET", key), retry.Once(rdb, "PTTL", key))
	text, err := replies[0].ToString()
	if err != nil {
		return n, err
	}
	left, err := replies[1].AsInt64()
	if err == nil {
		err = json.Unmarshal([]byte(text), &n)
	}
	n.Age = NoteKept - time.Duration(left)*time.Millisecond
	// mutant: border: the same age
	if left < 0 { // created or changed manually
		n.Age = NoteKept
	}
	return n, err
}

// About reports whether the record may be about a holder of the client with this ID. called is the name of the client in
// records, or "".
func (n Note) About(id, called string) bool {
	return slices.Contains(n.From, id) || called != "" && slices.Contains(n.From, called) || len(n.From) >= MostNoted
}

// Operator returns who force-unlocked the lock, and why, in the format of a message of Taken.
func (n Note) Operator() string {
	by := n.By
	if n.Reason != "" {
		by += ": " + n.Reason
	}
	if by = bounded(strings.Map(printable, by)); by == "" {
		return "an operator"
	}
	return by
}
