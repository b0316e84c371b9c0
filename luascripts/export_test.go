package luascripts

import (
	"context"

	"github.com/redis/rueidis"
)

// Text returns the script of that name as it is sent to a server.
func Text(name string) string { return load(name).text }

// Exec runs the script of that name.
func Exec(ctx context.Context, rdb rueidis.Client, name string, keys, args []string) rueidis.RedisResult {
	return load(name).exec(ctx, rdb, keys, args)
}
