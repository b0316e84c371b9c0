package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/redis/rueidis"
)

// Reply is what an error reply of the server means. ReplyOf is the one place that decides it,
// for locks, for rate limiters and filters, and for the entry of a client.
type Reply uint8

const (
	None     Reply = iota // the server did not reply with an error
	Passing               // the server does not carry out commands at this moment: see retry.Passes
	Full                  // the server cannot write at this moment: OOM MISCONF NOREPLICAS
	Stranger              // the server does not accept the user: NOAUTH WRONGPASS
	Denied                // the user lacks a right: NOPERM
	Misfit                // the key holds something else: WRONGTYPE
	Other                 // anything else; asked again, the server says the same
)

// codes has what the codes of error replies mean, except for those of retry.Passes.
var codes = map[string]Reply{
	"OOM": Full, "MISCONF": Full, "NOREPLICAS": Full,
	"NOAUTH": Stranger, "WRONGPASS": Stranger,
	"NOPERM":    Denied,
	"WRONGTYPE": Misfit,
}

// deniedInScript has what servers reply if a script calls a command for which its user lacks the
// right: Redis 6 and 7.0, then Redis 7.2 and later, and Valkey. These replies have no code.
var deniedInScript = []string{"The user executing the script", "ACL failure in script"}

// ReplyOf returns what the error reply in err means. The code need not be the first word:
// some servers put their own before an error inside a script, and those before Redis 7 keep
// the dash by which the protocol marks an error.
func ReplyOf(err error) Reply {
	var reply *rueidis.RedisError
	if !errors.As(err, &reply) {
		return None
	}
	text := reply.Error()
	if retry.Passes(text) {
		return Passing
	}
	for word := range strings.FieldsSeq(text) {
		if r, ok := codes[strings.TrimPrefix(word, "-")]; ok {
			return r
		}
	}
	for _, words := range deniedInScript {
		if strings.Contains(text, words) {
			return Denied
		}
	}
	return Other
}

// Refused reports whether err says that the server does not accept the user, or that the
// user lacks a right.
func Refused(err error) bool {
	r := ReplyOf(err)
	return r == Stranger || r == Denied
}

// Refusal returns err, for which Refused reports true, with advice. addr and user are "" if
// they are not known.
func Refusal(addr, user string, err error) error {
	server := "Redis"
	if addr != "" {
		server += " at " + addr
	}
	if user != "" {
		server += fmt.Sprintf(", user %q", user)
	}
	advice := "check the user and the password"
	switch {
	case ReplyOf(err) == Denied:
		advice = `grant the rights that docs/SECURITY.md lists under "Rights"`
	case strings.Contains(err.Error(), "NOAUTH"):
		advice = "the server wants a password, and none was given, as in redis://user:password@host:port"
	}
	return fmt.Errorf("%s: %w (%s)", server, err, advice)
}
