package luascripts

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

var tokenRaise = load("token_raise")

// RaiseToken makes the register of a lock at least token, for the holder that has this
// field of its hash: Done, Gone or Foreign.
func RaiseToken(ctx context.Context, rdb rueidis.Client, k Keys, holder string, token uint64) (Verdict, error) {
	reply := tokenRaise.exec(ctx, rdb, []string{k.Lock, k.Register}, []string{holder, strconv.FormatUint(token, 10)})
	return verdict(tokenRaise, reply, Done, Gone, Foreign)
}
