package leaseholdotel_test

import (
	"log"

	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/redis/rueidis"
)

// startRedis returns a client of a server in memory, for the example.
func startRedis() (rdb rueidis.Client, stop func()) {
	m, err := memredis.Start()
	if err != nil {
		log.Fatal(err)
	}
	rdb, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{m.Addr()}, DisableCache: true, ForceSingleClient: true, AlwaysRESP2: true})
	if err != nil {
		log.Fatal(err)
	}
	return rdb, func() {
		rdb.Close()
		m.Close()
	}
}
