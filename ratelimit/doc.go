// Package ratelimit limits how often all processes together do something: serve calls of a
// user, accept log-ins from an address, send messages to a partner. Redis keeps the count, and only
// the clock of Redis matters.
//
//	limiter := ratelimit.New(rdb, "api", ratelimit.FailOpen(), ratelimit.PerSecond(10), ratelimit.PerMinute(200))
//
//	d, err := limiter.Take(ctx, user, 1)
//	switch {
//	case err != nil:
//		return err
//	case !d.OK:
//		return tooManyRequests(d.RetryAfter)
//	}
//
// [Limiter.Wait] waits for its turn instead. [Handler] does all of it for an HTTP server.
//
// # Guarantees
//
// In any time W, each limit lets at most Burst + Rate·W/Per units pass in all processes
// together, whatever callers cancel and refund; after a [Limiter.Reset] the count starts over. A key costs one script, and one string of
// some 50 bytes that expires when nothing is owed. A call with an unknown outcome costs its units at most once,
// and they come back as time goes by. The units of a call that is canceled are back before the next call of the same limiter takes any.
//
// There are four exceptions. Redis replicates asynchronously, so a failover can forget the latest
// calls, and so admit one burst more. A server whose clock jumps ahead forgives what is owed. With the
// policies [FailOpen] and [FailLocal] more units pass while Redis gives no answer. An aligned window
// ([Limit].Aligned) admits twice its rate around its border.
//
// # Commands
//
//	call                                      commands
//	Take, TakeUpTo, Peek, Reserve, Wait       1, however long Wait waits
//	the same key in many goroutines           1 under way at a time, for all of them
//	many keys in many goroutines              fewer than 1 each, on a cluster 1
//	after a refusal                           0 until units are there, or for a second
//	a Wait or Reserve that is canceled        1 more, with the next call for the key if there is one
//	Take after [Limiter.Prefetch] of b        1 for b units
//
// # Which algorithm
//
// The table lists the five usual algorithms and the module redis-cell. L is the number of units that may
// pass in each window W.
//
//	wanted                   use                                            at worst, in any W
//	fixed window             Limit{Rate: L, Per: W, Aligned: true}          2·L, around a border
//	sliding window (log)     RedissonLimiter                                         L
//	sliding window counter   not here: by its estimate 199 of 100 pass      2·L
//	token bucket             Limit{Rate: L, Per: W}                         2·L, after a pause
//	leaky bucket (meter)     the same                                       2·L, after a pause
//	leaky bucket (queue)     Limit{Rate: L, Per: W, Burst: 1} and Wait      L + 1
//	CL.THROTTLE k b L W n    Limit{Rate: L, Per: W, Burst: b + 1}, Take n   L + b + 1
//
// To let at most L pass in any W by a limit with a burst, choose Burst + Rate·W/Per = L. A
// [Decision] has the fields of CL.THROTTLE's answer.
//
// The algorithm is GCRA: a limit is one number, the time after which its bucket is full
// again. Several limits are several numbers in one string. So a call takes units of all limits or of none,
// and the keys of a limiter spread over the slots of a cluster.
package ratelimit
