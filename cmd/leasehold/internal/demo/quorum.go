package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
)

const siteCount = 5

var (
	quorumLease = 2500 * time.Millisecond
	voteTimeout = quorumLease / 6 // the default of 50 ms is short for a busy machine
	ballotLimit = 8 * time.Second // maximum wait for an expected event
)

// quorumReport is the result of the scene. A holds the lock first, and then B.
type quorumReport struct {
	first  int           // number of servers on which A held it
	votes  int           // of A, after two servers had failed and their leases had expired
	until  time.Duration // how long after their failure the hold was then guaranteed
	lost   error         // error of A's hold then
	tries  [2]int        // attempts of B while A held it, and of A while B held it and after
	grants [2]int        // successful attempts
	unlock error         // of A

	next  error         // why B did not acquire it after that
	then  int           // number of servers on which B held it
	told  time.Duration // from the failure of a third server until B detected the loss
	cause error         // of the end of B's hold
	after error         // why A did not acquire it then
}

// quorum has one lock on five servers, which fail one by one. While three of them are
// available, a holder keeps the lock, and another client can acquire it once it is released.
func quorum(ctx context.Context, s *stage) error {
	s.out.line("One lock on five small servers in memory, even with --url. Three of them fail.")
	s.out.line("These servers do not report their uptime. A failed server never restarts, so WithDurableServers is safe here.")
	report, err := playQuorum(ctx, s, "leader", "leader")
	if err != nil {
		return err
	}
	s.check(checkQuorum(report)...)
	return nil
}

// playQuorum plays the scene with the locks that A and B acquire. Both should be the same lock.
func playQuorum(ctx context.Context, s *stage, lockOfA, lockOfB string) (r quorumReport, err error) {
	sites, err := openSites()
	defer func() { sites.close(ctx) }()
	if err != nil {
		return r, err
	}
	a, err := sites.quorum(s, lockOfA)
	if err != nil {
		return r, err
	}
	b, err := sites.quorum(s, lockOfB)
	if err != nil {
		return r, err
	}
	if err := r.twoDie(ctx, s, sites, a, b); err != nil {
		return r, err
	}
	return r, r.thirdDies(ctx, s, sites, a, b)
}

// twoDie lets A acquire the lock, two servers fail, and A release the lock.
func (r *quorumReport) twoDie(ctx context.Context, s *stage, sites sites, a, b lock.Locker) error {
	hold, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	if r.first, err = awaitVotes(ctx, s.out, hold, siteCount); err != nil {
		return err
	}
	died := time.Now()
	sites[0].die()
	sites[1].die()
	s.out.line("A holds it on %d servers, and two of them fail.", r.first)
	r.tries[0], r.grants[0], err = during(ctx, b, func() error {
		r.votes, err = awaitVotes(ctx, s.out, hold, siteCount-2)
		r.until, r.lost = hold.Until().Sub(died), hold.Err()
		return err
	})
	if err != nil {
		return err
	}
	r.unlock = hold.Unlock(ctx)
	return nil
}

// thirdDies lets B acquire the lock, and a third server fail.
func (r *quorumReport) thirdDies(ctx context.Context, s *stage, sites sites, a, b lock.Locker) error {
	hold, err := b.Lock(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.next = err; err != nil {
		return nil
	}
	r.then = len(multilock.Holds(hold))
	died := time.Now()
	sites[2].die()
	s.out.line("B holds it on %d servers, and a third one fails.", r.then)
	r.tries[1], r.grants[1], err = during(ctx, a, func() error {
		s.out.progress("B has not detected it yet")
		limit := time.NewTimer(ballotLimit)
		defer limit.Stop()
		select {
		case <-hold.Context().Done():
		case <-limit.C:
		}
		r.told, r.cause = time.Since(died), hold.Err()
		return context.Cause(ctx)
	})
	if err != nil {
		return err
	}
	stolen, err := a.TryLock(ctx)
	r.tries[1]++
	if r.after = err; err == nil {
		r.grants[1]++
		return stolen.Unlock(ctx)
	}
	return nil
}

// during calls f while a rival keeps trying to acquire l.
func during(ctx context.Context, l lock.Locker, f func() error) (tries, granted int, err error) {
	rivalCtx, stop := context.WithCancel(ctx)
	defer stop()
	var rivalErr error
	var running sync.WaitGroup
	running.Go(func() { tries, granted, rivalErr = keepTrying(rivalCtx, l, func(int) {}) })
	err = f()
	stop()
	running.Wait()
	return tries, granted, errors.Join(err, rivalErr)
}

// awaitVotes waits until hold has n votes or has ended. It returns the number of votes.
func awaitVotes(ctx context.Context, out *screen, hold lock.Hold, n int) (votes int, err error) {
	for start := time.Now(); ; {
		votes = len(multilock.Holds(hold))
		if votes == n || hold.Err() != nil || time.Since(start) > ballotLimit {
			return votes, context.Cause(ctx)
		}
		out.progress("%d of %d votes, guaranteed for %.1f s", votes, siteCount, time.Until(hold.Until()).Seconds())
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return votes, err
		}
	}
}

