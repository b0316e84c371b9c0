package luascripts

import (
	"fmt"
	"strings"
	"time"
)

// Messages on the channel of a client that keeps locks (include_linger).
const (
	WantedByWaiter = "wait" // a rejected owner waits
	WantedByTry    = "try"  // a rejected owner does not wait
)

const (
	numberDigits = 18 // minimum digits of the number in an owner string; 19 since 2001 and until 2279
	lingerDigits = 3
)

// LingerMark returns what follows the number in the owner strings of a client that keeps the lock for
// linger after the last release. publish is the command that reaches the client. An owner of another
// client that does not wait retries for as long as the lock may be kept, up to 250 ms.
func LingerMark(publish string, linger time.Duration) string {
	how := 1
	if publish == "SPUBLISH" {
		how = 2
	}
	return fmt.Sprintf("%d%02d", how, min(max(linger, 10*time.Millisecond), 250*time.Millisecond)/(10*time.Millisecond))
}

// Lingers reports whether the client of an owner keeps the lock for a while after the last release.
// It returns the owner string without the mark.
func Lingers(owner string) (unmarked string, lingers bool) {
	client, number, _ := strings.Cut(owner, ":")
	if len(strings.TrimLeft(number, "0")) < numberDigits+lingerDigits || strings.Contains(number, ":") || len(client) < 15 || client[14] != '7' {
		return owner, false
	}
	return owner[:len(owner)-lingerDigits], true
}
