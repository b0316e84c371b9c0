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

// Said is what a leader says of itself.
type Said struct {
	Token uint64
	Value string
	Since time.Time
	Left  time.Duration // or NoExpiry
}

// PostLeader says value for a leader, for the time stay; with over, it takes back what the leader said. What has a
// smaller number than what the leader said before is a late copy, and does nothing. by tells leaders apart whose token
// is 0. It returns Done, Free if a later leader has said something or the leader is over, or Foreign.
func PostLeader(ctx context.Context, rdb rueidis.Client, k Keys, token uint64, value string, stay time.Duration, over bool, number uint64, by string) (Verdict, error) {
	args := []string{strconv.FormatUint(token, 10), value, ms(max(stay, time.Millisecond)), bit(over), k.Channel, k.Publish, strconv.FormatUint(number, 10), by}
	return verdict(leaderPost, leaderPost.exec(ctx, rdb, []string{k.Lock}, args), Done, Free, Foreign)
}

// ReadLeader reads what a leader says. It returns Done, Free if nobody says anything, or Foreign.
func ReadLeader(ctx context.Context, rdb rueidis.Client, k Keys) (Said, Verdict, error) {
	msg, err := leaderRead.exec(ctx, rdb, []string{k.Lock}, nil).ToMessage()
	if err != nil {
		return Said{}, 0, err
	}
	if n, err := msg.ToInt64(); err == nil && (n == int64(Free) || n == int64(Foreign)) {
		return Said{}, Verdict(n), nil
	}
	words, err := msg.ToArray()
	bad := &ReplyError{leaderRead.name, "a list of " + strconv.Itoa(len(words))}
	if err != nil || len(words) != 4 {
		return Said{}, 0, bad
	}
	token, err1 := words[0].AsUint64()
	value, err2 := words[1].ToString()
	since, err3 := words[2].AsInt64()
	left, err4 := words[3].AsInt64()
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		return Said{}, Foreign, nil // a hash of somebody else's
	}
	return Said{Token: token, Value: value, Since: time.UnixMilli(since), Left: remaining(left)}, Done, nil
}
