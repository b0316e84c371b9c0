package luascripts

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var clientKeep = load("client_keep")

// Client is the registry entry of a client.
type Client struct {
	Host, PID, Name, Label, Version, Started string
}

// KeepClient extends the expiry of a client's entry to ttl. If there is no entry, KeepClient writes
// it and returns known false.
func KeepClient(ctx context.Context, rdb rueidis.CoreClient, key string, ttl time.Duration, c *Client) (known bool, err error) {
	msg, err := clientKeep.exec(ctx, rdb, []string{key}, []string{ms(ttl), c.Host, c.PID, c.Name, c.Label, c.Version, c.Started}).ToMessage()
	if err != nil {
		return false, err
	}
	n, err := msg.ToInt64()
	if err != nil {
		return false, &ReplyError{clientKeep.name, msg.String()}
	}
	if n&^1 != 0 {
		return false, &ReplyError{clientKeep.name, strconv.FormatInt(n, 10)}
	}
	return n == 1, nil
}