// sites are servers that are independent of each other.
type sites []*site

type site struct {
	address string
	die     func()
	leave   []func(context.Context) error // of the clients on it
}

// openSites starts the servers. If it fails, it returns those that it has started.
func openSites() (all sites, err error) {
	for range siteCount {
		server, err := memredis.Start()
		if err != nil {
			return all, err
		}
		all = append(all, &site{address: "redis://" + server.Addr(), die: server.Close})
	}
	return all, nil
}

// quorum opens a client on each server, and returns the quorum lock on all servers.
func (all sites) quorum(s *stage, name string) (*multilock.Quorum, error) {
	var locks []lock.Locker
	for _, one := range all {
		c, leave, err := s.openMortal(one.address, client.WithWatchdogTimeout(quorumLease))
		if err != nil {
			return nil, err
		}
		one.leave = append(one.leave, leave)
		locks = append(locks, c.NewLock(name))
	}
	return multilock.NewQuorum(locks,
		multilock.WithDurableServers(),
		multilock.WithMaxLease(quorumLease),
		multilock.WithServerTimeout(voteTimeout),
		multilock.WithWait(ballotLimit),
	), nil
}

// close closes the clients and the servers. Locks that the clients could not release
// disappear with the servers, so close does not wait for them.
func (all sites) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 100*time.Millisecond)
	defer cancel()
	var leaving sync.WaitGroup
	for _, one := range all {
		for _, leave := range one.leave {
			leaving.Go(func() { _ = leave(ctx) })
		}
	}
	leaving.Wait()
	for _, one := range all {
		one.die()
	}
}

func checkQuorum(r quorumReport) []claim {
	claims := []claim{
		claimf(r.first == siteCount, "A acquired the lock on %d of %d servers", r.first, siteCount),
		claimf(r.lost == nil && r.votes == siteCount-2 && r.until > quorumLease,
			"two failed, and A held it with %d votes for at least %d ms more; the lease is %d ms", r.votes, r.until.Milliseconds(), quorumLease.Milliseconds()),
		claimf(r.tries[0] > 0 && r.grants[0] == 0, "B tried %d times in the meantime, and acquired it %d times", r.tries[0], r.grants[0]),
		claimf(r.unlock == nil, "A's Unlock did not need the failed servers%s", but(r.unlock)),
	}
	if r.next != nil {
		return append(claims, claimf(false, "B did not acquire it after that: %v", r.next))
	}
	return append(claims,
		claimf(r.then == siteCount-2, "B then acquired it on the %d remaining servers", r.then),
		claimf(errors.Is(r.cause, lock.ErrLost), "a third failed, and B lost its hold: %s", said(r.cause)),
		claimf(r.told < 2*quorumLease, "that was %d ms after the failure, when the lease on that server expired; the lease is %d ms", r.told.Milliseconds(), quorumLease.Milliseconds()),
		claimf(r.tries[1] > 1 && r.grants[1] == 0 && errors.Is(r.after, lock.ErrUnavailable),
			"two are no majority: A tried %d times, and acquired it %d times: %s", r.tries[1], r.grants[1], said(r.after)),
	)
}

// but returns the text to add to a claim that err contradicts.
func but(err error) string {
	if err == nil {
		return ""
	}
	return ", but: " + said(err)
}

// said returns the text of err, without the part about each server.
func said(err error) string {
	text, _, _ := strings.Cut(fmt.Sprint(err), ";")
	return text
}
