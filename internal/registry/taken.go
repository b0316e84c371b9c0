package registry

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// An operator that unlocks a lock by force tells the client of its holder. The channel has the name
// of the client's entry, and the message is "taken <number> <operator>", with the number of the
// owner string. The client then asks Redis, and believes Redis alone.

// Taken returns the channel and the message which say that the operator by has taken a lock from owner.
func Taken(owner, by string) (channel, message string) {
	_, number, _ := strings.Cut(owner, ":")
	return keys.Client(lock.ClientID(owner)), "taken " + number + " " + bounded(by)
}

// ParseTaken reads a message of Taken. For any other message ok is false.
func ParseTaken(message string) (number, by string, ok bool) {
	rest, ok := strings.CutPrefix(message, "taken ")
	if !ok {
		return "", "", false
	}
	number, by, _ = strings.Cut(rest, " ")
	by = bounded(strings.Map(printable, by))
	if by == "" {
		by = "somebody"
	}
	return number, by, number != ""
}

// printable returns c, or a harmless character if c would change a line of a log.
func printable(c rune) rune {
	if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 {
		return ' '
	}
	return c
}

// NoteKept is the time that the note of a forced unlock stays in Redis, and MostNoted how many holders it names at most.
const (
	NoteKept  = 7 * 24 * time.Hour
	MostNoted = 16
)

// Note is what a client reads and writes of the note at keys.Forced of a lock, as package admin has it.
type Note struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	From   []string  `json:"from"` // the holders, as lock.Client shows them

	Age time.Duration `json:"-"` // by the server's clock
}

// SetNote returns the command that leaves a note at key: by has taken a lock from these owners.
func SetNote(rdb rueidis.Client, key, by string, owners []string) rueidis.Completed {
	n := Note{At: time.Now().UTC().Truncate(time.Millisecond), By: by}
	for _, owner := range owners[:min(len(owners), MostNoted)] {
		n.From = append(n.From, lock.ClientID(owner))
	}
	text, _ := json.Marshal(n) // of texts and a time it always succeeds
	return rdb.B().Set().Key(key).Value(string(text)).Px(NoteKept).Build()
}

// ReadNote reads the note at key. It returns an error if there is none.
func ReadNote(ctx context.Context, rdb rueidis.Client, key string) (n Note, err error) {
	replies := rdb.DoMulti(ctx, rdb.B().Get().Key(key).Build(), rdb.B().Pttl().Key(key).Build())
	text, err := replies[0].ToString()
	if err != nil {
		return n, err
	}
	left, err := replies[1].AsInt64()
	if err == nil {
		err = json.Unmarshal([]byte(text), &n)
	}
	n.Age = NoteKept - time.Duration(left)*time.Millisecond
	if left < 0 { // made or changed by hand
		n.Age = NoteKept
	}
	return n, err
}

// About reports whether the note is about a holder of the client with this ID, which operators see as called.
func (n Note) About(id, called string) bool {
	return slices.Contains(n.From, id) || called != "" && slices.Contains(n.From, called) || len(n.From) >= MostNoted
}

// Operator returns who unlocked the lock, and why, as a message of Taken has it.
func (n Note) Operator() string {
	by := n.By
	if n.Reason != "" {
		by += ": " + n.Reason
	}
	if by = bounded(strings.Map(printable, by)); by == "" {
		return "somebody"
	}
	return by
}
