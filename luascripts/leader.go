package luascripts

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	leaderPost = load("leader_post")
	leaderRead = load("leader_read")
)

// LeaderValue is the value that a leader has published.
type LeaderValue struct {
	Token uint64
	Value string
	Since time.Time
	Left  time.Duration // or NoExpiry
}

// PostLeader publishes value for a leader, for the time stay. With over, it removes the leader's
// value. A call with a smaller number than an earlier call of the leader is a delayed duplicate,
// and does nothing. The argument by distinguishes leaders whose token is 0. PostLeader returns
// Done, Foreign, or Free if a later leader has published a value or the leader has ended.
func PostLeader(ctx context.Context, rdb rueidis.Client, k Keys, token uint64, value string, stay time.Duration, over bool, number uint64, by string) (Verdict, error) {
	args := []string{strconv.FormatUint(token, 10), value, ms(max(stay, time.Millisecond)), bit(over), k.Channel, k.Publish, strconv.FormatUint(number, 10), by}
	return verdict(leaderPost, leaderPost.exec(ctx, rdb, []string{k.Lock}, args), Done, Free, Foreign)
}

// ReadLeader reads the leader value. It returns Done, Free if there is no value, or Foreign.
func ReadLeader(ctx context.Context, rdb rueidis.Client, k Keys) (LeaderValue, Verdict, error) {
	msg, err := leaderRead.exec(ctx, rdb, []string{k.Lock}, nil).ToMessage()
	if err != nil {
		return LeaderValue{}, 0, err
	}
	if n, err := msg.ToInt64(); err == nil && (n == int64(Free) || n == int64(Foreign)) {
		return LeaderValue{}, Verdict(n), nil
	}
	words, err := msg.ToArray()
	bad := &ReplyError{leaderRead.name, "a list of " + strconv.Itoa(len(words))}
	if err != nil || len(words) != 4 {
		return LeaderValue{}, 0, bad
	}
	token, err1 := words[0].AsUint64()
	value, err2 := words[1].ToString()
	since, err3 := words[2].AsInt64()
	left, err4 := words[3].AsInt64()
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		return LeaderValue{}, Foreign, nil // a hash of the application
	}
	return LeaderValue{Token: token, Value: value, Since: time.UnixMilli(since), Left: remaining(left)}, Done, nil
}
