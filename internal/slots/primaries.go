package slots

import (
	"context"
	"net"
	"slices"
	"strconv"

	"github.com/redis/rueidis"
)

// Primary is a server of a cluster, with its slots: the first and the last of each range.
type Primary struct {
	Addr  string
	Slots [][2]int64
}

// Primaries returns the servers that have slots, according to the server at addr. It includes those that do not respond.
func Primaries(ctx context.Context, at rueidis.Client, addr string) (all []Primary, err error) {
	ranges, err := at.Do(ctx, at.B().ClusterSlots().Build()).ToArray()
	if err != nil {
		return nil, err
	}
	for _, r := range ranges {
		words, _ := r.ToArray() // the first slot, the last, the primary, the replicas
		if len(words) < 3 {
			return nil, errReply
		}
		primary, _ := words[2].ToArray() // host, port, id
		if len(primary) < 2 {
			return nil, errReply
		}
		from, _ := words[0].AsInt64()
		to, _ := words[1].AsInt64()
		port, _ := primary[1].AsInt64()
		host, _ := primary[0].ToString()
		switch host {
		case "?": // the server does not know it
			continue
		case "": // the same host as that of the queried server
			host, _, _ = net.SplitHostPort(addr)
		}
		addr := net.JoinHostPort(host, strconv.FormatInt(port, 10))
		i := slices.IndexFunc(all, func(p Primary) bool { return p.Addr == addr })
		if i < 0 {
			i, all = len(all), append(all, Primary{Addr: addr})
		}
		all[i].Slots = append(all[i].Slots, [2]int64{from, to})
	}
	return all, nil
}
