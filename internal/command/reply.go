package command

import (
	"fmt"
	"strings"

	"github.com/leasehold-go/leasehold/internal/retry"
)

// Refused reports whether err says that the server does not accept the user, or that the user lacks a
// permission.
func Refused(err error) bool {
	return retry.FaultOf(err).Denied
}

// Refusal adds advice to err, for which Refused must report true. addr and user are "" if unknown.
func Refusal(addr, user string, err error) error {
	server := "Redis"
	if addr != "" {
		server += " at " + addr
	}
	if user != "" {
		server += fmt.Sprintf(", user %q", user)
	}
	advice := `grant the permissions that docs/operate/security.md lists under "Permissions"`
	switch text := err.Error(); {
	case strings.Contains(text, "NOAUTH"):
		advice = "the server wants a password, and none was given, as in redis://user:password@host:port"
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "invalid password"):
		advice = "check the user and the password"
	}
	return fmt.Errorf("%s: %w (%s)", server, err, advice)
}
