package luascripts

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var limitTake = load("limit_take")

// Never is the Retry of a request whose permits can never be taken.
const Never time.Duration = -1

// LimitRule is one limit of a rate limiter, with Rate permits in each Per.
type LimitRule struct {
	Rate, Burst int64
	Per         time.Duration // in whole µs
	Aligned     bool          // the limit counts in windows that begin at multiples of Per since 1970, and ignores Burst
}

// LimitRules are the limits of a rate limiter, in the form that the scripts take.
type LimitRules []string

// NewLimitRules returns limits in the form that the scripts take.
func NewLimitRules(limits ...LimitRule) LimitRules {
	words := LimitRules{strconv.Itoa(len(limits))}
	for _, l := range limits {
		if l.Aligned {
			l.Burst = 0
		}
		words = append(words, strconv.FormatInt(l.Rate, 10), us(l.Per), strconv.FormatInt(l.Burst, 10))
	}
	return words
}

// LimitRequest is a request of one or several callers of a process.
type LimitRequest struct {
	Units int64         // the permits that a caller wants; 0 only reads the state
	Times int           // the number of callers; more than 1 only if Least is Units and Wait is 0
	Least int64         // the minimum number of permits that a caller takes
	Wait  time.Duration // the maximum time that a caller waits
}

// RefundRequest returns the request that refunds permits. They would have been used at the time
// at, in µs by the server's clock. The script omits permits that were refilled already.
func RefundRequest(units, at int64) LimitRequest {
	return LimitRequest{Units: -units, Times: 1, Least: at}
}

// ResetRequest returns the request that resets a key to no used quota.
func ResetRequest() LimitRequest { return LimitRequest{} }

// TakesOrReads reports whether q is neither a refund nor a reset.
func (q LimitRequest) TakesOrReads() bool { return q.Units >= 0 && q.Times > 0 }

// LimitReply is the reply to one LimitRequest.
type LimitReply struct {
	Taken     int64         // by all callers in total
	Delay     time.Duration // time until the callers may use them
	Remaining int64         // the remaining permits of all limits
	Retry     time.Duration // not taken: the time until Least permits are available; or Never
	Reset     time.Duration // the time until the used quota is zero

	Limit int           // the index of the limit that rejected a caller, or else of the limit with the fewest permits left
	Left  int64         // remaining permits of this limit
	Next  time.Duration // time until this limit has one more permit; 0 if it is full
}

// LimitCall has the requests of the callers of one process for one key.
type LimitCall struct {
	Key      string
	Rules    LimitRules
	Requests []LimitRequest
}

// LimitCallReply is the reply to one LimitCall.
type LimitCallReply struct {
	At      int64        // the server's time, in µs
	Replies []LimitReply // one for each request
	Verdict Verdict      // Done or Foreign
	Err     error
}

// requestsTogether is the maximum number of requests in one script call. That many take a fraction of a millisecond of
// server time.
const requestsTogether = 64

// SendLimits sends the requests for several keys in one pipeline. Each key is one atomic step. If
// together is true, neighbors in calls that have the same rules share a script call. On a cluster
// together must be false.
//
// A shared call that the server rejects is repeated for each key alone, if resend returns true for the
// error reply. The server may be a cluster that appears as one server, and one denied key must not fail
// the others. After an error reply of a proxy, the server may have executed the call, and the copies
// would take the units again. On a cluster where one slot has no node, the calls are repeated one by
// one, if resend returns true.
func SendLimits(ctx context.Context, rdb rueidis.Client, calls []LimitCall, together bool, resend func(error) bool) []LimitCallReply {
	var batches []limitBatch
	requests := 0 // of the last batch
	for i, c := range calls {
		last := len(batches) - 1
		if together && last >= 0 && requests+len(c.Requests) <= requestsTogether && slices.Equal(c.Rules, calls[i-1].Rules) {
			batches[last] = calls[i-len(batches[last]) : i+1]
			requests += len(c.Requests)
		} else {
			batches = append(batches, calls[i:i+1])
			requests = len(c.Requests)
		}
	}
	answers := make([]LimitCallReply, 0, len(calls))
	replies := execAll(ctx, rdb, len(batches), func(i int, w *words) *script {
		batches[i].words(w)
		return limitTake
	})
	for i, reply := range replies {
		batch := batches[i]
		if len(batches) > 1 && errors.Is(reply.Error(), rueidis.ErrNoSlot) && resend(reply.Error()) {
			// A slot has no node, and the library sent none of the calls.
			answers = append(answers, SendLimits(ctx, rdb, batch, together, resend)...)
		} else if _, refused := rueidis.IsRedisErr(reply.Error()); refused && len(batch) > 1 && resend(reply.Error()) {
			answers = append(answers, SendLimits(ctx, rdb, batch, false, resend)...)
		} else {
			answers = append(answers, batch.answers(reply)...)
		}
	}
	return answers
}

