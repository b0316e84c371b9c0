package luascripts

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var clientKeep = load("client_keep")

// Client is what a client tells of itself.
type Client struct {
	Host, PID, Name, Label, Version, Started string
}

// KeepClient lets the entry of a client live for another ttl, and writes it if it is not
// there: then known is false.
func KeepClient(ctx context.Context, conn rueidis.DedicatedClient, key string, ttl time.Duration, c *Client) (known bool, err error) {
	msg, err := clientKeep.execOn(ctx, conn, []string{key}, []string{ms(ttl), c.Host, c.PID, c.Name, c.Label, c.Version, c.Started}).ToMessage()
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
