package kindtest

import (
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// Lingering returns opts with lock.WithLinger, unless they do not go together.
func Lingering(opts []lock.Option) []lock.Option {
	c, _ := lockimpl.NewConfig("a lock", lockimpl.All, opts...)
	if c.Lease > 0 || c.Replicas > 0 {
		return opts
	}
	return append(opts[:len(opts):len(opts)], lock.WithLinger(100*time.Millisecond))
}