// limitBatch has the requests of one script call, for several keys with the same rules.
type limitBatch []LimitCall

// words puts the keys and the arguments of the script into w.
func (b limitBatch) words(w *words) {
	w.add(b[0].Rules...)
	for _, c := range b {
		w.keys = append(w.keys, c.Key)
		w.add(strconv.Itoa(len(c.Requests)))
		for _, q := range c.Requests {
			w.add(strconv.FormatInt(q.Units, 10), strconv.Itoa(q.Times), strconv.FormatInt(q.Least, 10), us(q.Wait))
		}
	}
}

// answers reads the reply to b.
func (b limitBatch) answers(reply rueidis.RedisResult) []LimitCallReply {
	answers := make([]LimitCallReply, len(b))
	if err := b.read(answers, reply); err != nil {
		for i := range answers {
			answers[i] = LimitCallReply{Err: err}
		}
	}
	return answers
}

// read reads the reply to b into answers. An unexpected reply for one key is an error for that key only, because the
// others have taken their permits.
func (b limitBatch) read(answers []LimitCallReply, reply rueidis.RedisResult) error {
	msg, err := reply.ToMessage()
	if err != nil {
		return err
	}
	n, err := msg.AsIntSlice()
	if err != nil || len(n) == 0 || n[0] <= 0 {
		return &ReplyError{limitTake.name, msg.String()}
	}
	at, n := n[0], n[1:]
	all := make([]LimitReply, 0, len(n)/limitWords)
	for i, c := range b {
		if len(n) > 0 && n[0] == int64(Foreign) {
			answers[i].Verdict, n = Foreign, n[1:]
			continue
		}
		if len(n) < limitWords*len(c.Requests) {
			return &ReplyError{limitTake.name, msg.String()}
		}
		answers[i] = LimitCallReply{At: at, Verdict: Done}
		first := len(all)
		for _, q := range c.Requests {
			if !plausible(n, q, c.Rules) {
				answers[i] = LimitCallReply{Err: &ReplyError{limitTake.name, fmt.Sprint(n[:limitWords])}}
			}
			all = append(all, LimitReply{
				Taken: n[0], Delay: fromUs(n[1]), Remaining: n[2], Retry: fromUs(n[3]), Reset: fromUs(n[4]),
				Limit: int(n[5] - 1), Left: n[6], Next: fromUs(n[7]),
			})
			n = n[limitWords:]
		}
		if answers[i].Err == nil {
			answers[i].Replies = all[first:]
		}
	}
	if len(n) > 0 {
		return &ReplyError{limitTake.name, msg.String()}
	}
	return nil
}

// limitWords is the count of numbers in the reply to one request.
const limitWords = 8

// plausible reports whether the first of these numbers can be the reply to q.
func plausible(n []int64, q LimitRequest, rules LimitRules) bool {
	limits := int64(len(rules)-1) / 3
	most := int64(math.MaxInt64) // the total that all callers want, or the maximum if it overflows
	if q.Units <= 0 || int64(q.Times) <= most/q.Units {
		most = max(0, q.Units) * int64(q.Times)
	}
	return n[0] >= 0 && n[0] <= most && n[1] >= 0 && n[2] >= 0 && n[3] >= int64(Never) && n[4] >= 0 && n[5] >= 1 && n[5] <= limits && n[6] >= 0 && n[7] >= 0
}

// us returns d in µs, in the form that the scripts take.
func us(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

// fromUs returns the duration of a number of µs. It returns Never for the number of Never.
func fromUs(us int64) time.Duration {
	if us == int64(Never) {
		return Never
	}
	return time.Duration(us) * time.Microsecond
}
