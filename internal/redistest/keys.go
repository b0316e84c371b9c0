package redistest

import (
	"slices"
	"strings"
	"testing"
)

// LockKeys returns the keys of the server, without the registry entries of clients.
func (s *Server) LockKeys(tb testing.TB) []string {
	tb.Helper()
	reply := s.Do(tb, "KEYS", "*")
	keys, err := reply.AsStrSlice()
	if err != nil {
		tb.Fatal(err)
	}
	return OfLocks(keys)
}

// OfLocks returns keys without the registry entries of clients.
func OfLocks(keys []string) []string {
	return slices.DeleteFunc(keys, func(key string) bool { return strings.HasPrefix(key, "leasehold_client:") })
}
