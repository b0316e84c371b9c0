package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// LimitState is the used quota of one key of a rate limiter (package ratelimit). Redis stores the
// used quota but not the limits, which only the applications know.
type LimitState struct {
	Usage []Usage       // for each limit, in the order in which the application gave them
	Ahead time.Duration // time until the turn of the latest reservation; 0 if no caller waits for a turn
	Reset time.Duration // time until the full quota is available again
}

// Usage is the used quota of one limit.
type Usage struct {
	Full time.Duration // time until the bucket is full again

	// For an aligned limit: the permits that were taken in its window, and the time until the
	// window ends.
	Aligned bool
	Used    int64
	End     time.Duration
}

// The used quota of a key is a string, in the format of luascripts/include_limit.lua.
const (
	limitMark = "gcra "
	limitText = 2048 // maximum number of bytes to read; what follows are refunded reservations
)

// limitShape matches the string, or its beginning: the server's time, the time until the latest turn, the states, and the gaps.
var limitShape = regexp.MustCompile(`^gcra ([0-9]+) (\S+)((?: [^~ ]+)+)(?: ~\S*)*$`)

// limitOf parses the string of a key whose remaining time is left. ok is false if it is not the key of a limiter.
func limitOf(text string, left time.Duration, now time.Time) (s *LimitState, ok bool) {
	if len(text) >= limitText {
		text = text[:max(strings.LastIndexByte(text, ' '), 0)] // the last word may be cut off
	}
	m := limitShape.FindStringSubmatch(text)
	if m == nil {
		return nil, false
	}
	last, err1 := strconv.ParseInt(m[1], 10, 64)
	ahead, err2 := micros(m[2])
	if err1 != nil || err2 != nil {
		return nil, false
	}
	s = &LimitState{Ahead: ahead}
	longest := ahead
	for _, word := range strings.Fields(m[3]) {
		var o Usage
		if end, used, aligned := strings.Cut(word, ":"); aligned {
			used, _, _ = strings.Cut(used, ":") // the rest is about an earlier window, while callers wait for this one
			stop, err1 := strconv.ParseInt(end, 10, 64)
			n, err2 := strconv.ParseInt(used, 10, 64)
			if err1 != nil || err2 != nil || stop-last >= math.MaxInt64/1000 {
				return nil, false
			}
			o = Usage{Aligned: true, Used: n, End: time.Duration(stop-last) * time.Microsecond}
		} else {
			var err error
			if o.Full, err = micros(word); err != nil {
				return nil, false
			}
		}
		longest = max(longest, o.Full, o.End)
		s.Usage = append(s.Usage, o)
	}
	// The key expires a moment after the full quota is available again, so its remaining time shows the age of the string on the
	// server's clock.
	age := longest.Truncate(time.Millisecond) + 2*time.Millisecond - left
	if left == lock.NoExpiry { // the expiry was removed
		age = now.Sub(time.UnixMicro(last))
	}
	age = max(age, 0)
	s.Ahead, s.Reset = max(s.Ahead-age, 0), max(longest-age, 0)
	for i := range s.Usage {
		o := &s.Usage[i]
		if o.Full, o.End = max(o.Full-age, 0), max(o.End-age, 0); o.End == 0 {
			o.Used = 0
		}
	}
	return s, true
}

// micros parses a number of µs.
func micros(word string) (time.Duration, error) {
	us, err := strconv.ParseFloat(word, 64)
	if err == nil && !(us >= 0 && us < math.MaxInt64/1000) {
		err = errors.New("out of range")
	}
	return time.Duration(us * 1000), err
}

