package owner

import (
	"encoding/binary"

	"github.com/google/uuid"
)

// A permit of a semaphore has an id of sixteen bytes in Redis, as Redisson's have. That is too short for the uuid of
// a client and the number of an owner. So the second half of a client's uuid is random, and the first half follows from
// it: then half a uuid names the client.

// NewClient returns the uuid of a new client. It has the form of version 7, which tells scripts that it is one of
// ours and not Redisson's.
func NewClient() string {
	random := uuid.New()
	return Client([8]byte(random[8:]))
}

// Client returns the uuid of the client that has this second half.
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
