package owner

import (
	"encoding/binary"

	"github.com/google/uuid"
)

// A permit of a semaphore has an ID of sixteen bytes in Redis, as in Redisson. That is too short for the UUID of a
// client and the number of an owner. The second half of a client's UUID is therefore random, and the first half is
// derived from it, so that half a UUID identifies the client.

// NewClient returns the UUID of a new client. It has the form of version 7, by which scripts distinguish our
// clients from Redisson's.
func NewClient() string {
	random := uuid.New()
	return Client([8]byte(random[8:]))
}

// Client returns the UUID of the client with this second half.
func Client(half [8]byte) string {
	// The mixing of SplitMix64: each bit of the first half depends on all bits of the second.
	x := binary.BigEndian.Uint64(half[:]) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x = (x^x>>31)&^0xf000 | 0x7000
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], x)
	copy(id[8:], half[:])
	return id.String()
}
