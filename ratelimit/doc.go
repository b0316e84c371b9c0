// Package ratelimit implements rate limiters: at most N calls per interval, across all processes.
// Use it to limit requests per user, log-ins per address, or messages to a partner. Redis stores
// the used quota, and only its clock matters.
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
// [Limiter.Wait] waits until the call is allowed. [Handler] limits the requests of an HTTP server.
//
// # Guarantees
//
// In any time W, each limit admits at most Burst + Rate·W/Per permits across all processes,
// whatever callers cancel and refund. After a [Limiter.Reset] the count restarts. A call with an
// unknown outcome uses its permits at most once, and they are refilled over time. The permits of a
// call that is canceled are refunded before the next call of the same limiter takes any. Permits
// count from the time at which the caller may use them, even if it uses them later. If the clock
// of the server moves backward, no used quota is forgotten, and no caller waits longer.
//
// The guarantee has five exceptions. Redis replicates asynchronously, so a failover can lose the
// latest calls and admit one more burst. A server whose clock jumps forward forgets used quota.
// With the policies [FailOpen] and [FailLocal] more permits are admitted while Redis is
// unavailable. An aligned limit ([Limit].Aligned) admits up to twice its rate around the start of a
// window. If the rueidis client has a ConnLifetime, and a reply takes longer than a second,
// rueidis can send a command twice, and a refund then counts twice.
//
// # Commands
//
//	call                                      commands
//	Take, TakeUpTo, Peek, Reserve, Wait       1, however long Wait waits
//	the same key in many goroutines           1 in flight at a time, for all of them
//	many keys in many goroutines              fewer than 1 each; on a cluster 1
//	after a rejection                         0 until permits are available, or for one second
//	a canceled Wait or Reserve                1 more, sent with the next call for the key if there is one
//	Take after [Limiter.Prefetch] of b        1 for b permits
//
// A key is one string of about 50 bytes that expires when the quota is full again.
//
// # Choosing an algorithm
//
// The table lists the usual algorithms and the module redis-cell. L is the number of permits per
// window W.
//
//	algorithm                use                                            at worst, in any W
//	fixed window             Limit{Rate: L, Per: W, Aligned: true}          2·L, around the start of a window
//	sliding window (log)     RedissonLimiter                                         L
//	sliding window counter   not supported: its estimate admits 199 of 100  2·L
//	token bucket             Limit{Rate: L, Per: W}                         2·L, after a pause
//	leaky bucket (meter)     the same                                       2·L, after a pause
//	leaky bucket (queue)     Limit{Rate: L, Per: W, Burst: 1} and Wait      L + 1
//	CL.THROTTLE k b L W n    Limit{Rate: L, Per: W, Burst: b + 1}, Take n   L + b + 1
//
// To admit at most L in any W with a burst, choose Burst + Rate·W/Per = L.
//
// The algorithm is GCRA. A limit is one number, the time at which its bucket is full again. Several
// limits are several numbers in one string, so a call takes permits of all limits or of none. The
// keys of a limiter spread over the slots of a cluster.
package ratelimit
