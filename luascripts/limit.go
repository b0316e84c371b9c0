package luascripts

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	limitTake   = load("limit_take")
	limitRefund = load("limit_refund")
)

// Never stands for the time until units are there that cannot be taken at all.
const Never time.Duration = -1

// LimitRule is one limit of a rate limiter: Rate units in each Per.
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

// LimitQuestion is a question of one or several callers of a process.
type LimitQuestion struct {
	Units int64         // the units that a caller wants; 0 only asks
	Times int           // the number of callers; more than 1 only if Least is Units and Wait is 0
	Least int64         // the least units that a caller takes
	Wait  time.Duration // the longest that a caller would wait
}

// LimitReply is the answer to one LimitQuestion.
type LimitReply struct {
	Taken     int64         // by all callers together
	Delay     time.Duration // the time until the callers may use them
	Remaining int64         // the units that are left
	Retry     time.Duration // not taken: the time until Least units are there; or Never
	Reset     time.Duration // the time until nothing is owed
	Scarcest  int           // the index of the limit that has the least left
}

// LimitCall has the questions of the callers of one process about one key.
type LimitCall struct {
	Key       string
	Rules     LimitRules
	Questions []LimitQuestion
}

func (c LimitCall) args() []string {
	args := make([]string, len(c.Rules), len(c.Rules)+4*len(c.Questions))
	copy(args, c.Rules)
	for _, q := range c.Questions {
		args = append(args, strconv.FormatInt(q.Units, 10), strconv.Itoa(q.Times), strconv.FormatInt(q.Least, 10), us(q.Wait))
	}
	return args
}

// LimitAnswer is the answer to one LimitCall.
type LimitAnswer struct {
	At      int64        // the server's time, in µs
	Replies []LimitReply // to each question
	Verdict Verdict      // Done or Foreign
	Err     error
}

// AskLimits asks about several keys in one pipeline; each key is one atomic step. It repeats the calls that the
// server answers with NOSCRIPT, with the text of the script.
func AskLimits(ctx context.Context, rdb rueidis.Client, calls []LimitCall) []LimitAnswer {
	commands := make(rueidis.Commands, len(calls))
	for i, c := range calls {
		commands[i] = rdb.B().Evalsha().Sha1(limitTake.sha).Numkeys(1).Key(c.Key).Arg(c.args()...).Build()
	}
	replies := doAll(ctx, rdb, commands)
	var unknown []int
	commands = nil
	for i, reply := range replies {
		if e, ok := rueidis.IsRedisErr(reply.Error()); ok && e.IsNoScript() {
			unknown = append(unknown, i)
			commands = append(commands, rdb.B().Eval().Script(limitTake.text).Numkeys(1).Key(calls[i].Key).Arg(calls[i].args()...).Build())
		}
	}
	if commands != nil {
		for j, reply := range doAll(ctx, rdb, commands) {
			replies[unknown[j]] = reply
		}
	}
	answers := make([]LimitAnswer, len(calls))
	for i, reply := range replies {
		answers[i] = limitAnswer(calls[i], reply)
	}
	return answers
}

// doAll sends commands in one pipeline.
func doAll(ctx context.Context, rdb rueidis.Client, commands rueidis.Commands) []rueidis.RedisResult {
	if len(commands) == 1 {
		return []rueidis.RedisResult{rdb.Do(ctx, commands[0])}
	}
	return rdb.DoMulti(ctx, commands...)
}

// limitAnswer reads the reply to c.
func limitAnswer(c LimitCall, reply rueidis.RedisResult) LimitAnswer {
	msg, err := reply.ToMessage()
	if err != nil {
		return LimitAnswer{Err: err}
	}
	const words = 6
	var n []int64
	if msg.IsArray() {
		n, err = msg.AsIntSlice()
	} else if v, other := msg.ToInt64(); other == nil && v == int64(Foreign) {
		return LimitAnswer{Verdict: Foreign}
	}
	if err != nil || len(n) != 1+words*len(c.Questions) || n[0] <= 0 {
		return LimitAnswer{Err: &ReplyError{limitTake.name, msg.String()}}
	}
	limits := int64(len(c.Rules)-1) / 3
	replies := make([]LimitReply, len(c.Questions))
	for i, q := range c.Questions {
		r := n[1+words*i : 1+words*(i+1)]
		if r[0] < 0 || r[0] > q.Units*int64(q.Times) || r[1] < 0 || r[2] < 0 || r[3] < int64(Never) || r[4] < 0 || r[5] < 1 || r[5] > limits {
			return LimitAnswer{Err: &ReplyError{limitTake.name, msg.String()}}
		}
		replies[i] = LimitReply{Taken: r[0], Delay: fromUs(r[1]), Remaining: r[2], Retry: fromUs(r[3]), Reset: fromUs(r[4]), Scarcest: int(r[5] - 1)}
	}
	return LimitAnswer{At: n[0], Replies: replies, Verdict: Done}
}

// RefundUnits gives back units that would have been used at the time at, in µs by the server's clock. It leaves
// out units that time has given back already. It returns Done, Free if no unit was left to give back, or Foreign.
func RefundUnits(ctx context.Context, rdb rueidis.Client, key string, rules LimitRules, units, at int64) (Verdict, error) {
	args := append(append([]string(nil), rules...), strconv.FormatInt(units, 10), strconv.FormatInt(at, 10))
	return verdict(limitRefund, limitRefund.exec(ctx, rdb, []string{key}, args), Done, Free, Foreign)
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
