package registry

import (
	"strings"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
)

// An operator that unlocks a lock by force tells the client of its holder. The channel has the name
// of the client's entry, and the message is "taken <number> <operator>", with the number of the
// owner string. The client then asks Redis, and believes Redis alone.

// Taken returns the channel and the message which say that the operator by has taken a lock from owner.
func Taken(owner, by string) (channel, message string) {
	_, number, _ := strings.Cut(owner, ":")
	return keys.Client(lock.ClientOf(owner)), "taken " + number + " " + bounded(by)
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
