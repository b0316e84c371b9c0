package luascripts

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

var tokenRaise = load("token_raise")

// RaiseToken raises the token counter of a lock to at least token, for the holder with this field
// in its hash. It returns Done, Gone or Foreign.
func RaiseToken(ctx context.Context, rdb rueidis.Client, k Keys, holder string, token uint64) (Verdict, error) {
	reply := tokenRaise.exec(ctx, rdb, []string{k.Lock, k.TokenCounter}, []string{holder, strconv.FormatUint(token, 10)})
	return verdict(tokenRaise, reply, Done, Gone, Foreign)
}
