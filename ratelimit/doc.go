// Package ratelimit limits how often something is done, in all processes together: calls of
// a user, log-ins from an address, messages to a partner. Redis keeps the count; its
// clock alone matters.
//
//	limiter := ratelimit.New(rdb, "api", ratelimit.Open(), ratelimit.PerSecond(10), ratelimit.PerMinute(200))
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
// # What is promised
//
// In any time W at most Burst + Rate·W/Per units are let pass, of each limit, in all processes
// together, whatever is cancelled and refunded. A key costs one script and one string of
// some 50 bytes that ends when nothing is owed. A call whose outcome is not known costs its units once,
// and they come back as time goes by.
//
// Not promised: Redis replicates asynchronously, so a failover can forget what was taken just
// before, and so admit one burst more. A server whose clock jumps ahead forgives what is owed. With the
// policies [Open] and [Local] more passes while Redis gives no answer. An [Aligned] window admits twice
// its rate around its border.
//
// # Commands
//
//	call                                      commands
//	Take, TakeUpTo, Peek, Reserve, Wait       1, however long Wait waits
//	the same key in many goroutines           1 under way at a time, which has them all
//	after a refusal                           0 until something can be had, or for a second
//	a Wait or Reserve that is cancelled       1 more
//	Take after [Limiter.Pregrant] of b        1 for b units
//
// # Which algorithm
//
// There are five that are usually named, and the module redis-cell. L is how much is let pass in
// each window W.
//
//	wanted                   use                                            at worst, in any W
//	fixed window             Limit{Rate: L, Per: W, Aligned: true}          2·L, around a border
//	sliding window (log)     Window                                         L
//	sliding window counter   not here: by its estimate 199 of 100 pass      2·L
//	token bucket             Limit{Rate: L, Per: W}                         2·L, after a pause
//	leaky bucket (meter)     the same                                       2·L, after a pause
//	leaky bucket (queue)     Limit{Rate: L, Per: W, Burst: 1} and Wait      L + 1
//	CL.THROTTLE k b L W n    Limit{Rate: L, Per: W, Burst: b + 1}, Take n   L + b + 1
//
// Never more than L in any W, by a limit with a burst: let Burst + Rate·W/Per be L. CL.THROTTLE's
// answers are the fields of a [Decision].
//
// The algorithm is GCRA: a limit is one number, the time after which its bucket is full
// again. Several limits are several numbers in one string, so they are kept together or not at all,
// and every key is its own slot of a cluster.
package ratelimit
