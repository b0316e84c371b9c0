package lock

import (
	"fmt"
	"strings"
	"time"
)

// Client describes the process behind an owner, as the process registered itself in Redis. Only the
// ID is known for a client of Redisson or a client without a registry entry. The same applies to a
// client that died more than a minute ago.
//
// Do not use these fields for authorization. Any user of Redis that may write to the entry can
// change them.
type Client struct {
	ID      string    // UUID in the owner strings of all its locks
	Host    string    // host or container name
	PID     int       // process ID on that host
	Name    string    // application name
	Label   string    // free text of the application
	Version string    // version of leasehold
	Started time.Time // when the client was created, by its own clock
}

// Known reports whether more than the ID is known.
func (c Client) Known() bool { return c.Host != "" }

// String returns the name, host and process, such as "billing on host-7, pid 4711". It returns the
// ID if nothing else is known.
func (c Client) String() string {
	if !c.Known() {
		return c.ID
	}
	return fmt.Sprintf("%s on %s, pid %d", c.Name, c.Host, c.PID)
}

// ClientID returns the client ID in an owner string, or "" if the string has none.
func ClientID(owner string) string {
	id, _, ok := strings.Cut(owner, ":")
	if !ok {
		return ""
	}
	return id
}
