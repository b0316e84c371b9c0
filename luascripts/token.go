package luascripts

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

var tokenRaise = load("token_raise")

// RaiseToken raises the register of a lock to token at least, for the holder with this
// field in its hash: Done, Gone or Foreign.
func RaiseToken(ctx context.Context, rdb rueidis.Client, k Keys, holder string, token uint64) (Verdict, error) {
	reply := tokenRaise.exec(ctx, rdb, []string{k.Lock, k.Register}, []string{holder, strconv.FormatUint(token, 10)})
	return verdict(tokenRaise, reply, Done, Gone, Foreign)
}