// limits returns the keys of limiters among these strings. It reads five bytes of each key, and the rest only if they are limitMark.
func (a *Admin) limits(ctx context.Context, names []string) (found []Lock, err error) {
	for part := range slices.Chunk(names, atOnce) {
		mine, err := a.marked(ctx, part)
		if err != nil {
			return nil, err
		}
		some, err := a.limitsOf(ctx, mine)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// marked returns the keys that begin with limitMark.
func (a *Admin) marked(ctx context.Context, names []string) (mine []string, err error) {
	ctx, cancel := a.within(ctx)
	defer cancel()
	questions := make(rueidis.Commands, len(names))
	for i, name := range names {
		questions[i] = a.rdb.B().Getrange().Key(name).Start(0).End(int64(len(limitMark)) - 1).Build()
	}
	for i, reply := range a.rdb.DoMulti(ctx, questions...) {
		text, err := reply.ToString()
		switch {
		case wrongType(err) || command.RefusedKey(err): // SCAN lists all keys, even those that the user is not allowed to read
		case err != nil:
			return nil, err
		case text == limitMark:
			mine = append(mine, names[i])
		}
	}
	return mine, nil
}

// limitsOf reads keys, and returns the limiters among them.
func (a *Admin) limitsOf(ctx context.Context, names []string) (found []Lock, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	ctx, cancel := a.within(ctx)
	defer cancel()
	questions := make(rueidis.Commands, 0, 2*len(names))
	for _, name := range names {
		questions = append(questions, a.rdb.B().Getrange().Key(name).Start(0).End(limitText-1).Build(), a.rdb.B().Pttl().Key(name).Build())
	}
	replies := a.rdb.DoMulti(ctx, questions...)
	for i, name := range names {
		text, err1 := replies[2*i].ToString()
		left, err2 := replies[2*i+1].AsInt64()
		if wrongType(err1) {
			continue
		}
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		d := lock.NoExpiry
		if left >= 0 {
			d = ms(left)
		}
		if s, ok := limitOf(text, d, time.Now()); ok && left != -2 {
			found = append(found, Lock{State: lock.State{Name: name}, Kind: RateLimit, Limit: s})
		}
	}
	return found, nil
}

// limit reads name as a key of a limiter.
func (a *Admin) limit(ctx context.Context, name string) (l Lock, ok bool, err error) {
	found, err := a.limitsOf(ctx, []string{name})
	if err != nil || len(found) == 0 {
		return Lock{}, false, err
	}
	return found[0], true, nil
}

// RedissonLimitState is the state of a Redisson-compatible rate limiter (ratelimit.RedissonLimiter,
// RRateLimiter).
type RedissonLimitState struct {
	Rate int64
	Per  time.Duration

	// PerClient means that each Redisson client has the whole rate (RateType.PER_CLIENT). The
	// permits that remain for each client are then unknown.
	PerClient bool

	Left  int64         // permits that a caller can take now; there can be more if the limiter has more than 1,000 entries
	Next  time.Duration // time until a permit is available; 0 if one is
	Reset time.Duration // time until no permit counts as taken
}

// String returns the rate, such as "10 per 1h".
func (w *RedissonLimitState) String() string {
	per := w.Per.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(per, zero) {
			per = per[:len(per)-2]
		}
	}
	return fmt.Sprintf("%d per %s", w.Rate, per)
}

// windowShape returns the rate of a hash that has the fields of a Redisson-compatible rate limiter, and no others.
func windowShape(p part) (s *RedissonLimitState, ok bool) {
	if !p.whole {
		return nil, false
	}
	s = &RedissonLimitState{}
	seen := 0
	for _, f := range p.fields {
		n, err := strconv.ParseInt(f.Value, 10, 64)
		if err != nil || n < 0 {
			return nil, false
		}
		switch f.Name {
		case "rate":
			s.Rate = n
		case "interval":
			s.Per = ms(n)
		case "type":
			s.PerClient = n == 1 // the script rejects any type but 0 and 1
		case "keepAliveTime":
			seen--
		default:
			return nil, false
		}
		seen++
	}
	return s, seen == 3 && s.Rate > 0 && s.Per > 0
}

// windows returns the Redisson-compatible rate limiters among these hashes.
func (a *Admin) windows(ctx context.Context, names []string) (found []Lock, err error) {
	names = slices.DeleteFunc(names, func(name string) bool { return keys.Check("", name) != nil })
	for some := range slices.Chunk(names, atOnce) {
		parts, err := a.parts(ctx, some, true)
		if err != nil {
			return nil, err
		}
		more, err := each(parts, func(p part) (Lock, bool, error) { return a.windowOf(ctx, p) })
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// windowOf reads a hash as a Redisson-compatible rate limiter.
func (a *Admin) windowOf(ctx context.Context, p part) (l Lock, ok bool, err error) {
	s, ok := windowShape(p)
	if !ok {
		return Lock{}, false, nil
	}
	l = Lock{State: lock.State{Name: p.name}, Kind: RedissonRateLimit, RedissonLimit: s}
	if s.PerClient {
		return l, true, nil
	}
	ctx, cancel := a.within(ctx)
	defer cancel()
	is, err := luascripts.InspectWindow(ctx, a.rdb, keys.Window(p.name))
	if err != nil || is.Verdict != luascripts.Done {
		return Lock{}, false, err
	}
	*s = RedissonLimitState{Rate: is.Rate, Per: is.Per, Left: is.Left, Next: is.Next, Reset: is.Reset}
	if !is.Used {
		l.Ambiguous = "unused: only the fields of the hash show that it is a rate limiter"
	}
	return l, true, nil
}

// window reads name as a Redisson-compatible rate limiter.
func (a *Admin) window(ctx context.Context, name string) (l Lock, ok bool, err error) {
	parts, err := a.parts(ctx, []string{name}, false)
	if err != nil || len(parts) == 0 {
		return Lock{}, false, err
	}
	return a.windowOf(ctx, parts[0])
}
