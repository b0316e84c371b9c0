package luascripts

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

var (
	fenceSet  = load("fence_set")
	fenceHSet = load("fence_hset")
	fenceDel  = load("fence_del")
	fenceBody = load("include_fence_body") // a user's script follows it
)

// Stale is the verdict of a guard that has seen a larger token.
const Stale Verdict = -1

// Fence is the guarded key and what its guard compares.
type Fence struct {
	Data         string        // the guarded key
	TokenCounter string        // the key of the largest token; in the slot of Data
	Token        uint64        // not 0
	Keep         time.Duration // how long the counter lives after the write; 0 sets no expiry
}

func (f Fence) keys() []string { return []string{f.Data, f.TokenCounter} }

func (f Fence) args(more ...string) []string {
	return append([]string{strconv.FormatUint(f.Token, 10), ms(f.Keep)}, more...)
}

// Fenced is the reply to a guarded write.
type Fenced struct {
	Verdict Verdict // Done, Stale, or Foreign if the counter has the wrong type
	Highest uint64  // Stale: the largest token seen
}

// SetFenced sets a string.
func SetFenced(ctx context.Context, rdb rueidis.Client, f Fence, value string) (Fenced, error) {
	return fenced(fenceSet, fenceSet.exec(ctx, rdb, f.keys(), f.args(value)))
}

// HSetFenced sets fields of a hash. The arguments are name, value, name, value, and so on.
func HSetFenced(ctx context.Context, rdb rueidis.Client, f Fence, fields ...string) (Fenced, error) {
	return fenced(fenceHSet, fenceHSet.exec(ctx, rdb, f.keys(), f.args(fields...)))
}

// DelFenced deletes a key of any type.
func DelFenced(ctx context.Context, rdb rueidis.Client, f Fence) (Fenced, error) {
	return fenced(fenceDel, fenceDel.exec(ctx, rdb, f.keys(), f.args()))
}

// fenced reads the reply of a script of this module.
func fenced(s *script, reply rueidis.RedisResult) (Fenced, error) {
	got, err := refused(s, reply.Error())
	if err != nil || got.Verdict != Done {
		return got, err
	}
	if _, err := verdict(s, reply, Done); err != nil {
		return Fenced{}, err
	}
	return got, nil
}

// refused converts the error replies of a guard to results, and returns other errors.
func refused(s *script, err error) (Fenced, error) {
	if err == nil || rueidis.IsRedisNil(err) {
		return Fenced{Verdict: Done}, nil
	}
	e, ok := rueidis.IsRedisErr(err)
	if !ok {
		return Fenced{}, err
	}
	code, rest, _ := strings.Cut(e.Error(), " ")
	switch code {
	case "FENCED":
		highest, err := strconv.ParseUint(rest, 10, 64)
		if err != nil {
			return Fenced{}, &ReplyError{s.name, strconv.Quote(e.Error())}
		}
		return Fenced{Verdict: Stale, Highest: highest}, nil
	case "FENCEKEY":
		return Fenced{Verdict: Foreign}, nil
	}
	return Fenced{}, err
}

// OwnFenced is a user's script behind the guard.
type OwnFenced struct{ s *script }

// NewOwnFenced returns a script with this text behind the guard. The text is code. The author of
// the program must write it, and it must never be built from input.
func NewOwnFenced(body string) *OwnFenced {
	return &OwnFenced{newScript("of the user's own", fenceBody.text+body)}
}

// Exec runs the script if the token may write. Its KEYS are f.Data and more, and its ARGV are args.
// The reply is the script's, and may be nil.
func (o *OwnFenced) Exec(ctx context.Context, rdb rueidis.Client, f Fence, more, args []string) (rueidis.RedisMessage, Fenced, error) {
	keys := append(append([]string{f.Data}, more...), f.TokenCounter)
	reply := o.s.exec(ctx, rdb, keys, append(slices.Clone(args), f.args()...))
	got, err := refused(o.s, reply.Error())
	if err != nil || got.Verdict != Done {
		return rueidis.RedisMessage{}, got, err
	}
	msg, _ := reply.ToMessage() // the only possible error is that it is nil
	return msg, got, nil
}
