package registry

import (
	"strings"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
)

// Whoever unlocks a lock by force tells the client whose lock it was, at the channel that is called as
// the client's entry: "taken <number> <who>", with the number of the owner string. The
// client asks Redis then, and believes Redis alone.

// Taken returns the channel and the message that say that by has unlocked a lock of owner's.
func Taken(owner, by string) (channel, message string) {
	_, number, _ := strings.Cut(owner, ":")
	return keys.Client(lock.ClientOf(owner)), "taken " + number + " " + bounded(by)
}

// ParseTaken reads such a message. What is no such message is not ok.
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

// printable is c, or something else where c would change a line of a log.
func printable(c rune) rune {
	if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 {
		return ' '
	}
	return c
}
